// Predictions of the cost model held against the flow-level simulator: the same flows, on the same
// hosts, with paths that the simulator's switches hash.
#include <gmock/gmock.h>

#include <algorithm>

#include "base/random.h"
#include "topology/fabric/clos.h"
#include "topology/order/order_planner.h"
#include "topology/sim/flow/flow.h"

namespace weft::topology {
namespace {

// Pairs or rings of data parallelism beside pipelines, on leaves with MegaScale's split ports.
struct World {
  Fabric fabric;
  CutTree tree;
  Job job;
  std::vector<NodeId> hosts;

  World(int groups, int per_group, int spines, int data, int pipeline)
      : fabric(Make(groups, per_group, spines)), tree(fabric) {
    job.mesh = *Mesh::Create({{Axis::kData, data}, {Axis::kPipeline, pipeline}});
    Traffic traffic;
    traffic.name = "gradients";
    traffic.axes = {Axis::kData};
    traffic.collective = CollectiveKind::kReduceScatter;
    traffic.bytes = Bytes(100'000'000);
    job.traffic.push_back(traffic);
    hosts.assign(fabric.hosts().begin(), fabric.hosts().end());
  }
  static Fabric Make(int groups, int per_group, int spines) {
    ClosSpec spec;
    spec.groups = groups;
    spec.hosts_per_group = per_group;
    spec.spines = spines;
    spec.leaf.bandwidth = Bandwidth::GigabitsPerSecond(200);
    return *BuildClos(spec);
  }
  CostModel Model(Balance balance) const {
    return *CostModel::Create(tree, job, *DefaultBlocks(job, fabric, hosts), hosts, balance);
  }
  // All flows of the gradients at once, as a pipelined collective has them.
  double SimulatedSeconds(const CostModel& model, const Placement& placement, LoadBalance balance,
                          uint64_t seed) const {
    Workload workload;
    for (const SlotFlow& flow : model.flows(0).flows) {
      auto end = [&](int32_t slot) {
        return hosts[static_cast<size_t>(placement[static_cast<size_t>(slot)])];
      };
      Operation operation;
      operation.source = {end(flow.source), flow.source_nic};
      operation.target = {end(flow.target), flow.target_nic};
      operation.bytes = Bytes(flow.bytes);
      workload.Add(operation);
    }
    FlowOptions options;
    options.seed = seed;
    options.load_balance = balance;
    absl::StatusOr<SimulationResult> result = SimulateFlows(fabric, workload, options);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->unfinished, 0);
    return absl::ToDoubleSeconds(result->end);
  }
  double MeanSeconds(const CostModel& model, const Placement& placement, int seeds) const {
    double sum = 0;
    for (int seed = 1; seed <= seeds; ++seed) {
      sum += SimulatedSeconds(model, placement, LoadBalance::kEcmp, static_cast<uint64_t>(seed));
    }
    return sum / seeds;
  }
};

double Transfer(const CostModel& model, const Placement& placement) {
  return absl::ToDoubleSeconds(model.Evaluate(placement).traffic[0].transfer);
}

TEST(AgainstTheFlowLevel, APlannedOrderTakesThePredictedTime) {
  World world(4, 16, 8, 16, 4);
  Random random(3);
  random.Shuffle(world.hosts);
  PlannedOrder planned = *PlanOrder(world.tree, world.job, world.hosts, {});
  CostModel model = world.Model(Balance::kHashed);
  Placement placement = *PlacementOf(model, planned.order);
  EXPECT_NEAR(world.MeanSeconds(model, placement, 5) / Transfer(model, placement), 1, 0.01);
}

TEST(AgainstTheFlowLevel, SprayedFlowsTakeThePredictedTimeInAnyOrder) {
  World world(4, 16, 4, 16, 4);  // twice oversubscribed
  CostModel model = world.Model(Balance::kEven);
  for (uint64_t seed : {1, 2, 3}) {
    Placement placement = RandomPlacement(64, seed);
    double simulated = world.SimulatedSeconds(model, placement, LoadBalance::kSpray, 1);
    EXPECT_NEAR(simulated / Transfer(model, placement), 1, 0.02);
  }
}

TEST(AgainstTheFlowLevel, HashedFlowsTakeThePredictedMeanOverOneCut) {
  // 16 pairs, one way across one pair of cuts each way: reduce-scatter of two sends half each way.
  World world(2, 16, 8, 2, 16);
  CostModel model = world.Model(Balance::kHashed);
  Placement across;
  for (int pair = 0; pair < 16; ++pair) {
    across.push_back(pair);
    across.push_back(16 + pair);
  }
  double simulated = world.MeanSeconds(model, across, 60);
  // A mean over hashes of the fuller of two cuts, each way one; the model says of one.
  double predicted = Transfer(model, across);
  EXPECT_GT(simulated, predicted * 0.97);
  EXPECT_LT(simulated, predicted * 1.25);
}

TEST(AgainstTheFlowLevel, OrdersRankAsPredicted) {
  World world(4, 16, 8, 16, 4);
  CostModel model = world.Model(Balance::kHashed);
  PlannedOrder planned = *PlanOrder(world.tree, world.job, world.hosts, {});
  Placement best = *PlacementOf(model, planned.order);
  Placement random = RandomPlacement(64, 5);
  ASSERT_LT(Transfer(model, best) * 1.2, Transfer(model, random));
  double simulated_random = world.MeanSeconds(model, random, 10);
  EXPECT_LT(world.MeanSeconds(model, best, 3) * 1.2, simulated_random);
  // The fullest of many cuts alike is fuller than the model, which looks at each by itself, says.
  EXPECT_GT(simulated_random, Transfer(model, random) * 0.97);
}

}  // namespace
}  // namespace weft::topology
