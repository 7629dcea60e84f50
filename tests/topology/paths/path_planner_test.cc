#include "topology/paths/path_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "base/random.h"
#include "topology/ecmp/roce.h"
#include "topology/fabric/clos.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

ClosSpec LeafSpine(int leaves, int hosts_per_leaf, int spines, double gbps = 100) {
  ClosSpec spec;
  spec.groups = leaves;
  spec.hosts_per_group = hosts_per_leaf;
  spec.spines = spines;
  spec.leaf.bandwidth = spec.spine.bandwidth = Bandwidth::GigabitsPerSecond(gbps);
  return spec;
}

ClosSpec ThreeTier(int pods, int leaves, int hosts_per_leaf, int spines, int cores) {
  ClosSpec spec = LeafSpine(leaves, hosts_per_leaf, spines);
  spec.pods = pods;
  spec.cores = cores;
  spec.core.bandwidth = Bandwidth::GigabitsPerSecond(100);
  return spec;
}

struct Bed {
  explicit Bed(const ClosSpec& spec)
      : fabric(*BuildClos(spec)), routes(fabric), hashes(*FabricHashes::Create(fabric)) {}
  Endpoint Host(int i, int nic = 0) const { return {fabric.hosts()[static_cast<size_t>(i)], nic}; }
  int hosts() const { return static_cast<int>(fabric.hosts().size()); }
  std::vector<TrafficFlow> Permutation(uint64_t seed, Bytes bytes = MiB(1)) const {
    Random random(seed);
    std::vector<int> target(static_cast<size_t>(hosts()));
    std::iota(target.begin(), target.end(), 0);
    random.Shuffle(target);
    std::vector<TrafficFlow> flows;
    for (int i = 0; i < hosts(); ++i) {
      int to = target[static_cast<size_t>(i)];
      if (to != i) flows.push_back({Host(i), Host(to), bytes});
    }
    return flows;
  }
  void SetUp(absl::string_view a, absl::string_view b, bool up) {
    fabric.SetUp(*fabric.FindLink(*fabric.Find(a), *fabric.Find(b)), up);
    routes.Update();
  }

  Fabric fabric;
  Routes routes;
  FabricHashes hashes;
};

double FlowSeconds(Bytes bytes, double gbps = 100) {
  return absl::ToDoubleSeconds(bytes / Bandwidth::GigabitsPerSecond(gbps));
}

// What the plan says is what the hashes give, link by link.
void ExpectConsistent(const Bed& bed, const PathPlan& plan, const PathPlannerOptions& options) {
  std::set<std::tuple<Endpoint, Endpoint, uint16_t>> ports;
  for (const PlannedPath& path : plan.paths) {
    EXPECT_GE(path.source_port, options.port_first);
    EXPECT_LE(path.source_port, options.port_last);
    EXPECT_TRUE(ports.insert({path.source, path.target, path.source_port}).second);
    FiveTuple tuple = bed.hashes.Tuple(path.source, path.target, path.source_port,
                                       options.target_port, options.protocol);
    EXPECT_EQ(*bed.hashes.Path(bed.routes, path.source, path.target, tuple), path.links);
  }
}

TEST(PathPlanner, MeetsTheBoundOfAFullPermutationOnLeafSpine) {
  Bed bed(LeafSpine(8, 16, 16));
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    PathPlan plan = *PathPlanner(bed.routes, bed.hashes).Plan(bed.Permutation(seed));
    ASSERT_EQ(plan.phases.size(), 1u);
    const PhaseReport& report = plan.phases[0];
    EXPECT_NEAR(report.after.worst, FlowSeconds(MiB(1)), 1e-9);  // one flow a link
    EXPECT_NEAR(report.bound, report.after.worst, 1e-9);
    EXPECT_GE(report.before.worst, 2 * report.after.worst);  // hashing alone collides
    EXPECT_EQ(plan.unmet, 0);
    ExpectConsistent(bed, plan, {});
  }
}

TEST(PathPlanner, MeetsTheBoundOfAFullPermutationOnThreeTiers) {
  Bed bed(ThreeTier(4, 4, 8, 8, 64));
  PathPlan plan = *PathPlanner(bed.routes, bed.hashes).Plan(bed.Permutation(5));
  const PhaseReport& report = plan.phases[0];
  EXPECT_NEAR(report.after.worst, report.bound, 1e-9);
  EXPECT_GT(report.before.worst, 1.9 * report.after.worst);
  ExpectConsistent(bed, plan, {});
}

TEST(PathPlanner, MeetsTheBoundWithOversubscriptionAndOddNumbers) {
  for (int spines : {3, 5, 7}) {
    Bed bed(LeafSpine(6, 12, spines));
    PathPlan plan = *PathPlanner(bed.routes, bed.hashes).Plan(bed.Permutation(2));
    EXPECT_NEAR(plan.phases[0].after.worst, plan.phases[0].bound, 1e-9) << spines;
  }
}

TEST(PathPlanner, UsesLinuxHashesAsWell) {
  Bed bed(LeafSpine(4, 8, 8));
  for (int i = 0; i < bed.fabric.nodes(); ++i) {
    bed.hashes.SetHash(
        NodeId(i), *SwitchHash::Create({HashFunction::kLinux, HashSelect::kThreshold, 100u + i}));
  }
  PathPlannerOptions options;
  options.protocol = kProtocolTcp;
  options.port_first = 20000;
  options.port_last = 20999;
  PathPlan plan = *PathPlanner(bed.routes, bed.hashes, options).Plan(bed.Permutation(2));
  EXPECT_NEAR(plan.phases[0].after.worst, plan.phases[0].bound, 1e-9);
  ExpectConsistent(bed, plan, options);
}

TEST(PathPlanner, SplitsFlowsOnlyWhereThatHelps) {
  // Three flows over two uplinks: 2 on one, or 3 halves on each.
  Bed bed(LeafSpine(2, 3, 2));
  std::vector<TrafficFlow> flows;
  for (int i = 0; i < 3; ++i) flows.push_back({bed.Host(i), bed.Host(3 + i), MiB(2)});
  PathPlannerOptions options;
  EXPECT_NEAR(PathPlanner(bed.routes, bed.hashes, options).Plan(flows)->phases[0].after.worst,
              2 * FlowSeconds(MiB(2)), 1e-9);
  options.subflows_max = 4;
  PathPlan split = *PathPlanner(bed.routes, bed.hashes, options).Plan(flows);
  EXPECT_EQ(split.phases[0].subflows, 2);
  EXPECT_EQ(split.paths.size(), 6u);
  EXPECT_NEAR(split.phases[0].after.worst, 1.5 * FlowSeconds(MiB(2)), 1e-9);
  EXPECT_NEAR(split.phases[0].bound_fluid, split.phases[0].after.worst, 1e-9);
  flows.pop_back();  // two flows fit as they are
  EXPECT_EQ(PathPlanner(bed.routes, bed.hashes, options).Plan(flows)->phases[0].subflows, 1);
}

TEST(PathPlanner, PartsOfAFlowAddUpToItsBytes) {
  Bed bed(LeafSpine(2, 3, 2));
  const Bytes bytes(1'000'003);  // no multiple of any number of parts
  std::vector<TrafficFlow> flows;
  for (int i = 0; i < 3; ++i) flows.push_back({bed.Host(i), bed.Host(3 + i), bytes});
  PathPlannerOptions options;
  options.subflows_max = 4;
  PathPlan plan = *PathPlanner(bed.routes, bed.hashes, options).Plan(flows);
  ASSERT_GT(plan.phases[0].subflows, 1);
  std::vector<Bytes> sum(flows.size());
  for (const PlannedPath& path : plan.paths) sum[path.flow] += path.bytes;
  for (Bytes all : sum) EXPECT_EQ(all, bytes);
}

// One queue pair is tried first, then two: both fit into two ports only one after the other.
TEST(PathPlanner, AttemptsThatAreNotUsedTakeNoPorts) {
  Bed bed(LeafSpine(2, 3, 2));
  std::vector<TrafficFlow> flows;
  for (int i = 0; i < 3; ++i) flows.push_back({bed.Host(i), bed.Host(3 + i), MiB(2)});
  PathPlannerOptions options;
  options.subflows_max = 2;
  options.port_first = 0xC000;
  options.port_last = 0xC001;
  absl::StatusOr<PathPlan> plan = PathPlanner(bed.routes, bed.hashes, options).Plan(flows);
  ASSERT_TRUE(plan.ok()) << plan.status();
}

TEST(PathPlanner, PlansEachPhaseForItself) {
  Bed bed(LeafSpine(2, 4, 4));
  std::vector<TrafficFlow> flows;
  for (uint32_t phase = 0; phase < 3; ++phase) {
    for (int i = 0; i < 4; ++i) flows.push_back({bed.Host(i), bed.Host(4 + i), MiB(1), phase});
  }
  PathPlan plan = *PathPlanner(bed.routes, bed.hashes).Plan(flows);
  ASSERT_EQ(plan.phases.size(), 3u);
  EXPECT_NEAR(plan.seconds_after, 3 * FlowSeconds(MiB(1)), 1e-9);
  ExpectConsistent(bed, plan, {});  // ports of a pair differ over phases, too
}

TEST(PathPlanner, BalancesFlowsOfDifferentSizes) {
  Bed bed(LeafSpine(4, 8, 4));
  Random random(4);
  std::vector<TrafficFlow> flows = bed.Permutation(9);
  for (TrafficFlow& flow : flows) flow.bytes = KiB(static_cast<int64_t>(256 + random.Below(2048)));
  PathPlan plan = *PathPlanner(bed.routes, bed.hashes).Plan(flows);
  EXPECT_LE(plan.phases[0].after.worst, 1.15 * plan.phases[0].bound);
  EXPECT_LT(plan.phases[0].after.worst, 0.8 * plan.phases[0].before.worst);
}

// With few ports and unequal flows most exchanges that are tried do not work out.
TEST(PathPlanner, SearchLeavesNothingBehindOfWhatDidNotWorkOut) {
  Bed bed(LeafSpine(4, 8, 4));
  PathPlannerOptions none, few;
  few.port_last = none.port_last = static_cast<uint16_t>(few.port_first + 11);
  none.search_probes = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    std::vector<TrafficFlow> flows = bed.Permutation(seed);
    for (TrafficFlow& flow : flows) {
      flow.bytes = KiB(static_cast<int64_t>(256 + random.Below(2048)));
    }
    PathPlan placed = *PathPlanner(bed.routes, bed.hashes, none).Plan(flows);
    PathPlan searched = *PathPlanner(bed.routes, bed.hashes, few).Plan(flows);
    EXPECT_LE(searched.phases[0].after.worst, placed.phases[0].after.worst) << "seed " << seed;
    ExpectConsistent(bed, searched, few);
    PathPlan evaluated = *PathPlanner(bed.routes, bed.hashes, few).Evaluate(flows, searched.paths);
    EXPECT_NEAR(evaluated.phases[0].after.worst, searched.phases[0].after.worst, 1e-12);
  }
}

TEST(PathPlanner, ChoosesRailsThatSpreadTheLoad) {
  ClosSpec spec = LeafSpine(2, 2, 4);
  spec.nics = 4;
  spec.rail_leaves = true;
  Bed bed(spec);
  std::vector<TrafficFlow> flows;
  for (int i = 0; i < 4; ++i) flows.push_back({bed.Host(0, kAnyNic), bed.Host(1, kAnyNic), MiB(1)});
  PathPlan plan = *PathPlanner(bed.routes, bed.hashes).Plan(flows);
  std::set<int> rails;
  for (const PlannedPath& path : plan.paths) {
    EXPECT_EQ(path.source.nic, path.target.nic);  // stays on its rail: below one leaf
    EXPECT_EQ(path.links.size(), 2u);
    rails.insert(path.source.nic);
  }
  EXPECT_EQ(rails.size(), 4u);
  EXPECT_NEAR(plan.phases[0].after.worst, FlowSeconds(MiB(1)), 1e-9);
}

TEST(PathPlanner, PlansOverPortsOfADualTorNic) {
  ClosSpec spec = LeafSpine(4, 8, 8);
  spec.ports = 2;
  Bed bed(spec);
  PathPlannerOptions options;
  options.subflows_max = 2;
  PathPlan plan = *PathPlanner(bed.routes, bed.hashes, options).Plan(bed.Permutation(3));
  EXPECT_LE(plan.phases[0].after.worst, plan.phases[0].bound * 1.001);
  ExpectConsistent(bed, plan, options);
}

TEST(PathPlanner, ReplansAfterAFailureAndMovesFew) {
  Bed bed(LeafSpine(8, 16, 16));
  // Resilient hashing, or every flow of the leaf would move by itself.
  for (int i = 0; i < bed.fabric.nodes(); ++i) {
    SwitchHashOptions hash = PerTierHash(bed.fabric.node(NodeId(i)).tier, 7u + i);
    hash.select = HashSelect::kResilient;
    hash.buckets = 1024;
    bed.hashes.SetHash(NodeId(i), *SwitchHash::Create(hash));
  }
  PathPlanner planner(bed.routes, bed.hashes);
  std::vector<TrafficFlow> flows = bed.Permutation(1);
  PathPlan plan = *planner.Plan(flows);
  ASSERT_NEAR(plan.phases[0].after.worst, plan.phases[0].bound, 1e-9);

  bed.SetUp("leaf3", "spine5", false);
  PathPlan again = *planner.Replan(flows, plan);
  EXPECT_NEAR(again.phases[0].after.worst, again.phases[0].bound, 1e-9);
  EXPECT_GT(again.moved, 0);
  EXPECT_LE(again.moved, 16);  // of some 120
  ExpectConsistent(bed, again, {});

  bed.SetUp("leaf3", "spine5", true);
  PathPlan back = *planner.Replan(flows, again);
  EXPECT_NEAR(back.phases[0].after.worst, FlowSeconds(MiB(1)), 1e-9);
  EXPECT_LE(back.moved, 16);
}

TEST(PathPlanner, LeavesAPlanThatIsGoodAlone) {
  Bed bed(LeafSpine(4, 8, 8));
  PathPlanner planner(bed.routes, bed.hashes);
  std::vector<TrafficFlow> flows = bed.Permutation(1);
  PathPlan plan = *planner.Plan(flows), again = *planner.Replan(flows, plan);
  EXPECT_EQ(again.moved, 0);
  ASSERT_EQ(again.paths.size(), plan.paths.size());
  for (size_t i = 0; i < plan.paths.size(); ++i) {
    EXPECT_EQ(again.paths[i].source_port, plan.paths[i].source_port);
  }
}

TEST(PathPlanner, AvoidsADegradedLink) {
  Bed bed(LeafSpine(2, 4, 4));
  bed.fabric.SetBandwidth(
      *bed.fabric.FindLink(*bed.fabric.Find("leaf0"), *bed.fabric.Find("spine1")),
      Bandwidth::GigabitsPerSecond(10));
  bed.routes.Update();
  std::vector<TrafficFlow> flows;
  for (int i = 0; i < 4; ++i) flows.push_back({bed.Host(i), bed.Host(4 + i), MiB(1)});
  PathPlan plan = *PathPlanner(bed.routes, bed.hashes).Plan(flows);
  EXPECT_NEAR(plan.phases[0].after.worst, 2 * FlowSeconds(MiB(1)), 1e-9);  // not 10
}

// The last spine has half the bandwidth, so that it gets half the flows of another.
TEST(PathPlanner, SharesFlowsInProportionToTheBandwidthOfUnequalSpines) {
  for (int spines : {3, 5, 8}) {
    Bed bed(LeafSpine(6, 15, spines));
    const NodeId slow = *bed.fabric.Find(absl::StrCat("spine", spines - 1));
    for (LinkId link : bed.fabric.LinksFrom(slow)) {
      bed.fabric.SetBandwidth(link, Bandwidth::GigabitsPerSecond(50));
      bed.fabric.SetBandwidth(bed.fabric.link(link).reverse, Bandwidth::GigabitsPerSecond(50));
    }
    bed.routes.Update();
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const PathPlan plan = *PathPlanner(bed.routes, bed.hashes).Plan(bed.Permutation(seed));
      const PhaseReport& report = plan.phases[0];
      EXPECT_NEAR(report.after.worst, report.bound, 1e-9)
          << spines << " spines, permutation " << seed << ": " << report.bound_reason;
      ExpectConsistent(bed, plan, {});
    }
  }
}

TEST(PathPlanner, SaysHowManyWishesPolarisedHashesLeaveOpen) {
  Bed bed(ThreeTier(2, 4, 4, 4, 16));
  for (int i = 0; i < bed.fabric.nodes(); ++i) {
    bed.hashes.SetHash(NodeId(i), *SwitchHash::Create({HashFunction::kCrc32}));
  }
  PathPlan plan = *PathPlanner(bed.routes, bed.hashes).Plan(bed.Permutation(2));
  EXPECT_GT(plan.unmet, 0);
  EXPECT_GT(plan.phases[0].after.worst, plan.phases[0].bound);  // four of 16 cores are reached
  ExpectConsistent(bed, plan, {});
}

TEST(PathPlanner, IsDeterministic) {
  Bed bed(ThreeTier(2, 4, 4, 4, 16));
  PathPlanner planner(bed.routes, bed.hashes);
  PathPlan one = *planner.Plan(bed.Permutation(8)), two = *planner.Plan(bed.Permutation(8));
  ASSERT_EQ(one.paths.size(), two.paths.size());
  for (size_t i = 0; i < one.paths.size(); ++i) {
    EXPECT_EQ(one.paths[i].source_port, two.paths[i].source_port);
    EXPECT_EQ(one.paths[i].links, two.paths[i].links);
  }
  EXPECT_EQ(Describe(one, bed.fabric), Describe(two, bed.fabric));
}

TEST(PathPlanner, EvaluatesPortsThatAreGiven) {
  Bed bed(LeafSpine(4, 8, 8));
  std::vector<TrafficFlow> flows = bed.Permutation(1);
  PathPlanner planner(bed.routes, bed.hashes);
  PathPlan plan = *planner.Plan(flows);
  std::vector<PlannedPath> same_port = plan.paths;
  for (PlannedPath& path : same_port) path.source_port = 0xC000;
  PathPlan worse = *planner.Evaluate(flows, same_port);
  EXPECT_EQ(worse.moved, 0);
  EXPECT_GT(worse.phases[0].after.worst, plan.phases[0].after.worst);
  EXPECT_NEAR(planner.Evaluate(flows, plan.paths)->phases[0].after.worst,
              plan.phases[0].after.worst, 1e-12);
}

TEST(PathPlanner, NamesPartitionsAndMistakes) {
  Bed bed(LeafSpine(2, 2, 1));
  auto message = [&](std::vector<TrafficFlow> flows, const PathPlannerOptions& options = {}) {
    absl::Status status = PathPlanner(bed.routes, bed.hashes, options).Plan(flows).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  EXPECT_THAT(message({{bed.Host(0, 3), bed.Host(1), MiB(1)}}), HasSubstr("h0 has 1 NICs"));
  EXPECT_THAT(message({{bed.Host(0), bed.Host(0), MiB(1)}}), HasSubstr("one host"));
  EXPECT_THAT(message({{{NodeId(4), 0}, bed.Host(0), MiB(1)}}), HasSubstr("no host"));
  PathPlannerOptions narrow;
  narrow.port_first = narrow.port_last = 50000;
  EXPECT_THAT(
      message({{bed.Host(0), bed.Host(2), MiB(1)}, {bed.Host(0), bed.Host(2), MiB(1)}}, narrow),
      HasSubstr("50000..50000 are taken"));
  narrow.port_first = 0;
  EXPECT_THAT(message({}, narrow), HasSubstr("FIRST..LAST"));
  bed.SetUp("leaf1", "spine0", false);
  EXPECT_THAT(message({{bed.Host(0), bed.Host(2), MiB(1)}}), HasSubstr("partitioned"));
}

TEST(PathPlanner, HashesTheTargetPortOfEachFlow) {
  Bed bed(LeafSpine(2, 4, 4));
  std::vector<TrafficFlow> flows;
  for (int i = 0; i < 4; ++i) {
    flows.push_back({bed.Host(i), bed.Host(4 + i), MiB(1), 0, static_cast<uint16_t>(7000 + i)});
  }
  PathPlanner planner(bed.routes, bed.hashes);
  PathPlan plan = *planner.Plan(flows);
  for (const PlannedPath& path : plan.paths) {
    FiveTuple tuple = bed.hashes.Tuple(path.source, path.target, path.source_port,
                                       flows[path.flow].target_port, kProtocolUdp);
    EXPECT_EQ(*bed.hashes.Path(bed.routes, path.source, path.target, tuple), path.links);
  }
  EXPECT_EQ(planner.Replan(flows, plan)->moved, 0);
}

TEST(PathPlanner, RefusesAPlanOfOtherFlows) {
  Bed bed(LeafSpine(2, 2, 2));
  PathPlanner planner(bed.routes, bed.hashes);
  std::vector<TrafficFlow> flows = {{bed.Host(0), bed.Host(2), MiB(1)}};
  PathPlan plan = *planner.Plan(flows);
  flows[0].target = bed.Host(3);
  EXPECT_THAT(std::string(planner.Replan(flows, plan).status().message()),
              HasSubstr("was it made for others"));
}

}  // namespace
}  // namespace weft::topology
