// What a send may rely on once it has completed, and what queue pairs are judged by and replaced
// with: by what is known, not by what is late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "tests/net/verbs/world.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

std::set<uint32_t> PairsOf(const World& world, int host) {
  std::set<uint32_t> out;
  for (int rail : {0, 1}) {
    const auto pairs = world.fabric.QueuePairs(World::Device(host, rail));
    out.insert(pairs.begin(), pairs.end());
  }
  return out;
}

// ---- What a completed send may rely on

// One message of 50,000 bytes, all ones, in pieces.
class OneMessage {
 public:
  explicit OneMessage(World& world) : world_(world), buffers_(world, kBytes, std::byte{1}) {
    const Posted received =
        world.b->accepted->PostReceive({7, 0}, {buffers_.to_region.view()}, &receive);
    const Posted sent = world.a->out->PostSend({7, 0}, buffers_.from_region.view(), &send);
    WEFT_CHECK(received == Posted::kAccepted && sent == Posted::kAccepted, "");
  }
  ~OneMessage() { world_.a->out.reset(), world_.b->accepted.reset(); }
  void TakeSourceAway() {
    buffers_.from_region = Region();
    std::fill(buffers_.from.begin(), buffers_.from.end(), std::byte{0xDD});
  }
  bool IsRight() const { return buffers_.to == std::vector<std::byte>(kBytes, std::byte{1}); }

  Request send, receive;

 private:
  static constexpr size_t kBytes = 50000;
  World& world_;
  RegisteredBuffers buffers_;
};

TEST(VerbsDelivery, ASendCompletesWhileThePeersProcessStandsStill) {
  World world(QuickWorld());
  ASSERT_TRUE(world.Connect());
  for (int i = 0; i < 100; ++i) world.Turn();
  OneMessage message(world);
  world.b->transport().Progress(world.now());  // the clear-to-send
  for (int i = 0; i < 1000 && !message.send.done(); ++i) world.a->transport().Progress(world.now());
  EXPECT_TRUE(message.send.done());
  EXPECT_FALSE(message.receive.done());
  EXPECT_TRUE(world.Until([&] { return message.receive.done(); }));
  EXPECT_TRUE(message.IsRight());
}

// Nothing but the ring tells the receiver of it: the sender's memory holds something else by then.
TEST(VerbsDelivery, WhatWasAcknowledgedIsFoundAfterItsQueuePairWasLost) {
  World world(QuickWorld());
  ASSERT_TRUE(world.Connect());
  for (int i = 0; i < 100; ++i) world.Turn();
  bool lose = true;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    fate.lose_receive = lose && absl::StartsWith(transfer.from, "host0");
    return fate;
  });
  OneMessage message(world);
  ASSERT_TRUE(world.Until([&] { return message.send.done(); }));
  ASSERT_TRUE(message.send.status().ok()) << message.send.status();
  EXPECT_FALSE(message.receive.done());
  message.TakeSourceAway();
  lose = false;
  ASSERT_TRUE(world.Until([&] { return message.receive.done(); }, absl::Seconds(5)));
  EXPECT_TRUE(message.receive.status().ok()) << message.receive.status();
  EXPECT_TRUE(message.IsRight());
}

TEST(VerbsDelivery, QueuePairsThatAreSlowToDestroyHoldUpNobody) {
  World world(QuickWorld());
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world, 1), "");
  world.fabric.HoldDestroy(true);
  world.LosePair(World::Device(0, 0), world.fabric.QueuePairs(World::Device(0, 0)).at(0));
  EXPECT_EQ(Exchange(world, 2), "");
  EXPECT_EQ(world.fabric.destroyed_while_held(), 0) << "all was sent before it was destroyed";
  world.fabric.HoldDestroy(false);
}

// As where nobody answers for an address: the kernel waits for that within the call.
TEST(VerbsDelivery, QueuePairsThatAreSlowToConnectHoldUpNobody) {
  WorldOptions options = QuickWorld(1);
  options.settings.push_back("verbs.give_up_after=1h");
  options.resolves_addresses = true;
  World world(options);
  std::set<uint32_t> carried;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    carried.insert(transfer.queue_pair);
    return ScriptedFate{};
  });
  const auto all_carry = [&] {
    const std::vector<uint32_t> pairs = world.fabric.QueuePairs(World::Device(0, 0));
    return pairs.size() == 2 && carried.contains(pairs[0]) && carried.contains(pairs[1]);
  };
  ASSERT_TRUE(world.Connect());
  for (int host : {0, 1, 1}) {
    // One may be connected, by its thread, only after the first messages have come.
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    while (!all_carry() && absl::Now() < give_up) ASSERT_EQ(Exchange(world, 1), "");
    ASSERT_TRUE(all_carry());
    for (int i = 0; i < 100; ++i) world.Turn();
    ASSERT_TRUE(world.LosePairAndHoldItsSuccessor(host));
    EXPECT_EQ(Exchange(world, 2), "");
    EXPECT_EQ(Exchange(world, 3), "");
    EXPECT_EQ(world.fabric.connected_while_held(), 0) << "all was sent before it was connected";
    world.fabric.HoldConnect("");
  }
  // And links may go away meanwhile.
  ASSERT_TRUE(world.LosePairAndHoldItsSuccessor(1));
  world.a->out.reset();
  world.b->accepted.reset();
  EXPECT_EQ(world.fabric.connected_while_held(), 0);
  world.fabric.HoldConnect("");
}

// ---- What a queue pair is judged by

// The receiver has more to take than one poll hands out, and the question for what arrived lies
// behind that: an answer by what was taken so far would deny what had come long before.
TEST(VerbsJudgement, AnAnswerCountsWhatHadComeWhenItWasAsked) {
  constexpr size_t kMessages = 220;
  WorldOptions options = QuickWorld(1);
  options.settings.push_back("verbs.eager_max=0");  // of those fewer come at once
  World world(options);
  ASSERT_TRUE(world.Connect());
  for (int i = 0; i < 100; ++i) world.Turn();
  const std::set<uint32_t> before = PairsOf(world, 0);
  std::deque<Request> sends(kMessages), receives(kMessages);
  {
    RegisteredBuffers buffers(world, 8);
    for (size_t i = 0; i < kMessages; ++i) {
      const Posted posted =
          world.b->accepted->PostReceive({i, 0}, {buffers.to_region.view()}, &receives[i]);
      ASSERT_EQ(posted, Posted::kAccepted);
      ASSERT_EQ(world.a->out->PostSend({i, 0}, buffers.from_region.view(), &sends[i]),
                Posted::kAccepted);
    }
    world.b->transport().Progress(world.now());  // posts clear-to-sends, and then stands still
    absl::Time now = world.now();
    for (int i = 0; i < 1000; ++i) world.a->transport().Progress(now += absl::Milliseconds(1));
    EXPECT_TRUE(sends.back().done());
    EXPECT_TRUE(std::none_of(receives.begin(), receives.end(),
                             [](const Request& one) { return one.done(); }));
    for (int i = 0; i < 2000 && !receives.back().done(); ++i) {
      world.b->transport().Progress(now);
      world.a->transport().Progress(now);
    }
    EXPECT_TRUE(receives.back().done());
    EXPECT_EQ(PairsOf(world, 0), before) << "a good queue pair was dropped";
    world.a->out.reset(), world.b->accepted.reset();
  }
}

// Each write completes in good time; the last of them has waited for all before it.
TEST(VerbsJudgement, ASlowDevicesLongQueueIsNoFault) {
  World world(QuickWorld(1));
  ASSERT_TRUE(world.Connect());
  for (int i = 0; i < 100; ++i) world.Turn();
  const std::set<uint32_t> before = PairsOf(world, 0);
  // A piece takes 4 ms, what is posted at once 128 ms; the bound is 34 ms.
  world.fabric.SetRate(World::Device(0, 0), 4 << 20);
  EXPECT_EQ(Exchange(world, 3), "");
  EXPECT_EQ(PairsOf(world, 0), before);
}

// ---- What takes a lost queue pair's place

TEST(VerbsReplacement, CarriesNothingUntilItsProbeIsAcknowledged) {
  World world(QuickWorld());
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world, 1), "");
  const std::set<uint32_t> before = PairsOf(world, 0);
  bool probes_arrive = false;
  int probes = 0, data = 0;  // of new queue pairs
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    if (!absl::StartsWith(transfer.from, "host0") || before.count(transfer.queue_pair) > 0) {
      return fate;
    }
    ++(transfer.length == 0 ? probes : data);
    if (transfer.length == 0 && !probes_arrive) fate.late_send = 1 << 20;  // its acknowledgement
    return fate;
  });
  world.LosePair(World::Device(0, 0), world.fabric.QueuePairs(World::Device(0, 0)).at(0));
  EXPECT_EQ(Exchange(world, 2), "");
  EXPECT_GT(probes, 0);
  EXPECT_EQ(data, 0);
  probes_arrive = true;
  world.LosePair(World::Device(0, 1), world.fabric.QueuePairs(World::Device(0, 1)).at(0));
  EXPECT_EQ(Exchange(world, 3), "");
  EXPECT_GT(data, 0);
}

// To look for the way to a device that is down can take the kernel seconds.
TEST(VerbsReplacement, ADeviceThatIsDownAtTheOtherSideIsNotTriedWhereAnotherIsUp) {
  World world(QuickWorld());
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world, 1), "");
  const std::string down = World::Device(1, 0);
  world.fabric.SetPortActive(down, false);
  NicEvent event;
  event.kind = NicEventKind::kPortDown, event.port = 1;
  world.fabric.PushEvent(down, event);
  for (int i = 0; i < 10; ++i) world.Turn();
  int tried = 0, offered = 0;
  world.fabric.set_on_call([&](const std::string& call, const std::string& device) {
    tried += call == "to_rtr" && device == down ? 1 : 0;
    offered += call == "create_queue_pair" && device == World::Device(0, 0) ? 1 : 0;
    return absl::OkStatus();
  });
  for (uint64_t round = 2; round < 30 && offered == 0; ++round) {
    for (const int rail : {0, 1}) {
      const auto pairs = world.fabric.QueuePairs(World::Device(0, rail));
      if (!pairs.empty()) world.LosePair(World::Device(0, rail), pairs.back());
    }
    EXPECT_EQ(Exchange(world, round), "");
  }
  EXPECT_GT(offered, 0) << "its own device of that number is up, so the sender does offer it";
  EXPECT_EQ(tried, 0);
}

// ---- The end

// Whoever gives up lingers for its last words; the other side breaks at them and closes first.
TEST(VerbsEnd, BothSidesNameWhatFailedWhoeverClosesFirst) {
  World world(QuickWorld());
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world, 1), "");
  world.fabric.set_on_transfer([](const ScriptedTransfer&) {
    ScriptedFate fate;
    fate.fails = true, fate.arrives = false;
    return fate;
  });
  Traffic traffic(world, 5, 10, 50000);
  ASSERT_TRUE(world.Until([&] {
    traffic.Post();
    return !world.a->broken.ok() && !world.b->broken.ok();
  }));
  for (const absl::Status& status : {world.a->broken, world.b->broken}) {
    const std::string text(status.message());
    EXPECT_THAT(text, HasSubstr("likely cause: "));
    EXPECT_FALSE(absl::StrContains(text, "died") || absl::StrContains(text, "closed the link"))
        << text;
  }
  world.a->out.reset(), world.b->accepted.reset();
}

}  // namespace
}  // namespace weft::net
