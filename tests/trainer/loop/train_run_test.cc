// weft-train as users run it: alone and under weft-run, killed and resumed.
#include "tests/trainer/loop/train_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/read_file.h"
#include "topology/host/host.h"
#include "trainer/checkpoint/safetensors.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(TrainRunTest, LeavesEveryFileAndLearns) {
  Outcome outcome = Run(1, "alone", {"train.peak_tflops=0"});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  for (const char* name :
       {"config.toml", "metrics.jsonl", "loss.svg", "trace.json", "timeline.svg", "sample.txt",
        "logs/rank-0.log", "model/model.safetensors", "model/config.json", "model/tokenizer.model",
        "checkpoints/step-00000050/manifest.json"}) {
    EXPECT_TRUE(fs::exists(RunDir("alone") + "/" + name)) << name;
  }
  std::map<int, json> rows = Metrics("alone");
  ASSERT_EQ(rows.size(), 50U);
  for (const char* key : {"step", "loss", "val_loss", "grad_norm", "learning_rate", "tokens",
                          "tokens_per_second", "step_seconds", "exposed_comm_seconds", "mfu"}) {
    EXPECT_TRUE(rows[50].contains(key)) << key;
  }
  for (const char* work : {"gemm", "attention", "elementwise", "loss", "embedding", "gradients",
                           "optimizer", "data", "rest"}) {
    EXPECT_GT(rows[50][std::string("work_") + work + "_seconds"], 0.0) << work;
  }
  EXPECT_GT(rows[50]["mfu"], 0.0);
  EXPECT_EQ(rows[50]["work_communication_seconds"], 0.0);
  EXPECT_GT(rows[50]["resident_peak_bytes"], rows[50]["anonymous_bytes"]);
  EXPECT_EQ(rows[40]["memory_mappings"], 0);
  EXPECT_LE(rows[40]["page_faults"], 100);  // steady_run_test.cc
  EXPECT_FALSE(rows[49].contains("val_loss"));
  EXPECT_EQ(rows[50]["tokens"], 50 * 8 * 32);
  EXPECT_EQ(rows[50]["exposed_comm_seconds"], 0.0);
  EXPECT_LT(rows[50]["loss"].get<double>(), rows[1]["loss"].get<double>() - 1);
  EXPECT_THAT(outcome.output, HasSubstr("unigram"));
  auto model = SafetensorsFile::Open(RunDir("alone") + "/model/model.safetensors");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_NE(model->Find("h.1.attn.c_attn.weight"), nullptr);
  EXPECT_EQ(model->Find("h.1.attn.c_attn.weight")->shape, (std::vector<int64_t>{64, 192}));
}

// However it is cut over ranks.
TEST_F(TrainRunTest, ARunOfNoStepsLeavesTheModelThatItBeginsWith) {
  for (const auto& [name, ranks, setting] :
       {std::tuple{"none", 1, "parallel.tensor=1"}, std::tuple{"none_tp2", 2, "parallel.tensor=2"},
        std::tuple{"none_pp2", 2, "parallel.pipeline=2"}}) {
    const Outcome outcome =
        Run(ranks, name, {"train.steps=0", "train.precision=fp32", "sample.tokens=5", setting});
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(ReadFile(RunDir(name) + "/model/model.safetensors").value_or(""),
              ReadFile(RunDir("none") + "/model/model.safetensors").value_or("none"))
        << name;
    EXPECT_TRUE(fs::exists(RunDir(name) + "/checkpoints/step-00000000/manifest.json")) << name;
  }
}

TEST_F(TrainRunTest, ComputeThreadsAreBoundToACoreEachWhereTheyFillAllCores) {
  const auto cores = static_cast<int>(Host::Discover()->cores().size());
  if (cores < 2 || 8 % cores != 0) GTEST_SKIP() << "no batch of 8 for a rank on each core";
  const Outcome bound = Run(cores, "bound", {"train.steps=2"});
  ASSERT_EQ(bound.status, 0) << bound.output;
  EXPECT_THAT(bound.output, HasSubstr("compute threads bound to CPUs "));
  EXPECT_THAT(bound.output, HasSubstr(absl::StrCat(" (rank ", cores - 1, ")")));
  const Outcome free = Run(2 * cores, "free", {"train.steps=2"});
  ASSERT_EQ(free.status, 0) << free.output;
  EXPECT_THAT(free.output, HasSubstr(absl::StrCat("not bound: the processes of this host have ",
                                                  2 * cores, " threads and ", cores, " cores")));
}

// The CPUs of those threads of a process that may run on one alone.
std::vector<int> BoundThreads(pid_t pid) {
  std::vector<int> cpus;
  std::error_code error;
  for (const auto& thread : fs::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);) {
      int cpu = 0;
      absl::string_view list = line;
      if (absl::ConsumePrefix(&list, "Cpus_allowed_list:\t") && absl::SimpleAtoi(list, &cpu)) {
        cpus.push_back(cpu);
      }
    }
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

TEST_F(TrainRunTest, EachComputeThreadOfARankIsBoundToAnotherCore) {
  const Host host = *Host::Discover();
  const auto cores = static_cast<int>(host.cores().size());
  if (cores < 2) GTEST_SKIP() << "one core alone";
  std::vector<int> wanted;
  for (const HostCore& core : host.cores()) wanted.push_back(core.cpus.front());
  std::sort(wanted.begin(), wanted.end());
  Process process(
      Command(1, "threads",
              {absl::StrCat("train.threads=", cores), "train.steps=100000", "checkpoint.every=0"}),
      RunDir("threads.out"));
  std::vector<int> bound;
  for (int i = 0; i < 3000 && bound != wanted && process.running(); ++i) {
    absl::SleepFor(absl::Milliseconds(20));
    bound = BoundThreads(process.pid());
  }
  EXPECT_EQ(bound, wanted);
}

TEST_F(TrainRunTest, FourRanksHaveTheLossesOfOne) {
  ASSERT_EQ(Run(1, "one").status, 0);
  Outcome four = Run(4, "four");
  ASSERT_EQ(four.status, 0) << four.output;
  EXPECT_LT(LargestDifference(Metrics("one"), Metrics("four")), 1e-5);
  EXPECT_GT(Metrics("four")[50]["exposed_comm_seconds"].get<double>(), 0.0);
}

// A layout changes which rank computes what, never what is computed.
struct Layout {
  const char* name;
  int ranks;
  std::vector<std::string> settings;
};
class LayoutRunTest : public TrainRunTest, public ::testing::WithParamInterface<Layout> {
 protected:
  // Two architectures that between them have every parameter that is cut in another way.
  static std::vector<std::string> Model(bool second) {
    std::vector<std::string> settings = {"train.precision=fp32", "train.steps=12",
                                         "sample.tokens=5", "model.layers=4"};
    if (!second) return settings;
    for (const char* setting :
         {"model.block=parallel", "model.tied=false", "model.position=rotary",
          "model.activation=swiglu", "model.norm=rmsnorm", "model.dropout=0.1", "model.kv_heads=2",
          "model.window=8", "model.window_layers=odd"}) {
      settings.emplace_back(setting);
    }
    return settings;
  }
  static const std::map<int, json>& Reference(bool second) {
    static std::map<int, json> references[2];
    std::map<int, json>& reference = references[second ? 1 : 0];
    if (reference.empty()) {
      const std::string name = second ? "reference2" : "reference1";
      Outcome outcome = Run(1, name, Model(second));
      EXPECT_EQ(outcome.status, 0) << outcome.output;
      reference = Metrics(name);
    }
    return reference;
  }
};

TEST_P(LayoutRunTest, LossesAreThoseOfOneRank) {
  for (bool second : {false, true}) {
    std::vector<std::string> settings = Model(second);
    for (const std::string& setting : GetParam().settings) settings.push_back(setting);
    const std::string name = std::string(GetParam().name) + (second ? "_2" : "_1");
    Outcome outcome = Run(GetParam().ranks, name, settings);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    std::map<int, json> rows = Metrics(name);
    EXPECT_LT(LargestDifference(Reference(second), rows), 1e-5);
    for (const auto& [step, row] : rows) {
      EXPECT_NEAR(row["grad_norm"].get<double>(),
                  Reference(second).at(step)["grad_norm"].get<double>(), 1e-4);
    }
    EXPECT_NEAR(rows[12]["val_loss"].get<double>(),
                Reference(second).at(12)["val_loss"].get<double>(), 1e-5);
    EXPECT_TRUE(fs::exists(RunDir(name) + "/model/model.safetensors"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LayoutRunTest,
    ::testing::Values(
        Layout{"tp2", 2, {"parallel.tensor=2"}},
        Layout{"tp2_two_chunks",
               2,
               {"parallel.tensor=2", "parallel.tensor_chunks=2", "parallel.tensor_gathered=again"}},
        Layout{"tp4_one_chunk",
               4,
               {"parallel.tensor=4", "parallel.tensor_chunks=1", "parallel.tensor_gathered=keep"}},
        Layout{"cp2", 2, {"parallel.context=2"}}, Layout{"cp4", 4, {"parallel.context=4"}},
        Layout{"cp4_ulysses", 4, {"parallel.context=4", "parallel.context_method=ulysses"}},
        Layout{"cp2_tp2", 4, {"parallel.context=2", "parallel.tensor=2"}},
        Layout{"cp2_tp2_ulysses",
               4,
               {"parallel.context=2", "parallel.tensor=2", "parallel.context_method=ulysses"}},
        Layout{"cp2_pp2", 4, {"parallel.context=2", "parallel.pipeline=2"}},
        Layout{"cp2_zero3_recompute",
               2,
               {"parallel.context=2", "parallel.zero=3", "train.recompute=selective"}},
        Layout{"cp2_dp2_zero2", 4, {"parallel.context=2", "parallel.zero=2"}},
        Layout{"pp4_gpipe", 4, {"parallel.pipeline=4", "parallel.schedule=gpipe"}},
        Layout{"pp4_eager_1f1b",
               4,
               {"parallel.pipeline=4", "parallel.schedule=eager-1f1b", "train.micro_batch=1"}},
        Layout{"pp2_interleaved", 2, {"parallel.pipeline=2", "parallel.schedule=interleaved"}},
        Layout{"pp2_zb_h1", 2, {"parallel.pipeline=2", "parallel.schedule=zb-h1"}},
        Layout{"pp3_uneven", 3, {"parallel.pipeline=3"}},
        Layout{"tp2_pp2_zb_v",
               4,
               {"parallel.tensor=2", "parallel.pipeline=2", "parallel.schedule=zb-v"}},
        Layout{"pp2_dp2_zero2", 4, {"parallel.pipeline=2", "parallel.zero=2"}},
        Layout{"pp2_dp2_zb_h1_zero2",
               4,
               {"parallel.pipeline=2", "parallel.schedule=zb-h1", "parallel.zero=2"}},
        Layout{"pp2_dp2_zb_v_zero3",
               4,
               {"parallel.pipeline=2", "parallel.schedule=zb-v", "parallel.zero=3",
                "train.micro_batch=1", "parallel.bucket_bytes=64KiB"}},
        Layout{"cp2_pp2_zb_h1_zero3",
               4,
               {"parallel.context=2", "parallel.pipeline=2", "parallel.schedule=zb-h1",
                "parallel.zero=3", "train.recompute=selective"}},
        Layout{"tp2_pp2_dp2_zb_v_zero2",
               8,
               {"parallel.tensor=2", "parallel.pipeline=2", "parallel.schedule=zb-v",
                "parallel.zero=2", "train.micro_batch=1"}},
        Layout{
            "tp2_pp2_dp2", 8, {"parallel.tensor=2", "parallel.pipeline=2", "train.micro_batch=1"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(TrainRunTest, ResumesOnAnotherMesh) {
  std::vector<std::string> common = {"train.precision=fp32", "model.layers=4",
                                     "optimizer.decay_steps=18"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), common.begin(), common.end());
    return more;
  };
  ASSERT_EQ(Run(1, "mesh_straight", with({"train.steps=18"})).status, 0);
  Outcome outcome =
      Run(4, "mesh_changed", with({"train.steps=6", "parallel.tensor=2", "parallel.pipeline=2"}));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  outcome =
      Run(2, "mesh_changed",
          with({"train.steps=12", "parallel.pipeline=2", "parallel.schedule=zb-v", "--resume"}));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  outcome = Run(4, "mesh_changed", with({"train.steps=18", "parallel.tensor=4", "--resume"}));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_LT(LargestDifference(Metrics("mesh_straight"), Metrics("mesh_changed")), 1e-6);
}

TEST_F(TrainRunTest, LayoutsThatCannotBeAreRefusedWithTheArithmetic) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"parallel.tensor=3"}, "parallel.tensor = 3 does not divide model.heads = 4"},
      {{"parallel.tensor=2", "model.heads=6", "model.kv_heads=3", "model.hidden=96"},
       "parallel.tensor = 2 and model.kv_heads = 3: one must divide the other"},
      {{"parallel.tensor=4"},
       "= 4 ranks hold one model; the 2 ranks of this job are no multiple of that; 4 is one "
       "(weft-run -n)"},
      {{"parallel.tensor=2", "--check", "--ranks=5", "--vocabulary=64"},
       "the 5 ranks of this job are no multiple of that; 4 and 6 are"},
      {{"train.global_batch=7"},
       "train.global_batch = 7 must be a multiple of the 2 data-parallel ranks (tensor 1 x context "
       "1 x data 2 x pipeline 1); 6 and 8 are"},
      {{"parallel.context=2", "model.sequence=30"},
       "ring cuts a sample into 4 stretches, which do not divide model.sequence = 30"},
      {{"parallel.context=2", "parallel.context_method=ulysses", "model.heads=1"},
       "x parallel.context = 2 = 2 does not divide model.heads = 1"},
      {{"parallel.pipeline=2", "model.layers=1"}, "needs 2 layers or more; model.layers = 1"},
      {{"parallel.pipeline=2", "parallel.schedule=interleaved", "train.micro_batch=8",
        "model.layers=4"},
       "needs a multiple of the 2 stages as micro-batches; the 8 samples of a data-parallel rank "
       "(train.global_batch = 8 / 1) make 1 of train.micro_batch = 8"},
      {{"parallel.pipeline=2", "parallel.schedule=interleaved", "train.global_batch=7",
        "model.layers=4"},
       "(train.global_batch = 7 / 1) cannot be cut into so many equal ones"},
      {{"parallel.pipeline=2", "parallel.chunks=2", "model.layers=4"},
       "parallel.chunks = 2: parallel.schedule = 1f1b has 1 chunk of layers on a stage"},
      {{"parallel.tensor=2", "--check", "--ranks=2", "--vocabulary=1"},
       "parallel.tensor = 2 ranks cannot share a vocabulary of 1 tokens"}};
  for (const auto& [settings, words] : cases) {
    Outcome outcome = Run(2, "refused", settings);
    EXPECT_NE(outcome.status, 0) << words;
    EXPECT_THAT(outcome.output, HasSubstr(words));
  }
}

TEST_F(TrainRunTest, BothZeroStagesGiveTheSameLosses) {
  ASSERT_EQ(Run(2, "zero1", {"parallel.zero=1", "train.steps=20"}).status, 0);
  Outcome zero2 = Run(2, "zero2", {"parallel.zero=2", "train.steps=20"});
  ASSERT_EQ(zero2.status, 0) << zero2.output;
  EXPECT_EQ(LargestDifference(Metrics("zero1"), Metrics("zero2")), 0.0);
  // With micro-batches the sums are in another order.
  ASSERT_EQ(Run(2, "micro1", {"parallel.zero=1", "train.steps=20", "train.micro_batch=1"}).status,
            0);
  ASSERT_EQ(Run(2, "micro2", {"parallel.zero=2", "train.steps=20", "train.micro_batch=1"}).status,
            0);
  EXPECT_LT(LargestDifference(Metrics("micro1"), Metrics("micro2")), 1e-5);
  EXPECT_LT(LargestDifference(Metrics("micro1"), Metrics("zero1")), 1e-5);
}

TEST_F(TrainRunTest, KilledRunResumesToTheBit) {
  std::vector<std::string> settings = {"train.precision=bf16", "train.steps=60",
                                       "checkpoint.every=7", "model.dropout=0.1"};
  ASSERT_EQ(Run(2, "unbroken", settings).status, 0);
  {
    Process process(Command(2, "broken", settings), RunDir("broken.out"));
    ASSERT_TRUE(
        WaitForPath(RunDir("broken") + "/checkpoints/step-00000021/manifest.json", process));
    process.KillAll();
    process.Wait();
  }
  settings.emplace_back("--resume");
  Outcome resumed = Run(2, "broken", settings);
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("resumed after step"));
  EXPECT_EQ(LargestDifference(Metrics("unbroken"), Metrics("broken")), 0.0);
}

TEST_F(TrainRunTest, ResumesWithAnotherNumberOfRanks) {
  ASSERT_EQ(Run(1, "straight").status, 0);
  ASSERT_EQ(Run(4, "changed", {"train.steps=20", "optimizer.decay_steps=50"}).status, 0);
  Outcome resumed = Run(2, "changed", {"--resume"});
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_LT(LargestDifference(Metrics("straight"), Metrics("changed")), 1e-5);
}

TEST_F(TrainRunTest, TerminationFinishesTheStepAndSaves) {
  Process process(Command(2, "stopped", {"train.steps=100000", "checkpoint.every=0"}),
                  RunDir("stopped.out"));
  ASSERT_TRUE(WaitForPath(RunDir("stopped") + "/loss.svg", process));
  process.Signal(SIGTERM);
  Outcome outcome = process.Wait();
  EXPECT_EQ(outcome.status, 128 + SIGTERM) << outcome.output;  // weft-run says what ended it
  EXPECT_THAT(outcome.output, HasSubstr("stopped after step"));
  int last = Metrics("stopped").rbegin()->first;
  char name[32];
  std::snprintf(name, sizeof(name), "step-%08d", last);
  EXPECT_TRUE(fs::exists(RunDir("stopped") + "/checkpoints/" + name));
  EXPECT_TRUE(fs::exists(RunDir("stopped") + "/trace.json"));
}

// Order of events, not their length: the first reduce-scatter of a step starts while its backward
// pass still runs, and gathers are under way when the next forward pass begins.
TEST_F(TrainRunTest, CommunicationRunsUnderTheBackwardPass) {
  Outcome outcome = Run(2, "overlap", {"train.steps=12"});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  std::ifstream file(RunDir("overlap") + "/trace.json");
  json events = json::parse(file)["traceEvents"];
  for (int rank = 0; rank < 2; ++rank) {
    std::map<int, double> backward_end, first_reduction;
    for (const json& event : events) {
      if (event["ph"] != "X" || event["pid"] != rank) continue;
      int step = event["args"]["step"];
      double start = event["ts"];
      if (event["name"] == "backward") backward_end[step] = start + event["dur"].get<double>();
      if (event["name"] == "reduce_scatter" &&
          (first_reduction.count(step) == 0 || start < first_reduction[step])) {
        EXPECT_EQ(event["tid"], 1);
        first_reduction[step] = start;
      }
    }
    ASSERT_EQ(backward_end.size(), 12U);
    for (const auto& [step, end] : backward_end) {
      ASSERT_EQ(first_reduction.count(step), 1U) << "rank " << rank << " step " << step;
      EXPECT_LT(first_reduction[step], end) << "rank " << rank << " step " << step;
    }
  }
}

// One token of an epoch: one rank reads it, and all end with its error at once.
TEST_F(TrainRunTest, ATokenOutsideTheVocabularyEndsEveryRankWithItsName) {
  struct Case {
    const char* part;
    const char* message;
  };
  for (const Case& c : {Case{"_train", "token id 65535 at position "},
                        Case{"_valid", "token id 65535 at position 0 of document 0 "}}) {
    const std::string data = CopyOfData("foreign");
    std::string bin = *ReadFile(data + c.part + ".bin");
    const size_t at = std::string(c.part) == "_train" ? bin.size() / 2 / 2 * 2 : 0;
    bin[at] = bin[at + 1] = '\xff';
    ASSERT_TRUE(WriteFileAtomically(data + c.part + ".bin", bin).ok());
    const std::string run = std::string("foreign") + c.part;
    Outcome outcome = Run(4, run, {"data.prefix=" + data, "train.steps=2000"});
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_THAT(outcome.output,
                  HasSubstr("[rank " + std::to_string(rank) + "] weft-train: rank "))
          << outcome.output;
    }
    EXPECT_THAT(outcome.output, HasSubstr(data + c.part + ".bin, byte " + std::to_string(at)));
    EXPECT_THAT(outcome.output, HasSubstr(c.message));
    EXPECT_THAT(outcome.output, HasSubstr("is not in the vocabulary of 320 tokens, 0 to 319"));
  }
}

TEST_F(TrainRunTest, AWrongVocabularyOfTheDataIsAnErrorAndNoCrash) {
  struct Case {
    const char* value;
    const char* message;
  };
  for (const Case& c :
       {Case{"-5", "'vocab_size' is -5; it should be a whole number from 1 to 16777216"},
        Case{"100000000000", "'vocab_size' is 100000000000; it should be"},
        Case{"1e300", "'vocab_size' is 1e+300; it should be"},
        Case{"319", "'vocab_size' is 319, but its tokenizer "}}) {
    const std::string data = CopyOfData("vocabulary");
    std::string text = *ReadFile(data + ".json");
    const std::string good = "\"vocab_size\": 320";
    text.replace(text.find(good), good.size(), std::string("\"vocab_size\": ") + c.value);
    ASSERT_TRUE(WriteFileAtomically(data + ".json", text).ok());
    Outcome outcome = Run(2, "vocabulary", {"data.prefix=" + data});
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(data + ".json: " + c.message));
    EXPECT_THAT(outcome.output, Not(HasSubstr("frame #")));
  }
}

// Data that was prepared anew under the same name.
TEST_F(TrainRunTest, ACheckpointOfAnotherVocabularyIsRefusedWithBothShapes) {
  const std::string data = CopyOfData("prepared_anew");
  const std::vector<std::string> settings = {"data.prefix=" + data, "train.steps=3",
                                             "optimizer.decay_steps=6", "sample.tokens=0"};
  ASSERT_EQ(Run(2, "shapes", settings).status, 0);
  std::string text = *ReadFile(data + ".json");
  const std::string before = "\"vocab_size\": 320";
  text.replace(text.find(before), before.size(), "\"vocab_size\": 384");
  ASSERT_TRUE(WriteFileAtomically(data + ".json", text).ok());
  const Outcome outcome =
      Run(2, "shapes", {settings[0], "train.steps=6", settings[2], settings[3], "--resume"});
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("token' has 320 x 64 = 20480 elements of F32 instead of "
                                        "384 x 64 = 24576 of F32"));
  EXPECT_EQ(Metrics("shapes").size(), 3U);
}

TEST_F(TrainRunTest, AConfigWithoutAnEndIsRefused) {
  std::vector<std::string> command = Command(1, "endless", {});
  command[1] = "/dev/zero";
  Outcome outcome = Process(command, RunDir("endless.out")).Wait();
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("weft-train: /dev/zero: has more than 32 MiB"));
}

TEST_F(TrainRunTest, ErrorsSayWhatToDo) {
  Outcome outcome = Run(1, "bad", {"data.prefix=/nowhere/data"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("/nowhere/data"));
  outcome = Run(1, "bad", {"train.stepz=3"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("did you mean train.steps?"));
  outcome = Run(2, "bad", {"train.global_batch=3"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("multiple of the 2 data-parallel ranks"));
  outcome = Run(2, "diverged",
                {"optimizer.learning_rate=1e30", "optimizer.warmup_steps=0", "train.steps=9"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("step "));
  EXPECT_THAT(outcome.output, HasSubstr("rank "));
  EXPECT_THAT(outcome.output, HasSubstr("optimizer.learning_rate"));
  ASSERT_EQ(Run(1, "again", {"train.steps=3"}).status, 0);
  outcome = Run(1, "again", {"train.steps=3"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("--resume"));
  outcome = Run(1, "again", {"train.steps=5", "model.hidden=128", "--resume"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("model.hidden"));
}

}  // namespace
}  // namespace weft::train
