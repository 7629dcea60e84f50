// Predicted times against the closed formulas, and the fast evaluations against a naive one.
#include "topology/cost/cost_model.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <numeric>

#include "base/random.h"
#include "topology/cost/model_traffic.h"
#include "topology/cost/placement_state.h"
#include "topology/ecmp/collisions.h"
#include "topology/fabric/clos.h"
#include "topology/job/mesh_text.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

// Keeps what the model refers to.
struct World {
  Fabric fabric;
  std::unique_ptr<CutTree> tree;
  Job job;
  std::vector<NodeId> hosts;

  World(const ClosSpec& spec, Job job_to_run)
      : fabric(*BuildClos(spec)), job(std::move(job_to_run)) {
    tree = std::make_unique<CutTree>(fabric);
    hosts.assign(fabric.hosts().begin(), fabric.hosts().end());
  }
  absl::StatusOr<CostModel> Model(Balance balance = Balance::kHashed) const {
    int gpus = fabric.nics(hosts[0]);
    return CostModel::Create(*tree, job, RankBlocks::Contiguous(job.mesh.ranks(), gpus), hosts,
                             balance);
  }
};

Placement Identity(size_t size) {
  Placement placement(size);
  std::iota(placement.begin(), placement.end(), 0);
  return placement;
}

ClosSpec LeafSpine(int groups, int per_group, int spines) {
  ClosSpec spec;
  spec.groups = groups;
  spec.hosts_per_group = per_group;
  spec.spines = spines;
  return spec;
}

Job DataJob(int data, Bytes bytes, GroupAlgorithm algorithm = GroupAlgorithm::kRing) {
  Job job;
  job.mesh = *Mesh::Create({{Axis::kData, data}});
  job.node.efficiency = 1;
  Traffic traffic;
  traffic.name = "gradients";
  traffic.axes = {Axis::kData};
  traffic.algorithm = algorithm;
  traffic.bytes = bytes;
  job.traffic = {traffic};
  return job;
}

TEST(CostModel, AnUncongestedRingTakesWhatAlphaBetaSays) {
  World world(LeafSpine(1, 8, 1), DataJob(8, Bytes(800'000'000)));
  StepCost step = world.Model()->Evaluate(Identity(8));
  double alpha = absl::ToDoubleSeconds(world.job.node.network_latency + world.tree->Latency(1));
  double expected = 2 * 7 * alpha + 2.0 * 7 / 8 * 800e6 / 50e9;
  EXPECT_NEAR(absl::ToDoubleSeconds(step.exposed) / expected, 1, 0.01);
  EXPECT_EQ(step.traffic[0].flows_at[1], 8);
  EXPECT_EQ(step.traffic[0].worst.group, -1);
}

TEST(CostModel, AHierarchicalAllReduceTakesWhatItsFormulaSays) {
  ClosSpec spec = LeafSpine(1, 4, 1);
  spec.nics = 8;
  Job job = DataJob(32, Bytes(800'000'000), GroupAlgorithm::kHierarchical);
  World world(spec, job);
  double ai = absl::ToDoubleSeconds(job.node.nvlink_latency), bi = 1 / 300e9;
  double ao = absl::ToDoubleSeconds(job.node.network_latency + world.tree->Latency(1));
  double bo = 1 / 50e9, g = 8, m = 4, s = 800e6;
  double expected = 2 * (g - 1) * ai + 2 * (g - 1) / g * s * bi + 2 * (m - 1) * ao +
                    2 * (m - 1) / m * (s / g) * bo;
  EXPECT_NEAR(absl::ToDoubleSeconds(world.Model()->Evaluate(Identity(4)).exposed) / expected, 1,
              0.01);
}

TEST(CostModel, PlannedFlowsAreWholeOnTheirCables) {
  Job job = DataJob(2, Bytes(1'000'000'000));
  job.mesh = *ParseMesh("dp2,pp3");  // three pairs
  World world(LeafSpine(2, 3, 2), job);
  const Placement across = {0, 3, 1, 4, 2, 5};  // over two cables
  TrafficCost planned = world.Model(Balance::kPlanned)->Evaluate(across).traffic[0];
  EXPECT_EQ(planned.worst.flows, 3);
  EXPECT_NEAR(absl::FDivDuration(planned.transfer, planned.floor), 2, 1e-9);
  TrafficCost even = world.Model(Balance::kEven)->Evaluate(across).traffic[0];
  EXPECT_NEAR(absl::FDivDuration(even.transfer, even.floor), 1.5, 1e-9);
}

TEST(CostModel, HashedFlowsPayForTheFullestCable) {
  // MegaScale's full ToR: 64 flows of 200G on 32 uplinks of 400G, 5.41 on the fullest.
  ClosSpec spec = LeafSpine(2, 64, 32);
  spec.leaf.bandwidth = Bandwidth::GigabitsPerSecond(200);
  Job job = DataJob(2, Bytes(1'000'000'000));
  job.mesh = *ParseMesh("dp2,pp64");  // pairs
  World world(spec, job);
  // Slot 2k + i on leaf i: every pair across.
  Placement across;
  for (int pair = 0; pair < 64; ++pair) {
    across.push_back(pair);
    across.push_back(64 + pair);
  }
  TrafficCost hashed = world.Model(Balance::kHashed)->Evaluate(across).traffic[0];
  EXPECT_EQ(hashed.worst.flows, 64);
  EXPECT_NEAR(absl::FDivDuration(hashed.transfer, hashed.floor),
              ExpectedCollisions(64, 32)->max_mean / 2, 1e-6);
  EXPECT_NEAR(absl::FDivDuration(hashed.transfer, hashed.floor), 2.71, 0.01);
  TrafficCost planned = world.Model(Balance::kPlanned)->Evaluate(across).traffic[0];
  EXPECT_NEAR(absl::FDivDuration(planned.transfer, planned.floor), 1, 1e-9);
  TrafficCost together = world.Model()->Evaluate(Identity(128)).traffic[0];
  EXPECT_NEAR(absl::FDivDuration(together.transfer, together.floor), 1, 1e-9);
  EXPECT_EQ(together.flows_at[2], 0);
  // Queue pairs even the load out.
  world.job.node.queue_pairs = 8;
  EXPECT_LT(world.Model()->Evaluate(across).traffic[0].transfer, hashed.transfer * 0.7);
}

TEST(CostModel, ASlowCableIsPaidForWhenHashingHitsIt) {
  Job job = DataJob(2, Bytes(1'000'000'000));
  World world(LeafSpine(2, 1, 2), job);
  TrafficCost before = world.Model()->Evaluate(Identity(2)).traffic[0];
  LinkId link = *world.fabric.FindLink(*world.fabric.Find("leaf0"), *world.fabric.Find("spine0"));
  world.fabric.SetBandwidth(link, Bandwidth::GigabitsPerSecond(40));
  world.tree = std::make_unique<CutTree>(world.fabric);
  TrafficCost after = world.Model()->Evaluate(Identity(2)).traffic[0];
  EXPECT_NEAR(absl::FDivDuration(after.transfer, before.transfer), 5,
              0.01);  // hit by half of all hashes, 10 x slower
}

TEST(CostModel, NamesWhatIsWrongWithAnAllocation) {
  World world(LeafSpine(2, 4, 2), DataJob(8, Bytes(1000)));
  world.hosts.pop_back();
  EXPECT_THAT(world.Model().status().ToString(), HasSubstr("needs 8 hosts; the allocation has 7"));
  world.hosts.push_back(world.hosts[0]);
  EXPECT_THAT(world.Model().status().ToString(), HasSubstr("names h0 twice"));
  world.hosts.back() = NodeId(7);
  world.fabric.SetUp(world.fabric.Ports({NodeId(7), 0})[0], false);
  world.tree = std::make_unique<CutTree>(world.fabric);
  EXPECT_THAT(world.Model().status().ToString(), HasSubstr("no path joins NIC 0 of h0 and of h7"));
}

// Rank 1 sends to rank 2: NIC 1 of a host to NIC 0 of the next, which no switch joins.
TEST(CostModel, NamesNicsThatTrafficCannotGoBetween) {
  ClosSpec spec = LeafSpine(2, 4, 2);
  spec.nics = 2;
  spec.rail_leaves = true;
  spec.planes = Planes::kByRail;
  Job job = DataJob(8, Bytes(1000));
  job.mesh = *ParseMesh("dp8,pp2");
  World(spec, job).Model().value();  // the rails of a group are the same everywhere
  job.mesh = *ParseMesh("pp16");
  job.traffic[0].name = "activations";
  job.traffic[0].axes = {Axis::kPipeline};
  job.traffic[0].collective = CollectiveKind::kSendReceive;
  EXPECT_THAT(World(spec, job).Model().status().ToString(),
              HasSubstr("activations goes from NIC 1 of a host to NIC 0 of another, and no path"));
}

// The whole model again, as simply as it can be said: every flow over every cut, in maps.
double NaiveSeconds(const World& world, const CostModel& model, const Placement& placement) {
  double step = 0;
  for (size_t i = 0; i < world.job.traffic.size(); ++i) {
    const TrafficFlows& flows = model.flows(i);
    std::map<std::pair<int, bool>, std::pair<int64_t, int64_t>> loads;
    std::map<int, std::pair<double, int>> latency;
    for (const SlotFlow& flow : flows.flows) {
      auto host = [&](int slot) {
        return world.hosts[static_cast<size_t>(placement[static_cast<size_t>(slot)])];
      };
      Endpoint a{host(flow.source), flow.source_nic}, b{host(flow.target), flow.target_nic};
      int meeting = world.tree->MeetingLevel(a, b);
      for (int level = 0; level < meeting; ++level) {
        for (bool up : {true, false}) {
          auto& [count, bytes] =
              loads[{world.tree->Path(up ? a : b)[static_cast<size_t>(level)], up}];
          ++count;
          bytes += flow.bytes;
        }
      }
      auto& [sum, count] = latency[flow.group];
      sum += absl::ToDoubleSeconds(world.job.node.network_latency + world.tree->Latency(meeting));
      ++count;
    }
    double transfer = absl::ToDoubleSeconds(flows.inside), most = 0;
    for (const auto& [where, load] : loads) {
      const CutTree::Cut& cut = world.tree->cut(where.first);
      double fullest = ExpectedCollisions(static_cast<int>(load.first), cut.links)->max_mean;
      double seconds = static_cast<double>(load.second) / static_cast<double>(load.first) *
                       fullest / (cut.capacity / cut.links) / world.job.node.efficiency;
      transfer = std::max(transfer, seconds);
    }
    for (const auto& [group, sum] : latency) {
      most = std::max(most, flows.network_steps * sum.first / sum.second);
    }
    step += absl::ToDoubleSeconds(
        world.job.traffic[i].Exposed(absl::Seconds(most + transfer) + flows.inside_latency));
  }
  return step;
}

TEST(CostModel, EvaluationAndSwapsAgreeWithTheNaiveModel) {
  Job job;
  job.mesh = *ParseMesh("tp2,dp6,pp2");
  job.traffic = {};
  for (auto [axis, collective] :
       std::vector<std::pair<Axis, CollectiveKind>>{{Axis::kTensor, CollectiveKind::kAllGather},
                                                    {Axis::kData, CollectiveKind::kAllReduce},
                                                    {Axis::kPipeline, CollectiveKind::kSendReceive},
                                                    {Axis::kData, CollectiveKind::kAllToAll}}) {
    Traffic traffic;
    traffic.name = absl::StrCat(ToString(axis), ToString(collective));
    traffic.axes = {axis};
    traffic.collective = collective;
    traffic.bytes = Bytes(10'000'000);
    traffic.both_ways = true;
    traffic.exposed = 0.5;
    job.traffic.push_back(traffic);
  }
  job.traffic[1].algorithm = GroupAlgorithm::kTree;
  ClosSpec spec;
  spec.hosts_per_group = 2;
  spec.groups = 2;
  spec.pods = 4;
  spec.nics = 2;
  spec.rail_leaves = true;
  spec.spines = 3;
  spec.cores = 3;
  World world(spec, job);
  absl::StatusOr<CostModel> model = world.Model();
  ASSERT_TRUE(model.ok()) << model.status();
  Random random(7);
  Placement placement = Identity(world.hosts.size());  // four of them spare
  random.Shuffle(placement);
  PlacementState state(*model, placement);
  for (int i = 0; i < 300; ++i) {
    state.Swap(static_cast<int32_t>(random.Below(16)), static_cast<int32_t>(random.Below(16)));
    if (i % 10 != 0) continue;
    double naive = NaiveSeconds(world, *model, state.placement());
    double full = absl::ToDoubleSeconds(model->Evaluate(state.placement()).exposed);
    EXPECT_NEAR(full / naive, 1, 1e-3);  // tables are linear between points
    EXPECT_NEAR(state.Seconds() / full, 1, 1e-6);
  }
}

TEST(CostModel, WorstCutsNameTheirGroups) {
  Job job = DataJob(4, Bytes(1'000'000));
  job.mesh = *ParseMesh("dp4,pp2");
  World world(LeafSpine(2, 4, 2), job);
  absl::StatusOr<CostModel> model = world.Model();
  Placement placement = {0, 1, 2, 4, 3, 5, 6, 7};  // one host of each group on the other leaf
  std::vector<CutLoad> worst = model->WorstCuts(placement, 0, 10);
  ASSERT_EQ(worst.size(), 4U);
  EXPECT_EQ(worst[0].flows, 2);
  EXPECT_THAT(model->GroupsOn(placement, 0, worst[0]), ::testing::ElementsAre(0, 1));
}

}  // namespace
}  // namespace weft::topology
