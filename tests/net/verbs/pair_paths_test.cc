// Multipath over unreliable queue pairs on the scripted NIC, fault by fault. Time is the test's.
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

WorldOptions Unreliable(int rails = 2, std::vector<std::string> settings = {}) {
  WorldOptions options;
  options.rails = rails;
  options.kind = TransportKind::kMultipath;
  options.settings = {"multipath.paths=4"};
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

TEST(PairPathsTest, MessagesArriveWholeOverEveryQueuePair) {
  World world(Unreliable(2, {"multipath.policy=round-robin", "multipath.piece_bytes=0"}));
  std::map<uint32_t, int> sent;
  std::set<uint32_t> labels;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    EXPECT_TRUE(transfer.is_message);
    EXPECT_LE(transfer.length, 4096u);  // one packet of the path MTU
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
  for (auto [pair, times] : sent) EXPECT_GT(times, 10) << pair;
}

TEST(PairPathsTest, MessagesLostInSilenceAreSentAgain) {
  World world(Unreliable());
  Random random(3, 3);
  world.fabric.set_on_transfer([&](const ScriptedTransfer&) {
    ScriptedFate fate;
    fate.lost = random.Below(10) == 0;
    return fate;
  });
  ExpectAll(world, 2);
  EXPECT_GT(Dropped(world, 2), 50);
}

TEST(PairPathsTest, ChunksOfSeveralPacketsAreCutByTheDevice) {
  World world(Unreliable(1, {"multipath.chunk_bytes=16KiB"}));
  uint32_t longest = 0;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    longest = std::max(longest, transfer.length);
    return ScriptedFate{};
  });
  ExpectAll(world, 3);
  EXPECT_EQ(longest, (16u << 10) + multipath::kBeforeChunk);
}

TEST(PairPathsTest, AQueuePairThatFailsIsADeadPathAndNothingMore) {
  World world(Unreliable());
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

TEST(PairPathsTest, ALostQueuePairsShareGoesOverTheNextAtOnce) {
  World world(Unreliable(1, {"multipath.policy=round-robin", "multipath.piece_bytes=0"}));
  ExpectAll(world, 11, 3);
  const std::vector<uint32_t> pairs = world.fabric.QueuePairs(World::Device(0, 0));
  ASSERT_EQ(pairs.size(), 4u);
  for (size_t i = 0; i < 3; ++i) {
    NicEvent event;
    event.kind = NicEventKind::kQueuePairFatal;
    event.queue_pair = pairs[i];
    world.fabric.PushEvent(World::Device(0, 0), event);
  }
  ASSERT_TRUE(world.Until([&] { return StatisticsOf(*world.a).pairs_lost == 3; }));
  ExpectAll(world, 12);
  EXPECT_EQ(StatisticsOf(*world.a).dropped, 0);
}

TEST(PairPathsTest, ALinkWithoutQueuePairsBreaksAndSaysWhy) {
  World world(Unreliable());
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

TEST(PairPathsTest, ReceivesThatRunOutAreLossAndAreFilledAgain) {
  World world(Unreliable(1));
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

TEST(PairPathsTest, MemoryForPacketsIsBoundedWhateverIsSent) {
  World world(Unreliable(2));
  ASSERT_TRUE(world.a->created().ok());
  // Receives and sends, a rail each, registered with both rails; of both hosts.
  constexpr size_t kPackets = size_t{2} * 2 * 2 * 2;
  EXPECT_EQ(world.fabric.registrations(), kPackets);
  ExpectAll(world, 8);
  EXPECT_EQ(world.fabric.registrations(), kPackets);
  EXPECT_EQ(StatisticsOf(*world.b).receive_errors, 0);
}

TEST(PairPathsTest, AFullDeviceHoldsPacketsBackAndGoesOn) {
  World world(Unreliable(1, {"multipath.controller=fixed:window=9", "multipath.gbps=1000"}));
  ASSERT_TRUE(world.a->created().ok()) << world.a->created();
  ASSERT_TRUE(world.Connect());
  world.fabric.SetRate(World::Device(0, 0), 50e6);
  ExpectAll(world, 9, 30, 300'000);
  EXPECT_EQ(StatisticsOf(*world.a).pairs_lost, 0);
}

TEST(PairPathsTest, AQueuePairOfWhichNothingCompletesIsNotWaitedFor) {
  // A window that more than fills the queue of a path before that is left.
  World world(
      Unreliable(1, {"multipath.paths=2", "multipath.policy=round-robin", "multipath.piece_bytes=0",
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

TEST(PairPathsTest, EndsOfDifferentWiresAreTurnedAwayByName) {
  World world(Unreliable());
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

TEST(PairPathsTest, PathsOfEndsWithDifferentCountsAreThoseThatBothHave) {
  World world(Unreliable());
  const std::vector<ScriptedDeviceOptions> devices = {{.name = "host9", .address = 0x0A000901}};
  ScriptedNode third(world.fabric, 0, devices, {"verbs.devices=host9", "multipath.paths=2"},
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
