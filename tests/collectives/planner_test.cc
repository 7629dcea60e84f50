// The choice of algorithms: the same on all ranks, sensible at the ends of every range, and what
// the settings force.
#include "collectives/planner/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/algorithms/exchange.h"
#include "collectives/planner/concurrent.h"
#include "collectives/planner/forced.h"
#include "tests/collectives/schedule_cases.h"
#include "topology/job/binary_trees.h"

namespace weft::collectives::planner {
namespace {

CostTable Table(int cores = 64, const char* transport = "auto") {
  Settings settings(LibrarySettings());
  EXPECT_TRUE(settings.Set("transport", transport, "test").ok());
  return TableFor(DefaultCalibration(), settings, cores);
}

CollectiveSpec Spec(CollectiveKind kind, int n, uint64_t count) {
  return {.kind = kind, .size = n, .count = count, .chunk = 65536};
}

std::shared_ptr<const GroupPlace> Hosts(int hosts, int ranks_each) {
  std::vector<std::string> names;
  for (int r = 0; r < hosts * ranks_each; ++r) names.push_back(absl::StrCat(r / ranks_each));
  return std::make_shared<const GroupPlace>(names);
}

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

TEST(CalibrationTest, ARankWithoutPeersReadsNobodysMemory) {
  Settings settings(LibrarySettings());
  ASSERT_TRUE(settings.Set("transport", "shm", "test").ok());
  ASSERT_TRUE(settings.Set("shm.single_copy", "on", "test").ok());  // no trial: peers are read
  EXPECT_EQ(LoadTable(settings, 2)->read_bytes, settings.ByteCount("shm.single_copy_min").count());
  EXPECT_GT(LoadTable(settings, 2, /*has_peers=*/false)->read_bytes, int64_t{1} << 40);
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

// What costs the same goes by neighbours, two links a rank.
TEST(PlannerTest, AmongEqualsTheRingComesBeforeDirect) {
  const CollectiveSpec spec = Spec(CollectiveKind::kAllGather, 2, 4096);
  EXPECT_EQ(TimeOf(kRing.cost(spec), spec, 4, Table()),
            TimeOf(kDirect.cost(spec), spec, 4, Table()));
  EXPECT_EQ(ChoosePlan(spec, 4, Table(), "").algorithm, &kRing);
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

// Four hosts of two ranks, four chunks of 4 KiB, 80 ns a byte between hosts and 1 ns inside one.
TEST(PlannerTest, EachHopFillsAPipelineAtTheRateOfItsLink) {
  CollectiveSpec spec = Spec(CollectiveKind::kBroadcast, 8, 4096);
  spec.chunk = 1024;
  spec.place = Hosts(4, 2);
  CostTable table = Table();
  table.inside = {.byte = 1}, table.across = {.byte = 80, .host_byte = 40};
  table.segment_byte = table.copy_byte = 0;
  // Of the chain's seven hops three lead to another host, and four chunks pass the first of those:
  // 4 + 2 chunks between hosts, and one for each of the four hops inside one.
  EXPECT_EQ(TimeOf(kChain.cost(spec), spec, 4, table), (4 + 2) * 4096 * 80 + 4 * 4096);
  // By levels each of two rails carries two chunks over three hops: 2 + 2 chunks, and one inside
  // the first host and the last; the root's part in other copies is below four chunks at 1 ns.
  const double levels = (2 + 2) * 4096 * 80 + 2 * 4096;
  EXPECT_NEAR(static_cast<double>(TimeOf(kHierarchical.cost(spec), spec, 4, table)), levels,
              4 * 4096);
}

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
// All links are full from the first moment on, so that no hop of a part has to be filled. Sums come
// back to their owners besides, so that what is reduced takes 3.5 parts instead of 3.
TEST(PlannerTest, WhatIsGatheredOverSlowRailsCrossesFewCables) {
  const CostTable table = Table(2);
  for (const uint64_t count : {2048, 32768}) {  // 8 and 128 KiB a part
    const double part = static_cast<double>(count) * 4 * 80e-6;
    CollectiveSpec spec = Spec(CollectiveKind::kAllGather, 8, count);
    spec.place = SlowPairs(4, 2, 2, false);
    const Plan plan = ChoosePlan(spec, 4, table, "");
    EXPECT_EQ(plan.algorithm, &kThreeLevel) << plan.why;
    EXPECT_EQ(plan.chunk, spec.chunk);
    EXPECT_NEAR(Milliseconds(plan), 3 * part, 0.03 * 3 * part);
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

TEST(ConcurrentTest, CountsTheGroupsAlongTheSameAxesOnTheBusiestHost) {
  const auto mesh = topology::Mesh::Create(
      {{topology::Axis::kTensor, 2}, {topology::Axis::kData, 3}, {topology::Axis::kPipeline, 2}});
  ASSERT_TRUE(mesh.ok());
  auto count = [&](std::vector<int> ranks, int ranks_per_host) {
    std::vector<Rank> members;
    for (int rank : ranks) members.emplace_back(rank);
    return GroupsAtOnce(*mesh, members, [&](Rank r) { return r.value() / ranks_per_host; });
  };
  EXPECT_EQ(count({0, 1}, 6), 3);               // tensor: three pairs on each of two hosts
  EXPECT_EQ(count({0, 2, 4}, 6), 2);            // data
  EXPECT_EQ(count({0, 6}, 6), 6);               // pipeline, across
  EXPECT_EQ(count({0, 6}, 12), 6);              // and on one host
  EXPECT_EQ(count({0, 2, 4, 6, 8, 10}, 6), 2);  // along two axes
  EXPECT_EQ(count({4, 2, 0}, 6), 2);            // in any order
  EXPECT_EQ(count({8, 9}, 4), 2);               // of the last host
  EXPECT_EQ(count({0, 2}, 6), 1);               // not a whole group
  EXPECT_EQ(count({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 6), 1);
}

// Four hosts of four ranks: a tensor group stays on its host, data and pipeline groups leave it.
TEST(ConcurrentTest, CountsTheGroupsAlongOtherAxesAtTheNicsOfAHost) {
  const auto mesh = *topology::Mesh::Create(
      {{topology::Axis::kTensor, 2}, {topology::Axis::kData, 4}, {topology::Axis::kPipeline, 2}});
  auto count = [&](std::vector<int> ranks, absl::string_view at_once) {
    std::vector<Rank> members;
    for (int rank : ranks) members.emplace_back(rank);
    const auto axes = ParseAxesAtOnce(at_once);
    EXPECT_TRUE(axes.ok()) << axes.status();
    return OthersAtOnce(mesh, members, *axes, [](Rank r) { return r.value() / 4; });
  };
  EXPECT_EQ(count({0, 2, 4, 6}, "all"), 4);  // the four pipelines of a host
  EXPECT_EQ(count({0, 8}, "all"), 2);        // two data groups
  EXPECT_EQ(count({0, 1}, "all"), 6);        // tensor: both, from its one host
  EXPECT_EQ(count({0, 8}, "tp,pp"), 0);      // tensor groups use no NIC
  EXPECT_EQ(count({0, 8}, "tensor,dp,pp"), 2);
  EXPECT_EQ(count({0, 8}, "tp,dp"), 0);  // pipelines do not run then
  EXPECT_EQ(count({0, 8}, "none"), 0);
  EXPECT_EQ(count({0, 2}, "all"), 0);  // not a whole group
  EXPECT_THAT(std::string(ParseAxesAtOnce("tp,rows").status().message()),
              testing::HasSubstr("collective.axes_at_once \"tp,rows\""));
}

// A job that has said no layout, as PyTorch's have: groups of equal strides are taken for those of
// a mesh, whose like are all used at once.
TEST(ConcurrentTest, GroupsOfAJobWithoutALayoutAreCountedByTheirStride) {
  const auto mesh = *topology::Mesh::Create({{topology::Axis::kData, 16}});
  auto count = [&](std::vector<int> ranks) {
    std::vector<Rank> members;
    for (int rank : ranks) members.emplace_back(rank);
    return GroupsAtOnce(mesh, members, [&](Rank r) { return r.value() / 8; });
  };
  EXPECT_EQ(count({0, 1, 2, 3}), 2);      // tensor ranks of a host with eight
  EXPECT_EQ(count({12, 13, 14, 15}), 2);  // the last of them
  EXPECT_EQ(count({3, 7, 11, 15}), 4);    // data, across hosts
  EXPECT_EQ(count({8, 0}), 8);            // in any order
  EXPECT_EQ(count({0, 15}), 1);           // first and last stage: of no such layout
  EXPECT_EQ(count({1, 2, 3, 4}), 1);      // across the borders of one
  EXPECT_EQ(count({0, 1, 2, 4}), 1);
  EXPECT_EQ(count({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}), 1);
}

// With `shared` as the spec's `member` instead of `alone`, eight times as many bytes leave a host:
// what costs the wire least is taken then, and not what costs a rank least.
void ExpectTheWireIsShared(int CollectiveSpec::*member, int alone, int shared) {
  CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, 4, 4 << 20);
  spec.place = Hosts(4, 1);
  const CostTable table = Table(64, "verbs");
  const int64_t time_alone = TimeOf(kDirect.cost(spec), spec, 4, table);
  spec.*member = shared;
  const int64_t time_shared = TimeOf(kDirect.cost(spec), spec, 4, table);
  EXPECT_GT(time_shared, 7 * time_alone);
  EXPECT_LE(time_shared, 8 * time_alone);
  spec.count = 4096;
  const Plan together = ChoosePlan(spec, 4, table, "");
  spec.*member = alone;
  const Plan by_itself = ChoosePlan(spec, 4, table, "");
  EXPECT_LT(together.algorithm->cost(SpecOf(together, spec)).elements_across,
            by_itself.algorithm->cost(SpecOf(by_itself, spec)).elements_across)
      << together.why << "\n"
      << by_itself.why;
}

TEST(ConcurrentTest, GroupsAtOnceShareCoresMemoryAndTheWire) {
  ExpectTheWireIsShared(&CollectiveSpec::groups_at_once, 1, 8);
}

// Groups along other axes take their part of the NICs, and nothing on one host.
TEST(ConcurrentTest, GroupsAlongOtherAxesShareTheWireAlone) {
  ExpectTheWireIsShared(&CollectiveSpec::others_at_once, 0, 7);
  CollectiveSpec spec = Spec(CollectiveKind::kAllReduce, 4, 4096);
  const CostTable table = Table(64, "verbs");
  const int64_t inside = TimeOf(kDirect.cost(spec), spec, 4, table);
  spec.others_at_once = 7;
  EXPECT_EQ(TimeOf(kDirect.cost(spec), spec, 4, table), inside);
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

absl::StatusOr<Forced> ForcedBy(const char* every, const char* by_kind) {
  Settings settings(LibrarySettings());
  EXPECT_TRUE(settings.Set("collective.algorithm", every, "test").ok());
  EXPECT_TRUE(settings.Set("collective.algorithm_by_kind", by_kind, "test").ok());
  return Forced::Create(settings);
}

TEST(ForcedTest, OneForAllAndOneForEach) {
  const Forced forced = *ForcedBy("ring", "broadcast=chain, all_gather=auto");
  auto of = [&](CollectiveKind kind) { return forced.For(Spec(kind, 4, 100), 4, "world"); };
  EXPECT_EQ(of(CollectiveKind::kAllReduce), "ring");
  EXPECT_EQ(of(CollectiveKind::kBroadcast), "chain");
  EXPECT_EQ(of(CollectiveKind::kAllGather), "");
  EXPECT_EQ(of(CollectiveKind::kGather), "");
  const Plan plan = ChoosePlan(Spec(CollectiveKind::kAllReduce, 4, 1), 4, Table(), "ring");
  EXPECT_EQ(plan.algorithm, &kRing);
}

TEST(ForcedTest, BySizeAndGroupTheLastThatFitsCounts) {
  const Forced forced =
      *ForcedBy("auto",
                "all_reduce:4KiB..1MiB=tree, all_reduce:1MiB..@dp*=ring, all_reduce@tp0=direct,"
                "all_reduce:..400@dp3=auto, all_gather:..1KiB=bruck");
  auto of = [&](uint64_t count, const char* group) {
    return forced.For(Spec(CollectiveKind::kAllReduce, 4, count), 4, group);
  };
  EXPECT_EQ(of(1023, "world"), "");
  EXPECT_EQ(of(1024, "world"), "tree");
  EXPECT_EQ(of(262144, "world"), "tree");
  EXPECT_EQ(of(262144, "dp0"), "ring");
  EXPECT_EQ(of(262145, "world"), "");
  EXPECT_EQ(of(1 << 30, "dp12"), "ring");
  EXPECT_EQ(of(1, "tp0"), "direct");
  EXPECT_EQ(of(1, "tp01"), "");
  // A gathered buffer counts as a whole.
  EXPECT_EQ(forced.For(Spec(CollectiveKind::kAllGather, 4, 64), 4, ""), "bruck");
  EXPECT_EQ(forced.For(Spec(CollectiveKind::kAllGather, 4, 65), 4, ""), "");
}

TEST(ForcedTest, AnAllToAllWithCountsHasTheSizeOfItsTypicalCount) {
  CollectiveSpec counted = Spec(CollectiveKind::kAllToAllV, 8, 0);
  const Forced forced = *ForcedBy("auto", "all_to_all_v:1KiB..1MiB=pairwise");
  EXPECT_EQ(forced.For(counted, 4, "world"), "");
  counted.count = 1024;
  EXPECT_EQ(forced.For(counted, 4, "world"), "pairwise");
}

TEST(ForcedTest, NamesTheRuleAndWhatWouldBeRight) {
  const std::pair<const char*, const char*> wrongs[] = {
      {"all_reduce=bruck", "there are auto, multicast, oneshot"},
      {"all_redcue=ring", "there are all_reduce, all_gather"},
      {"ring", "as all_reduce=tree"},
      {"gather=tree", "an algorithm that gather lacks"},
      {"all_reduce:1MiB=ring", "no range, as 1MiB..64MiB"},
      {"all_reduce:2MiB..1MiB=ring", "end before they begin"},
      {"all_reduce:1Mist..=ring", "1Mist"},
      {"all_reduce@=ring", "names no group"}};
  for (const auto& [wrong, why] : wrongs) {
    const absl::Status status = ForcedBy("auto", wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(absl::StrCat("\"", wrong, "\"")), std::string::npos) << status;
    EXPECT_NE(status.message().find(why), std::string::npos) << status;
  }
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

TEST(CostTableTest, TravelsUnchanged) {
  CostTable table = Table(3, "verbs");
  table.source = "a file, with spaces";
  table.inside.latency = 1.0 / 3;
  const CostTable other = *FromWord(ToWord(table));
  EXPECT_EQ(ToWord(other), ToWord(table));
  EXPECT_EQ(other.inside.latency, table.inside.latency);
  EXPECT_EQ(other.across.host_byte, table.across.host_byte);
  EXPECT_EQ(other.cores, 3);
  EXPECT_EQ(other.eager_bytes, 4096);
  EXPECT_EQ(other.cache_bytes, 1 << 20);
  const CostTable shm = Table(3, "shm");
  const CostTable same = *FromWord(ToWord(shm));
  EXPECT_EQ(same.segment_byte, DefaultCalibration().segment_byte);
  EXPECT_EQ(same.read_bytes, 32 << 10);
  EXPECT_EQ(same.inside_eager_bytes, 4 << 10);
  EXPECT_TRUE(other.across_by_nic);
  EXPECT_EQ(other.source, table.source);
  EXPECT_EQ(ToWord(table).find(' '), std::string::npos);
  for (const char* wrong : {"", "-", "1,2,3", "a,b,c,d,e,f,g,h,i,j,k,1,1,1,"}) {
    EXPECT_EQ(FromWord(wrong).status().code(), absl::StatusCode::kDataLoss) << wrong;
  }
}

TEST(CalibrationTest, AFileIsReadAsWrittenAndItsFaultsAreNamed) {
  const std::string text = ToText(DefaultCalibration());
  const Calibration read = *ParseCalibration(text, "costs");
  EXPECT_EQ(ToText(read), text);
  EXPECT_EQ(read.source, "costs");
  auto fault = [](const std::string& wrong) {
    return std::string(ParseCalibration(wrong, "costs").status().message());
  };
  EXPECT_NE(fault(text + "tcp.latency 1\n").find("costs, line 27: \"tcp.latency 1\""),
            std::string::npos)
      << fault(text + "tcp.latency 1\n");
  EXPECT_EQ(fault("shm.latency 1\n"), "costs lacks cache_kib");
  for (const char* wrong : {"shm.latency -1\n", "shm.latency nan\n", "shm.latency 1 2\n", "x\n"}) {
    EXPECT_NE(fault(wrong).find("line 1"), std::string::npos) << fault(wrong);
  }
}

// What was measured, and the cores of rank 0's machine, change no choice.
TEST(CalibrationTest, ADeterministicJobChoosesAlikeOnEveryMachine) {
  Calibration odd = DefaultCalibration();
  odd.links[0].latency *= 1000, odd.links[1].byte *= 30;
  const std::string file = absl::StrCat(testing::TempDir(), "/deterministic", getpid());
  ASSERT_TRUE(SaveCalibration(odd, file).ok());
  Settings settings(LibrarySettings());
  ASSERT_TRUE(settings.Set("collective.costs", file, "test").ok());
  const auto choices = [&](int cores) {
    const CostTable table = *LoadTable(settings, cores);
    std::string all;
    for (uint64_t count = 1; count < 1 << 26; count *= 4) {
      for (int k = 0; k < kCollectiveKindCount; ++k) {
        CollectiveSpec spec = Spec(static_cast<CollectiveKind>(k), 8, count);
        if (spec.kind == CollectiveKind::kAllGatherV) continue;
        spec.place = Hosts(2, 4);
        absl::StrAppend(&all, ChoosePlan(spec, 4, table, "").ToText(), " ");
      }
    }
    return all;
  };
  const std::string measured = choices(1);
  EXPECT_NE(measured, choices(64));
  ASSERT_TRUE(settings.Set("collective.deterministic", "true", "test").ok());
  EXPECT_EQ(choices(1), choices(64));
  EXPECT_NE(measured, choices(1));
  const std::string before = choices(2);
  ASSERT_TRUE(SaveCalibration(DefaultCalibration(), file).ok());
  EXPECT_EQ(choices(2), before);
  std::filesystem::remove(file);
}

TEST(CalibrationTest, TheSettingNamesTheFile) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("calibration", getpid());
  const std::string file = folder / "deeper" / "costs";
  Calibration calibration = DefaultCalibration();
  calibration.links[0].latency = 12345;
  ASSERT_TRUE(SaveCalibration(calibration, file).ok());
  Settings settings(LibrarySettings());
  ASSERT_TRUE(settings.Set("collective.costs", file, "test").ok());
  EXPECT_EQ(LoadCalibration(settings)->links[0].latency, 12345);
  std::ofstream(file) << "broken\n";
  EXPECT_EQ(LoadCalibration(settings).status().code(), absl::StatusCode::kInvalidArgument);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(LoadCalibration(settings).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace weft::collectives::planner
