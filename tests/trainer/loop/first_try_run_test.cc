// weft-train with a preset and nothing else, and options that would change nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FirstTryRunTest : public TrainRunTest {
 protected:
  // Where no data is, as a shell runs `line` with PATH leading to the programs.
  static Outcome Shell(const std::string& name, const std::string& line) {
    fs::create_directories(root_ / name);
    return Process({"/bin/sh", "-c",
                    absl::StrCat("cd ", (root_ / name).string(),
                                 " && PATH=", Environment("WEFT_BIN"), ":$PATH && ", line)},
                   RunDir(name + ".out"))
        .Wait();
  }
};

TEST_F(FirstTryRunTest, APresetTrainsOnMadeUpSentencesWhereThereIsNoData) {
  const std::string train =
      "weft-run -n 2 -- weft-train --preset tiny --tp 2 --run-dir first --set train.gemm=weft "
      "--set train.attention=weft --set train.peak_tflops=1 --set sample.tokens=0 "
      "--set optimizer.decay_steps=4";
  Outcome outcome = Shell("preset", train + " --set train.steps=3");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("there is no data at data/gcide/gcide: training on made-up "
                                        "sentences, first/data/made_up.txt"));
  // What a user reads before the first step: what is not as by default.
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("prefix = \"first/data/made_up\""),
                                    HasSubstr("tensor = 2"), Not(HasSubstr("norm_epsilon"))));
  // The folder by another spelling.
  const std::string again = absl::StrReplaceAll(train, {{"--run-dir first", "--run-dir ./first/"}});
  outcome = Shell("preset", again + " --set train.steps=4 --resume");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("resumed after step 3"));
  // A prefix that somebody named is wanted.
  outcome = Shell("preset", "weft-train --preset tiny --set data.prefix=data/mine");
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("data/mine.json"), HasSubstr("weft-data prepare")));
  outcome = Shell("preset", "weft-train --preset tiny --set 'data.prefix = data/mine'");
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("data/mine.json"));
  outcome = Shell("preset", "weft-train");
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("data.prefix is empty"));
}

TEST_F(FirstTryRunTest, ACheckNeedsAVocabularyAlone) {
  Outcome outcome = Shell("check",
                          "weft-train --preset tiny --tp 2 --pp 2 --check --ranks 4 "
                          "--set train.micro_batch=2");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("vocabulary    4096, that of the demo"),
                                    HasSubstr("tensor 2 x context 1 x data 1 x pipeline 2"),
                                    HasSubstr("mesh          tp2,cp1,ep1,dp1,pp2 (weft-plan"),
                                    HasSubstr("; holds 2 of 8 forward passes"),
                                    HasSubstr("; holds 1 of 8 forward passes")));
  outcome = Shell("check", "weft-train --preset gpt2-124m --check");
  EXPECT_THAT(outcome.output, HasSubstr("vocabulary    50257, the model's"));
  outcome =
      Shell("check", "weft-train --preset tiny --check --tp 1024 --cp 1024 --ep 1024 --pp 1024");
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("= 1099511627776 ranks; a job has at most 1048576"));
  outcome = Shell("check", "weft-train --preset tiny --check --vocabulary 32000");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("parameters    4.9"));  // 32,000 x 128 and the blocks
}

TEST_F(FirstTryRunTest, ACheckDrawsTheSchedule) {
  const std::string check =
      "weft-train --preset tiny --check --svg zb.svg --set train.micro_batch=2";
  Outcome outcome = Shell("svg", check + " --pp 2 --schedule zb-h1");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("schedule      zb.svg"));
  std::ifstream file(RunDir("svg") + "/zb.svg");
  const std::string picture((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(picture, AllOf(HasSubstr("zb-h1, 2 stages, 1 chunks each, 8 micro-batches"),
                             HasSubstr("weight gradients")));
  outcome = Shell("svg", check + " --pp 2 --schedule eager-1f1b");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("pipeline      eager-1f1b, 1 chunks a stage"),
                                    HasSubstr("; holds 3 of 8 forward passes")));
  outcome = Shell("svg", check);
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("parallel.pipeline = 1"));
}

TEST_F(FirstTryRunTest, ACheckOfAGpuRunReportsTheGpusMemory) {
  const std::string check =
      "weft-train --preset gpt2-124m --check --set train.device=cuda --set train.precision=bf16 ";
  // Not the host's.
  Outcome outcome = Shell("gpu", check + "--set train.host_memory=1500MiB --gpu-memory 80GiB");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("a GPU         1 rank: "),
                                    HasSubstr(" of 81920, of "), HasSubstr("beside the GPUs")));
  outcome = Shell("gpu", check + "--gpu-memory 1GiB");
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("a rank of stage 0 needs "), HasSubstr("the GPU has 1024 MiB")));
  outcome = Shell("gpu", check + "--gpu-memory much");
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("--gpu-memory"));
  outcome = Shell("gpu", check + "--gpu-memory 0");
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("--gpu-memory 0: a GPU has more than nothing"));
  outcome = Shell("gpu", "weft-train --preset gpt2-124m --check --gpu-memory 80GiB");
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("--gpu-memory 80GiB goes with --set train.device=cuda"));
}

TEST_F(FirstTryRunTest, ATimeThatIsNoneIsRefused) {
  for (const char* seconds : {"nan", "0", "601"}) {
    const Outcome outcome = Shell(
        "seconds", absl::StrCat("weft-train --preset tiny --check --measure-kernels ", seconds));
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("--measure-kernels")) << seconds;
  }
}

// Under its own name, not that of the key.
TEST_F(FirstTryRunTest, AnOptionThatIsWrongIsNamed) {
  for (const auto& [option, words] : {std::pair{"--tp 0", "--tp: setting parallel.tensor = \"0\""},
                                      std::pair{"--pp two", "--pp: setting parallel.pipeline"},
                                      std::pair{"--zero 4", "must lie in 0..3"},
                                      std::pair{"--schedule zb", "--schedule: setting"}}) {
    const Outcome outcome =
        Shell("wrong", absl::StrCat("weft-train --preset tiny --check ", option));
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(words));
  }
}

// A script's variable that is not set must not mean another layout, or no file.
TEST_F(FirstTryRunTest, AnOptionWithoutAValueIsRefusedByName) {
  for (const char* option : {"--run-dir", "--preset", "--tp", "--cp", "--ep", "--pp", "--schedule",
                             "--zero", "--gpu-memory", "--svg"}) {
    const std::string words =
        option == std::string("--preset")
            ? "weft-train --check --preset ''"
            : absl::StrCat("weft-train --preset tiny --check ", option, " ''");
    const Outcome outcome = Shell("empty", words);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat(option, ": the value is empty")));
  }
}

TEST_F(FirstTryRunTest, OptionsThatWouldChangeNothingAreRefusedByName) {
  for (const char* option :
       {"--ranks 4", "--ranks-per-host 4", "--vocabulary 4", "--gpu-memory 4", "--svg 4"}) {
    const Outcome outcome =
        Shell("options", absl::StrCat("weft-train --preset tiny --set train.steps=1 ", option));
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("--check")) << option;
  }
  const Outcome outcome =
      Shell("options", "weft-train --preset tiny --set model.preset=gpt-175b --check");
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("model.preset = gpt-175b: --preset tiny has a model "
                                              "of its own (model.layers=4 and others)")));
  EXPECT_EQ(Shell("options", "weft-train --preset gpt2-124m --set model.preset=llama-160m --check")
                .status,
            0);
}

}  // namespace
}  // namespace weft::train
