// Training on a GPU on the user's path: each layout's losses are the CPU's within bf16. Its ranks
// share one GPU, as ranks of several hosts to NCCL, so that all their tensors go over the plugin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/read_file.h"
#include "tests/scoped_variable.h"
#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

struct GpuCase {
  std::string name;
  int ranks = 1;
  std::vector<std::string> settings;
};

class GpuRunTest : public TrainRunTest, public ::testing::WithParamInterface<GpuCase> {
 protected:
  Outcome OnGpu(int ranks, const std::string& name, std::vector<std::string> settings) {
    settings.insert(settings.end(), {"train.device=cuda", "train.gemm=aten", "train.attention=aten",
                                     "train.peak_tflops=0"});
    if (ranks > 1) settings.push_back("parallel.collectives=nccl");
    const std::string plugin = Environment("WEFT_BIN") + "/../lib/libnccl-net-weft.so";
    const ScopedVariable net("NCCL_NET_PLUGIN", plugin.c_str());
    const ScopedVariable interface("NCCL_SOCKET_IFNAME", "lo");
    const ScopedVariable log("NCCL_DEBUG", "INFO");
    return Run(ranks, name, settings);
  }
};

TEST_P(GpuRunTest, LossesAreTheCpusWithinBf16) {
  const GpuCase& layout = GetParam();
  std::vector<std::string> settings = {"train.precision=bf16", "train.steps=8", "sample.tokens=0",
                                       "validation.batches=1", "log.trace_steps=0"};
  settings.insert(settings.end(), layout.settings.begin(), layout.settings.end());
  const Outcome gpu = OnGpu(layout.ranks, layout.name + "_gpu", settings);
  for (const char* reason : {"no GPU that this process may use", "is a build without CUDA"}) {
    if (gpu.output.find(reason) != std::string::npos) GTEST_SKIP() << reason;
  }
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
  for (const char* reason : {"no GPU that this process may use", "is a build without CUDA"}) {
    if (plain.output.find(reason) != std::string::npos) GTEST_SKIP() << reason;
  }
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
