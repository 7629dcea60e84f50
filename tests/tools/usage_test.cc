// What every program does with words it does not know, and with output that is lost.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/version.h"
#include "tests/run_program.h"
#include "tests/scratch_folder.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(Usage, WrongWordsEndWithTwo) {
  for (const char* words :
       {"weft-agent --bogus",
        "weft-agent --listen nowhere",
        "weft-agent --period inf",
        "weft-bw --bogus",
        "weft-bw link --bogus",
        "weft-bw -f -2",
        "weft-bw -f nan",
        "weft-bw -o band -d float",
        "weft-bw --repeat-time -5s",
        "weft-bw --repeat-time inf",
        "weft-bw --ranks 2 --calibrate --compare",
        "weft-bw link --ranks 2 -S -2",
        "weft-bw link --ranks 2 --max-usec 1",
        "weft-ckpt",
        "weft-ckpt --bogus",
        "weft-ckpt verify",
        "weft-ckpt verify /nonexistent",
        "weft-ckpt convert /tmp x",
        "weft-ckpt convert /tmp x --to nosuch",
        "weft-ckpt convert /tmp '' --to dcp",
        "weft-ckpt copy /tmp ''",
        "weft-ckpt convert /tmp x --to huggingface --from huggingface",
        "weft-ckpt convert /tmp x --to huggingface --set train.steps=1",
        "weft-ckpt convert /tmp x --from huggingface --set train.stepz=1",
        "weft-data --bogus",
        "weft-data prepare --input /etc/hosts --output-prefix x --validation-fraction 2",
        "weft-data prepare --input /etc/hosts --output-prefix x --validation-fraction nan",
        "weft-data prepare --input /etc/hosts --output-prefix x --split foo",
        "weft-diagnose --simulate 16 --slow nan",
        "weft-diagnose --simulate -16",
        "weft-diagnose --watch -1s",
        "weft-diagnose --watch inf",
        "weft-doctor --bogus",
        "weft-doctor --root /nonexistent",
        "weft-driver --lease inf",
        "weft-driver --store 127.0.0.1:1 --listen 127.0.0.1:0",
        "weft-driver --store 127.0.0.1:1 --state-dir state",
        "weft-executor --driver 127.0.0.1:1 --period 0s true",
        "weft-executor --self-test --test-limit 0s",
        "weft-fault inject",
        "weft-fault inject --rank 0 --for inf",
        "weft-fault inject --rank 0 --severity nan",
        "weft-fault inject --rank -1",
        "weft-fault run --ranks 1 --steps 0",
        "weft-fault run --ranks 1 --steps 1 --severity nan",
        "weft-generate",
        "weft-generate . --bogus",
        "weft-generate . --prompt x --temperature nan",
        "weft-generate . --prompt x --temperature -1",
        "weft-generate . --prompt x --tokens 0",
        "weft-generate . --prompt x --top-p 0",
        "weft-generate . --prompt x --unprompted 1",
        "weft-generate . --prompt ''",
        "weft-init",
        "weft-init --bogus",
        "weft-init phases --bogus",
        "weft-nccl-harness --bogus",
        "weft-nccl-harness weft --measure -b 0",
        "weft-nccl-harness weft --measure -b 1M -e 8",
        "weft-nccl-harness weft --measure -e 2G",
        "weft-nccl-harness weft --memory 1K",
        "weft-nccl-harness weft --requests 100000000",
        "weft-nccl-harness weft --timeout inf",
        "weft-plot --bogus",
        "weft-plot nosuch",
        "weft-plot /etc/hosts --unigram nan",
        "weft-run --bogus",
        "weft-run -n 1 --grace inf true",
        "weft-run -n 1 --store 127.0.0.1:1 --store-port 1 true",
        "weft-settings --bogus",
        "weft-settings --json --markdown",
        "weft-store --bogus",
        "weft-store --memory 0",
        "weft-store --silence inf",
        "weft-top --every 1ms",
        "weft-top --every inf",
        "weft-topo --bogus",
        "weft-topo show leaf-spine --oversubscription nan",
        "weft-trace",
        "weft-train --bogus",
        "weft-train nosuch.toml",
        "weft-train --set train.stepz=3"}) {
    const Outcome outcome = RunProgram(words);
    if (outcome.status == 127) continue;  // this build has no such program
    EXPECT_EQ(outcome.status, 2) << words << ": " << outcome.output;
    EXPECT_NE(outcome.output, "") << words;
  }
}

TEST(Usage, OptionsThatWouldHaveNoEffectAreRefused) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"weft-bw --ranks 2 --force", "--force requires --calibrate"},
      {"weft-ckpt convert /tmp x --to huggingface --python python3", "--python belongs to"},
      {"weft-ckpt convert /tmp x --from huggingface --python python3", "--python belongs to"},
      {"weft-driver --address here", "--address requires --etcd"},
      {"weft-run -n 1 --plan-unverified refuse true", "--plan-unverified requires --plan"},
      {"weft-run -n 1 --fan-out 2 true", "--fan-out 2: relays above the hosts' relays need"},
      {"weft-run -n 2 --no-relay --fan-out 2 true", "--fan-out 2: relays above the hosts'"}};
  for (const auto& [words, said] : refused) {
    SCOPED_TRACE(words);
    const Outcome outcome = RunProgram(words);
    if (outcome.status != 127) ExpectWrongUsage(outcome, said);  // 127: not in this build
  }
  EXPECT_EQ(RunProgram("weft-run -n 2 --no-relay --fan-out 0 true").status, 0);
}

// A line that names the file, and none of the work: with --json FILE there are tables as well.
TEST(Usage, AResultThatCannotBeWrittenIsRefusedBeforeTheWorkForIt) {
  const std::string fabric = "--fabric leaf-spine:leaves=2,spines=2,hosts_per_leaf=2 ";
  const std::string job = fabric + "--layout dp=4 --model gpt-13b,global_batch=4 --node gpus=1 ";
  for (const std::string& words :
       {std::string("weft-bw link --ranks 2 -n 1 --json"),
        std::string("weft-cc compare --scenario incast --cc swift --policy single --json"),
        std::string("weft-cc tune --runs 2 --out"),
        std::string("weft-cc tune --runs 2 --svg"),
        std::string("weft-doctor --json"),
        std::string("weft-doctor nics --json"),
        std::string("weft-doctor pairs --ranks 2 --json"),
        std::string("weft-init phases --json"),
        std::string("weft-nccl-harness weft --only introspection --json"),
        std::string("weft-plan collective all_reduce --hosts 2 --json"),
        std::string("weft-plan collective all_reduce --hosts 2 --svg"),
        "weft-plan order " + job + "--json",
        "weft-plan paths " + job + "--ports",
        "weft-plan predict " + job + "--svg",
        "weft-sim " + fabric + "--workload permutation:bytes=1KB --json",
        "weft-sim " + fabric + "--workload permutation:bytes=1KB --svg",
        "weft-sim " + fabric + "--workload permutation:bytes=1KB --timeline",
        std::string("weft-topo check leaf-spine --json"),
        std::string("weft-topo convert leaf-spine"),
        std::string("weft-topo distance leaf-spine h0 h1 --json"),
        std::string("weft-topo host --json"),
        std::string("weft-topo host --svg"),
        std::string("weft-topo host --nccl-out"),
        std::string("weft-topo show leaf-spine --dot"),
        std::string("weft-topo show leaf-spine --json"),
        std::string("weft-topo show leaf-spine --svg")}) {
    SCOPED_TRACE(words);
    const Outcome outcome = RunProgram(words + " /nowhere/result");
    if (outcome.status == 127) continue;  // this build has no such program
    EXPECT_NE(outcome.status, 0);
    EXPECT_THAT(outcome.output, HasSubstr("write /nowhere/result: "));
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
  }
}

// Records keep 63 bytes of it: a driver would find none of the job's.
TEST(Usage, AJobsNameHasSixtyThreeBytesAtMost) {
  const std::string longest(63, 'j'), longer(64, 'j');
  for (const char* program :
       {"weft-run --job NAME -n 1 true", "weft-driver --job NAME", "weft-executor --job NAME",
        "weft-top --job NAME", "weft-trace --job NAME", "weft-diagnose --job NAME"}) {
    const std::string words = program;
    const size_t at = words.find("NAME");
    const Outcome refused = RunProgram(std::string(words).replace(at, 4, longer));
    if (refused.status == 127) continue;  // this build has no such program
    EXPECT_EQ(refused.status, 2) << program << ": " << refused.output;
    EXPECT_THAT(refused.output, HasSubstr("a job's name has 1 to 63 bytes")) << program;
    EXPECT_THAT(refused.output, HasSubstr("has 64")) << program;
  }
  EXPECT_EQ(RunProgram("weft-run -n 1 --job " + longest + " true").status, 0);
}

TEST(Usage, EveryProgramSaysItsVersion) {
  for (const char* program : {"weft-bw", "weft-doctor", "weft-nccl-harness", "weft-run",
                              "weft-settings", "weft-store", "weft-topo"}) {
    const Outcome outcome = RunProgram(std::string(program) + " --version");
    EXPECT_EQ(outcome.status, 0) << program;
    EXPECT_EQ(outcome.output, std::string(program) + " " + Version() + "\n");
  }
}

TEST(Usage, FilesThatHoldNothingAreNamed) {
  ScratchFolder folder;
  folder.Write("metrics.jsonl", "");
  const Outcome plot = RunProgram("weft-plot " + folder / "metrics.jsonl");
  if (plot.status == 127) GTEST_SKIP() << "this build has no trainer";
  EXPECT_EQ(plot.status, 1);
  EXPECT_THAT(plot.output, HasSubstr("metrics.jsonl holds no step of a run"));
}

// As a path in Latin-1 has them.
TEST(Usage, BytesThatAreNoUtf8LoseNoReport) {
  const std::string program = std::string(std::getenv("WEFT_BIN")) + "/weft-settings --json";
  const Outcome outcome =
      Shell("WEFT_RECORDS_FOLDER=$(printf '/tmp/j\\374rgen') " + program, "2>/dev/null");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(nlohmann::json::accept(outcome.output)) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\"/tmp/j\uFFFDrgen\""));
}

TEST(Usage, LostOutputIsAFailure) {
  for (const char* words :
       {"weft-settings", "weft-settings --help", "weft-doctor", "weft-bw --help",
        "weft-nccl-harness --contracts", "weft-run --help", "weft-executor --help"}) {
    const Outcome outcome = RunProgram(words, "2>&1 >/dev/full");
    EXPECT_EQ(outcome.status, 1) << words;
    EXPECT_THAT(outcome.output, HasSubstr("standard output: No space left")) << words;
    EXPECT_NE(RunProgram(words, "2>&1 >/dev/null").output, outcome.output) << words;
  }
}

}  // namespace
}  // namespace weft
