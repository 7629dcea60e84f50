// Planned orders against exhaustive search, their bound, and the orders jobs have by default.
#include "topology/order/order_planner.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "topology/cost/model_traffic.h"
#include "topology/fabric/clos.h"
#include "topology/job/mesh_text.h"
#include "topology/order/bound.h"
#include "topology/order/search.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

// A random small world: fabric, some of its hosts, and a job that fills them.
struct RandomWorld {
  Fabric fabric;
  Job job;
  std::vector<NodeId> hosts;
  OrderOptions options;

  RandomWorld(Random& random, int nodes) : fabric(MakeFabric(random)) {
    std::vector<NodeId> all(fabric.hosts().begin(), fabric.hosts().end());
    random.Shuffle(all);
    hosts.assign(all.begin(), all.begin() + nodes);
    MakeJob(random, nodes);
    options.balance = static_cast<Balance>(random.Below(3));
    options.effort = 2'000'000;
    options.seed = random();
  }

  static Fabric MakeFabric(Random& random) {
    ClosSpec spec;
    spec.hosts_per_group = 1 + static_cast<int>(random.Below(4));
    spec.groups = 2 + static_cast<int>(random.Below(3));
    spec.pods = 12 / (spec.hosts_per_group * spec.groups) + 1 + static_cast<int>(random.Below(2));
    spec.nics = 1 + static_cast<int>(random.Below(2));
    spec.rail_leaves = spec.nics > 1 && random.Below(2) == 0;
    spec.ports = 1 + static_cast<int>(random.Below(2));
    spec.spines = 1 << random.Below(3);
    spec.cores = spec.spines;
    spec.leaf.bandwidth = Bandwidth::GigabitsPerSecond(200);
    // Oversubscription, at random.
    spec.core.bandwidth = Bandwidth::GigabitsPerSecond(random.Below(2) == 0 ? 400 : 100);
    Fabric fabric = *BuildClos(spec);
    for (int i = 0; i < 2; ++i) {
      LinkId link(static_cast<int32_t>(random.Below(static_cast<uint64_t>(fabric.links()))));
      fabric.SetBandwidth(link, Bandwidth::GigabitsPerSecond(50));
    }
    return fabric;
  }

  void MakeJob(Random& random, int nodes) {
    int gpus = fabric.nics(hosts[0]);
    std::vector<int> parts;
    for (int i = 1; i <= nodes; ++i) {
      if (nodes % i == 0) parts.push_back(i);
    }
    int pipeline = parts[random.Below(parts.size())];
    std::vector<AxisSize> axes = {
        {Axis::kTensor, gpus}, {Axis::kData, nodes / pipeline}, {Axis::kPipeline, pipeline}};
    if (random.Below(2) == 0) std::swap(axes[1], axes[2]);
    job.mesh = *Mesh::Create(axes);
    static constexpr std::array kKinds = {CollectiveKind::kAllReduce,
                                          CollectiveKind::kReduceScatter,
                                          CollectiveKind::kAllGather, CollectiveKind::kAllToAll};
    Traffic traffic;
    traffic.name = "gradients";
    traffic.axes = {Axis::kData};
    traffic.collective = kKinds[random.Below(kKinds.size())];
    traffic.bytes = Bytes(static_cast<int64_t>(1'000'000 * (1 + random.Below(50))));
    if (traffic.collective == CollectiveKind::kAllReduce) {
      traffic.algorithm = static_cast<GroupAlgorithm>(random.Below(3));
    }
    job.traffic.push_back(traffic);
    traffic = {};
    traffic.name = "pipeline";
    traffic.axes = {Axis::kPipeline};
    traffic.collective = CollectiveKind::kSendReceive;
    traffic.both_ways = random.Below(2) == 0;
    traffic.wraps = random.Below(2) == 0;
    traffic.bytes = Bytes(static_cast<int64_t>(1'000'000 * (1 + random.Below(50))));
    job.traffic.push_back(traffic);
  }
};

// Every order of all hosts, with nothing skipped.
absl::Duration BruteForce(const CostModel& model) {
  Placement placement = AsAllocated(model.hosts().size());
  absl::Duration best = absl::InfiniteDuration();
  do {
    best = std::min(best, model.Evaluate(placement).exposed);
  } while (std::next_permutation(placement.begin(), placement.end()));
  return best;
}

TEST(OrderPlanner, IsWithinFivePercentOfEveryOrderOfFewHosts) {
  Random random(20261121);
  for (int round = 0; round < 60; ++round) {
    int nodes = 2 + static_cast<int>(random.Below(6));  // 2..7: up to 5040 orders
    RandomWorld world(random, nodes);
    CutTree tree(world.fabric);
    absl::StatusOr<PlannedOrder> planned = PlanOrder(tree, world.job, world.hosts, world.options);
    ASSERT_TRUE(planned.ok()) << planned.status();
    CostModel model = *CostModel::Create(tree, world.job, planned->order.blocks, world.hosts,
                                         world.options.balance);
    absl::Duration best = BruteForce(model);
    EXPECT_LE(planned->cost.exposed, best * 1.05) << "round " << round << ", " << planned->how;
    EXPECT_GE(planned->cost.exposed, best * (1 - 1e-9)) << "round " << round;
    EXPECT_LE(planned->bound.exposed, best * (1 + 1e-9)) << "round " << round;
  }
}

// 2,048 ranks on 256 hosts of MegaScale's fabric, with traffic of data groups.
struct ManyHosts {
  ManyHosts() {
    job.mesh = *ParseMesh("tp8,dp64,pp4");
    Traffic traffic;
    traffic.axes = {Axis::kData};
    traffic.bytes = Bytes(1'000'000'000);
    job.traffic = {traffic};
  }
  Fabric fabric = *BuildClos(*MegaScaleClos(384));
  CutTree tree{fabric};
  std::vector<NodeId> hosts{fabric.hosts().begin(), fabric.hosts().begin() + 256};
  Job job;
};

TEST(OrderPlanner, StopsWithTheBestSoFar) {
  ManyHosts world;
  Traffic stages = world.job.traffic[0];
  stages.axes = {Axis::kPipeline};
  stages.collective = CollectiveKind::kSendReceive;
  world.job.traffic.push_back(stages);
  int asked = 0;
  OrderOptions options;
  options.progress = [&](const std::string&, double) {
    ++asked;
    return false;
  };
  absl::StatusOr<PlannedOrder> planned = PlanOrder(world.tree, world.job, world.hosts, options);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(asked, 1);
  EXPECT_LE(planned->evaluated, 16);
}

// Where all arrangements are too many for the planner itself, its local search is on its own: held
// against the search over all, which brute force vouches for above.
TEST(OrderPlanner, LocalSearchIsWithinFivePercentOfTheBestOfTenHosts) {
  Random random(7);
  int judged = 0;
  for (int round = 0; round < 60 && judged < 12; ++round) {
    RandomWorld world(random, 7 + static_cast<int>(random.Below(4)));
    CutTree tree(world.fabric);
    std::vector<std::vector<int32_t>> classes = HostClasses(tree, world.hosts);
    int64_t arrangements = CountArrangements(classes[0], 30'000);
    if (arrangements > 30'000) continue;
    ++judged;
    RankBlocks blocks = *DefaultBlocks(world.job, world.fabric, world.hosts);
    CostModel model =
        *CostModel::Create(tree, world.job, blocks, world.hosts, world.options.balance);
    absl::Duration best = model.Evaluate(SearchAll(model, classes[0])).exposed;
    world.options.effort = arrangements;  // too little for all arrangements
    PlannedOrder planned = *PlanOrder(tree, world.job, world.hosts, world.options);
    EXPECT_LE(planned.cost.exposed, best * 1.05) << "round " << round << ", " << planned.how;
    EXPECT_THAT(planned.how, ::testing::Not(HasSubstr("all arrangements")));
  }
  EXPECT_GE(judged, 8);
}

// From random starts alone, without the help of walks.
TEST(SearchLocally, ClimbsFromRandomStartsToNearTheBest) {
  Random random(11);
  double sum = 0;
  int judged = 0;
  for (int round = 0; round < 100 && judged < 20; ++round) {
    RandomWorld world(random, 6 + static_cast<int>(random.Below(4)));
    CutTree tree(world.fabric);
    std::vector<std::vector<int32_t>> classes = HostClasses(tree, world.hosts);
    if (CountArrangements(classes[0], 5'000) > 5'000) continue;
    ++judged;
    RankBlocks blocks = *DefaultBlocks(world.job, world.fabric, world.hosts);
    CostModel model =
        *CostModel::Create(tree, world.job, blocks, world.hosts, world.options.balance);
    absl::Duration best = model.Evaluate(SearchAll(model, classes[0])).exposed;
    Placement start = RandomPlacement(world.hosts.size(), random());
    Placement found = SearchLocally(model, classes[0], start, random, {300'000, nullptr});
    EXPECT_LE(model.Score(found).value(), model.Score(start).value());
    sum += absl::FDivDuration(model.Evaluate(found).exposed, best);
  }
  ASSERT_GE(judged, 15);
  EXPECT_LE(sum / judged, 1.03);
}

TEST(SearchLocally, NeverEndsWorseThanItBegan) {
  Random random(17);
  int judged = 0;
  for (int round = 0; round < 100 && judged < 20; ++round) {
    RandomWorld world(random, 5 + static_cast<int>(random.Below(4)));
    CutTree tree(world.fabric);
    std::vector<std::vector<int32_t>> classes = HostClasses(tree, world.hosts);
    if (CountArrangements(classes[0], 2'000) > 2'000) continue;
    ++judged;
    CostModel model =
        *CostModel::Create(tree, world.job, *DefaultBlocks(world.job, world.fabric, world.hosts),
                           world.hosts, world.options.balance);
    const Placement best = SearchAll(model, classes[0]);
    const Placement found = SearchLocally(model, classes[0], best, random, {100'000, nullptr});
    EXPECT_LE(model.Score(found).value(), model.Score(best).value() * (1 + 1e-9)) << round;
  }
  ASSERT_GE(judged, 15);
}

TEST(SearchLocally, RelievesTheFullestCutOfAManyHostPlacement) {
  const ManyHosts world;
  CostModel model = *CostModel::Create(world.tree, world.job, RankBlocks::Contiguous(2048, 8),
                                       world.hosts, Balance::kHashed);
  Placement start = RandomPlacement(world.hosts.size(), 3);
  Random random(1);
  Placement found = SearchLocally(model, HostClasses(world.tree, world.hosts)[0], start, random,
                                  {10'000'000, nullptr});
  EXPECT_LT(model.Evaluate(found).exposed, model.Evaluate(start).exposed * 0.75);
}

// The scale of a real job, at a tenth: 1,536 GPUs on a scattered half of a fabric.
struct ScatteredWorld {
  Fabric fabric = *BuildClos(*MegaScaleClos(384));
  CutTree tree{fabric};
  Job job;
  std::vector<NodeId> hosts;

  ScatteredWorld() {
    job.mesh = *ParseMesh("tp8,dp24,pp8");
    TrainingSetup setup = *NamedSetup("gpt-175b");
    setup.global_batch = 768;
    job.traffic = *TrafficOf(setup, job.mesh);
    hosts.assign(fabric.hosts().begin(), fabric.hosts().end());
    Random random(5);
    random.Shuffle(hosts);
    hosts.resize(192);
  }
};

TEST(OrderPlanner, BeatsRandomAndBlockOrdersAndComesNearTheBound) {
  ScatteredWorld world;
  PlannedOrder planned = *PlanOrder(world.tree, world.job, world.hosts, {});
  CostModel model = *CostModel::Create(world.tree, world.job, planned.order.blocks, world.hosts,
                                       Balance::kHashed);
  absl::Duration random = model.Evaluate(RandomPlacement(world.hosts.size(), 1)).exposed;
  absl::Duration block = model.Evaluate(BlockPlacement(world.tree, world.hosts)).exposed;
  EXPECT_LT(planned.cost.exposed, random);
  EXPECT_LE(planned.cost.exposed, block);
  EXPECT_LE(planned.cost.exposed, planned.bound.exposed * 1.05);
  // Heavy traffic stays below its leaf: fewer gradients cross than in the block order at random.
  EXPECT_LT(planned.cost.traffic.back().flows_at[3],
            model.Evaluate(RandomPlacement(world.hosts.size(), 1)).traffic.back().flows_at[3]);
}

TEST(OrderPlanner, IsNeverSlowerThanTheBlockOrder) {
  ScatteredWorld world;
  Random random(9);
  for (const char* mesh : {"tp8,pp8,dp24", "tp8,dp24,pp8", "pp8,tp8,dp24", "dp24,pp8,tp8"}) {
    random.Shuffle(world.hosts);
    world.job.mesh = *ParseMesh(mesh);
    OrderOptions options;
    options.effort = 500'000;
    PlannedOrder planned = *PlanOrder(world.tree, world.job, world.hosts, options);
    CostModel model = *CostModel::Create(world.tree, world.job, planned.order.blocks, world.hosts,
                                         Balance::kHashed);
    absl::Duration block = model.Evaluate(BlockPlacement(world.tree, world.hosts)).exposed;
    EXPECT_LE(planned.cost.exposed, block * (1 + 1e-6));
  }
}

TEST(OrderPlanner, TheSameSeedGivesTheSameOrder) {
  ScatteredWorld world;
  OrderOptions options;
  options.effort = 2'000'000;
  PlannedOrder a = *PlanOrder(world.tree, world.job, world.hosts, options);
  PlannedOrder b = *PlanOrder(world.tree, world.job, world.hosts, options);
  EXPECT_EQ(a.order.host_of_slot, b.order.host_of_slot);
  EXPECT_EQ(a.how, b.how);
}

TEST(OrderPlanner, EveryHostIsUsedOnce) {
  ScatteredWorld world;
  OrderOptions options;
  options.effort = 1'000'000;
  PlannedOrder planned = *PlanOrder(world.tree, world.job, world.hosts, options);
  std::set<NodeId> used(planned.order.host_of_slot.begin(), planned.order.host_of_slot.end());
  EXPECT_EQ(used.size(), world.hosts.size());
  for (NodeId host : world.hosts) EXPECT_TRUE(used.contains(host));
}

TEST(OrderPlanner, RegroupingPutsTheHeaviestAxisInsideHosts) {
  ScatteredWorld world;
  // Data outside of nothing: consecutive ranks of a host are replicas, tensor groups span hosts.
  world.job.mesh = *ParseMesh("dp24,tp8,pp8");
  OrderOptions options;
  options.effort = 4'000'000;
  PlannedOrder fixed = *PlanOrder(world.tree, world.job, world.hosts, options);
  options.regroup = true;
  PlannedOrder free = *PlanOrder(world.tree, world.job, world.hosts, options);
  EXPECT_THAT(free.how, HasSubstr("tensor 8 in a host"));
  EXPECT_LT(free.cost.exposed, fixed.cost.exposed / 2);
}

TEST(OrderPlanner, SpareHostsAreLeftOut) {
  ClosSpec spec;
  spec.hosts_per_group = 4;
  spec.groups = 3;
  spec.spines = 1;
  Fabric fabric = *BuildClos(spec);
  CutTree tree(fabric);
  Job job;
  job.mesh = *ParseMesh("dp4");
  Traffic traffic;
  traffic.axes = {Axis::kData};
  traffic.bytes = Bytes(1'000'000);
  job.traffic = {traffic};
  // Two hosts of leaf0, four of leaf1: the job fits under leaf1.
  std::vector<NodeId> hosts;
  for (int i : {0, 4, 1, 5, 6, 7}) hosts.emplace_back(i);
  PlannedOrder planned = *PlanOrder(tree, job, hosts, {});
  std::set<NodeId> used(planned.order.host_of_slot.begin(), planned.order.host_of_slot.end());
  EXPECT_EQ(used, (std::set<NodeId>{NodeId(4), NodeId(5), NodeId(6), NodeId(7)}));
}

TEST(OrderPlanner, ErrorsSayWhatDoesNotFit) {
  ScatteredWorld world;
  world.hosts.pop_back();
  EXPECT_THAT(PlanOrder(world.tree, world.job, world.hosts, {}).status().ToString(),
              HasSubstr("needs 192 hosts; the allocation has 191"));
  EXPECT_THAT(PlanOrder(world.tree, world.job, {}, {}).status().ToString(),
              HasSubstr("has no host"));
  world.job.mesh = *ParseMesh("tp3,dp3");
  EXPECT_THAT(PlanOrder(world.tree, world.job, world.hosts, {}).status().ToString(),
              HasSubstr("9 ranks, which does not fill hosts of 8 GPUs"));
}

TEST(RankOrder, PlacementAndOrderAreInverse) {
  ScatteredWorld world;
  CostModel model = *CostModel::Create(world.tree, world.job, RankBlocks::Contiguous(1536, 8),
                                       world.hosts, Balance::kEven);
  Placement placement = RandomPlacement(192, 3);
  RankOrder order = OrderOf(model, placement);
  EXPECT_EQ(*PlacementOf(model, order), placement);
  EXPECT_EQ(order.HostOf(8 * 17 + 3), world.hosts[static_cast<size_t>(placement[17])]);
  EXPECT_EQ(order.GpuOf(8 * 17 + 3), 3);
  order.host_of_slot[1] = order.host_of_slot[0];
  EXPECT_THAT(PlacementOf(model, order).status().ToString(), HasSubstr("twice in the order"));
}

}  // namespace
}  // namespace weft::topology
