// Training on a GPU on the user's path: each layout's losses are the CPU's within bf16. Its ranks
// share one GPU, as ranks of several hosts to NCCL, so that all their tensors go over the plugin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/read_file.h"
#include "tests/scoped_variable.h"
#include "tests/trainer/loop/rank_processes.h"
#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

struct GpuCase {
  std::string name;
  int ranks = 1;
  std::vector<std::string> settings;
};

// What a run on a GPU is started with, for as long as this object lives.
class GpuVariables {
 public:
  static std::vector<std::string> Settings(int ranks, std::vector<std::string> settings) {
    settings.insert(settings.end(), {"train.device=cuda", "train.gemm=aten", "train.attention=aten",
                                     "train.peak_tflops=0"});
    if (ranks > 1) settings.push_back("parallel.collectives=nccl");
    return settings;
  }

 private:
  const ScopedVariable net_{"NCCL_NET_PLUGIN",
                            Environment("WEFT_BIN") + "/../lib/libnccl-net-weft.so"};
  const ScopedVariable interface_{"NCCL_SOCKET_IFNAME", "lo"};
  const ScopedVariable log_{"NCCL_DEBUG", "INFO"};
};

// Why there was no run on a GPU; empty: there was one.
std::string WhyNone(const Outcome& outcome) {
  for (const char* reason : {"no GPU that this process may use", "is a build without CUDA"}) {
    if (outcome.output.find(reason) != std::string::npos) return reason;
  }
  return "";
}

class GpuRunTest : public TrainRunTest, public ::testing::WithParamInterface<GpuCase> {
 protected:
  static Outcome OnGpu(int ranks, const std::string& name,
                       const std::vector<std::string>& settings) {
    const GpuVariables variables;
    return Run(ranks, name, GpuVariables::Settings(ranks, settings));
  }
};

TEST_P(GpuRunTest, LossesAreTheCpusWithinBf16) {
  const GpuCase& layout = GetParam();
  std::vector<std::string> settings = {"train.precision=bf16", "train.steps=8", "sample.tokens=0",
                                       "validation.batches=1", "log.trace_steps=0"};
  settings.insert(settings.end(), layout.settings.begin(), layout.settings.end());
  const Outcome gpu = OnGpu(layout.ranks, layout.name + "_gpu", settings);
  if (const std::string why = WhyNone(gpu); !why.empty()) GTEST_SKIP() << why;
  ASSERT_EQ(gpu.status, 0) << gpu.output;
  const Outcome cpu = Run(1, layout.name + "_cpu", [&] {
    std::vector<std::string> alone;
    for (const std::string& setting : settings) {
      if (!setting.starts_with("parallel.")) alone.push_back(setting);
    }
    return alone;
  }());
  ASSERT_EQ(cpu.status, 0) << cpu.output;
  const std::map<int, json> expected = Metrics(layout.name + "_cpu");
  EXPECT_EQ(expected.size(), 8U);
  EXPECT_LT(LargestDifference(expected, Metrics(layout.name + "_gpu")), 5e-3);
  if (layout.ranks == 1) return;
  EXPECT_THAT(gpu.output, testing::HasSubstr("Using network weft"));
}

// Products and attention of fp32 add up in one order, so that two runs are the same to the bit.
// Several micro-batches make graphs that write gradients, and graphs that add to them.
class GraphRunTest : public GpuRunTest {};
TEST_P(GraphRunTest, LossesByGraphsAreThoseWithoutToTheBit) {
  const GpuCase& layout = GetParam();
  std::vector<std::string> settings = {"train.precision=fp32", "train.steps=20",
                                       "sample.tokens=0",      "validation.every=8",
                                       "validation.batches=1", "log.trace_steps=0"};
  settings.insert(settings.end(), layout.settings.begin(), layout.settings.end());
  const Outcome plain = OnGpu(layout.ranks, layout.name + "_plain", settings);
  if (const std::string why = WhyNone(plain); !why.empty()) GTEST_SKIP() << why;
  ASSERT_EQ(plain.status, 0) << plain.output;
  settings.emplace_back("train.graphs=auto");
  const Outcome graphs = OnGpu(layout.ranks, layout.name + "_graphs", settings);
  ASSERT_EQ(graphs.status, 0) << graphs.output;
  const std::string log =
      ReadFile(RunDir(layout.name + "_graphs") + "/logs/rank-0.log").value_or("") + graphs.output;
  if (log.find("libweft-train-cuda.so") != std::string::npos) {
    GTEST_SKIP() << "libweft-train-cuda.so is not beside weft-train, or of another version";
  }
  EXPECT_THAT(log, testing::ContainsRegex("[1-9][0-9]* of [0-9]+ passes of a step by"));
  const std::map<int, json> expected = Metrics(layout.name + "_plain"),
                            found = Metrics(layout.name + "_graphs");
  ASSERT_EQ(expected.size(), 20U);
  EXPECT_EQ(LargestDifference(expected, found), 0);
  for (const auto& [step, row] : expected) {
    EXPECT_EQ(found.at(step).at("grad_norm"), row.at("grad_norm")) << "step " << step;
  }
}

// The GPU of a rank that goes on waits in NCCL's kernels, of several groups, for the rank that is
// gone; and it has the memory of the run before.
class GpuRecoveryTest : public RankProcessesTest {};
TEST_F(GpuRecoveryTest, ARankThatIsKilledIsReplacedWhereNcclWaitsForIt) {
  constexpr int kRanks = 4;
  const GpuVariables variables;
  const ScopedVariable timeout("WEFT_COLLECTIVE_TIMEOUT", "120s");
  const std::vector<std::string> settings = GpuVariables::Settings(
      kRanks, {"train.precision=fp32", "train.steps=200", "sample.tokens=0", "parallel.pipeline=2",
               "parallel.zero=1", "train.micro_batch=1"});
  const Outcome whole = Run(kRanks, "whole", settings);
  if (const std::string why = WhyNone(whole); !why.empty()) GTEST_SKIP() << why;
  ASSERT_EQ(whole.status, 0) << whole.output;
  std::vector<std::string> command = Command(kRanks, "killed", settings);
  command.insert(command.begin() + 1, {"--recover", "1", "--set", "recovery.snapshot=memory"});
  Process process(command, RunDir("killed.out"));
  ASSERT_TRUE(WaitForStep("killed", 3, process)) << process.Wait().output;
  ASSERT_GT(KillRank("killed", 2), 0);
  const Outcome outcome = process.Wait();
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, testing::HasSubstr("starting it anew (1 of 1)"));
  EXPECT_THAT(outcome.output, testing::Not(testing::HasSubstr("has not ended on the GPU")));
  EXPECT_EQ(LargestDifference(Metrics("whole"), Metrics("killed")), 0);
}

const std::vector<std::string> kModern = {"model.style=llama", "model.kv_heads=2"};
std::vector<std::string> Modern(const std::string& more) {
  std::vector<std::string> settings = kModern;
  settings.push_back(more);
  return settings;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GpuRunTest,
    ::testing::Values(GpuCase{"one", 1, {}}, GpuCase{"one_llama", 1, kModern},
                      GpuCase{"bf16_alone", 1, {"train.master_weights=false"}},
                      GpuCase{"fp16", 1, {"train.precision=fp16", "train.loss_scale=1024"}},
                      GpuCase{"recomputed", 1, Modern("train.recompute=selective")},
                      GpuCase{"data", 2, {"parallel.zero=1"}},
                      GpuCase{"zero3", 2, {"parallel.zero=3"}},
                      GpuCase{"tensor", 2, {"parallel.tensor=2"}},
                      GpuCase{"ring", 2, Modern("parallel.context=2")},
                      GpuCase{"experts", 2, {"model.experts=4", "parallel.expert=2"}},
                      GpuCase{"pipeline", 2, {"parallel.pipeline=2", "train.micro_batch=1"}},
                      GpuCase{
                          "interleaved",
                          2,
                          {"model.layers=4", "parallel.pipeline=2", "parallel.schedule=interleaved",
                           "parallel.chunks=2", "train.micro_batch=1"}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Layouts, GraphRunTest,
    ::testing::Values(GpuCase{"one_pass", 1, {}}, GpuCase{"four", 1, {"train.micro_batch=2"}},
                      GpuCase{"llama", 1, Modern("train.micro_batch=2")},
                      GpuCase{"data_graphs", 2, {"parallel.zero=1", "train.micro_batch=1"}},
                      GpuCase{
                          "pipeline_graphs", 2, {"parallel.pipeline=2", "train.micro_batch=1"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace weft::train
