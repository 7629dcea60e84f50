#include "topology/sim/workloads/training_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "topology/fabric/clos.h"
#include "topology/job/mesh_text.h"
#include "topology/sim/flow/flow.h"
#include "topology/sim/workloads/pipeline_order.h"

namespace weft::topology {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;

TEST(PipelineOrder, OneForwardOneBackward) {
  // Megatron-LM's figure: stage 0 of 4 warms up with three forwards.
  absl::StatusOr<std::vector<Pass>> order =
      StageOrder({.stages = 4, .chunks = 1, .micro_batches = 6}, 0);
  ASSERT_TRUE(order.ok());
  std::string text;
  for (const Pass& pass : *order) {
    text += (pass.backward ? "B" : "F") + std::to_string(pass.micro_batch) + " ";
  }
  EXPECT_EQ(text, "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5 ");
}

TEST(PipelineOrder, InterleavedGoesInGroupsOfStages) {
  absl::StatusOr<std::vector<Pass>> order =
      StageOrder({.stages = 2, .chunks = 2, .micro_batches = 4}, 1);
  ASSERT_TRUE(order.ok());
  std::string text;
  for (const Pass& pass : *order) {
    text += std::string(pass.backward ? "B" : "F") + std::to_string(pass.micro_batch) + "." +
            std::to_string(pass.chunk) + " ";
  }
  // Warm-up of (v - 1)p = 2 forwards on the last stage; chunk 1's backward comes first.
  EXPECT_EQ(text,
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0 ");
}

TEST(PipelineOrder, EveryPassComesOnceAndBehindWhatItNeeds) {
  for (PipelineShape shape :
       {PipelineShape{1, 1, 3}, {4, 1, 2}, {4, 1, 9}, {4, 3, 8}, {8, 6, 32}, {2, 2, 2}}) {
    absl::StatusOr<std::vector<Pass>> order = PipelineOrder(shape);
    ASSERT_TRUE(order.ok());
    std::set<std::string> done;
    auto name = [](const Pass& pass) {
      return std::to_string(pass.stage) + "/" + std::to_string(pass.chunk) + "/" +
             std::to_string(pass.micro_batch) + (pass.backward ? "b" : "f");
    };
    for (const Pass& pass : *order) {
      Pass before;
      const bool needs = PassBefore(shape, pass, before);
      EXPECT_TRUE(!needs || done.contains(name(before))) << name(pass);
      EXPECT_TRUE(done.insert(name(pass)).second) << name(pass);
    }
    EXPECT_EQ(done.size(),
              static_cast<size_t>(2 * shape.stages * shape.chunks * shape.micro_batches));
  }
}

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
    const double pass = absl::ToDoubleSeconds(PassTime(step, false, false));
    // (m v + p - 1) forwards and backwards of a chunk: the bubble is (p - 1) / (m v).
    const double ideal = 3 * pass * (8 * chunks + 3);
    EXPECT_THAT(Seconds(fabric, step), DoubleNear(ideal, ideal * 0.01)) << chunks;
  }
}

TEST(TrainingStep, DataParallelCostsItsRingsWhereNothingHidesThem) {
  const Fabric fabric = Rails(4, 40);
  TrainingStep step = SmallStep("tp8,dp4", 2);
  step.overlap_data = false;
  const double compute = 2 * 3 * absl::ToDoubleSeconds(PassTime(step, false, true));
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
  const double compute = 4 * 3 * absl::ToDoubleSeconds(PassTime(step, false, true));
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
  EXPECT_THAT(fast,
              DoubleNear(3 * absl::ToDoubleSeconds(PassTime(step, false, true)), fast * 0.01));
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
  EXPECT_GT(Seconds(fabric, step), 3 * absl::ToDoubleSeconds(PassTime(step, false, true)));
}

TEST(TrainingStep, EveryAxisTogetherEnds) {
  TrainingStep step = SmallStep("tp4,cp2,ep2,dp2,pp2", 4);
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
