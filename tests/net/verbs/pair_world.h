// A world whose link is multipath's, over queue pairs of either kind.
#ifndef WEFT_TESTS_NET_VERBS_PAIR_WORLD_H_
#define WEFT_TESTS_NET_VERBS_PAIR_WORLD_H_

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "net/multipath/udp/multipath_transport.h"
#include "net/verbs/pair_transport.h"
#include "tests/net/verbs/world.h"

namespace weft::net {

// "uc" or "rc".
inline WorldOptions Over(absl::string_view wire, int rails = 2,
                         std::vector<std::string> settings = {}) {
  WorldOptions options;
  options.rails = rails;
  options.kind = TransportKind::kMultipath;
  options.settings = {absl::StrCat("multipath.wire=", wire), "multipath.paths=4"};
  // Most of what follows counts packets, which reliable ones join by default.
  if (wire == "rc") options.settings.push_back("multipath.chunk_bytes=3968");
  options.settings.insert(options.settings.end(), settings.begin(), settings.end());
  return options;
}

inline const multipath::PairStatistics& StatisticsOf(ScriptedNode& node) {
  return dynamic_cast<multipath::PairTransport&>(node.transport()).pair_statistics();
}

// How much was dropped of what the first host sent.
inline int Dropped(World& world, int rails) {
  int out = 0;
  for (int rail = 0; rail < rails; ++rail) out += world.fabric.dropped_from(World::Device(0, rail));
  return out;
}

// The rest of `traffic` arrives, and all of it is right and there once.
inline void ExpectRest(World& world, Traffic& traffic) {
  ASSERT_TRUE(world.Until([&] {
    traffic.Post();
    return traffic.Done();
  })) << world.a->out->status();
  EXPECT_TRUE(traffic.AllGood()) << traffic.FirstError();
  EXPECT_EQ(traffic.Check(), "");
}

// Everything arrives, right and once.
inline void ExpectAll(World& world, uint64_t seed, int messages = 40, size_t bytes_max = 200'000) {
  ASSERT_TRUE(world.a->created().ok() && world.b->created().ok())
      << world.a->created() << world.b->created();
  if (world.a->out == nullptr) {
    ASSERT_TRUE(world.Connect());
  }
  Traffic traffic(world, seed, messages, bytes_max);
  ExpectRest(world, traffic);
  EXPECT_EQ(world.fabric.overruns(), 0);
}

// Tests that run with both kinds of queue pairs.
class OverQueuePairs : public testing::TestWithParam<const char*> {
 protected:
  static WorldOptions Options(int rails = 2, std::vector<std::string> settings = {}) {
    return Over(GetParam(), rails, std::move(settings));
  }
  // All paths in turn, and all of a message may be.
  static WorldOptions InTurns(int rails, std::vector<std::string> settings = {}) {
    settings.insert(settings.end(), {"multipath.policy=round-robin", "multipath.piece_bytes=0"});
    return Options(rails, std::move(settings));
  }
  static bool IsReliable() { return std::string(GetParam()) == "rc"; }
  // Nobody is told: one in silence, the other sends again and again.
  static ScriptedFate Dead() {
    ScriptedFate fate;
    fate.lost = true;
    fate.hold_ticks = IsReliable() ? 1 << 30 : 0;
    return fate;
  }
};
inline constexpr std::array<const char*, 2> kQueuePairWires = {"uc", "rc"};

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_VERBS_PAIR_WORLD_H_
