// Queue pairs of multipath that fail or fall silent on the scripted NIC, and what takes their
// place. Time is the test's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "tests/net/verbs/pair_world.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

class PairRepairTest : public OverQueuePairs {};
INSTANTIATE_TEST_SUITE_P(Wires, PairRepairTest, testing::ValuesIn(kQueuePairWires),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(PairRepairTest, AQueuePairThatFailsIsADeadPathAndNothingMore) {
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
  EXPECT_TRUE(world.broken().ok()) << world.broken();
}

TEST_P(PairRepairTest, ALostQueuePairsShareGoesOverTheNextAtOnce) {
  World world(InTurns(1));
  ExpectAll(world, 11, 3);
  const std::vector<uint32_t> pairs = world.fabric.QueuePairs(World::Device(0, 0));
  ASSERT_EQ(pairs.size(), 4u);
  for (size_t i = 0; i < 3; ++i) world.LosePair(World::Device(0, 0), pairs[i]);
  ASSERT_TRUE(world.Until([&] { return StatisticsOf(*world.a).pairs_lost == 3; }));
  ExpectAll(world, 12);
  EXPECT_EQ(StatisticsOf(*world.a).dropped, 0);
}

TEST_P(PairRepairTest, AFailedQueuePairIsReplacedAtBothEndsAndUsed) {
  World world(InTurns(1));
  ExpectAll(world, 13, 3);
  const std::string device = World::Device(0, 0);
  const std::vector<uint32_t> before = world.fabric.QueuePairs(device);
  world.LosePair(device, before[1]);
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
TEST_P(PairRepairTest, QueuePairsThatAreSlowToConnectHoldUpNobody) {
  WorldOptions options = Options(1, {"verbs.give_up_after=1h"});
  options.resolves_addresses = true;
  World world(options);
  ExpectAll(world, 27, 3);
  for (int host : {0, 1}) {
    const int64_t replaced = StatisticsOf(*world.a).pairs_replaced;
    ASSERT_TRUE(world.LosePairAndHoldItsSuccessor(host));
    ExpectAll(world, 28);
    EXPECT_EQ(world.fabric.connected_while_held(), 0) << "all was sent before it was connected";
    world.fabric.HoldConnect("");
    ASSERT_TRUE(world.Until([&] { return StatisticsOf(*world.a).pairs_replaced > replaced; },
                            absl::Hours(1)));
    ExpectAll(world, 29);
  }
}

TEST_P(PairRepairTest, WhatQueuePairsShareOutlivesThoseThatAreBeingConnected) {
  WorldOptions options = Options(1, {"verbs.give_up_after=1h"});
  options.resolves_addresses = true;
  World world(options);
  ExpectAll(world, 30, 3);
  ASSERT_TRUE(world.LosePairAndHoldItsSuccessor(0));
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    world.fabric.HoldConnect("");
  });
  world.b->accepted.reset();
  world.a.reset();
  release.join();
  EXPECT_EQ(world.fabric.receives_lost(), 0);
}

TEST_P(PairRepairTest, EndsThatLoseAQueuePairAtOnceMeetInTheSameOne) {
  World world(Options(1, {"multipath.paths=1"}));
  ExpectAll(world, 15, 3);
  for (int host : {0, 1}) {
    const std::string device = World::Device(host, 0);
    world.LosePair(device, world.fabric.QueuePairs(device).front());
  }
  ASSERT_TRUE(world.Until([&] {
    return StatisticsOf(*world.a).pairs_replaced == 1 && StatisticsOf(*world.b).pairs_replaced == 1;
  }));
  ExpectAll(world, 16);
  EXPECT_EQ(StatisticsOf(*world.a).pairs_lost, 1);
  EXPECT_EQ(StatisticsOf(*world.b).pairs_lost, 1);
}

TEST_P(PairRepairTest, ALinkWhoseQueuePairsCannotBeReplacedGivesUp) {
  World world(Options(2, {"verbs.give_up_after=3s"}));
  ExpectAll(world, 17, 3);
  world.fabric.set_on_call([&](const std::string& call, const std::string&) {
    return call == "to_rtr" ? absl::UnavailableError("scripted") : absl::OkStatus();
  });
  for (int rail : {0, 1}) {
    const std::string device = World::Device(0, rail);
    for (uint32_t pair : world.fabric.QueuePairs(device)) world.LosePair(device, pair);
  }
  const absl::Time start = world.now();
  EXPECT_TRUE(world.Until([&] { return !world.a->broken.ok(); }, absl::Seconds(5)));
  EXPECT_GT(world.now() - start, absl::Seconds(2));
  EXPECT_THAT(
      std::string(world.a->broken.message()),
      HasSubstr("4 of 4 queue pairs are lost, and nothing has come over the others for 3s"));
}

TEST_P(PairRepairTest, AStallIsNotSilence) {
  World world(Options(2, {"verbs.give_up_after=3s"}));
  ExpectAll(world, 31, 3);
  bool connects = false;
  world.fabric.set_on_call([&](const std::string& call, const std::string&) {
    return call == "to_rtr" && !connects ? absl::UnavailableError("scripted") : absl::OkStatus();
  });
  world.Stall(absl::Seconds(20));  // before anything is lost
  for (int rail : {0, 1}) {
    const std::string device = World::Device(0, rail);
    for (uint32_t pair : world.fabric.QueuePairs(device)) world.LosePair(device, pair);
  }
  const auto is_broken = [&] { return !world.broken().ok(); };
  for (int stop = 0; stop < 2; ++stop) {
    ASSERT_FALSE(world.Until(is_broken, absl::Milliseconds(500))) << world.broken();
    world.Stall(absl::Seconds(20));
  }
  ASSERT_FALSE(world.Until(is_broken, absl::Milliseconds(300)));
  connects = true;
  ExpectAll(world, 32);
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

TEST_P(PairRepairTest, ALinkWithoutQueuePairsBreaksAndSaysWhy) {
  World world(Options());
  ExpectAll(world, 5, 3);
  for (int rail : {0, 1}) {
    NicEvent event;
    event.kind = rail == 0 ? NicEventKind::kReceiveQueueLost : NicEventKind::kDeviceLost;
    world.fabric.PushEvent(World::Device(0, rail), event);
  }
  EXPECT_TRUE(world.Until([&] { return !world.a->broken.ok(); }, absl::Seconds(5)));
  EXPECT_EQ(world.a->broken.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(world.a->broken.message()),
              HasSubstr("all 4 queue pairs are lost, the last by: host0_rail1 reports a fatal"));
}

TEST_P(PairRepairTest, MemoryOfStuckQueuePairsIsTakenBackForTheOthers) {
  // Paths enough for all memory, of which all but the last are stuck with what they were given.
  World world(
      InTurns(1, {"multipath.paths=6", "multipath.controller=fixed:window=9", "multipath.gbps=1000",
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

// New queue pairs take paths that nobody says are dead.
TEST_P(PairRepairTest, QueuePairsOnDeadPathsAreReplacedByOnesOnOthers) {
  World world(InTurns(1, {"verbs.stall_after=100ms"}));
  ExpectAll(world, 22, 3);
  const std::string device = World::Device(0, 0);
  const std::vector<uint32_t> first = world.fabric.QueuePairs(device);
  int carried = 0;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    if (transfer.from != device) return ScriptedFate{};
    if (transfer.queue_pair > first.back()) ++carried;
    const bool is_dead = transfer.queue_pair == first[1] || transfer.queue_pair == first[2];
    return is_dead ? Dead() : ScriptedFate{};
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

TEST_P(PairRepairTest, AnEndThatStandsStillCostsNoQueuePairs) {
  World world(InTurns(1, {"verbs.stall_after=100ms"}));
  ExpectAll(world, 25, 3);
  const std::string device = World::Device(0, 0);
  const std::vector<uint32_t> pairs = world.fabric.QueuePairs(device);
  uint32_t dead = 0;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    if (transfer.from != device || transfer.queue_pair != dead) return fate;
    fate.lost = !IsReliable();
    fate.hold_ticks = IsReliable() ? 100 : 0;
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

TEST_P(PairRepairTest, HalfOfThePathsGoDarkBothWaysAndHoldNothingUpForLong) {
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
        return dark.count(transfer.queue_pair) > 0 ? Dead() : ScriptedFate{};
      });
    }
    const absl::Time start = world.now();
    ExpectAll(world, 31 + round, 4, 100'000);
    longest = std::max(longest, world.now() - start);
  }
  EXPECT_LT(longest, absl::Milliseconds(60));
}

}  // namespace
}  // namespace weft::net
