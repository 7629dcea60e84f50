// Switches as black boxes: what they hash is learned from what they do, and planned with.
#include "topology/discovery/learn_box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "base/random.h"
#include "topology/ecmp/hash_text.h"
#include "topology/fabric/load.h"
#include "topology/paths/path_planner.h"

namespace weft::topology {
namespace {

// The kind of a fabric's switches. {}: a number of each switch's own in place of the
// seed.
struct Kind {
  const char* name;
  const char* fabric;
  const char* hash;
  bool same_seed = false;  // of all switches, so that tiers are polarised
};

constexpr char kFour[] = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=4";
constexpr char kThree[] = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=3";
constexpr char kFive[] = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=5";
constexpr char kSix[] = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=6";
constexpr char kPods[] =
    "three-tier:pods=2,leaves_per_pod=2,hosts_per_leaf=4,spines_per_pod=4,cores=8";

const Kind kKinds[] = {
    {"linux", kFour, "linux:seed="},
    {"linux three spines", kThree, "linux:seed="},
    {"crc16-ccitt", kFour, "crc16-ccitt:offset=3,seed="},
    {"crc16-ccitt three spines", kThree, "crc16-ccitt:offset=3,seed="},
    {"crc16-arc threshold", kFour, "crc16-arc:select=threshold,seed="},
    {"crc32", kFour, "crc32:offset=7,seed="},
    {"crc32 threshold three spines", kThree, "crc32:select=threshold,seed="},
    {"crc32c", kFour, "crc32c:offset=13,seed="},
    {"crc32c resilient", kThree, "crc32c:select=resilient,buckets=256,seed="},
    {"xor16", kFour, "xor16:offset=2,seed="},
    {"xor16 resilient", kThree, "xor16:select=resilient,buckets=128,seed="},
    {"crc32 modulo 3", kThree, "crc32:seed="},
    {"crc32c modulo 6, offset", kSix, "crc32c:offset=5,seed="},
    {"crc32 modulo 5", kFive, "crc32:seed="},
    {"crc16 of ports", kFour, "crc16-ccitt:fields=0x30,seed="},
    {"polarised", kPods, "crc32:seed=", true},
};

FabricHashes MakeBox(const Fabric& fabric, const Kind& kind) {
  FabricHashes box = *FabricHashes::Create(fabric);
  for (int i = 0; i < fabric.nodes(); ++i) {
    const int seed = kind.same_seed ? 77 : 1000 + 31 * i;
    box.SetHash(NodeId(i), *ParseHash(absl::StrCat(kind.hash, seed)));
  }
  return box;
}

TEST(LearnBox, ExplainsEveryKindAndPredictsFreshPorts) {
  for (const Kind& kind : kKinds) {
    Fabric fabric = *LoadFabric(kind.fabric);
    Routes routes(fabric);
    const FabricHashes box = MakeBox(fabric, kind);
    const LearnedBox learned = *LearnBox(routes, box, {});
    EXPECT_THAT(learned.known.unknown, ::testing::IsEmpty()) << kind.name;
    EXPECT_EQ(learned.linear + learned.tables, 0) << kind.name;
    const FabricHashes guess = *MakeHashes(fabric, learned.known, kind.name);
    Random random(9);
    int right = 0, all = 0;
    for (int i = 0; i < 1000; ++i) {
      const Endpoint a{fabric.hosts()[random.Below(fabric.hosts().size())], 0};
      const Endpoint b{fabric.hosts()[random.Below(fabric.hosts().size())], 0};
      if (a.host == b.host) continue;
      const FiveTuple tuple =
          box.Tuple(a, b, static_cast<uint16_t>(1024 + random.Below(60000)), 4791, kProtocolUdp);
      right += *guess.Path(routes, a, b, tuple) == *box.Path(routes, a, b, tuple) ? 1 : 0;
      ++all;
    }
    // Boxes lose no answer: a selection that explains 98 % is not theirs.
    EXPECT_GE(right, 0.99 * all) << kind.name;
  }
}

// Polarised spines send all that one leaf's choice brings them to one of their two cores: no port
// reaches more than this.
constexpr char kPodsReached[] =
    "three-tier:pods=2,leaves_per_pod=2,hosts_per_leaf=4,spines_per_pod=4,cores=4";

double BoundOf(const char* description, absl::Span<const TrafficFlow> flows) {
  const Fabric fabric = *LoadFabric(description);
  const Routes routes(fabric);
  return PathPlanner(routes, *FabricHashes::Create(fabric)).Plan(flows)->seconds_bound;
}

// A ring over the hosts in random orders.
TEST(LearnBox, PlansByWhatWasLearnedReachTheBound) {
  for (const Kind& kind : kKinds) {
    Fabric fabric = *LoadFabric(kind.fabric);
    Routes routes(fabric);
    const FabricHashes box = MakeBox(fabric, kind);
    const FabricHashes guess = *MakeHashes(fabric, LearnBox(routes, box, {})->known, kind.name);
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      std::vector<NodeId> ring(fabric.hosts().begin(), fabric.hosts().end());
      Random(seed).Shuffle(ring);
      std::vector<TrafficFlow> flows;
      for (size_t i = 0; i < ring.size(); ++i) {
        flows.push_back({{ring[i], 0}, {ring[(i + 1) % ring.size()], 0}, MiB(1)});
      }
      const PathPlan plan = *PathPlanner(routes, guess).Plan(flows);
      const PathPlan done = *PathPlanner(routes, box).Evaluate(flows, plan.paths);
      const double bound = kind.same_seed ? BoundOf(kPodsReached, flows) : plan.seconds_bound;
      EXPECT_GE(bound, 0.95 * done.seconds_after) << kind.name << ", order " << seed;
    }
  }
}

std::vector<TrafficFlow> Ring(const Fabric& fabric, uint64_t seed) {
  std::vector<NodeId> hosts(fabric.hosts().begin(), fabric.hosts().end());
  Random(seed).Shuffle(hosts);
  std::vector<TrafficFlow> flows;
  for (size_t i = 0; i < hosts.size(); ++i) {
    flows.push_back({{hosts[i], 0}, {hosts[(i + 1) % hosts.size()], 0}, MiB(1)});
  }
  return flows;
}

TEST(LearnBox, PlansByTablesWhatNothingExplains) {
  for (size_t kind : {5, 6}) {
    const char* description = kKinds[kind].fabric;
    Fabric fabric = *LoadFabric(description);
    Routes routes(fabric);
    FabricHashes box = MakeBox(fabric, kKinds[kind]);
    box.SetHash(*fabric.Find("leaf2"), *ParseHash("mix:seed=40"));
    LearnBoxOptions options;
    options.linux_seeds = 1 << 12;
    const LearnedBox learned = *LearnBox(routes, box, options);
    EXPECT_THAT(learned.known.unknown, ::testing::IsEmpty());
    EXPECT_EQ(learned.tables, 1);
    // As weft-topo learn-hash writes it and weft-plan reads it.
    const HashFile read = *ParseHashFile(HashFileText(learned.known), "hashes.txt");
    const FabricHashes guess = *MakeHashes(fabric, read, "hashes.txt");
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const auto flows = Ring(fabric, seed);
      const PathPlan plan = *PathPlanner(routes, guess).Plan(flows);
      EXPECT_EQ(plan.open, 0);
      const PathPlan done = *PathPlanner(routes, box).Evaluate(flows, plan.paths);
      EXPECT_GE(plan.seconds_bound, 0.95 * done.seconds_after) << description << ", order " << seed;
      for (size_t i = 0; i < plan.paths.size(); ++i) {
        EXPECT_EQ(plan.paths[i].links, done.paths[i].links);
      }
    }
  }
}

TEST(LearnBox, LeavesFlowsOpenOfWhichNothingIsKnown) {
  Fabric fabric = *LoadFabric(kFour);
  Routes routes(fabric);
  FabricHashes box = MakeBox(fabric, kKinds[2]);
  const NodeId leaf = *fabric.Find("leaf2");
  box.SetHash(leaf, *ParseHash("mix:seed=5"));
  LearnBoxOptions options;
  options.linux_seeds = 1 << 12;
  options.table_pairs = 0;
  const LearnedBox learned = *LearnBox(routes, box, options);
  EXPECT_THAT(learned.known.unknown, ::testing::ElementsAre("leaf2"));
  const FabricHashes guess = *MakeHashes(fabric, learned.known, "found");
  const auto flows = Ring(fabric, 1);
  const PathPlan plan = *PathPlanner(routes, guess).Plan(flows);
  int open = 0;
  for (const PlannedPath& path : plan.paths) {
    const auto leaf_of = [&](Endpoint end) { return fabric.link(fabric.Ports(end)[0]).target; };
    const bool is_unknown = leaf_of(path.source) == leaf && leaf_of(path.target) != leaf;
    EXPECT_EQ(path.open, is_unknown);
    EXPECT_EQ(path.source_port == 0, is_unknown);
    EXPECT_EQ(path.links.empty(), is_unknown);
    open += path.open ? 1 : 0;
  }
  EXPECT_GT(open, 0);
  EXPECT_EQ(plan.open, open);
  EXPECT_EQ(PathPlanner(routes, guess).Replan(flows, plan)->open, open);
}

// index = parities of chosen bits of addresses and ports, as of a hash that nobody has published.
uint32_t Parities(const FiveTuple& tuple) {
  const TupleBits bits = BitsOf(tuple);
  uint32_t index = 0;
  for (uint64_t row = 0; row < 2; ++row) {
    int ones = 0;
    for (size_t i = 0; i < 2; ++i) {
      uint64_t state = 77 + 10 * row + i;
      ones += std::popcount(bits[i] & SplitMix64(state));
    }
    index |= static_cast<uint32_t>(ones % 2) << row;
  }
  return index;
}

std::vector<HashObservation> SeenOfParities(int count, int wrong_every) {
  Random random(5);
  std::vector<HashObservation> seen;
  for (int i = 0; i < count; ++i) {
    const FiveTuple tuple{IpAddress::V4(0x0A010000 + static_cast<uint32_t>(random.Below(8))),
                          IpAddress::V4(0x0A010100 + static_cast<uint32_t>(random.Below(64))),
                          static_cast<uint16_t>(0xC000 + random.Below(0x3000)),
                          4791,
                          kProtocolUdp,
                          0};
    // Members are numbered otherwise than the hash counts.
    uint32_t member = (Parities(tuple) + 3) % 4;
    if (wrong_every > 0 && i % wrong_every == 0) member = (member + 1) % 4;
    seen.push_back({tuple, member});
  }
  return seen;
}

TEST(FitLinear, PredictsFreshFlowsOfAnUnpublishedHash) {
  for (int wrong_every : {0, 100}) {
    const auto fitted = FitLinear(4, SeenOfParities(400, wrong_every), 0.02);
    ASSERT_TRUE(fitted.has_value()) << wrong_every;
    EXPECT_LT(fitted->chance_log10, -100);
    const SwitchHash hash = *ParseHash(HashText(fitted->hash.options()));
    int known = 0;
    for (const HashObservation& one : SeenOfParities(2000, 0)) {
      if (!hash.Knows(one.tuple, 4)) continue;
      ++known;
      EXPECT_EQ(fitted->member_at[hash.Select(one.tuple, 4)], one.member);
    }
    EXPECT_GE(known, 1990);
    FiveTuple other = SeenOfParities(1, 0)[0].tuple;
    other.target_port = 4792;  // nothing was seen of it
    EXPECT_FALSE(hash.Knows(other, 4));
    EXPECT_FALSE(hash.Knows(SeenOfParities(1, 0)[0].tuple, 3));
  }
}

TEST(FitLinear, FindsNothingWhereAHashIsNotLinear) {
  for (const char* text : {"linux:seed=9", "mix:seed=9"}) {
    std::vector<HashObservation> seen = SeenOfParities(400, 0);
    for (HashObservation& one : seen) {
      one.member = static_cast<uint32_t>(ParseHash(text)->Select(one.tuple, 4));
    }
    EXPECT_FALSE(FitLinear(4, seen, 0.02).has_value()) << text;
  }
  EXPECT_FALSE(FitLinear(4, SeenOfParities(16, 0), 0.02).has_value());  // too few
}

TEST(LinuxSeedSearch, FindsSeedsOfEitherFamilyAmongAll) {
  Random random(3);
  for (bool v6 : {false, true}) {
    const IpAddress a = *IpAddress::Parse(v6 ? "fd01::1:2" : "10.1.2.200");
    const IpAddress b = *IpAddress::Parse(v6 ? "fd01::7:1" : "10.1.3.1");
    const SwitchHash hash = *ParseHash("linux:seed=4021987654");
    std::vector<HashObservation> seen;
    for (int i = 0; i < 128; ++i) {
      FiveTuple tuple{a, b, static_cast<uint16_t>(random.Below(65536)), 4791, kProtocolUdp, 0};
      seen.push_back({tuple, static_cast<uint32_t>((hash.Select(tuple, 3) + 1) % 3)});
    }
    const LinuxSeedSearch search(seen, 3);
    const auto found = search.Search(4021987654u - 5000, 10'000);
    ASSERT_TRUE(found.has_value()) << v6;
    EXPECT_EQ(found->options().seed, 4021987654u);
    EXPECT_FALSE(search.Search(1, 20'000).has_value());
    EXPECT_EQ(FitOrder(*found, 3, seen).member_at, (std::vector<uint32_t>{1, 2, 0}));
  }
}

// Two leaves see flows both ways between their hosts, a third only its own.
TEST(LinuxSeedSearch, FindsTheSeedsOfSeveralRoutersAtOnce) {
  for (uint32_t members : {2, 3, 8}) {
    const uint32_t first = 3'000'000'000;
    Random random(members);
    std::vector<LinuxRouter> routers(3);
    std::vector<SwitchHash> hashes;
    for (size_t router = 0; router < routers.size(); ++router) {
      const auto seed = static_cast<uint32_t>(first + 100 + random.Below(9'000));
      hashes.push_back(*ParseHash(absl::StrCat("linux:seed=", seed)));
      routers[router].members = members;
    }
    const auto see = [&](size_t router, const char* from, const char* to, uint16_t port) {
      const FiveTuple tuple{
          *IpAddress::Parse(from), *IpAddress::Parse(to), port, 4791, kProtocolUdp, 0};
      const auto member = static_cast<uint32_t>(hashes[router].Select(tuple, members));
      routers[router].seen.push_back({tuple, (member + 1) % members});
    };
    for (int i = 0; i < 300; ++i) {
      const auto port = static_cast<uint16_t>(50'000 + 7 * i);
      see(0, "10.1.0.1", "10.1.1.1", port);
      see(1, "10.1.1.1", "10.1.0.1", port);
      see(2, "10.1.2.1", "10.1.9.1", static_cast<uint16_t>(port + 1));
    }
    const LinuxSeedSearch search(routers);
    std::vector<bool> found(3);
    for (const LinuxSeedSearch::Found& one : search.SearchAll(first, 10'000)) {
      EXPECT_EQ(one.hash.options().seed, hashes[one.router].options().seed) << members;
      EXPECT_FALSE(found[one.router]);
      found[one.router] = true;
    }
    EXPECT_EQ(found, std::vector<bool>(3, true)) << members;
    EXPECT_THAT(search.SearchAll(1, 10'000), ::testing::IsEmpty());
  }
}

// One of the flows that decide was seen wrongly: other flows decide in another attempt.
TEST(LinuxSeedSearch, AnotherAttemptSearchesByOtherFlows) {
  const uint32_t seed = 3'000'000'123;
  const SwitchHash hash = *ParseHash(absl::StrCat("linux:seed=", seed));
  std::vector<HashObservation> seen;
  for (int i = 0; i < 400; ++i) {
    const FiveTuple tuple{*IpAddress::Parse("10.1.0.1"),
                          *IpAddress::Parse("10.1.1.1"),
                          static_cast<uint16_t>(50'000 + 11 * i),
                          4791,
                          kProtocolUdp,
                          0};
    const auto member = static_cast<uint32_t>(hash.Select(tuple, 3));
    // Every hundredth.
    seen.push_back({tuple, i % 100 == 0 ? (member + 1) % 3 : member});
  }
  int attempts = 0;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const LinuxSeedSearch search(std::vector<LinuxRouter>{{seen, 3}}, attempt);
    const auto found = search.SearchAll(seed - 1000, 2000);
    if (found.empty()) continue;
    EXPECT_EQ(found[0].hash.options().seed, seed);
    ++attempts;
  }
  EXPECT_GE(attempts, 5);
}

}  // namespace
}  // namespace weft::topology
