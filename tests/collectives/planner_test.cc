// The choice of algorithms: the same on all ranks, and sensible at the ends of every range.
#include "collectives/planner/planner.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/algorithms/exchange.h"
#include "tests/collectives/planner_cases.h"
#include "tests/collectives/schedule_cases.h"

namespace weft::collectives::planner {
namespace {

TEST(PlannerTest, NeitherRankNorMemoryCounts) {
  for (int k = 0; k < kCollectiveKindCount; ++k) {
    const CollectiveKind kind = static_cast<CollectiveKind>(k);
    for (int n : {1, 2, 5, 16}) {
      for (uint64_t count : {0u, 1u, 1000u, 1000000u}) {
        for (int hosts : {1, 3}) {
          CaseOptions options{.count = count, .root = 1, .hosts = hosts};
          options.in_place = CaseOptions::kSome;
          const Case built = BuildCase(kDirect, kind, n, options);
          std::vector<Plan> plans;
          for (const CollectiveSpec& spec : built.specs) {
            plans.push_back(ChoosePlan(spec, 4, Table(), ""));
            EXPECT_EQ(plans.back().ToText(), plans.front().ToText()) << built.text;
            EXPECT_EQ(plans.back().chunk, plans.front().chunk) << built.text;
          }
        }
      }
    }
  }
}

TEST(PlannerTest, SmallSizesTakeFewTurnsAndLargeOnesFewBytes) {
  const CollectiveKind all_reduce = CollectiveKind::kAllReduce;
  const Plan small = ChoosePlan(Spec(all_reduce, 4, 256), 4, Table(), "");
  EXPECT_LE(small.algorithm->cost(Spec(all_reduce, 4, 256)).turns, 2) << small.why;
  const CollectiveSpec many = Spec(all_reduce, 64, 64);
  const Plan plan = ChoosePlan(many, 4, Table(), "");
  EXPECT_LE(plan.algorithm->cost(many).turns, 6) << plan.why;
  for (int n : {4, 16}) {
    const CollectiveSpec large = Spec(all_reduce, n, 16 << 20);
    const Plan plan = ChoosePlan(large, 4, Table(), "");
    EXPECT_LE(plan.algorithm->cost(large).elements, 2.1 * (16 << 20)) << plan.why;
  }
}

// What all ranks do together is what counts then.
TEST(PlannerTest, RanksAboveCoresTakeFewMessagesOfAllTogether) {
  const CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, 16, 64);
  const Cost cost = ChoosePlan(spec, 4, Table(2), "").algorithm->cost(spec);
  EXPECT_LT(cost.messages * cost.balance * 16, 16 * 15);
}

TEST(PlannerTest, SeveralHostsSendLittleBetweenThem) {
  for (CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                              CollectiveKind::kAllGather, CollectiveKind::kBroadcast}) {
    CollectiveSpec spec = Spec(kind, 32, 1 << 20);
    spec.place = Hosts(4, 8);
    const Plan plan = ChoosePlan(spec, 4, Table(), "");
    const double direct = kDirect.cost(spec).elements_across;
    EXPECT_LT(plan.algorithm->cost(SpecOf(plan, spec)).elements_across, direct / 2)
        << ToString(kind) << " " << plan.why;
  }
}

// Eight hosts in pairs under four switches whose cables carry all that their NICs do. What leaves
// the ring of planned flows shares cables by chance, so that rings and chains are taken, which all
// other algorithms equal in bytes and beat in turns.
TEST(PlannerTest, LargeSizesKeepToThePlannedRing) {
  std::vector<RankPlace> places(8);
  std::vector<std::vector<int>> flows(8);
  for (size_t r = 0; r < 8; ++r) {
    places[r] = {.host = absl::StrCat(r), .switch_name = absl::StrCat("s", r / 2), .nics = 1};
    places[r].nic_rate = places[r].host_rate = 12.5e6;
    places[r].switch_rate = 25e6;
    flows[r].push_back(static_cast<int>(r + 1) % 8);
  }
  const CostTable table = Table(2);
  for (const auto& [kind, along] : {std::pair(CollectiveKind::kAllReduce, &kRing),
                                    std::pair(CollectiveKind::kReduceScatter, &kRing),
                                    std::pair(CollectiveKind::kAllGather, &kRing),
                                    std::pair(CollectiveKind::kBroadcast, &kChain)}) {
    CollectiveSpec spec = Spec(kind, 8, 1 << 20);
    spec.place = std::make_shared<const GroupPlace>(places, flows);
    const Plan planned = ChoosePlan(spec, 4, table, "");
    EXPECT_TRUE(planned.algorithm == along || planned.algorithm == &kHierarchical) << planned.why;
    const int64_t time = TimeOf(kTree.cost(spec), spec, 4, table);
    spec.place = std::make_shared<const GroupPlace>(places);
    const int64_t hashed = TimeOf(kTree.cost(spec), spec, 4, table);
    if (!kTree.has(kind)) continue;
    EXPECT_GT(time, hashed) << ToString(kind);
  }
}

// What costs the same goes by neighbours, two links a rank.
TEST(PlannerTest, AmongEqualsTheRingComesBeforeDirect) {
  const CollectiveSpec spec = Spec(CollectiveKind::kAllGather, 2, 4096);
  EXPECT_EQ(TimeOf(kRing.cost(spec), spec, 4, Table()),
            TimeOf(kDirect.cost(spec), spec, 4, Table()));
  EXPECT_EQ(ChoosePlan(spec, 4, Table(), "").algorithm, &kRing);
}

// ---- Between hosts with NICs of 100 Mbit/s: a byte takes 80 ns, 4 KiB 0.33 ms, 64 KiB 5.24 ms.

// Hosts in pairs under a switch each, whose cables carry all that the NICs below it do; with
// `ring`, flows from each host to the next are planned.
std::shared_ptr<const GroupPlace> SlowPairs(int hosts, int ranks_each, int nics, bool ring) {
  const int ranks = hosts * ranks_each;
  std::vector<RankPlace> places(static_cast<size_t>(ranks));
  std::vector<std::vector<int>> flows(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    const int host = r / ranks_each;
    RankPlace& place = places[static_cast<size_t>(r)];
    place.host = absl::StrCat(host), place.switch_name = absl::StrCat("s", host / 2);
    place.nics = nics, place.nic_rate = 12.5e6;
    place.host_rate = nics * place.nic_rate, place.switch_rate = 2 * place.host_rate;
    if (ring) flows[static_cast<size_t>(r)].push_back((r + ranks_each) % ranks);
  }
  return ring ? std::make_shared<const GroupPlace>(places, flows)
              : std::make_shared<const GroupPlace>(places);
}

double Milliseconds(const Plan& plan) { return static_cast<double>(plan.nanoseconds) / 1e6; }

// A broadcast of 64 KiB to eight ranks.
CollectiveSpec SmallBroadcast(std::shared_ptr<const GroupPlace> place) {
  CollectiveSpec spec = Spec(CollectiveKind::kBroadcast, 8, 16384);
  spec.place = std::move(place);
  return spec;
}

// The plan for `spec`: by `algorithm`, in the time of `chunks` chunks of 4 KiB on a slow link.
Plan ExpectChosen(const CollectiveSpec& spec, const Algorithm& algorithm, int chunks) {
  Plan plan = ChoosePlan(spec, 4, Table(2), "");
  EXPECT_EQ(plan.algorithm, &algorithm) << plan.why;
  EXPECT_EQ(plan.chunk, 1024U);
  EXPECT_NEAR(Milliseconds(plan), chunks * 4096 * 80e-6, 0.15);
  return plan;
}

// Eight hosts of one rank along a planned ring.
TEST(PlannerTest, ASmallBroadcastOverSlowLinksGoesAlongTheChain) {
  const CollectiveSpec spec = SmallBroadcast(SlowPairs(8, 1, 1, /*ring=*/true));
  // Sixteen chunks of 4 KiB over the root's link, and six more hops for the last one. Chunks of 16
  // KiB would take 4 + 6 times 1.31 ms, by which the chain seemed slower than three levels.
  ExpectChosen(spec, kChain, 16 + 6);
  // The root sends all to its neighbour, and half to the next switch: 1.5 * 5.24 ms. Trees leave
  // the planned ring: four halves go out of one switch by cables that count twice, 128 KiB at 80.
  EXPECT_GT(Milliseconds(ChoosePlan(spec, 4, Table(2), "three_level")), 1.5 * 5.24);
  EXPECT_GT(Milliseconds(ChoosePlan(spec, 4, Table(2), "tree")), 2 * 5.24);
}

// Four hosts of two ranks, with a NIC for each.
TEST(PlannerTest, ASmallBroadcastOverSlowRailsGoesByLevels) {
  const CollectiveSpec spec = SmallBroadcast(SlowPairs(4, 2, 2, /*ring=*/false));
  // Each rail carries eight chunks of 4 KiB over three hops; a chunk inside a host takes 0.5 us.
  const Plan plan = ExpectChosen(spec, kHierarchical, 8 + 2);
  // A rank of the tree sends two halves of the buffer, six of seven times to another host, and two
  // hops have to be filled: 4.49 + 2 * 0.33 ms.
  EXPECT_GT(Milliseconds(ChoosePlan(spec, 4, Table(2), "tree")), 1.4 * Milliseconds(plan));
}

// A chunk of 4 KiB takes longer on a slow link than its message costs, and on a fast one less.
TEST(PlannerTest, ChunksAreShortWhereLinksAreSlow) {
  const CostTable table = Table(64, "tcp");
  CollectiveSpec spec = Spec(CollectiveKind::kBroadcast, 8, 1 << 18);
  spec.place = SlowPairs(8, 1, 1, false);
  EXPECT_EQ(ChoosePlan(spec, 4, table, "chain").chunk, 1024U);
  spec.place = Hosts(8, 1);  // 4 KiB at 0.18 ns: 0.74 us; a message: 2.7 us
  EXPECT_GE(ChoosePlan(spec, 4, table, "chain").chunk, 4096U);
  spec.place = nullptr;
  EXPECT_GE(ChoosePlan(spec, 4, table, "chain").chunk, 4096U);
}

// What is gathered by levels goes to a rank's own rail and then through memory, in no time: parts
// of 128 KiB are one message each, 3 * 131072 * 80 ns, and not eight.
TEST(PlannerTest, AStageInsideAHostCutsNoMessagesBetweenHosts) {
  CollectiveSpec spec = Spec(CollectiveKind::kAllGather, 8, 32768);
  spec.place = SlowPairs(4, 2, 2, false);
  const Plan plan = ChoosePlan(spec, 4, Table(2), "hierarchical");
  EXPECT_EQ(plan.chunk, spec.chunk);
  EXPECT_NEAR(Milliseconds(plan), 3 * 131072 * 80e-6, 0.3);
}

// By three levels each rank sends as much as by two, and half as much to other switches: its part
// to its neighbour and a half of it across, its neighbour's half, and two halves of other parts.
// All links are full from the first moment on, so that nothing but the last chunk has to be passed
// on at the end: chunks are short, and where a part has two of the shortest, that is too long. Sums
// come back to their owners besides, so that what is reduced takes 3.5 parts instead of 3.
TEST(PlannerTest, WhatIsGatheredOverSlowRailsCrossesFewCables) {
  const CostTable table = Table(2);
  for (const uint64_t count : {2048, 32768}) {  // 8 and 128 KiB a part
    const double part = static_cast<double>(count) * 4 * 80e-6;
    CollectiveSpec spec = Spec(CollectiveKind::kAllGather, 8, count);
    spec.place = SlowPairs(4, 2, 2, false);
    const Plan plan = ChoosePlan(spec, 4, table, "");
    EXPECT_EQ(plan.algorithm, count == 2048 ? &kHierarchical : &kThreeLevel) << plan.why;
    EXPECT_EQ(plan.chunk, count == 2048 ? spec.chunk : 1024);
    EXPECT_NEAR(Milliseconds(plan), 3 * part, 0.03 * 3 * part);
    const Plan levels = ChoosePlan(spec, 4, table, "three_level");
    EXPECT_NEAR(Milliseconds(levels), 3 * part + 4096 * 80e-6, 0.03 * 3 * part);
    spec.kind = CollectiveKind::kReduceScatter;
    EXPECT_EQ(ChoosePlan(spec, 4, table, "").algorithm, &kHierarchical);
    EXPECT_GE(Milliseconds(ChoosePlan(spec, 4, table, "three_level")), 3.5 * part);
  }
}

// An exchange of 1 MiB: as many bytes by either, 6 * 128 KiB a NIC, in six messages to the ranks of
// other hosts, or three to their hosts. With one rank a host they are the same.
TEST(PlannerTest, OfEqualsTheOneWithFewerMessagesBetweenHostsIsTaken) {
  CollectiveSpec spec = Spec(CollectiveKind::kAllToAll, 8, 32768);
  const CostTable table = Table(2);
  spec.place = SlowPairs(4, 2, 2, false);
  const Plan direct = ChoosePlan(spec, 4, table, "direct");
  const Plan levels = ChoosePlan(spec, 4, table, "hierarchical");
  EXPECT_NEAR(Milliseconds(direct), 6 * 131072 * 80e-6, 0.1);
  EXPECT_NEAR(Milliseconds(levels), Milliseconds(direct), 0.1);
  EXPECT_LT(levels.messages_across, direct.messages_across);
  EXPECT_EQ(ChoosePlan(spec, 4, table, "").algorithm, &kHierarchical);
  spec.place = SlowPairs(8, 1, 1, false);
  EXPECT_EQ(ChoosePlan(spec, 4, table, "").algorithm, &kDirect);
}

// Counts differ between ranks, and so it is planned by what all ranks say alike: the typical count.
TEST(PlannerTest, AnAllToAllWithCountsIsPlannedByTheTypicalOne) {
  CollectiveSpec even = Spec(CollectiveKind::kAllToAll, 8, 0);
  even.place = Hosts(8, 1);
  const CostTable table = Table(64, "tcp");
  CollectiveSpec counted = even;
  counted.kind = CollectiveKind::kAllToAllV;
  for (uint64_t typical : {16, 1 << 10, 1 << 20}) {
    even.count = counted.count = typical;
    counted.input_counts.assign(8, typical / 2);  // of this rank: nothing that is planned by
    for (const char* algorithm : {"direct", "pairwise"}) {
      EXPECT_EQ(ChoosePlan(counted, 4, table, algorithm).nanoseconds,
                ChoosePlan(even, 4, table, algorithm).nanoseconds);
    }
  }
  // Nobody knows a size: the form for large parts.
  counted.count = 0;
  EXPECT_EQ(PlannedCount(counted, 4), kUnknownPartBytes / 4);
  even.count = kUnknownPartBytes / 4;
  EXPECT_EQ(ChoosePlan(counted, 4, table, "direct").nanoseconds,
            ChoosePlan(even, 4, table, "direct").nanoseconds);
}

TEST(PlannerTest, RunnersUpFollowInOrder) {
  const CollectiveSpec spec = Spec(CollectiveKind::kBroadcast, 8, 10000);
  const std::vector<Plan> plans = PlansFor(spec, 4, Table());
  ASSERT_GE(plans.size(), 4u);
  for (size_t i = 1; i < plans.size(); ++i) {
    EXPECT_LE(plans[i - 1].nanoseconds, plans[i].nanoseconds);
  }
  const std::string why = ChoosePlan(spec, 4, Table(), "").why;
  const Plan chosen = ChoosePlan(spec, 4, Table(), "");
  EXPECT_LE(static_cast<double>(chosen.nanoseconds),
            static_cast<double>(plans[0].nanoseconds) * 1.05);
  EXPECT_EQ(why.find(chosen.ToText()), 0u) << why;
  const Plan& next = plans[0].algorithm == chosen.algorithm ? plans[1] : plans[0];
  EXPECT_NE(why.find(absl::StrCat("then ", next.ToText())), std::string::npos) << why;
  EXPECT_NE(why.find("costs: defaults"), std::string::npos) << why;
}

}  // namespace
}  // namespace weft::collectives::planner
