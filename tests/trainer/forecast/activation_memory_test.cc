// What passes keep, against sums by hand.
#include "trainer/forecast/activation_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "topology/job/pipeline_schedule.h"
#include "trainer/config.h"

namespace weft::train {
namespace {

using topology::PassKind;
using topology::PipelinePass;

// A pipeline whose model keeps nothing of a layer for the backward pass but the layer's input.
class ActivationMemoryTest : public ::testing::Test {
 protected:
  ActivationMemoryTest() {
    absl::StatusOr<TrainConfig> config =
        LoadTrainConfig("",
                        {"data.prefix=none", "train.precision=fp32", "train.recompute=full",
                         "model.layers=3", "train.global_batch=4", "train.micro_batch=1"},
                        "tiny");
    EXPECT_TRUE(config.ok()) << config.status();
    config_ = *std::move(config);
    config_.model.vocabulary = 512;
  }
  Bytes Of(const std::vector<PipelinePass>& passes, const ParallelSizes& sizes = {}) const {
    const absl::StatusOr<StepPlan> plan = StepPlan::Make(config_, sizes);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return ActivationMemory(config_, *plan, plan->PartOf(0, 0, 0), passes, RoutingLoad::kEven);
  }
  TrainConfig config_;
};

TEST_F(ActivationMemoryTest, EachForwardPassThatWaitsForItsBackwardPassKeepsItsInputs) {
  const PipelinePass f0{PassKind::kForward, 0, 0}, f1{PassKind::kForward, 0, 1},
      f2{PassKind::kForward, 0, 2};
  const PipelinePass b0{PassKind::kBackward, 0, 0}, b1{PassKind::kBackward, 0, 1},
      b2{PassKind::kBackward, 0, 2};
  const Bytes one = Of({f0, b0}), two = Of({f0, f1, b0, b1});
  // The inputs of three layers, the last one's output, and the last norm's, in fp32.
  const Bytes kept(config_.model.sequence * config_.model.hidden * 4 * (3 + 2));
  EXPECT_EQ(two - one, kept);
  EXPECT_EQ(Of({f0, f1, f2, b0, b1, b2}) - two, kept);
  // A backward pass gives back what its forward pass kept.
  EXPECT_EQ(Of({f0, b0, f1, b1, f2, b2}), one);
  EXPECT_EQ(Of({f0, f1, b0, f2, b1, b2}), two);
}

// Flash attention, of a GPU in bf16, has none in memory; in fp32 the backward pass has five tensors
// of them.
TEST_F(ActivationMemoryTest, AGpuHasTheScoresOfAttentionInFp32) {
  config_.model.sequence = 8192;
  const std::vector<PipelinePass> passes = {{PassKind::kForward, 0, 0},
                                            {PassKind::kBackward, 0, 0}};
  const auto scores = [&] {
    config_.device = DeviceKind::kCpu;
    const Bytes cpu = Of(passes);
    config_.device = DeviceKind::kCuda;
    return Of(passes) - cpu;
  };
  const Bytes one(4 * config_.model.heads * config_.model.sequence * config_.model.sequence);
  EXPECT_GT(scores(), one * 4);
  EXPECT_LE(scores(), one * 5);
  // A window's tiles are small.
  config_.model.window = 128;
  EXPECT_LT(scores(), one);
  config_.model.window = 0;
  config_.precision = Precision::kBf16;
  EXPECT_LT(scores(), one);
}

// One key-value head on two ranks is there twice: each keeps it for all tokens, not for a half.
TEST_F(ActivationMemoryTest, HeadsThatAreRepeatedToBeExchangedAreKeptForAllTokens) {
  config_.recompute.assign(3, RecomputeKind::kNone);
  config_.model.kv_hidden = config_.model.hidden / config_.model.heads;
  const auto kept = [&](ContextMethod method) {
    config_.context_method = method;
    const PipelinePass forward{PassKind::kForward, 0, 0}, again{PassKind::kForward, 0, 1};
    const ParallelSizes sizes{.context = 2};
    return Of({forward, again}, sizes) - Of({forward}, sizes);
  };
  const int64_t width = config_.model.hidden / config_.model.heads;
  EXPECT_EQ(kept(ContextMethod::kUlysses) - kept(ContextMethod::kRing),
            Bytes(3 * 2 * config_.model.sequence / 2 * width * 4));
}

TEST_F(ActivationMemoryTest, NumbersOfHalfTheWidthTakeHalfTheMemory) {
  const PipelinePass forward{PassKind::kForward, 0, 0}, again{PassKind::kForward, 0, 1};
  const Bytes wide = Of({forward, again}) - Of({forward});
  config_.precision = Precision::kBf16;
  EXPECT_EQ((Of({forward, again}) - Of({forward})) * 2, wide);
}

}  // namespace
}  // namespace weft::train
