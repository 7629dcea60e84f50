#include "topology/sim/workloads/training_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "topology/fabric/clos.h"
#include "topology/job/mesh_text.h"
#include "topology/sim/flow/flow.h"

namespace weft::topology {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;

TEST(TrainingModel, FlopsATokenAreMegaScales) {
  TrainingStep step;
  step.micro_batches = 1;
  step.model = FindModel("gpt-175b")->shape;
  step.mesh = *ParseMesh("tp8");
  // 1.063 TFLOP a token of the 175B model: facts on MegaScale's table 2.
  EXPECT_THAT(ModelFlops(step) / 2048, DoubleNear(1.063e12, 0.003e12));
  EXPECT_THAT(ModelParameters(FindModel("gpt-175b")->shape), DoubleNear(175.5e9, 1e9));
  EXPECT_THAT(ModelParameters(FindModel("gpt-530b")->shape), DoubleNear(530.5e9, 2e9));
}

// 8 NICs a host on rails, links that take next to no time.
Fabric Rails(int hosts, double gigabits = 400) {
  ClosSpec spec;
  spec.hosts_per_group = hosts;
  spec.groups = 1;
  spec.nics = 8;
  spec.rail_leaves = true;
  spec.spines = 1;
  spec.leaf.bandwidth = spec.spine.bandwidth = Bandwidth::GigabitsPerSecond(gigabits);
  return *BuildClos(spec);
}

double Seconds(const Fabric& fabric, const TrainingStep& step) {
  Workload workload;
  const absl::StatusOr<OperationId> end = AddTrainingStep(workload, fabric, step);
  EXPECT_TRUE(end.ok()) << end.status();
  const absl::StatusOr<SimulationResult> result = SimulateFlows(fabric, workload, {});
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->unfinished, 0);
  return absl::ToDoubleSeconds(result->operations[*end].ended);
}

TrainingStep SmallStep(absl::string_view mesh, int micro_batches) {
  TrainingStep step;
  step.model = {.layers = 16, .hidden = 2048, .heads = 16, .vocabulary = 1, .sequence = 1024};
  step.mesh = *ParseMesh(mesh);
  step.micro_batches = micro_batches;
  return step;
}

TEST(TrainingStep, BubbleIsThatOfTheScheduleOnAFastNetwork) {
  const Fabric fabric = Rails(4, 400'000);
  for (int chunks : {1, 2, 4}) {
    TrainingStep step = SmallStep("tp8,pp4", 8);
    step.chunks = chunks;
    if (chunks > 1) step.schedule = PipelineScheduleKind::kInterleaved;
    const double pass = absl::ToDoubleSeconds(PassTime(step, PassKind::kForward, false));
    // (m v + p - 1) forwards and backwards of a chunk: the bubble is (p - 1) / (m v).
    const double ideal = 3 * pass * (8 * chunks + 3);
    EXPECT_THAT(Seconds(fabric, step), DoubleNear(ideal, ideal * 0.01)) << chunks;
  }
}

// The simulated step against the lists' own timing, for every schedule.
TEST(TrainingStep, EveryScheduleTakesTheTimeOfItsList) {
  const Fabric fabric = Rails(4, 400'000);
  for (int kind = 0; kind <= static_cast<int>(PipelineScheduleKind::kZeroBubbleV); ++kind) {
    TrainingStep step = SmallStep("tp8,pp4", 8);
    step.schedule = static_cast<PipelineScheduleKind>(kind);
    step.chunks = step.schedule == PipelineScheduleKind::kInterleaved   ? 4
                  : step.schedule == PipelineScheduleKind::kZeroBubbleV ? 2
                                                                        : 1;
    auto seconds = [&](PassKind pass) {
      return absl::ToDoubleSeconds(PassTime(step, pass, false));
    };
    const PipelineSpec spec = step.Pipeline();
    const absl::StatusOr<PipelineTiming> timing = RunPipelineSchedule(
        spec, *MakePipelineSchedule(spec),
        {seconds(PassKind::kForward), seconds(PassKind::kBackward), seconds(PassKind::kWeight)});
    ASSERT_TRUE(timing.ok()) << timing.status();
    EXPECT_THAT(Seconds(fabric, step), DoubleNear(timing->makespan, timing->makespan * 0.01))
        << ToString(step.schedule);
  }
}

// With recomputation a split backward pass takes twice as long as the others, which lists for equal
// passes wait for.
TEST(TrainingStep, ZeroBubbleVHasListsForTheTimesOfItsPasses) {
  TrainingStep step = SmallStep("tp8,pp4", 8);
  step.schedule = PipelineScheduleKind::kZeroBubbleV;
  step.chunks = 2;
  step.recompute = true;
  auto seconds = [&](PassKind pass) { return absl::ToDoubleSeconds(PassTime(step, pass, false)); };
  const PipelineSpec spec = step.Pipeline();
  const absl::StatusOr<PipelineTiming> equal = RunPipelineSchedule(
      spec, *MakePipelineSchedule(spec),
      {seconds(PassKind::kForward), seconds(PassKind::kBackward), seconds(PassKind::kWeight)});
  ASSERT_TRUE(equal.ok()) << equal.status();
  EXPECT_LT(Seconds(Rails(4, 400'000), step), 0.85 * equal->makespan);
}

// The gradients of a chunk leave when its last weight pass ends, embeddings where the V ends.
TEST(TrainingStep, ZeroBubbleSendsGradientsAfterItsWeightPasses) {
  TrainingStep step = SmallStep("tp8,pp2,dp2", 4);
  step.model.vocabulary = 4096;
  step.schedule = PipelineScheduleKind::kZeroBubbleV;
  step.chunks = 2;
  EXPECT_EQ(DenseChunkBytes(step, 0, 0), DenseChunkBytes(step, 0, 1));
  EXPECT_LT(DenseChunkBytes(step, 1, 0), DenseChunkBytes(step, 0, 0));
  const double fast = Seconds(Rails(4, 400'000), step);
  const double slow = Seconds(Rails(4, 10), step);
  EXPECT_GT(slow, fast);
}

TEST(TrainingStep, DataParallelCostsItsRingsWhereNothingHidesThem) {
  const Fabric fabric = Rails(4, 40);
  TrainingStep step = SmallStep("tp8,dp4", 2);
  step.overlap_data = false;
  const double compute = 2 * 3 * absl::ToDoubleSeconds(PassTime(step, PassKind::kForward, true));
  const double bytes = static_cast<double>(DenseChunkBytes(step, 0, 0).count());
  const double ring = 3.0 / 4 * bytes * 4160 / 4096 / 5e9;
  EXPECT_THAT(Seconds(fabric, step), DoubleNear(compute + 2 * ring, (compute + 2 * ring) * 0.01));
}

TEST(TrainingStep, OverlapHidesAllButTheFirstAndLastBucket) {
  const Fabric fabric = Rails(4, 400);
  TrainingStep step = SmallStep("tp8,dp4", 4);
  step.efficiency = 0.02;  // slow enough to hide something behind
  step.overlap_data = false;
  const double exposed = Seconds(fabric, step);
  step.overlap_data = true;
  step.buckets = 8;
  const double hidden = Seconds(fabric, step);
  const double compute = 4 * 3 * absl::ToDoubleSeconds(PassTime(step, PassKind::kForward, true));
  EXPECT_LT(hidden - compute, (exposed - compute) / 4);
  EXPECT_GT(hidden, compute);
}

TEST(TrainingStep, SlowPipelineLinksShowOnlyWhenStagesWaitForTheirSends) {
  const Fabric fabric = Rails(4, 100);
  TrainingStep step = SmallStep("tp8,pp4", 16);
  const double asynchronous = Seconds(fabric, step);
  step.overlap_pipeline = false;
  EXPECT_GT(Seconds(fabric, step), asynchronous);
}

TEST(TrainingStep, ContextRingHidesBehindComputationUntilItIsLonger) {
  TrainingStep step = SmallStep("tp8,cp4", 1);
  step.efficiency = 0.02;
  // Forward and backward each begin with the ring and the computation, and end with both.
  const double fast = Seconds(Rails(4, 400'000), step);
  EXPECT_THAT(fast, DoubleNear(3 * absl::ToDoubleSeconds(PassTime(step, PassKind::kForward, true)),
                               fast * 0.01));
  const double bytes = static_cast<double>(ContextBytes(step).count()) * 3 * 16 * 3;
  const double slow = Seconds(Rails(4, 1), step);
  EXPECT_GT(slow, bytes / (1e9 / 8));
}

TEST(TrainingStep, ExpertsExchangeTheirTokensBeforeAndAfterEveryPass) {
  TrainingStep step = SmallStep("tp8,ep4", 1);
  step.model.experts = 4;
  const Fabric fabric = Rails(4);
  Workload workload;
  ASSERT_TRUE(AddTrainingStep(workload, fabric, step).ok());
  int64_t exchanges = 0;
  for (OperationId i = 0; i < workload.size(); ++i) {
    const Operation& operation = workload.operation(i);
    if (workload.group(operation.group) != "expert") continue;
    exchanges += operation.kind == OperationKind::kTransfer;
  }
  EXPECT_EQ(exchanges, 2 * 2 * 4 * 3);  // passes, both ways, senders, peers
  EXPECT_GT(Seconds(fabric, step),
            3 * absl::ToDoubleSeconds(PassTime(step, PassKind::kForward, true)));
}

TEST(TrainingStep, EveryAxisTogetherEnds) {
  TrainingStep step = SmallStep("tp4,cp2,ep2,dp2,pp2", 4);
  step.schedule = PipelineScheduleKind::kInterleaved;
  step.chunks = 2;
  step.model.experts = 4;
  step.model.top_k = 2;
  step.buckets = 2;
  step.recompute = true;
  EXPECT_GT(Seconds(Rails(8), step), 0);
}

TEST(TrainingStep, TheOrderOfTheMeshSaysWhichHostsAreReplicas) {
  // A tensor group a host. Data inside pipeline: neighbours are replicas; else every second host.
  for (const auto& [mesh, replicas] :
       std::map<std::string, std::vector<int>>{{"tp8,dp2,pp2", {0, 1}}, {"tp8,pp2,dp2", {0, 2}}}) {
    const Fabric fabric = Rails(4);
    Workload workload;
    ASSERT_TRUE(AddTrainingStep(workload, fabric, SmallStep(mesh, 4)).ok());
    std::vector<int> hosts;
    for (const Endpoint& member : workload.ring(0)) {
      const auto all = fabric.hosts();
      hosts.push_back(
          static_cast<int>(std::find(all.begin(), all.end(), member.host) - all.begin()));
    }
    EXPECT_EQ(hosts, replicas) << mesh;
  }
}

TEST(TrainingStep, LayoutThatDoesNotFitIsNamed) {
  const Fabric fabric = Rails(4);
  auto message = [&](auto change) {
    TrainingStep step = SmallStep("tp8,dp2,pp2", 4);
    change(step);
    Workload workload;
    return std::string(AddTrainingStep(workload, fabric, step).status().message());
  };
  EXPECT_EQ(message([](TrainingStep&) {}), "");
  EXPECT_THAT(message([](TrainingStep& s) { s.mesh = *ParseMesh("tp3"); }), HasSubstr("heads=16"));
  EXPECT_THAT(message([](TrainingStep& s) { s.mesh = *ParseMesh("tp16"); }), HasSubstr("tp=16"));
  EXPECT_THAT(message([](TrainingStep& s) { s.mesh = *ParseMesh("dp2,tp2"); }), HasSubstr("tp=2"));
  EXPECT_THAT(message([](TrainingStep& s) { s.mesh = *ParseMesh("tp8,dp5"); }),
              HasSubstr("tensor 8 x data 5 = 40 GPUs, and the fabric has 32 NICs"));
  EXPECT_THAT(message([](TrainingStep& s) { s.mesh = *ParseMesh("tp8,ep2"); }),
              HasSubstr("experts=0: not a multiple of ep = 2"));
  EXPECT_THAT(message([](TrainingStep& s) { s.efficiency = 0; }), HasSubstr("efficiency 0"));
  EXPECT_THAT(message([](TrainingStep& s) { s.micro_batches = 1 << 24; }),
              HasSubstr("operations; at most"));
}

}  // namespace
}  // namespace weft::topology
