#include "topology/ecmp/learn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"
#include "topology/ecmp/switch_hash.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kLeafHop = 1, kSpineHop = 2, kFarLeafHop = 3, kTargetHop = 4;

// One choice, at the first leaf; answers are lost, or come from elsewhere, at random.
class FakeNetwork : public PathProber, public LoadProber {
 public:
  FakeNetwork(const SwitchHashOptions& hash, size_t paths)
      : hash_(*SwitchHash::Create(hash)), paths_(paths) {}

  size_t PathOf(uint16_t port) const {
    FiveTuple tuple{*IpAddress::Parse("10.0.0.1"), *IpAddress::Parse("10.0.3.1"), port,
                    kRoceTargetPort, kProtocolUdp};
    return hash_.Select(tuple, paths_);
  }

  absl::StatusOr<HopAnswer> Ask(uint16_t port, int ttl) override {
    ++probes;
    if (random_.Uniform() < lost) return HopAnswer();
    bool is_wrong = random_.Uniform() < wrong;
    if (ttl >= kTargetHop) return HopAnswer{HopAnswer::Kind::kTarget, 0};
    uint64_t router = static_cast<uint64_t>(ttl) * 100;
    if (ttl == kSpineHop) router += is_wrong ? random_.Below(paths_) : PathOf(port);
    if (ttl == kFarLeafHop && silent_far_leaf) return HopAnswer();
    return HopAnswer{HopAnswer::Kind::kRouter, router};
  }

  absl::StatusOr<absl::Duration> RoundTrip(uint16_t port,
                                           absl::Span<const uint16_t> loaded) override {
    ++probes;
    bool shares = std::any_of(loaded.begin(), loaded.end(),
                              [&](uint16_t other) { return PathOf(other) == PathOf(port); });
    if (random_.Uniform() < lost) return absl::InfiniteDuration();
    if (random_.Uniform() < wrong) shares = !shares;  // other people's load, or a lull
    double queue = shares && load_works ? 80 + 40 * random_.Uniform() : 0;
    return absl::Microseconds(20 + 5 * random_.Uniform() + queue);
  }

  double lost = 0, wrong = 0;
  bool silent_far_leaf = false, load_works = true;
  int64_t probes = 0;

 private:
  SwitchHash hash_;
  size_t paths_;
  Random random_{99};
};

std::vector<uint16_t> Ports(size_t count) {
  Random random(5);
  std::vector<uint16_t> ports(16384);
  std::iota(ports.begin(), ports.end(), 0xC000);
  random.Shuffle(ports);
  ports.resize(count);
  return ports;
}

// Every class is all of the known ports of one path.
void ExpectRight(const FakeNetwork& network, const LearnedPaths& learned, size_t paths) {
  EXPECT_EQ(learned.classes.size(), paths);
  std::vector<size_t> seen;
  for (const auto& ports : learned.classes) {
    size_t path = network.PathOf(ports[0]);
    seen.push_back(path);
    for (uint16_t port : ports) EXPECT_EQ(network.PathOf(port), path) << port;
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
}

const SwitchHashOptions kLinuxHash{HashFunction::kLinux, HashSelect::kThreshold, 77};
const SwitchHashOptions kCrcHash{.function = HashFunction::kCrc32, .seed = 77};

TEST(LearnByTtl, SortsPortsByTheirPaths) {
  FakeNetwork network(kLinuxHash, 8);
  LearnedPaths learned = *LearnByTtl(network, {.ports = Ports(100)});
  ExpectRight(network, learned, 8);
  EXPECT_THAT(learned.unknown, IsEmpty());
  EXPECT_LT(learned.missed, 1e-4);
  EXPECT_EQ(learned.probes, network.probes);
  // 16 ports by 4 hops, the rest by the one that varies; two answers each.
  EXPECT_LE(learned.probes, (16 * 4 + 84) * 2);
  EXPECT_EQ(learned.hops[0].size(), 4u);
}

TEST(LearnByTtl, SurvivesLostAndWrongAnswers) {
  FakeNetwork network(kLinuxHash, 4);
  network.lost = 0.3;
  network.wrong = 0.1;
  LearnedPaths learned = *LearnByTtl(network, {.ports = Ports(200), .lead = 4, .tries = 40});
  ExpectRight(network, learned, 4);
  EXPECT_THAT(learned.unknown, IsEmpty());
  EXPECT_LE(learned.probes, 200 * 8 * 40);
}

TEST(LearnByTtl, TakesSilentRoutersAsTheyAre) {
  FakeNetwork network(kLinuxHash, 4);
  network.silent_far_leaf = true;
  LearnedPaths learned = *LearnByTtl(network, {.ports = Ports(60)});
  ExpectRight(network, learned, 4);
  EXPECT_EQ(learned.hops[0][kFarLeafHop - 1].kind, HopAnswer::Kind::kSilent);
  EXPECT_EQ(learned.hops[0][kLeafHop - 1].router, 100u);
}

TEST(LearnByTtl, StopsWhereTheBudgetEnds) {
  FakeNetwork network(kLinuxHash, 4);
  LearnedPaths learned = *LearnByTtl(network, {.ports = Ports(200), .probes_max = 150});
  EXPECT_EQ(network.probes, 150);
  EXPECT_GT(learned.unknown.size(), 100u);
  EXPECT_EQ(learned.classes.size(), 4u);
}

TEST(LearnByLoad, SortsPortsByTheirPaths) {
  FakeNetwork network(kLinuxHash, 16);
  LearnedPaths learned = *LearnByLoad(network, {.ports = Ports(150), .lead = 3});
  ExpectRight(network, learned, 16);
  EXPECT_EQ(learned.probes, network.probes);
  EXPECT_LE(learned.probes, 32 + 150 * (2 + 4) * 3);
}

TEST(LearnByLoad, SurvivesNoise) {
  FakeNetwork network(kLinuxHash, 8);
  network.lost = 0.02;
  network.wrong = 0.15;
  LearnedPaths learned = *LearnByLoad(network, {.ports = Ports(120), .lead = 8, .tries = 200});
  ExpectRight(network, learned, 8);
}

TEST(LearnByLoad, SaysWhenLoadTellsNothing) {
  FakeNetwork network(kLinuxHash, 8);
  network.load_works = false;
  absl::Status status = LearnByLoad(network, {.ports = Ports(120)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is the load enough"));
}

TEST(FitLinear, PredictsEveryPortOfALinearHashFromAFew) {
  for (HashFunction function :
       {HashFunction::kCrc16Ccitt, HashFunction::kCrc16Arc, HashFunction::kCrc32,
        HashFunction::kCrc32c, HashFunction::kXor16}) {
    for (size_t paths : {2, 8, 16}) {
      FakeNetwork network({.function = function, .seed = 3, .offset = 4}, paths);
      LearnedPaths learned = *LearnByTtl(network, {.ports = Ports(120)});
      ASSERT_TRUE(learned.linear) << ToString(function) << " " << paths;
      for (uint32_t port = 0xC000; port <= 0xFFFF; ++port) {
        auto predicted = learned.linear->ClassOf(static_cast<uint16_t>(port));
        ASSERT_TRUE(predicted);
        ASSERT_EQ(network.PathOf(learned.classes[*predicted][0]),
                  network.PathOf(static_cast<uint16_t>(port)));
      }
    }
  }
}

TEST(FitLinear, FindsNothingWhereThereIsNothing) {
  FakeNetwork sip(kLinuxHash, 8);
  EXPECT_FALSE(LearnByTtl(sip, {.ports = Ports(120)})->linear);
  FakeNetwork odd(kCrcHash, 6);  // a remainder of six is not linear
  EXPECT_FALSE(LearnByTtl(odd, {.ports = Ports(120)})->linear);
  FakeNetwork few(kCrcHash, 8);
  EXPECT_FALSE(LearnByTtl(few, {.ports = Ports(12)})->linear);  // too few to be sure
  EXPECT_FALSE(FitLinear({}));
}

TEST(Learn, NamesOptionsThatAreWrong) {
  FakeNetwork network(kCrcHash, 8);
  EXPECT_THAT(std::string(LearnByTtl(network, {}).status().message()), HasSubstr("ports 0"));
  EXPECT_THAT(std::string(LearnByTtl(network, {.ports = {1}, .lead = 0}).status().message()),
              HasSubstr("lead 0"));
}

}  // namespace
}  // namespace weft::topology
