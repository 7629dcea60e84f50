// Eager messages: who is matched with what, in every order of events that may be; what one costs,
// how many may wait, and what becomes of them when queue pairs are lost, receives do not fit, or
// the link is closed.
#include "net/eager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/net/link_messages.h"
#include "tests/net/verbs/world.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

// ---- Matching, without a link

// Both ends, and what is on its way between them: each way in order, as the wire hands it over.
struct Model {
  struct Entry {
    bool eager = false;
    uint64_t tag = 0, what = 0;  // the send, or the receive's id
    EagerRecord matched;
  };
  EagerSends sends;
  EagerReceives receives;
  std::deque<Entry> forward, backward;
  std::map<uint64_t, std::deque<uint64_t>> clears, waiting;  // at the sender, by tag
  std::deque<std::pair<uint64_t, uint64_t>> held;            // receives' clear-to-sends: tag, id
  std::map<uint64_t, uint64_t> match;                        // receive: send

  void Send(uint64_t tag, uint64_t send, bool small) {
    auto& clear = clears[tag];
    if (!clear.empty()) {
      forward.push_back({false, tag, clear.front(), {}});
      match[clear.front()] = send;
      clear.pop_front();
    } else if (waiting[tag].empty() && small && sends.HasCredit()) {
      sends.Sent(tag);
      forward.push_back({true, tag, send, {}});
    } else {
      waiting[tag].push_back(send);
    }
  }
  void Receive(uint64_t tag, uint64_t id) {
    if (auto kept = receives.TakeKept(tag); kept.has_value()) {
      receives.NoteMatched(kept->number);
      match[id] = kept->check;
      return;
    }
    receives.AddPosted(tag, id);
    held.emplace_back(tag, id);
  }
  void WriteClear() {
    if (held.empty()) return;
    backward.push_back({false, held.front().first, held.front().second, receives.Tell()});
    held.pop_front();
  }
  void TakeForward() {
    const Entry entry = forward.front();
    forward.pop_front();
    if (!entry.eager) return receives.RemovePosted(entry.tag, entry.what);
    uint64_t number = 0;
    ASSERT_TRUE(receives.NoteArrived(&number).ok());
    const auto id = receives.TakePosted(entry.tag);
    if (!id.has_value()) return receives.Keep(number, entry.tag, entry.what, {});
    receives.NoteMatched(number);
    match[*id] = entry.what;
    std::erase_if(held, [&](const auto& one) { return one.second == *id; });
  }
  void TakeBackward() {
    const Entry entry = backward.front();
    backward.pop_front();
    ASSERT_TRUE(sends.NoteMatched(entry.matched).ok());
    if (sends.TakesClearToSend(entry.tag)) return;
    if (waiting[entry.tag].empty()) return clears[entry.tag].push_back(entry.what);
    match[entry.what] = waiting[entry.tag].front();
    waiting[entry.tag].pop_front();
    forward.push_back({false, entry.tag, entry.what, {}});
  }
};

TEST(EagerMatching, IsFirstPostedFirstMatchedInEveryOrderOfEvents) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed, 3);
    Model model;
    const uint64_t tags = 1 + random.Below(3), count = 20 + random.Below(150);
    std::vector<uint64_t> sent, received;
    for (uint64_t i = 0; i < count; ++i) sent.push_back(random.Below(tags));
    received = sent;
    random.Shuffle(received);
    size_t next_send = 0, next_receive = 0;
    for (int step = 0; model.match.size() < count; ++step) {
      ASSERT_LT(step, 100000);
      switch (random.Below(5)) {
        case 0:
          if (next_send == count) break;
          model.Send(sent[next_send], next_send, random.Below(4) > 0);
          ++next_send;
          break;
        case 1:
          if (next_receive == count) break;
          model.Receive(received[next_receive], next_receive);
          ++next_receive;
          break;
        case 2:
          if (random.Below(3) == 0) model.WriteClear();
          break;
        case 3:
          if (!model.forward.empty()) model.TakeForward();
          break;
        default:
          if (!model.backward.empty()) model.TakeBackward();
      }
      ASSERT_FALSE(HasFatalFailure());
    }
    for (uint64_t tag = 0; tag < tags; ++tag) {
      std::vector<uint64_t> of_sends, of_receives;
      for (uint64_t i = 0; i < count; ++i) {
        if (sent[i] == tag) of_sends.push_back(i);
        if (received[i] == tag) of_receives.push_back(model.match.at(i));
      }
      ASSERT_EQ(of_receives, of_sends);
    }
  }
}

TEST(EagerMatching, NoMoreThanAWindowGoesBeyondTheFirstThatIsNotMatched) {
  EagerSends sends;
  EagerReceives receives;
  uint64_t number = 0;
  for (uint64_t i = 0; i < EagerRecord::kWindow; ++i) {
    ASSERT_TRUE(sends.HasCredit());
    sends.Sent(i);
    ASSERT_TRUE(receives.NoteArrived(&number).ok());
    if (i > 0) receives.NoteMatched(number);
  }
  EXPECT_TRUE(receives.HasUnreported());
  ASSERT_TRUE(sends.NoteMatched(receives.Tell()).ok());
  EXPECT_FALSE(sends.HasCredit());
  EXPECT_FALSE(receives.HasUnreported());
  receives.NoteMatched(0);
  ASSERT_TRUE(sends.NoteMatched(receives.Tell()).ok());
  EXPECT_TRUE(sends.HasCredit());
}

TEST(EagerMatching, WhatCannotBeIsNotBelieved) {
  EagerSends sends;
  sends.Sent(1), sends.Sent(1);
  EXPECT_FALSE(sends.NoteMatched({3, 0}).ok());
  EXPECT_FALSE(sends.NoteMatched({0, 0b100}).ok());
  EXPECT_FALSE(sends.NoteMatched({2, 1}).ok());
  EXPECT_TRUE(sends.NoteMatched({2, 0}).ok());
  EXPECT_FALSE(sends.NoteMatched({1, 0}).ok());
  EagerReceives receives;
  uint64_t number = 0;
  for (uint64_t i = 0; i < EagerRecord::kWindow; ++i) {
    ASSERT_TRUE(receives.NoteArrived(&number).ok());
  }
  EXPECT_FALSE(receives.NoteArrived(&number).ok());
}

// ---- On a link

// Until both sides know what the other wants.
bool Ready(World& world) {
  if (!world.Connect()) return false;
  for (int i = 0; i < 100; ++i) world.Turn();
  return true;
}

struct Messages : LinkMessages {
  Messages(World& world, size_t count, size_t bytes = kBytes)
      : LinkMessages(
            {world.a->transport(), *world.a->out, world.b->transport(), *world.b->accepted,
             [&world](const auto& condition) { return world.Until(condition, absl::Seconds(5)); }},
            count, bytes),
        world_(world) {}
  // The requests live longer than the links.
  ~Messages() { world_.a->out.reset(), world_.b->accepted.reset(); }

 private:
  World& world_;
};

struct Count {
  int forward = 0, backward = 0;
};
void CountWrites(World& world, Count* count) {
  world.fabric.set_on_transfer([count](const ScriptedTransfer& transfer) {
    ++(absl::StartsWith(transfer.from, "host0") ? count->forward : count->backward);
    return ScriptedFate{};
  });
}

TEST(Eager, AMessageIsOneWriteAndItsCreditComesBackWithManyOthers) {
  World world(QuickWorld());
  ASSERT_TRUE(Ready(world));
  Messages messages(world, 160);
  ASSERT_EQ(Exchange(world, 1), "");
  for (int i = 0; i < 200; ++i) world.Turn();
  Count count;
  CountWrites(world, &count);
  for (size_t i = 0; i < 160; ++i) {
    messages.Receive(i);
    messages.Send(i);
    ASSERT_TRUE(messages.Came(i)) << i;
  }
  EXPECT_EQ(count.forward, 160);
  EXPECT_LE(count.backward, 160 / 8);  // at most: a message a turn, a word in 16 or in 10 ms
}

TEST(Eager, OneThatIsLongerThanAPacketIsTwoWritesAndWhole) {
  WorldOptions options = QuickWorld();
  options.settings.push_back("verbs.eager_max=16KiB");
  World world(options);
  ASSERT_TRUE(Ready(world));
  Messages messages(world, 1, 9000);
  ASSERT_EQ(Exchange(world, 1), "");
  Count count;
  CountWrites(world, &count);
  messages.Receive(0, {1, 0}, 9000);
  messages.Send(0);
  ASSERT_TRUE(messages.Came(0));
  EXPECT_EQ(count.forward, 2);
}

TEST(Eager, MessagesWithoutReceivesWaitAndNoMoreThanAWindowOfThem) {
  World world(QuickWorld());
  ASSERT_TRUE(Ready(world));
  Messages messages(world, 100);
  ExpectAWindowOfMessagesWaits(messages,
                               [&] { world.Until([] { return false; }, absl::Seconds(1)); });
}

TEST(Eager, MessagesThatNobodyWantsAreDropped) {
  World world(QuickWorld());
  ASSERT_TRUE(Ready(world));
  Messages messages(world, 130);
  ExpectUnwantedMessagesToBeDropped(messages, *world.b->accepted, world.b->unwanted,
                                    [&] { world.Until([] { return false; }, absl::Seconds(1)); });
}

TEST(Eager, TheSettingEndsThem) {
  WorldOptions options = QuickWorld();
  options.settings.push_back("verbs.eager_max=0");
  World world(options);
  ASSERT_TRUE(Ready(world));
  Messages messages(world, 1);
  messages.Send(0);
  world.Until([] { return false; }, absl::Seconds(1));
  EXPECT_FALSE(messages.sends[0].done());
  messages.Receive(0);
  ASSERT_TRUE(messages.Came(0));
}

TEST(Eager, AReceiveThatDoesNotFitFailsAndTheSenderIsTold) {
  World world(QuickWorld());
  ASSERT_TRUE(Ready(world));
  Messages messages(world, 4);
  messages.Send(0, {1, 7});
  messages.Send(1, {2, 7});
  ASSERT_TRUE(world.Until([&] { return messages.sends[0].done() && messages.sends[1].done(); }));
  messages.Receive(0, {1, 8});
  messages.Receive(1, {2, 7}, Messages::kBytes - 1);
  ASSERT_TRUE(world.Until([&] { return world.a->mismatches.size() == 2; }, absl::Seconds(5)));
  EXPECT_EQ(messages.receives[0].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(messages.receives[1].status().code(), absl::StatusCode::kOutOfRange);
  for (size_t i : {0, 1}) {
    EXPECT_EQ(world.a->mismatches[i].code(), messages.receives[i].status().code());
    EXPECT_EQ(world.a->mismatches[i].message(), messages.receives[i].status().message());
  }
  messages.Receive(2);
  messages.Send(2);
  EXPECT_TRUE(messages.Came(2));
}

void SendThatWaits(Messages& messages, size_t i, MessageKey key = {1, 0}) {
  SendSource source(messages.view_of_send(i));
  source.waits = true;
  messages.Send(i, key, source);
}
void ReceiveWhatWaits(Messages& messages, size_t i, MessageKey key = {1, 0}) {
  messages.Receive(i, key, {.out = messages.view_of_receive(i), .sender_waits = true});
}

// It is asked for at once, and copied as an eager message is.
TEST(Eager, OneThatIsToWaitForItsReceiveDoesAndIsAskedForWithoutDelayOrRegistration) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{128}, size_t{129}, size_t{4096}}) {
    SCOPED_TRACE(bytes);
    int registered = 0;
    World world(QuickWorld());
    ASSERT_TRUE(Ready(world));
    Messages messages(world, 2, bytes);
    world.fabric.set_on_call([&](const std::string& call, const std::string&) {
      registered += call == "register" ? 1 : 0;
      return absl::OkStatus();
    });
    SendThatWaits(messages, 0);
    world.Until([] { return false; }, absl::Seconds(1));
    EXPECT_FALSE(messages.sends[0].done());
    EXPECT_EQ(world.a->out->Counters().waiting_for_peer(), 1u);
    const absl::Time posted = world.now();
    ReceiveWhatWaits(messages, 0);
    ASSERT_TRUE(messages.Came(0));
    ReceiveWhatWaits(messages, 1);  // before it is sent
    SendThatWaits(messages, 1);
    ASSERT_TRUE(messages.Came(1));
    EXPECT_LT(world.now() - posted, absl::Milliseconds(16));  // of the world's time
    EXPECT_EQ(registered, 0);
  }
}

TEST(Eager, OneThatIsToWaitIsReducedWithoutRegistration) {
  int registered = 0;
  World world(QuickWorld());
  ASSERT_TRUE(Ready(world));
  Messages messages(world, 1, 1024);
  world.fabric.set_on_call([&](const std::string& call, const std::string&) {
    registered += call == "register" ? 1 : 0;
    return absl::OkStatus();
  });
  const std::vector<std::byte> zeros(1024);
  messages.Receive(
      0, {1, 0},
      {.out = messages.view_of_receive(0),
       .local = zeros.data(),
       .reduce =
           [](std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
             for (size_t i = 0; i < bytes; ++i) out[i] = local[i] | incoming[i];
           },
       .sender_waits = true});
  SendThatWaits(messages, 0);
  EXPECT_TRUE(messages.Came(0));
  EXPECT_EQ(registered, 0);
}

TEST(Eager, OneThatIsToWaitHoldsUpSmallOnesOfItsTagBehindItAndFollowsThoseBeforeIt) {
  World world(QuickWorld());
  ASSERT_TRUE(Ready(world));
  Messages messages(world, 4);
  messages.Send(0);
  SendThatWaits(messages, 1);
  messages.Send(2);
  messages.Send(3, {2, 0});  // of another tag
  world.Until([] { return false; }, absl::Seconds(1));
  EXPECT_TRUE(messages.sends[0].done() && messages.sends[3].done());
  EXPECT_FALSE(messages.sends[1].done() || messages.sends[2].done());
  messages.Receive(0);
  ReceiveWhatWaits(messages, 1);
  messages.Receive(2);
  messages.Receive(3, {2, 0});
  EXPECT_TRUE(messages.Came(0) && messages.Came(1) && messages.Came(2) && messages.Came(3));
}

TEST(Eager, OneThatIsToWaitFailsAtBothEndsWhereItDoesNotFit) {
  World world(QuickWorld());
  ASSERT_TRUE(Ready(world));
  Messages messages(world, 1);
  SendThatWaits(messages, 0, {1, 7});
  ReceiveWhatWaits(messages, 0, {1, 8});
  ASSERT_TRUE(world.Until([&] { return messages.sends[0].done() && messages.receives[0].done(); },
                          absl::Seconds(5)));
  EXPECT_EQ(messages.sends[0].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(messages.receives[0].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(world.a->mismatches.empty());
}

// A send that is too long for a receive that holds back its clear-to-send.
TEST(Eager, ASendThatCannotGoEagerlyFindsTheReceiveThatExpectedIt) {
  World world(QuickWorld());
  ASSERT_TRUE(Ready(world));
  Messages messages(world, 1, 20000);
  messages.Receive(0, {1, 0}, 1000);
  messages.Send(0);
  ASSERT_TRUE(world.Until([&] { return messages.sends[0].done() && messages.receives[0].done(); },
                          absl::Seconds(1)));
  EXPECT_EQ(messages.sends[0].status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(messages.receives[0].status().code(), absl::StatusCode::kOutOfRange);
}

TEST(Eager, WhatWasSentBeforeTheLinkWasClosedWaitsForItsReceives) {
  World world(QuickWorld());
  ASSERT_TRUE(Ready(world));
  Messages messages(world, 3);
  for (size_t i : {0, 1}) messages.Send(i, {i, 0});
  ASSERT_TRUE(world.Until([&] { return messages.sends[0].done() && messages.sends[1].done(); }));
  world.a->out.reset();
  world.Until([] { return false; }, absl::Milliseconds(1500));
  EXPECT_TRUE(world.b->broken.ok()) << world.b->broken;
  for (size_t i : {0, 1}) {
    messages.Receive(i, {i, 0});
    EXPECT_TRUE(messages.Came(i));
  }
  EXPECT_TRUE(world.Until([&] { return !world.b->broken.ok(); }, absl::Seconds(5)));
  messages.Receive(2, {9, 0});
  EXPECT_THAT(std::string(messages.receives[2].status().message()), HasSubstr("closed the link"));
}

// Nobody is there any more to be told what was taken.
TEST(Eager, AClosedLinkThatWaitsForReceivesIsQuiet) {
  constexpr size_t kCount = EagerRecord::kWindow / 2;
  World world(QuickWorld());
  ASSERT_TRUE(Ready(world));
  Messages messages(world, kCount);
  for (size_t i = 0; i < kCount; ++i) messages.Send(i, {i, 0});
  ASSERT_TRUE(world.Until([&] { return messages.sends[kCount - 1].done(); }));
  world.a->out.reset();
  world.Until([] { return false; }, absl::Milliseconds(1500));
  for (size_t i = 0; i + 1 < kCount; ++i) {
    messages.Receive(i, {i, 0});
    ASSERT_TRUE(messages.Came(i));
  }
  EXPECT_TRUE(world.Sleeps(*world.b));
  messages.Receive(kCount - 1, {kCount - 1, 0});
  EXPECT_TRUE(messages.Came(kCount - 1));
}

TEST(Eager, AClosedLinkEndsWhenAReceiveIsPostedThatNothingIsThereFor) {
  World world(QuickWorld());
  ASSERT_TRUE(Ready(world));
  Messages messages(world, 2);
  messages.Send(0, {1, 0});
  ASSERT_TRUE(world.Until([&] { return messages.sends[0].done(); }));
  world.a->out.reset();
  world.Until([] { return false; }, absl::Milliseconds(1500));
  messages.Receive(1, {2, 0});
  EXPECT_TRUE(world.Until([&] { return messages.receives[1].done(); }, absl::Seconds(5)));
  EXPECT_FALSE(messages.receives[1].status().ok());
}

// All sizes about the longest that goes eagerly, on three tags, in any order: what is received is
// what was sent, in its order, whatever fails.
void Mixed(uint64_t seed, double fails) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  WorldOptions options = QuickWorld();
  options.settings.push_back("verbs.eager_max=600");
  World world(options);
  ASSERT_TRUE(world.Connect());
  constexpr size_t kCount = 120;
  constexpr std::array<size_t, 8> kSizes = {0, 1, 128, 192, 599, 600, 601, 5000};
  struct One {
    uint64_t tag = 0;
    std::vector<uint8_t> from, to;
    Region from_region, to_region;
    Request send, receive;
    bool large = false;  // a receive with more room than is needed
    bool waits = false;
  };
  std::deque<One> all(kCount);
  Random random(seed, 9);
  std::vector<std::vector<size_t>> by_tag(3);
  for (size_t i = 0; i < kCount; ++i) {
    One& one = all[i];
    one.tag = random.Below(3);
    one.from.assign(kSizes[random.Below(kSizes.size())] + 1, static_cast<uint8_t>(i + 1));
    one.to.assign(8192, 0);
    one.large = random.Below(3) == 0;
    one.waits = random.Below(4) == 0;
    one.from_region = *world.a->transport().Register(one.from.data(), one.from.size());
    one.to_region = *world.b->transport().Register(one.to.data(), one.to.size());
    by_tag[one.tag].push_back(i);
  }
  // Receives in another order of tags, each tag's in its own.
  std::vector<uint64_t> order;
  for (const One& one : all) order.push_back(one.tag);
  random.Shuffle(order);
  Random faults(seed, 10);
  world.fabric.set_on_transfer([&](const ScriptedTransfer&) {
    ScriptedFate fate;
    if (fails > 0 && faults.Uniform() < fails) {
      fate.fails = faults.Below(2) == 0;
      fate.arrives = faults.Below(2) == 0;
      fate.lose_receive = faults.Below(4) == 0;
      fate.late_receive = static_cast<int>(faults.Below(20));
      fate.late_send = static_cast<int>(faults.Below(20));
      fate.twice = faults.Below(2) == 0;
    }
    return fate;
  });
  size_t sent = 0, received = 0;
  std::array<size_t, 3> next{};
  const auto turn = [&] {
    if (sent < kCount && random.Below(3) > 0) {
      One& one = all[sent++];
      SendSource source(one.from_region.view().Slice(0, one.from.size() - 1));
      source.waits = one.waits;
      EXPECT_EQ(world.a->out->PostSend({one.tag, 3}, source, &one.send), Posted::kAccepted);
    }
    if (received < kCount && random.Below(3) > 0) {
      const uint64_t tag = order[received++];
      One& one = all[by_tag[tag][next[tag]++]];
      const size_t room = one.large ? 8192 : one.from.size() - 1;
      const ReceiveTarget target{.out = one.to_region.view().Slice(0, room),
                                 .sender_waits = one.waits};
      EXPECT_EQ(world.b->accepted->PostReceive({tag, 3}, target, &one.receive), Posted::kAccepted);
    }
    return sent == kCount && received == kCount &&
           std::all_of(all.begin(), all.end(),
                       [](const One& one) { return one.send.done() && one.receive.done(); });
  };
  EXPECT_TRUE(world.Until(turn, absl::Seconds(60))) << "it hangs";
  for (size_t i = 0; i < kCount; ++i) {
    const One& one = all[i];
    EXPECT_TRUE(one.send.status().ok() && one.receive.status().ok())
        << i << ": " << one.send.status() << "; " << one.receive.status();
    EXPECT_EQ(one.receive.bytes(), one.from.size() - 1) << i;
    EXPECT_TRUE(std::equal(one.from.begin(), one.from.end() - 1, one.to.begin())) << i;
  }
  world.fabric.set_on_transfer(nullptr);
  world.a->out.reset();
  world.b->accepted.reset();
}

TEST(Eager, SizesAboutTheLongestInAnyOrderAreMatchedInTheirOrder) {
  for (uint64_t seed = 1; seed <= 40; ++seed) Mixed(seed, 0);
}

TEST(Eager, MessagesOfLostQueuePairsComeOnceAndInTheirOrder) {
  for (uint64_t seed = 1; seed <= 60; ++seed) Mixed(seed, 0.03);
}

}  // namespace
}  // namespace weft::net
