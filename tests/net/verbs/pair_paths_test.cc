// Multipath over queue pairs on the scripted NIC: packets and memory. Time is the test's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/net/verbs/pair_world.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

class PairPathsTest : public OverQueuePairs {};
INSTANTIATE_TEST_SUITE_P(Wires, PairPathsTest, testing::ValuesIn(kQueuePairWires),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(PairPathsTest, MessagesArriveWholeOverEveryQueuePair) {
  World world(InTurns(2));
  std::map<uint32_t, int> sent;
  std::set<uint32_t> labels;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    EXPECT_TRUE(transfer.is_message);
    if (!IsReliable()) {
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
  if (IsReliable()) {
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
  ExpectRest(world, traffic);
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
  ExpectRest(world, traffic);
}

// A device forgets what a queue pair that is reset had received and nobody has polled yet.
TEST_P(PairPathsTest, ReceivesOfQueuePairsThatEndAreNotLost) {
  World world(Options(1, {"multipath.buffer_bytes=64KiB"}));
  const auto receives = static_cast<int>(multipath::ReceivesOf({.chunk_max = 3968}));
  int taken = 0;
  bool withheld = false;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    if (!withheld || transfer.from != World::Device(0, 0)) return fate;
    fate.late_receive = 1 << 20;
    ++taken;
    return fate;
  });
  ASSERT_TRUE(world.Connect());
  {
    EndlessTraffic traffic(world);
    for (int round = 0; taken < 2 * receives && round < 1000; ++round) {
      traffic.Run(absl::Milliseconds(50));
      withheld = true;
      for (int turn = 0; turn < 5; ++turn) world.Turn();
      for (uint32_t pair : world.fabric.QueuePairs(World::Device(1, 0))) {
        world.LosePair(World::Device(1, 0), pair);
      }
      world.Turn();
      withheld = false;
    }
    ASSERT_GE(taken, 2 * receives);
    traffic.Run(absl::Seconds(2));  // queue pairs are replaced
    const size_t before = traffic.received();
    const int without_receive = Dropped(world, 1) + world.fabric.not_ready();
    traffic.Run(absl::Milliseconds(200));
    EXPECT_GT(traffic.received(), before + 100);
    EXPECT_EQ(Dropped(world, 1) + world.fabric.not_ready(), without_receive);
  }
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
      InTurns(1, {"multipath.paths=2", "multipath.controller=fixed:window=9", "multipath.gbps=100",
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
