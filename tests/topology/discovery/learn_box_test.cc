// Switches as black boxes: what they hash is learned from what they do, and planned with.
#include "topology/discovery/learn_box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "topology/ecmp/hash_text.h"
#include "topology/fabric/load.h"
#include "topology/paths/path_planner.h"

namespace weft::topology {
namespace {

// Of which kind the switches of a fabric are. {}: a number of each switch's own in place of the
// seed.
struct Kind {
  const char* name;
  const char* fabric;
  const char* hash;
  bool same_seed = false;  // of all switches, so that tiers are polarised
};

constexpr char kFour[] = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=4";
constexpr char kThree[] = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=3";
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
    EXPECT_GE(right, (1 - LearnBoxOptions().wrong_max) * all) << kind.name;
  }
}

// A permutation between leaves fills every uplink once, whatever the switches hash.
TEST(LearnBox, PlansByWhatWasLearnedReachTheBound) {
  for (const Kind& kind : kKinds) {
    if (kind.same_seed) continue;  // polarised switches reach some cables with no port
    Fabric fabric = *LoadFabric(kind.fabric);
    Routes routes(fabric);
    const FabricHashes box = MakeBox(fabric, kind);
    const FabricHashes guess = *MakeHashes(fabric, LearnBox(routes, box, {})->known, kind.name);
    std::vector<TrafficFlow> flows;
    for (size_t i = 0; i < fabric.hosts().size(); ++i) {
      flows.push_back(
          {{fabric.hosts()[i], 0}, {fabric.hosts()[(i + 4) % fabric.hosts().size()], 0}, MiB(1)});
    }
    const PathPlan plan = *PathPlanner(routes, guess).Plan(flows);
    const PathPlan done = *PathPlanner(routes, box).Evaluate(flows, plan.paths);
    EXPECT_GE(plan.seconds_bound, 0.95 * done.seconds_after) << kind.name;
  }
}

TEST(LearnBox, NamesSwitchesThatNothingExplains) {
  Fabric fabric = *LoadFabric(kFour);
  Routes routes(fabric);
  FabricHashes box = MakeBox(fabric, kKinds[2]);
  const NodeId leaf = *fabric.Find("leaf2");
  box.SetHash(leaf, *ParseHash("mix:seed=5"));
  LearnBoxOptions options;
  options.linux_seeds = 1 << 12;
  const LearnedBox learned = *LearnBox(routes, box, options);
  EXPECT_THAT(learned.known.unknown, ::testing::ElementsAre("leaf2"));
  absl::Status refused = MakeHashes(fabric, learned.known, "found").status();
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("what leaf2 hashes is unknown"));
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

}  // namespace
}  // namespace weft::topology
