// The tcp connection beside a link's queue pairs is cut again and again, while queue pairs fail and
// are made anew over it: everything arrives once, and what cannot be survived ends with a name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/net/cutting_proxy.h"
#include "tests/net/verbs/world.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

struct Wire {
  const char* name;
  TransportKind kind;
  std::vector<std::string> settings;
};

class ControlTest : public testing::TestWithParam<Wire> {
 protected:
  // The proxy lives in the machine's time: the world's is slow beside it.
  static WorldOptions Options(std::vector<std::string> settings) {
    WorldOptions options = QuickWorld(1);
    options.kind = GetParam().kind;
    options.step = absl::Microseconds(20);
    options.settings.push_back("verbs.give_up_after=1h");
    settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
    options.settings.insert(options.settings.end(), settings.begin(), settings.end());
    return options;
  }
  // A world whose sender has connected by way of a proxy.
  struct Proxied {
    Proxied(uint64_t seed, std::vector<std::string> settings)
        : world(Options(std::move(settings))), proxy(world.b->transport().address(), seed) {
      EXPECT_TRUE(world.a->created().ok()) << world.a->created();
      EXPECT_TRUE(world.Connect(proxy.address().ToString()));
      EXPECT_TRUE(world.Until([&] { return world.a->out->connected(); }));
    }
    World world;
    CuttingProxy proxy;
  };
};
INSTANTIATE_TEST_SUITE_P(
    Wires, ControlTest,
    testing::Values(Wire{"verbs", TransportKind::kVerbs, {}},
                    Wire{"uc", TransportKind::kMultipath, {"multipath.wire=uc"}},
                    Wire{"rc", TransportKind::kMultipath, {"multipath.wire=rc"}}),
    [](const auto& wire) { return std::string(wire.param.name); });

TEST_P(ControlTest, QueuePairsAreReplacedOverAConnectionThatIsCut) {
  Proxied proxied(3, {"tcp.dead_after=1h"});
  auto& [world, proxy] = proxied;
  proxy.CutEvery(3000);
  Random random(4, 4);
  for (int round = 0; round < 20; ++round) {
    const std::string device = World::Device(static_cast<int>(random.Below(2)), 0);
    const std::vector<uint32_t> pairs = world.fabric.QueuePairs(device);
    if (!pairs.empty()) world.LosePair(device, pairs[random.Below(pairs.size())]);
    if (round % 4 == 3) {
      const int before = proxy.cuts();
      ASSERT_TRUE(world.Until(
          [&] {
            proxy.Cut();
            return proxy.cuts() > before;
          },
          absl::Hours(1)));
    }
    Traffic traffic(world, static_cast<uint64_t>(round), 10, 50'000);
    ASSERT_TRUE(world.Until(
        [&] {
          traffic.Post();
          return traffic.Done();
        },
        absl::Seconds(60)))
        << round << ": " << world.a->out->Describe() << "\n"
        << world.b->accepted->Describe() << "\n"
        << proxy.cuts() << " cuts";
    EXPECT_TRUE(traffic.AllGood()) << traffic.FirstError();
    EXPECT_EQ(traffic.Check(), "");
  }
  EXPECT_TRUE(world.broken().ok()) << world.broken();
}

// Data needs the connection only when queue pairs are to be made.
TEST_P(ControlTest, DataGoesOnWhileTheConnectionIsBeingReplaced) {
  Proxied proxied(6, {"tcp.dead_after=1h"});
  auto& [world, proxy] = proxied;
  ASSERT_EQ(Exchange(world, 1), "");
  proxy.Refuse();
  while (proxy.cuts() == 0) usleep(1000);
  for (int turn = 0; turn < 5000; ++turn) world.Turn();
  EXPECT_EQ(Exchange(world, 2), "");
  EXPECT_TRUE(world.broken().ok()) << world.broken();
}

TEST_P(ControlTest, AConnectionThatCannotBeReplacedEndsTheLink) {
  Proxied proxied(5, {"tcp.dead_after=1s"});
  auto& [world, proxy] = proxied;
  proxy.Refuse();
  ASSERT_TRUE(world.Until([&] { return !world.a->broken.ok() && !world.b->broken.ok(); },
                          absl::Seconds(100)));
  EXPECT_THAT(std::string(world.b->broken.message()), HasSubstr("socket 0 of 1 was lost ("));
}

// Its last words find a socket that was reset, with words about queue pairs unread on it.
TEST_P(ControlTest, ALinkThatIsClosedHearsNothingMore) {
  Proxied proxied(7, {"tcp.dead_after=1h"});
  auto& [world, proxy] = proxied;
  Traffic traffic(world, 7, 1, 50'000);
  traffic.Post();
  ASSERT_TRUE(world.Until([&] { return traffic.Done(); }));
  const std::string device = World::Device(1, 0);
  for (uint32_t pair : world.fabric.QueuePairs(device)) world.LosePair(device, pair);
  for (int turn = 0; turn < 5000; ++turn) world.Turn(*world.b);
  usleep(50'000);  // until all that was said has passed the proxy
  proxy.Cut();
  while (proxy.cuts() == 0) usleep(1000);
  world.a->out.reset();
  EXPECT_TRUE(world.a->broken.ok()) << world.a->broken;
}

}  // namespace
}  // namespace weft::net
