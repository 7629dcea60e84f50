// Multipath over queue pairs on the scripted NIC, fault by fault: unreliable ones, reliable ones.
// Time is the test's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "net/multipath/udp/multipath_transport.h"
#include "net/verbs/pair_transport.h"
#include "tests/net/verbs/world.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

WorldOptions Over(absl::string_view wire, int rails = 2, std::vector<std::string> settings = {}) {
  WorldOptions options;
  options.rails = rails;
  options.kind = TransportKind::kMultipath;
  options.settings = {absl::StrCat("multipath.wire=", wire), "multipath.paths=4"};
  // Most of what follows counts packets, which reliable ones join by default.
  if (wire == "rc") options.settings.push_back("multipath.chunk_bytes=3968");
  options.settings.insert(options.settings.end(), settings.begin(), settings.end());
  return options;
}

const multipath::PairStatistics& StatisticsOf(ScriptedNode& node) {
  return dynamic_cast<multipath::PairTransport&>(node.transport()).pair_statistics();
}

int Dropped(World& world, int rails) {
  int out = 0;
  for (int rail = 0; rail < rails; ++rail) out += world.fabric.dropped_from(World::Device(0, rail));
  return out;
}

void Fail(World& world, const std::string& device, uint32_t pair) {
  NicEvent event;
  event.kind = NicEventKind::kQueuePairFatal;
  event.queue_pair = pair;
  world.fabric.PushEvent(device, event);
}

// Everything arrives, right and once.
void ExpectAll(World& world, uint64_t seed, int messages = 40, size_t bytes_max = 200'000) {
  ASSERT_TRUE(world.a->created().ok() && world.b->created().ok())
      << world.a->created() << world.b->created();
  if (world.a->out == nullptr) {
    ASSERT_TRUE(world.Connect());
  }
  Traffic traffic(world, seed, messages, bytes_max);
  ASSERT_TRUE(world.Until([&] {
    traffic.Post();
    return traffic.Done();
  })) << world.a->out->status();
  EXPECT_TRUE(traffic.AllGood()) << traffic.FirstError();
  EXPECT_EQ(traffic.Check(), "");
  EXPECT_EQ(world.fabric.overruns(), 0);
}

// Of both kinds of queue pairs.
class PairPathsTest : public testing::TestWithParam<const char*> {
 protected:
  static WorldOptions Options(int rails = 2, std::vector<std::string> settings = {}) {
    return Over(GetParam(), rails, std::move(settings));
  }
};
INSTANTIATE_TEST_SUITE_P(Wires, PairPathsTest, testing::Values("uc", "rc"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(PairPathsTest, MessagesArriveWholeOverEveryQueuePair) {
  World world(Options(2, {"multipath.policy=round-robin", "multipath.piece_bytes=0"}));
  std::map<uint32_t, int> sent;
  std::set<uint32_t> labels;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    EXPECT_TRUE(transfer.is_message);
    if (GetParam() == std::string("uc")) {
      EXPECT_LE(transfer.length, 4096u);  // one packet of the path MTU
    }
    if (transfer.from == World::Device(1, 0) || transfer.from == World::Device(1, 1)) {
      return ScriptedFate{};
    }
    ++sent[transfer.queue_pair];
    labels.insert(transfer.flow_label);
    return ScriptedFate{};
  });
  ExpectAll(world, 1);
  EXPECT_EQ(sent.size(), 4u);
  EXPECT_EQ(labels.size(), 4u);
  EXPECT_EQ(StatisticsOf(*world.a).pairs_lost + StatisticsOf(*world.b).pairs_lost, 0);
  for (auto [pair, times] : sent) EXPECT_GT(times, 10) << pair;
}

// A message is what costs. Clear-to-sends take acknowledgements of data with them, and where a
// message holds more than a packet of the path MTU, so does data those of clear-to-sends.
TEST_P(PairPathsTest, AcknowledgementsLeaveWithOtherPackets) {
  World world(Options(1, {"multipath.chunk_bytes=0"}));
  // One message after the other: while others are expected, an acknowledgement may wait.
  world.fabric.SetSpines({10e6}, [](const std::string&, uint32_t) { return 0; });
  ASSERT_TRUE(world.Connect());
  const multipath::PairStatistics there = StatisticsOf(*world.a), back = StatisticsOf(*world.b);
  constexpr int64_t kOutstanding = 4;  // fewer than an acknowledgement stands for
  EndlessTraffic stream(world, 3968, kOutstanding);
  stream.Run(absl::Milliseconds(200));
  const int64_t rounds = static_cast<int64_t>(stream.received()) / kOutstanding;
  ASSERT_GT(rounds, 100);
  const auto joined = [](ScriptedNode& node, const multipath::PairStatistics& before) {
    const multipath::PairStatistics& now = StatisticsOf(node);
    return (now.sent - before.sent) - (now.messages - before.messages);
  };
  EXPECT_GT(joined(*world.b, back), 0.9 * static_cast<double>(rounds));
  if (GetParam() == std::string("rc")) {
    EXPECT_GT(joined(*world.a, there), 0.9 * static_cast<double>(rounds));
  } else {
    EXPECT_LT(joined(*world.a, there), 0.1 * static_cast<double>(rounds));
  }
}

TEST_P(PairPathsTest, MessagesLostInSilenceAreSentAgain) {
  World world(Options());
  Random random(3, 3);
  world.fabric.set_on_transfer([&](const ScriptedTransfer&) {
    ScriptedFate fate;
    fate.lost = random.Below(10) == 0;
    return fate;
  });
  ExpectAll(world, 2);
  EXPECT_GT(Dropped(world, 2), 40);
}

TEST_P(PairPathsTest, ChunksOfSeveralPacketsAreCutByTheDevice) {
  World world(Options(1, {"multipath.chunk_bytes=16KiB"}));
  uint32_t longest = 0;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    longest = std::max(longest, transfer.length);
    return ScriptedFate{};
  });
  ExpectAll(world, 3);
  EXPECT_GE(longest, (16u << 10) + multipath::kBeforeChunk);
  EXPECT_LT(longest, 17u << 10);
}

TEST_P(PairPathsTest, AQueuePairThatFailsIsADeadPathAndNothingMore) {
  World world(Options());
  int transfers = 0;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    fate.fails = ++transfers == 100 && transfer.from == World::Device(0, 1);
    if (transfers == 100 && !fate.fails) --transfers;
    fate.status = NicStatus::kLocalOperation;
    return fate;
  });
  ExpectAll(world, 4);
  EXPECT_EQ(StatisticsOf(*world.a).pairs_lost, 1);
  EXPECT_TRUE(world.a->broken.ok() && world.b->broken.ok());
}

TEST_P(PairPathsTest, ALostQueuePairsShareGoesOverTheNextAtOnce) {
  World world(Options(1, {"multipath.policy=round-robin", "multipath.piece_bytes=0"}));
  ExpectAll(world, 11, 3);
  const std::vector<uint32_t> pairs = world.fabric.QueuePairs(World::Device(0, 0));
  ASSERT_EQ(pairs.size(), 4u);
  for (size_t i = 0; i < 3; ++i) Fail(world, World::Device(0, 0), pairs[i]);
  ASSERT_TRUE(world.Until([&] { return StatisticsOf(*world.a).pairs_lost == 3; }));
  ExpectAll(world, 12);
  EXPECT_EQ(StatisticsOf(*world.a).dropped, 0);
}

TEST_P(PairPathsTest, AFailedQueuePairIsReplacedAtBothEndsAndUsed) {
  World world(Options(1, {"multipath.policy=round-robin", "multipath.piece_bytes=0"}));
  ExpectAll(world, 13, 3);
  const std::string device = World::Device(0, 0);
  const std::vector<uint32_t> before = world.fabric.QueuePairs(device);
  Fail(world, device, before[1]);
  ASSERT_TRUE(world.Until([&] { return StatisticsOf(*world.a).pairs_replaced == 1; }));
  std::vector<uint32_t> after = world.fabric.QueuePairs(device);
  ASSERT_EQ(after.size(), 4u);
  EXPECT_EQ(after.front(), before.front());
  EXPECT_GT(after.back(), before.back());
  int carried = 0;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    if (transfer.from == device && transfer.queue_pair == after.back()) ++carried;
    return ScriptedFate{};
  });
  ExpectAll(world, 14);
  EXPECT_GT(carried, 10);
  EXPECT_EQ(StatisticsOf(*world.b).pairs_replaced, 1);
  EXPECT_EQ(world.fabric.QueuePairs(World::Device(1, 0)).size(), 4u);
}

// As where nobody answers for an address: the kernel waits for that within the call.
TEST_P(PairPathsTest, QueuePairsThatAreSlowToConnectHoldUpNobody) {
  // Threads are the machine's, not the world's.
  WorldOptions options = Options(1, {"verbs.give_up_after=1h"});
  options.tweak = [](int, std::vector<ScriptedDeviceOptions>* devices) {
    devices->at(0).resolves_addresses = true;
  };
  World world(options);
  ExpectAll(world, 27, 3);
  for (int host : {0, 1}) {
    const std::string device = World::Device(host, 0);
    const int64_t replaced = StatisticsOf(*world.a).pairs_replaced;
    world.fabric.HoldConnect(device);
    Fail(world, device, world.fabric.QueuePairs(device).at(0));
    ASSERT_TRUE(world.Until([&] { return world.fabric.held_connects() > 0; }, absl::Hours(1)));
    ExpectAll(world, 28);
    EXPECT_EQ(world.fabric.connected_while_held(), 0) << "all was sent before it was connected";
    world.fabric.HoldConnect("");
    ASSERT_TRUE(world.Until([&] { return StatisticsOf(*world.a).pairs_replaced > replaced; },
                            absl::Hours(1)));
    ExpectAll(world, 29);
  }
}

// Of the paths that nobody says are dead.
TEST_P(PairPathsTest, QueuePairsOnDeadPathsAreReplacedByOnesOnOthers) {
  World world(Options(
      1, {"multipath.policy=round-robin", "multipath.piece_bytes=0", "verbs.stall_after=100ms"}));
  ExpectAll(world, 22, 3);
  const std::string device = World::Device(0, 0);
  const std::vector<uint32_t> first = world.fabric.QueuePairs(device);
  int carried = 0;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    if (transfer.from != device) return fate;
    if (transfer.queue_pair > first.back()) ++carried;
    if (transfer.queue_pair != first[1] && transfer.queue_pair != first[2]) return fate;
    // Of one in silence; the other sends it again and again.
    fate.lost = true;
    fate.hold_ticks = std::string(GetParam()) == "rc" ? 1 << 30 : 0;
    return fate;
  });
  ExpectAll(world, 23);
  ASSERT_TRUE(world.Until([&] { return StatisticsOf(*world.a).pairs_replaced == 2; }));
  carried = 0;
  ASSERT_TRUE(world.Until([&] { return carried > 0; })) << "they are probed";
  ExpectAll(world, 24);
  EXPECT_GT(carried, 10);
  EXPECT_EQ(StatisticsOf(*world.a).pairs_lost + StatisticsOf(*world.b).pairs_lost, 2);
  EXPECT_EQ(world.fabric.QueuePairs(device).size(), 4u);
}

TEST_P(PairPathsTest, AnEndThatStandsStillCostsNoQueuePairs) {
  World world(Options(
      1, {"multipath.policy=round-robin", "multipath.piece_bytes=0", "verbs.stall_after=100ms"}));
  ExpectAll(world, 25, 3);
  const std::string device = World::Device(0, 0);
  const std::vector<uint32_t> pairs = world.fabric.QueuePairs(device);
  uint32_t dead = 0;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    if (transfer.from != device || transfer.queue_pair != dead) return fate;
    fate.lost = std::string(GetParam()) == "uc";
    fate.hold_ticks = fate.lost ? 0 : 100;
    return fate;
  });
  Random random(25, 7);
  for (uint64_t pause = 0; pause < 20; ++pause) {
    // A path is left, and an end stands still for up to three times the patience.
    dead = pairs[random.Below(pairs.size())];
    ExpectAll(world, 100 + pause, 10);
    dead = 0;
    ScriptedNode& awake = random.Below(2) == 0 ? *world.a : *world.b;
    const absl::Time end = world.now() + random.Uniform() * absl::Milliseconds(300);
    while (world.now() < end) world.Turn(awake);
    ExpectAll(world, 200 + pause, 10);
  }
  EXPECT_EQ(StatisticsOf(*world.a).pairs_lost + StatisticsOf(*world.b).pairs_lost, 0);
}

TEST_P(PairPathsTest, HalfOfThePathsGoDarkBothWaysAndHoldNothingUpForLong) {
  World world(Options(1, {"multipath.paths=16"}));
  ExpectAll(world, 30, 3);
  const auto is_dark = [&](const std::string& device, uint32_t pair) {
    return (pair - world.fabric.QueuePairs(device).front()) % 2 == 1;
  };
  std::set<uint32_t> dark;
  absl::Duration longest;
  for (uint64_t round = 0; round < 60; ++round) {
    if (round == 20) {
      for (int host : {0, 1}) {
        for (uint32_t pair : world.fabric.QueuePairs(World::Device(host, 0))) {
          if (is_dark(World::Device(host, 0), pair)) dark.insert(pair);
        }
      }
      world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
        ScriptedFate fate;
        if (dark.count(transfer.queue_pair) == 0) return fate;
        fate.lost = true;
        fate.hold_ticks = std::string(GetParam()) == "rc" ? 1 << 30 : 0;
        return fate;
      });
    }
    const absl::Time start = world.now();
    ExpectAll(world, 31 + round, 4, 100'000);
    longest = std::max(longest, world.now() - start);
  }
  EXPECT_LT(longest, absl::Milliseconds(60));
}

TEST_P(PairPathsTest, EndsThatLoseAQueuePairAtOnceMeetInTheSameOne) {
  World world(Options(1, {"multipath.paths=1"}));
  ExpectAll(world, 15, 3);
  for (int host : {0, 1}) {
    const std::string device = World::Device(host, 0);
    Fail(world, device, world.fabric.QueuePairs(device).front());
  }
  ASSERT_TRUE(world.Until([&] {
    return StatisticsOf(*world.a).pairs_replaced == 1 && StatisticsOf(*world.b).pairs_replaced == 1;
  }));
  ExpectAll(world, 16);
  EXPECT_EQ(StatisticsOf(*world.a).pairs_lost, 1);
  EXPECT_EQ(StatisticsOf(*world.b).pairs_lost, 1);
}

TEST_P(PairPathsTest, ALinkWhoseQueuePairsCannotBeReplacedGivesUp) {
  World world(Options(2, {"verbs.give_up_after=3s"}));
  ExpectAll(world, 17, 3);
  world.fabric.set_on_call([&](const std::string& call, const std::string&) {
    return call == "to_rtr" ? absl::UnavailableError("scripted") : absl::OkStatus();
  });
  for (int rail : {0, 1}) {
    const std::string device = World::Device(0, rail);
    for (uint32_t pair : world.fabric.QueuePairs(device)) Fail(world, device, pair);
  }
  const absl::Time start = world.now();
  EXPECT_TRUE(world.Until([&] { return !world.a->broken.ok(); }, absl::Seconds(5)));
  EXPECT_GT(world.now() - start, absl::Seconds(2));
  EXPECT_THAT(
      std::string(world.a->broken.message()),
      HasSubstr("4 of 4 queue pairs are lost, and nothing has come over the others for 3s"));
}

TEST_P(PairPathsTest, MemoryOfStuckQueuePairsIsTakenBackForTheOthers) {
  // Paths enough for all memory, of which all but the last are stuck with what they were given.
  World world(
      Options(1, {"multipath.paths=6", "multipath.policy=round-robin", "multipath.piece_bytes=0",
                  "multipath.controller=fixed:window=9", "multipath.gbps=1000",
                  "multipath.base_rtt=10ms", "multipath.buffer_bytes=64MiB"}));
  ASSERT_TRUE(world.a->created().ok() && world.Connect());
  std::vector<uint32_t> pairs;
  ASSERT_TRUE(world.Until([&] {
    pairs = world.fabric.QueuePairs(World::Device(0, 0));
    return pairs.size() == 6;
  }));
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    const bool is_first = transfer.from == World::Device(0, 0) &&
                          transfer.queue_pair < pairs.back() &&
                          transfer.queue_pair >= pairs.front();
    if (is_first) fate.hold_ticks = 1 << 30;
    return fate;
  });
  ExpectAll(world, 18, 20, 4'000'000);
  EXPECT_GT(StatisticsOf(*world.a).pairs_lost, 0);
}

TEST(ReliablePathsTest, ReceivesThatRunOutAreWaitedFor) {
  World world(Over("rc", 1));
  bool fails = false;
  world.fabric.set_on_call([&](const std::string& call, const std::string& device) {
    const bool hit = fails && call == "post_receives" && device == World::Device(1, 0);
    return hit ? absl::UnavailableError("scripted") : absl::OkStatus();
  });
  ExpectAll(world, 19, 3);
  fails = true;
  Traffic traffic(world, 20, 60, 300'000);
  EXPECT_TRUE(world.Until([&] {
    traffic.Post();
    return world.fabric.not_ready() > 20;
  }));
  EXPECT_FALSE(traffic.Done());
  fails = false;
  EXPECT_TRUE(world.Until([&] {
    traffic.Post();
    return traffic.Done();
  }));
  EXPECT_TRUE(traffic.AllGood()) << traffic.FirstError();
  EXPECT_EQ(traffic.Check(), "");
}

// A device that cuts them recovers single packets of them, too.
TEST(ReliablePathsTest, AChunkTakesSeveralPacketsUnlessItIsToldOtherwise) {
  World world(Over("rc", 1, {"multipath.chunk_bytes=0"}));
  uint32_t longest = 0;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    longest = std::max(longest, transfer.length);
    return ScriptedFate{};
  });
  ExpectAll(world, 22);
  EXPECT_GE(longest, (64u << 10) + multipath::kBeforeChunk);
  EXPECT_LT(longest, 65u << 10);
}

TEST(ReliablePathsTest, LargePacketsTakeNoMoreMemoryOnTheirWayOut) {
  for (uint32_t chunk : {960u, 3968u, 32768u, 65536u}) {
    const uint32_t slots = multipath::SendSlotsOf({.chunk_max = chunk});
    EXPECT_GE(slots, multipath::kSendSlotsMin) << chunk;
    EXPECT_LE(slots, multipath::kSendSlotsMax) << chunk;
    if (slots == multipath::kSendSlotsMin) continue;
    EXPECT_LE(slots * multipath::SlotBytesOf(chunk, 0), multipath::kSendBytes) << chunk;
  }
  EXPECT_EQ(multipath::SendSlotsOf({.chunk_max = 3968}), multipath::kSendSlotsMax);
  EXPECT_EQ(multipath::SendSlotsOf({.chunk_max = 65536}), multipath::kSendSlotsMin);
}

// A device that gives up on a path takes nothing with it.
TEST(ReliablePathsTest, AQueuePairWhoseRetriesAreExceededIsReplaced) {
  World world(Over("rc", 2));
  Random random(5, 5);
  world.fabric.set_on_transfer([&](const ScriptedTransfer&) {
    ScriptedFate fate;
    fate.fails = random.Below(400) == 0;
    fate.arrives = random.Below(2) == 0;
    return fate;
  });
  ExpectAll(world, 21);
  EXPECT_GT(StatisticsOf(*world.a).pairs_lost, 1);
  EXPECT_TRUE(world.Until([&] { return StatisticsOf(*world.a).pairs_replaced > 1; }));
}

TEST_P(PairPathsTest, ALinkWithoutQueuePairsBreaksAndSaysWhy) {
  World world(Options());
  ExpectAll(world, 5, 3);
  for (int rail : {0, 1}) {
    NicEvent event;
    event.kind = NicEventKind::kDeviceLost;
    world.fabric.PushEvent(World::Device(0, rail), event);
  }
  EXPECT_TRUE(world.Until([&] { return !world.a->broken.ok(); }, absl::Seconds(5)));
  EXPECT_EQ(world.a->broken.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(world.a->broken.message()),
              HasSubstr("all 4 queue pairs are lost, the last by: host0_rail1 reports a fatal"));
}

TEST(UnreliablePathsTest, ReceivesThatRunOutAreLossAndAreFilledAgain) {
  World world(Over("uc", 1));
  bool fails = false;
  world.fabric.set_on_call([&](const std::string& call, const std::string& device) {
    if (!fails || call != "post_receives" || device != World::Device(1, 0)) {
      return absl::OkStatus();
    }
    return absl::UnavailableError("scripted");
  });
  ExpectAll(world, 6, 3);
  fails = true;
  Traffic traffic(world, 7, 60, 300'000);
  EXPECT_TRUE(world.Until([&] {
    traffic.Post();
    return Dropped(world, 1) > 20;
  }));
  EXPECT_FALSE(traffic.Done());
  fails = false;
  EXPECT_TRUE(world.Until([&] {
    traffic.Post();
    return traffic.Done();
  }));
  EXPECT_TRUE(traffic.AllGood()) << traffic.FirstError();
  EXPECT_EQ(traffic.Check(), "");
}

TEST_P(PairPathsTest, MemoryForPacketsIsBoundedWhateverIsSent) {
  World world(Options(2));
  ASSERT_TRUE(world.a->created().ok());
  // Receives and sends, a rail each, registered with both rails; of both hosts.
  constexpr size_t kPackets = size_t{2} * 2 * 2 * 2;
  EXPECT_EQ(world.fabric.registrations(), kPackets);
  ExpectAll(world, 8);
  EXPECT_EQ(world.fabric.registrations(), kPackets);
  EXPECT_EQ(StatisticsOf(*world.b).receive_errors, 0);
}

TEST_P(PairPathsTest, AFullDeviceHoldsPacketsBackAndGoesOn) {
  World world(Options(1, {"multipath.controller=fixed:window=9", "multipath.gbps=1000"}));
  ASSERT_TRUE(world.a->created().ok()) << world.a->created();
  ASSERT_TRUE(world.Connect());
  world.fabric.SetRate(World::Device(0, 0), 50e6);
  ExpectAll(world, 9, 30, 300'000);
  EXPECT_EQ(StatisticsOf(*world.a).pairs_lost, 0);
}

TEST_P(PairPathsTest, AQueuePairOfWhichNothingCompletesIsNotWaitedFor) {
  // A window that more than fills the queue of a path before that is left.
  World world(
      Options(1, {"multipath.paths=2", "multipath.policy=round-robin", "multipath.piece_bytes=0",
                  "multipath.controller=fixed:window=9", "multipath.gbps=100",
                  "multipath.base_rtt=1ms", "multipath.buffer_bytes=16MiB"}));
  uint32_t stuck = 0;
  int behind = 0;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    if (transfer.from != World::Device(0, 0)) return fate;
    if (stuck == 0) stuck = transfer.queue_pair;
    if (transfer.queue_pair == stuck) fate.hold_ticks = 1 << 30;
    if (transfer.queue_pair != stuck) ++behind;
    return fate;
  });
  ExpectAll(world, 10, 20, 4'000'000);
  EXPECT_GT(behind, static_cast<int>(multipath::kPairSendDepth));
}

TEST(UnreliablePathsTest, EndsOfDifferentWiresAreTurnedAwayByName) {
  World world(Over("uc"));
  TransportOptions options;
  ScriptedNode events(world.fabric, 0, {{.name = "host7"}}, {"verbs.devices=host7"});
  options.self = Rank(0);
  options.world_size = 2;
  options.events = &events;
  for (const char* pair : {"tcp.interface==lo", "tcp.family=ipv4"}) {
    ASSERT_TRUE(options.settings.SetPair(pair, "test").ok());
  }
  auto udp = multipath::MultipathTransport::Create(options);
  ASSERT_TRUE(udp.ok()) << udp.status();
  auto link = (*udp)->Connect(world.b->transport().address(), Rank(1), world.now());
  EXPECT_TRUE(world.Until([&] {
    (*udp)->Progress(world.now());
    return !link->status().ok();
  }));
  EXPECT_THAT(std::string(link->status().message()),
              HasSubstr("multipath.wire differs: udp at the connecting rank, uc at"));
  link.reset();
}

TEST_P(PairPathsTest, PathsOfEndsWithDifferentCountsAreThoseThatBothHave) {
  World world(Options());
  const std::vector<ScriptedDeviceOptions> devices = {{.name = "host9", .address = 0x0A000901}};
  ScriptedNode third(
      world.fabric, 0, devices,
      {absl::StrCat("multipath.wire=", GetParam()), "verbs.devices=host9", "multipath.paths=2"},
      TransportKind::kMultipath, &world.clock());
  ASSERT_TRUE(third.created().ok()) << third.created();
  auto link = third.transport().Connect(world.b->transport().address(), Rank(1), world.now());
  EXPECT_TRUE(world.Until([&] {
    third.transport().Progress(world.now());
    return world.b->accepted != nullptr;
  }));
  EXPECT_EQ(world.fabric.QueuePairs("host9").size(), 2u);
  EXPECT_TRUE(link->status().ok()) << link->status();
  link.reset();
}

}  // namespace
}  // namespace weft::net
