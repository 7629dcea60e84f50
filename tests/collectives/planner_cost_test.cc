// What a plan is said to take, part by part: links, memory, caches, cores, waits and pipelines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/planner/planner.h"
#include "tests/collectives/planner_cases.h"
#include "topology/job/binary_trees.h"

namespace weft::collectives::planner {
namespace {

// Eight hosts in pairs under four switches whose cables carry half of what their NICs do: the trees
// of the plan take as long as their cables need, hashed ones twice as long.
TEST(PlannerTest, ATreeThatIsPlannedIsNoDearerThanItsCables) {
  std::vector<RankPlace> places(8);
  std::vector<std::vector<int>> ring(8), trees(8);
  const topology::BinaryTrees parents = topology::MakeBinaryTrees(8);
  for (size_t r = 0; r < 8; ++r) {
    places[r] = {.host = absl::StrCat(r), .switch_name = absl::StrCat("s", r / 2), .nics = 1};
    places[r].nic_rate = places[r].host_rate = places[r].switch_rate = 12.5e6;
    ring[r].push_back(static_cast<int>(r + 1) % 8);
    for (int parent : {parents.first[r], parents.second[r]}) {
      if (parent < 0) continue;
      trees[r].push_back(parent);
      trees[static_cast<size_t>(parent)].push_back(static_cast<int>(r));
    }
  }
  CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, 8, 1 << 20);
  spec.chunk = 4096;
  const auto time = [&](const std::vector<std::vector<int>>& flows) {
    spec.place = std::make_shared<const GroupPlace>(places, flows);
    return static_cast<double>(TimeOf(kTree.cost(spec), spec, 4, Table(2)));
  };
  // A switch between two others sends six halves of the buffer, in either numbering of the trees.
  const double cables = 3.0 * (4 << 20) / 12.5e6 * 1e9;
  EXPECT_NEAR(time(trees), cables, 0.1 * cables);
  EXPECT_NEAR(time(ring), 2 * cables, 0.2 * cables);
}

// A ring that leaves each host by one link still moves the rest of its bytes through memory.
TEST(PlannerTest, WhatStaysInsideAHostPassesItsMemoryWhicheverRankSendsTheRest) {
  CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, 32, 4 << 20);
  spec.place = Hosts(4, 8);
  CostTable table = Table();
  table.across.byte = table.across.host_byte = 1e-6;  // memory is all that takes time
  const double moved = 7.0 / 8 * 8 * 2 * 31 / 32 * (16 << 20);
  const int64_t time = TimeOf(kRing.cost(spec), spec, 4, table);
  EXPECT_GE(static_cast<double>(time), 0.99 * (moved - (1 << 20)) * table.inside.host_byte);
}

// Ranks read what the root has where it lies, all of them at once.
TEST(PlannerTest, WhatRanksOfAHostReadIsNoWorkOfItsSender) {
  for (uint64_t count : {65536u, 1u << 20}) {
    const CollectiveSpec spec = Spec(CollectiveKind::kBroadcast, 8, count);
    const Plan plan = ChoosePlan(spec, 4, Table(2), "");
    EXPECT_EQ(plan.algorithm, &kDirect) << plan.why;
    EXPECT_LT(TimeOf(kDirect.cost(spec), spec, 4, Table(8)),
              TimeOf(kDirect.cost(spec), spec, 4, Table(2)));
  }
}

// What is reduced on arrival passes through a link's segment, copied by both ends; what is stored
// first is read from its sender's memory. Which is cheaper, the machine says.
TEST(PlannerTest, WhetherBothEndsCopyOrTheReceiverReadsCounts) {
  CostTable table = Table(2);
  for (int n : {2, 4}) {
    const CollectiveSpec spec =
        Spec(CollectiveKind::kReduceScatter, n, 65536 / static_cast<uint64_t>(n));
    table.segment_byte = 1.5 * table.inside.byte;
    EXPECT_EQ(ChoosePlan(spec, 4, table, "").algorithm, &kOneShot) << n;
    table.segment_byte = 0.6 * table.inside.byte;
    EXPECT_NE(ChoosePlan(spec, 4, table, "").algorithm, &kOneShot) << n;
  }
  // Two ranks that gather: one that sends its copy in the output, and not the input, sends twice.
  table.segment_byte = 1.5 * table.inside.byte;
  for (uint64_t count : {1u << 15, 1u << 19}) {
    const CollectiveSpec gather = Spec(CollectiveKind::kAllGather, 2, count);
    EXPECT_GT(TimeOf(kBruck.cost(gather), gather, 4, table),
              1.05 * static_cast<double>(TimeOf(kRing.cost(gather), gather, 4, table)));
  }
}

TEST(PlannerTest, ShortMessagesPassThroughSegmentsAndOtherTransportsHaveNone) {
  CostTable table = Table(2);
  table.segment_byte = 100 * table.inside.byte;
  const CollectiveSpec spec = Spec(CollectiveKind::kBroadcast, 2, 8192);
  auto time = [&] { return TimeOf(kDirect.cost(spec), spec, 4, table); };
  const int64_t read = time();  // 32 KiB
  ++table.read_bytes;
  EXPECT_GT(time(), 20 * read);
  EXPECT_EQ(Table(2, "tcp").segment_byte, 0);
  Settings settings(LibrarySettings());
  ASSERT_TRUE(settings.Set("shm.single_copy_min", "0", "test").ok());
  EXPECT_GT(TableFor(DefaultCalibration(), settings, 2).read_bytes, int64_t{1} << 40);
}

// An owner that reduces in a fixed order asks for one contribution when the one before has come:
// two messages each, for which another rank has to have a core.
TEST(PlannerTest, ReceivesThatArePostedLateWaitForTheirClearToSends) {
  CostTable table = Table(2);
  table.inside = {.latency = 1000};
  table.segment_byte = 1e-9, table.reduce_byte = table.copy_byte = 0, table.switch_rank = 500;
  auto time = [&](const Algorithm& algorithm, uint64_t count) {
    const CollectiveSpec spec = Spec(CollectiveKind::kReduceScatter, 4, count);
    return TimeOf(algorithm.cost(spec), spec, 4, table);
  };
  EXPECT_EQ(time(kOneShot, 1025), 2000);
  EXPECT_EQ(time(kDirect, 1025), 10000);
  EXPECT_EQ(time(kDirect, 1024), 2000);  // goes ahead of its receive
}

// Reductions in a fixed order take from other hosts one after another, where messages are too long
// to run ahead of their receives.
TEST(PlannerTest, WhatWaitsForItsReceiveCostsALatencyMore) {
  const CostTable table = Table(64, "verbs");
  CollectiveSpec spec{
      .kind = CollectiveKind::kReduceScatter, .size = 16, .count = 1024, .chunk = 65536};
  spec.place = Hosts(16, 1);
  auto time = [&](const Algorithm& algorithm) {
    return TimeOf(algorithm.cost(spec), spec, 4, table);
  };
  EXPECT_EQ(kDirect.cost(spec).in_order, 14);
  EXPECT_LT(time(kDirect), time(kHalvingDoubling));  // 4 KiB
  spec.count += 1;
  EXPECT_GE(time(kDirect), 15 * table.across.latency);
  EXPECT_NE(ChoosePlan(spec, 4, table, "").algorithm, &kDirect);
}

// An all-reduce in place waits until its input has been read, and writes where it was: one shot
// does so with all of it, halving-doubling with nothing that it has reduced.
TEST(PlannerTest, WhatIsWrittenWhereOthersHaveReadComesBackFromTheirCaches) {
  CostTable table = Table(2);
  table.inside = {.latency = 1000, .byte = 0.1};
  table.segment_byte = 1e-9, table.reduce_byte = table.copy_byte = 0;
  auto time = [&](CollectiveKind kind, uint64_t count) {
    const CollectiveSpec spec = Spec(kind, 2, count);
    return TimeOf(kOneShot.cost(spec), spec, 4, table);
  };
  constexpr int64_t kBytes = 1 << 20;
  EXPECT_NEAR(static_cast<double>(time(CollectiveKind::kAllReduce, kBytes / 4) -
                                  time(CollectiveKind::kReduceScatter, kBytes / 4)),
              1000 + 0.1 * kBytes, 1);
  EXPECT_EQ(kHalvingDoubling.cost(Spec(CollectiveKind::kAllReduce, 2, 1024)).rewritten, 0);
  // By multicast others have read a ring.
  CollectiveSpec ring = Spec(CollectiveKind::kAllReduce, 2, 1024);
  EXPECT_EQ(kMulticast.cost(ring).rewritten, 1024);
  ring.multicast_bytes = 1 << 20;
  EXPECT_EQ(kMulticast.cost(ring).rewritten, 0);
  table.segment_byte = 0;  // by tcp, say: nobody reads another's memory
  EXPECT_EQ(time(CollectiveKind::kAllReduce, kBytes / 4),
            time(CollectiveKind::kReduceScatter, kBytes / 4));
}

// Owners that store all contributions post all their receives at once, and read them.
TEST(PlannerTest, OwnersThatStoreContributionsWaitForNone) {
  CostTable table = Table(2);
  table.segment_byte = 1.5 * table.inside.byte;
  CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, 4, 8192);
  const Plan plan = ChoosePlan(spec, 4, table, "");
  EXPECT_EQ(plan.algorithm, &kGatherReduce) << plan.why;
  // What direct does with 16-bit floats anyway, and what reads nothing of another host.
  for (const auto& [hosts, rounds_once] : {std::pair(1, true), std::pair(4, false)}) {
    spec.place = Hosts(hosts, 4 / hosts);
    spec.rounds_once = rounds_once;
    EXPECT_NE(ChoosePlan(spec, 4, table, "").algorithm, &kGatherReduce) << hosts;
  }
}

// A rank that passes on a chunk finds it in its cache, and of a whole half of a buffer nothing.
TEST(PlannerTest, LongMessagesHaveLeftTheCacheWhenTheyArePassedOn) {
  const CostTable table = Table(2);
  for (int n : {2, 4, 8}) {
    for (uint64_t count : {1u << 20, 1u << 24}) {
      const CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, n, count);
      const Plan plan = ChoosePlan(spec, 4, table, "");
      EXPECT_EQ(plan.algorithm, &kRing) << plan.why;
      EXPECT_GT(TimeOf(kHalvingDoubling.cost(spec), spec, 4, table),
                1.2 * static_cast<double>(plan.nanoseconds));
    }
  }
}

// Two ranks send 4 MiB each, through segments. A message of half a cache, source and target, stays
// there, a longer one is read again; and of what both move as much as the cache holds needs no
// memory.
TEST(PlannerTest, HowMuchStaysInACacheTheTableSays) {
  CostTable table = Table(64);
  table.inside = {.host_byte = 1};  // memory is all that takes time
  table.segment_byte = 1e-9;
  constexpr int64_t kEach = 4 << 20;
  const CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, 2, kEach);
  const Cost cost{.messages = 1, .elements = kEach, .staged = 1};
  const auto time = [&](int64_t cache) {
    table.cache_bytes = static_cast<double>(cache);
    return TimeOf(cost, spec, 1, table);
  };
  EXPECT_EQ(time(2 * kEach), 0);
  EXPECT_EQ(time(2 * kEach - 1), 3 * kEach - (2 * kEach - 1));
  EXPECT_EQ(time(kEach), 3 * kEach - kEach);
}

TEST(PlannerTest, BytesThatNicsMoveAreNoWorkOfCores) {
  CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, 8, 1 << 20);
  spec.place = Hosts(8, 1);
  CostTable table = Table(1, "verbs");
  EXPECT_TRUE(table.across_by_nic);
  EXPECT_FALSE(Table(1, "tcp").across_by_nic);
  table.across.byte = 10, table.across.host_byte = 1e-6;  // the link is all that takes time
  const int64_t moved = TimeOf(kRing.cost(spec), spec, 4, table);
  table.across.message = 20, table.reduce_byte = table.copy_byte = 1;
  EXPECT_EQ(TimeOf(kRing.cost(spec), spec, 4, table), moved);
  table.across_by_nic = false;
  EXPECT_GT(TimeOf(kRing.cost(spec), spec, 4, table), moved);
}

// A chunk of a reduction that passes through a rank has its receive posted late.
TEST(PlannerTest, ChunksOfAReductionWaitForTheSlotsThatTheyPassThrough) {
  CollectiveSpec spec = Spec(CollectiveKind::kReduce, 16, 16 << 20);
  spec.place = Hosts(16, 1);
  const CollectiveSpec alike = {.kind = CollectiveKind::kBroadcast,
                                .size = 16,
                                .count = 16 << 20,
                                .chunk = 65536,
                                .place = spec.place};
  EXPECT_EQ(kChain.cost(alike).slot_turns, 0);
  EXPECT_EQ(kChain.cost(spec).slot_turns, 2.0 * (256 - 4) / 4);
  EXPECT_EQ(kTree.cost(spec).slot_turns, 3.0 * (128 - 4) / 4);
}

// A ring whose parts have several chunks hides each chunk's latency behind the others.
TEST(PlannerTest, ChunksThatAreOnTheirWayHideLatencies) {
  CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, 16, 16 << 20);
  spec.place = Hosts(16, 1);
  const CostTable table = Table(64, "verbs");
  auto time = [&](uint64_t chunk) {
    spec.chunk = chunk;
    return static_cast<double>(TimeOf(kRing.cost(spec), spec, 4, table));
  };
  const double bytes = 2 * 15 / 16.0 * 4 * (16 << 20);
  const double moved = bytes * std::max(table.across.byte, table.across.host_byte);
  EXPECT_NEAR(time(1 << 20), moved + 30 * table.across.latency, 0.001 * moved);  // one a part
  EXPECT_NEAR(time(1 << 18), moved + table.across.latency, 0.001 * moved);
}

// A reduction's chunks hold at the rate at which slots become free, or at that of the link.
TEST(PlannerTest, SlotsBoundAPipelineUntilItsLinkDoes) {
  CollectiveSpec spec = Spec(CollectiveKind::kReduce, 16, 16 << 20);
  spec.place = Hosts(16, 1);
  CostTable table = Table(64, "verbs");
  table.across.host_byte = table.across.byte;
  const double chunk = 4 * 65536 * table.across.byte;
  auto time = [&](double latency) {  // but for the pipeline's latencies and filling
    table.across.latency = latency;
    return static_cast<double>(TimeOf(kChain.cost(spec), spec, 4, table)) - 15 * latency -
           14 * chunk;
  };
  EXPECT_NEAR(time(0), 256 * chunk, chunk);
  EXPECT_NEAR(time(100 * chunk), 126 * 101 * chunk + 4 * chunk, chunk);
}

// Four hosts of two ranks, four chunks of 4 KiB, 80 ns a byte between hosts and 1 ns inside one.
TEST(PlannerTest, EachHopFillsAPipelineAtTheRateOfItsLink) {
  CollectiveSpec spec = Spec(CollectiveKind::kBroadcast, 8, 4096);
  spec.chunk = 1024;
  spec.place = Hosts(4, 2);
  CostTable table = Table();
  table.inside = {.byte = 1}, table.across = {.byte = 80, .host_byte = 40};
  table.segment_byte = table.copy_byte = 0;
  // Three of the chain's seven hops lead to another host, and four chunks pass the first of those:
  // 4 + 2 chunks between hosts, and one for each of the four hops inside one.
  EXPECT_EQ(TimeOf(kChain.cost(spec), spec, 4, table), (4 + 2) * 4096 * 80 + 4 * 4096);
  // By levels each of two rails carries two chunks over three hops: 2 + 2 chunks, and one inside
  // the first host and the last; the root's part in other copies is below four chunks at 1 ns.
  const double levels = (2 + 2) * 4096 * 80 + 2 * 4096;
  EXPECT_NEAR(static_cast<double>(TimeOf(kHierarchical.cost(spec), spec, 4, table)), levels,
              4 * 4096);
}

}  // namespace
}  // namespace weft::collectives::planner
