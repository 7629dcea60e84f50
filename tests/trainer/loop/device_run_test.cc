// train.device on the user's path: what needs a GPU is refused before anything is trained, and the
// way that a GPU takes (LibTorch's operations, collectives through copies) gives, on the CPU, the
// losses of the CPU's own loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/read_file.h"
#include "tests/scoped_variable.h"
#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

struct DeviceCase {
  std::string name;
  int ranks = 1;
  std::vector<std::string> settings;
  bool by_nccl = false;
};

const std::vector<std::string> kModern = {"model.style=llama", "model.kv_heads=2",
                                          "model.window=48", "model.window_layers=even"};
std::vector<std::string> And(std::vector<std::string> settings,
                             const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

class DeviceRunTest : public TrainRunTest, public ::testing::WithParamInterface<DeviceCase> {
 protected:
  // Two ranks on the GPU's way, whose emulated NCCL has the fault.
  static Outcome RunOnFaultyNccl(const char* fault, const char* value, const std::string& run,
                                 const std::vector<std::string>& more) {
    const ScopedVariable libraries("LD_LIBRARY_PATH", EMULATED_NCCL);
    const ScopedVariable timeout("WEFT_COLLECTIVE_TIMEOUT", "10s");
    const ScopedVariable faulty(fault, value);
    return Run(2, run,
               And({"train.device=cpu-aten", "train.gemm=aten", "train.attention=aten",
                    "parallel.collectives=nccl"},
                   more));
  }
};

TEST_P(DeviceRunTest, ADevicesWayHasTheLossesOfTheLoops) {
  const DeviceCase& layout = GetParam();
  const std::vector<std::string> settings =
      And({"train.precision=fp32", "train.steps=8", "sample.tokens=0", "validation.batches=1",
           "log.trace_steps=0"},
          layout.settings);
  const Outcome own = Run(layout.ranks, layout.name + "_cpu", settings);
  ASSERT_EQ(own.status, 0) << own.output;
  const ScopedVariable libraries("LD_LIBRARY_PATH", EMULATED_NCCL);
  const Outcome device = Run(
      layout.ranks, layout.name + "_aten",
      And(settings, {"train.device=cpu-aten", "train.gemm=aten", "train.attention=aten",
                     layout.by_nccl ? "parallel.collectives=nccl" : "parallel.collectives=auto"}));
  ASSERT_EQ(device.status, 0) << device.output;
  EXPECT_NE(device.output.find("cpu (LibTorch)"), std::string::npos) << device.output;
  const std::map<int, json> expected = Metrics(layout.name + "_cpu");
  EXPECT_EQ(expected.size(), 8U);
  EXPECT_LT(LargestDifference(expected, Metrics(layout.name + "_aten")), 1e-4);
  const std::string log = RunDir(layout.name + "_aten") + "/logs/rank-0.log";
  double exposed = 0;
  for (const auto& [step, row] : Metrics(layout.name + "_aten")) {
    exposed += row.at("exposed_comm_seconds").get<double>();
  }
  EXPECT_EQ(exposed > 0, layout.ranks > 1);
  EXPECT_EQ(ReadFile(log).value_or("").find("by NCCL: 16 x emulated") != std::string::npos,
            layout.by_nccl);
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
        DeviceCase{"zero3_muon", 2, {"parallel.zero=3", "optimizer.name=muon"}},
        DeviceCase{"nccl_zero1", 2, {"parallel.zero=1", "parallel.bucket_bytes=64KiB"}, true},
        DeviceCase{"nccl_zero3", 2, {"parallel.zero=3", "parallel.bucket_bytes=64KiB"}, true},
        DeviceCase{"nccl_hsdp", 4, {"parallel.zero=2", "parallel.zero_group=2"}, true},
        DeviceCase{"nccl_tensor", 2, {"parallel.tensor=2"}, true},
        DeviceCase{"nccl_pipeline", 2, {"parallel.pipeline=2", "train.micro_batch=1"}, true},
        DeviceCase{"nccl_interleaved",
                   2,
                   {"model.layers=4", "parallel.pipeline=2", "parallel.schedule=interleaved",
                    "parallel.chunks=2", "train.micro_batch=1"},
                   true},
        DeviceCase{"nccl_zero_bubble",
                   2,
                   {"model.layers=4", "parallel.pipeline=2", "parallel.schedule=zb-v",
                    "parallel.chunks=2", "train.micro_batch=1"},
                   true},
        DeviceCase{"nccl_ring", 2, And(kModern, {"parallel.context=2"}), true},
        DeviceCase{"nccl_ulysses", 2,
                   And(kModern, {"parallel.context=2", "parallel.context_method=ulysses"}), true},
        DeviceCase{"nccl_ulysses_pieces",
                   2,
                   {"model.heads=8", "parallel.context=2", "parallel.context_method=ulysses"},
                   true},
        DeviceCase{"nccl_experts", 2, {"model.experts=4", "parallel.expert=2"}, true},
        DeviceCase{
            "nccl_all",
            8,
            {"parallel.tensor=2", "parallel.pipeline=2", "parallel.zero=2", "train.micro_batch=1"},
            true}),
    [](const auto& info) { return info.param.name; });

// Both draw alike which values are rounded up.
TEST_F(DeviceRunTest, ParametersInBf16AloneAreUpdatedOnTheDevice) {
  const std::vector<std::string> settings = {
      "train.precision=bf16", "train.master_weights=false", "optimizer.name=lamb", "train.steps=8",
      "sample.tokens=0",      "validation.batches=1",       "log.trace_steps=0"};
  const Outcome own = Run(1, "bf16_cpu", settings);
  ASSERT_EQ(own.status, 0) << own.output;
  const Outcome device =
      Run(2, "bf16_aten",
          And(settings, {"train.device=cpu-aten", "train.gemm=aten", "train.attention=aten"}));
  ASSERT_EQ(device.status, 0) << device.output;
  EXPECT_LT(LargestDifference(Metrics("bf16_cpu"), Metrics("bf16_aten")), 5e-3);
}

// The kernels of NCCL's would wait for the rank that is gone for ever.
TEST_F(DeviceRunTest, ACollectiveThatDoesNotEndOnTheGpuIsAnError) {
  const Outcome outcome =
      RunOnFaultyNccl("EMULATED_NCCL_STOPS_AT", "40", "stopped", {"train.steps=100000"});
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, testing::ContainsRegex(
                                  "of group train\\.[a-z]+\\.0 has not ended on the GPU in 10s"));
}

// That messages between stages are NCCL's, too.
TEST_F(DeviceRunTest, AMessageThatDoesNotEndOnTheGpuIsAnError) {
  const Outcome outcome = RunOnFaultyNccl("EMULATED_NCCL_STOPS_AT", "40", "stopped_message",
                                          {"parallel.pipeline=2", "train.steps=100000"});
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output,
              testing::ContainsRegex("of group train\\.pipeline\\.0, channel [0-9]+ "
                                     "from [01] to [01] has not ended on the GPU"));
}

// NCCL's call would wait for a rank that does not come for ever.
TEST_F(DeviceRunTest, ACommunicatorThatIsNotMadeIsAnError) {
  const Outcome outcome = RunOnFaultyNccl("EMULATED_NCCL_NEVER_MEETS", "1", "never_met", {});
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output,
              testing::ContainsRegex("the NCCL communicator of group train\\.[a-z]+\\.0 was not "
                                     "made in 10s"));
}

TEST_F(DeviceRunTest, WhatNcclNeedsIsRefusedBeforeTraining) {
  const ScopedVariable libraries("LD_LIBRARY_PATH", "/nonexistent");
  const Outcome outcome = Run(2, "no_library",
                              {"train.device=cpu-aten", "train.gemm=aten", "train.attention=aten",
                               "parallel.collectives=nccl"});
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, testing::HasSubstr("parallel.collectives = nccl"));
  EXPECT_THAT(outcome.output, testing::HasSubstr("libweft-cuda.so"));
  const Outcome cpu = Run(2, "cpu", {"parallel.collectives=nccl"});
  EXPECT_EQ(cpu.status, 2) << cpu.output;
  EXPECT_THAT(cpu.output, testing::HasSubstr("parallel.collectives = nccl"));
}

TEST_F(DeviceRunTest, CudaWithoutItsLibTorchIsRefusedBeforeTraining) {
  const Outcome outcome =
      Run(1, "no_cuda", {"train.device=cuda", "train.gemm=aten", "train.attention=aten"});
  if (outcome.status == 0) {
    ASSERT_THAT(outcome.output, testing::ContainsRegex("cuda:[0-9]+ \\(")) << "not on a GPU";
    GTEST_SKIP() << "this machine has a GPU and a LibTorch with CUDA";
  }
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
           {"train.attention", {"train.gemm=aten", "train.attention=weft"}}}) {
    const Outcome outcome = Run(1, "refused", And({"train.device=cuda"}, more));
    EXPECT_NE(outcome.status, 0);
    EXPECT_NE(outcome.output.find(key + " = "), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("train.device = cpu alone"), std::string::npos) << outcome.output;
  }
}

}  // namespace
}  // namespace weft::train
