// train.device on the user's path: what needs a GPU is refused before anything is trained, and the
// way that a GPU takes (LibTorch's operations, collectives through copies) gives, on the CPU, the
// losses of the CPU's own loops.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

struct DeviceCase {
  std::string name;
  int ranks = 1;
  std::vector<std::string> settings;
};

class DeviceRunTest : public TrainRunTest, public ::testing::WithParamInterface<DeviceCase> {};

const std::vector<std::string> kModern = {"model.style=llama", "model.kv_heads=2",
                                          "model.window=48", "model.window_layers=even"};
std::vector<std::string> And(std::vector<std::string> settings,
                             const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

TEST_P(DeviceRunTest, ADevicesWayHasTheLossesOfTheLoops) {
  const DeviceCase& layout = GetParam();
  const std::vector<std::string> settings =
      And({"train.precision=fp32", "train.steps=8", "sample.tokens=0", "validation.batches=1",
           "log.trace_steps=0"},
          layout.settings);
  const Outcome own = Run(layout.ranks, layout.name + "_cpu", settings);
  ASSERT_EQ(own.status, 0) << own.output;
  const Outcome device =
      Run(layout.ranks, layout.name + "_aten",
          And(settings, {"train.device=cpu-aten", "train.gemm=aten", "train.attention=aten"}));
  ASSERT_EQ(device.status, 0) << device.output;
  EXPECT_NE(device.output.find("cpu (LibTorch)"), std::string::npos) << device.output;
  const std::map<int, json> expected = Metrics(layout.name + "_cpu");
  EXPECT_EQ(expected.size(), 8U);
  EXPECT_LT(LargestDifference(expected, Metrics(layout.name + "_aten")), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, DeviceRunTest,
    ::testing::Values(
        DeviceCase{"one", 1, {"model.dropout=0.1"}}, DeviceCase{"one_llama", 1, kModern},
        DeviceCase{"lamb_recomputed", 1, {"optimizer.name=lamb", "train.recompute=selective"}},
        DeviceCase{"tensor", 2, {"parallel.tensor=2"}},
        DeviceCase{"pipeline", 2, {"parallel.pipeline=2", "train.micro_batch=1"}},
        DeviceCase{"ring", 2, And(kModern, {"parallel.context=2"})},
        DeviceCase{"experts", 2, {"model.experts=4", "parallel.expert=2"}},
        DeviceCase{"zero3_muon", 2, {"parallel.zero=3", "optimizer.name=muon"}}),
    [](const auto& info) { return info.param.name; });

TEST_F(DeviceRunTest, CudaWithoutItsLibTorchIsRefusedBeforeTraining) {
  const Outcome outcome = Run(1, "no_cuda", {"train.device=cuda", "train.gemm=aten"});
  if (outcome.status == 0) GTEST_SKIP() << "this machine has a GPU and a LibTorch with CUDA";
  EXPECT_NE(outcome.output.find("train.device = cuda"), std::string::npos) << outcome.output;
  const bool is_cpu_build = outcome.output.find("is a build without CUDA") != std::string::npos;
  if (is_cpu_build) {
    EXPECT_NE(outcome.output.find("LD_LIBRARY_PATH"), std::string::npos) << outcome.output;
  }
  EXPECT_FALSE(fs::exists(RunDir("no_cuda") + "/metrics.jsonl"));
}

TEST_F(DeviceRunTest, WhatAGpuCannotIsRefusedByTheConfig) {
  for (const auto& [key, more] : std::map<std::string, std::vector<std::string>>{
           {"train.gemm", {"train.gemm=weft"}},
           {"train.master_weights",
            {"train.gemm=aten", "train.precision=bf16", "train.master_weights=false"}}}) {
    const Outcome outcome = Run(1, "refused", And({"train.device=cuda"}, more));
    EXPECT_NE(outcome.status, 0);
    EXPECT_NE(outcome.output.find(key + " = "), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("train.device = cpu alone"), std::string::npos) << outcome.output;
  }
}

}  // namespace
}  // namespace weft::train
