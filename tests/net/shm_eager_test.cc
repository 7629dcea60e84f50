// Eager messages over shm: when they go, how many wait, what becomes of those that do not fit or
// whose sender is gone. Who is matched with what, in every order, without a link:
// verbs/eager_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "absl/strings/str_cat.h"
#include "net/eager.h"
#include "tests/net/link_messages.h"
#include "tests/net/shm_test_util.h"

namespace weft::net {
namespace {

using testing::HasSubstr;
using Settings = std::vector<std::pair<std::string, std::string>>;

struct Messages : LinkMessages {
  Messages(ShmPair& pair, size_t count, size_t bytes = kBytes)
      : LinkMessages({*pair.a.transport, *pair.sender, *pair.b.transport, *pair.receiver,
                      [&pair](const auto& condition) { return pair.Pump(condition); }},
                     count, bytes) {}
};

void Turn(ShmNode& node, int turns = 50) {
  for (int i = 0; i < turns; ++i) node.transport->Progress(Now());
}

// One message, so that the connecting end is up as well.
void MakeReady(ShmPair& pair) {
  Messages messages(pair, 1);
  messages.Receive(0);
  messages.Send(0);
  ASSERT_TRUE(messages.Came(0));
}

TEST(ShmEager, ASmallMessageIsDoneBeforeItsReceiveIsPosted) {
  for (size_t bytes : {0, 1, 88, 89, 4095, 4096}) {
    ShmPair pair;
    MakeReady(pair);
    Messages messages(pair, 1, bytes);
    messages.Send(0);
    EXPECT_TRUE(messages.sends[0].done()) << bytes;
    Turn(pair.b);
    messages.Receive(0);
    EXPECT_TRUE(messages.Came(0)) << bytes;
  }
}

TEST(ShmEager, ALongerOneWaitsAndSoDoSmallOnesOfItsTagBehindIt) {
  ShmPair pair;
  MakeReady(pair);
  Messages large(pair, 1, 4097), small(pair, 2);
  large.Send(0);
  small.Send(0);          // of the same tag
  small.Send(1, {2, 0});  // of another
  Turn(pair.a);
  EXPECT_FALSE(large.sends[0].done());
  EXPECT_FALSE(small.sends[0].done());
  EXPECT_TRUE(small.sends[1].done());
  large.Receive(0);
  small.Receive(0);
  small.Receive(1, {2, 0});
  EXPECT_TRUE(large.Came(0) && small.Came(0) && small.Came(1));
}

// A message that may not go ahead is done once its receive is posted.
void ExpectToWait(ShmPair& pair, bool waits) {
  MakeReady(pair);
  Messages messages(pair, 1);
  SendSource source(messages.view_of_send(0));
  source.waits = waits;
  messages.Send(0, {1, 0}, source);
  Turn(pair.a);
  EXPECT_FALSE(messages.sends[0].done());
  messages.Receive(0);
  EXPECT_TRUE(messages.Came(0));
}

TEST(ShmEager, OneThatIsToWaitForItsReceiveDoes) {
  ShmPair pair;
  ExpectToWait(pair, /*waits=*/true);
}

TEST(ShmEager, TheSettingEndsThem) {
  ShmPair pair(Settings{{"shm.eager_max", "0"}});
  ExpectToWait(pair, /*waits=*/false);
}

TEST(ShmEager, MessagesWithoutReceivesWaitAndNoMoreThanAWindowOfThem) {
  ShmPair pair;
  MakeReady(pair);
  Messages messages(pair, 100);
  ExpectAWindowOfMessagesWaits(messages, [&] { Turn(pair.a), Turn(pair.b), Turn(pair.a); });
}

TEST(ShmEager, MessagesThatNobodyWantsAreDropped) {
  ShmPair pair;
  MakeReady(pair);
  Messages messages(pair, 130);
  ExpectUnwantedMessagesToBeDropped(messages, *pair.receiver, pair.b.unwanted,
                                    [&] { Turn(pair.a), Turn(pair.b), Turn(pair.a); });
}

// A receiver that is late with every receive gives the credit back all the same.
TEST(ShmEager, CreditComesBackWithoutAClearToSend) {
  ShmPair pair;
  MakeReady(pair);
  Messages messages(pair, 10 * EagerRecord::kWindow, 100);
  for (size_t i = 0; i < messages.sends.size(); ++i) {
    messages.Send(i);
    ASSERT_TRUE(messages.sends[i].done()) << i;
    Turn(pair.b, 2);
    messages.Receive(i);
    ASSERT_TRUE(messages.Came(i)) << i;
    Turn(pair.a, 2);
  }
}

TEST(ShmEager, AReceiveThatDoesNotFitFailsAndTheSenderIsTold) {
  ShmPair pair;
  MakeReady(pair);
  Messages messages(pair, 4);
  messages.Send(0, {1, 7});
  messages.Send(1, {2, 7});
  Turn(pair.b);
  messages.Receive(0, {1, 8});
  messages.Receive(1, {2, 7}, Messages::kBytes - 1);
  messages.Receive(2, {3, 8});  // posted first
  messages.Send(2, {3, 7});
  ASSERT_TRUE(pair.Pump([&] {
    return pair.a.mismatches.size() + (messages.sends[2].status().ok() ? 0 : 1) == 3 &&
           messages.receives[2].done();
  }));
  EXPECT_EQ(messages.receives[0].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(messages.receives[0].status().message()),
              HasSubstr("message check differs: this rank's is 8, the sender's 7"));
  EXPECT_EQ(messages.receives[1].status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(messages.receives[2].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(pair.a.mismatches[0].message()),
              HasSubstr("message check differs: this rank's is 7, the receiver's 8"));
  EXPECT_EQ(pair.a.mismatches[1].code(), absl::StatusCode::kOutOfRange);
  messages.Receive(3);
  messages.Send(3);
  EXPECT_TRUE(messages.Came(3));
}

TEST(ShmEager, WhatWasSentBeforeTheLinkWasClosedWaitsForItsReceives) {
  ShmPair pair;
  MakeReady(pair);
  Messages messages(pair, 3);
  for (size_t i : {0, 1}) messages.Send(i, {i, 0});
  pair.sender.reset();
  // It sleeps meanwhile: nothing is to be done.
  EXPECT_FALSE(SleepUntil(
      &pair.b, [&] { return !pair.b.broken.empty(); }, absl::Seconds(1)));
  pair.b.transport->Progress(Now());
  EXPECT_TRUE(pair.b.transport->PrepareWait());
  pair.b.transport->FinishWait();
  for (size_t i : {0, 1}) {
    messages.Receive(i, {i, 0});
    EXPECT_TRUE(messages.Came(i)) << i;
  }
  ASSERT_TRUE(SleepUntil(&pair.b, [&] { return !pair.b.broken.empty(); }));
  messages.Receive(2, {9, 0});
  Turn(pair.b);
  EXPECT_THAT(std::string(messages.receives[2].status().message()), HasSubstr("closed the link"));
}

// Which nobody reads any more.
TEST(ShmEager, AClosedLinkThatKeepsMessagesTakesAnyNumberOfNotices) {
  ShmPair pair;
  MakeReady(pair);
  Messages messages(pair, 1);
  messages.Send(0);
  for (int i = 0; i < 300; ++i) {  // more than fit
    ASSERT_EQ(pair.receiver->PostNotice("x"), Posted::kAccepted) << i;
  }
  EXPECT_TRUE(pair.receiver->HoldsNotices());
  pair.sender.reset();
  ASSERT_TRUE(PumpUntil({&pair.b}, [&] { return !pair.receiver->HoldsNotices(); }));
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(pair.receiver->PostNotice("x"), Posted::kAccepted) << i;
  }
  EXPECT_FALSE(pair.receiver->HoldsNotices());
  messages.Receive(0);
  EXPECT_TRUE(messages.receives[0].done() && messages.receives[0].status().ok());
}

TEST(ShmEager, AClosedLinkEndsWhenAReceiveIsPostedThatNothingIsThereFor) {
  ShmPair pair;
  MakeReady(pair);
  Messages messages(pair, 2);
  messages.Send(0, {1, 0});
  pair.sender.reset();
  EXPECT_FALSE(SleepUntil(
      &pair.b, [&] { return !pair.b.broken.empty(); }, absl::Seconds(1)));
  messages.Receive(1, {2, 0});
  ASSERT_TRUE(SleepUntil(&pair.b, [&] { return messages.receives[1].done(); }));
  EXPECT_THAT(std::string(messages.receives[1].status().message()), HasSubstr("closed the link"));
}

TEST(ShmEager, ALinkThatWasGivenUpEndsWithWhatItKeeps) {
  ShmPair pair;
  MakeReady(pair);
  Messages messages(pair, 1);
  messages.Send(0);
  pair.sender->Break(absl::AbortedError("the sender gives up"));
  ASSERT_TRUE(SleepUntil(&pair.b, [&] { return !pair.b.broken.empty(); }));
  EXPECT_THAT(std::string(pair.b.broken[0].message()), HasSubstr("gave the link up"));
}

// Sizes about the longest that goes eagerly and the longest that needs no arena, three tags, any
// order, little room: what is received is what was sent, each tag in its order.
TEST(ShmEager, MixedMessagesOfEveryTagArriveInTheirOrder) {
  constexpr size_t kCount = 300;
  constexpr size_t kSizes[] = {0, 1, 88, 89, 599, 600, 601, 5000, 100000};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    ShmPair pair({{"shm.eager_max", "600"}, {"shm.slot_bytes", "4KiB"}, {"shm.slots", "2"}});
    struct One {
      uint64_t tag = 0;
      std::vector<std::byte> from, to;
      Request send, receive;
    };
    Random random(seed);
    std::deque<One> all(kCount);
    std::vector<std::vector<size_t>> by_tag(3);
    std::vector<uint64_t> order;
    for (size_t i = 0; i < kCount; ++i) {
      One& one = all[i];
      one.tag = random.Below(3);
      one.from = RandomBytes(kSizes[random.Below(std::size(kSizes))], i);
      one.to.resize(one.from.size() + random.Below(2) * 100);
      by_tag[one.tag].push_back(i);
      order.push_back(one.tag);
    }
    random.Shuffle(order);  // receives, each tag's in its own order
    size_t sent = 0, received = 0;
    std::vector<size_t> next(3);
    while (sent < kCount || received < kCount) {
      for (uint64_t left = random.Below(8); left > 0 && sent < kCount; --left) {
        One& one = all[sent];
        if (pair.sender->PostSend({one.tag, one.tag}, View(*pair.a.transport, one.from),
                                  &one.send) == Posted::kNotYet) {
          break;
        }
        ++sent;
      }
      Turn(pair.a, static_cast<int>(random.Below(3)));
      for (uint64_t left = random.Below(8); left > 0 && received < kCount; --left) {
        const uint64_t tag = order[received];
        One& one = all[by_tag[tag][next[tag]]];
        if (pair.receiver->PostReceive({tag, tag}, {View(*pair.b.transport, one.to)},
                                       &one.receive) == Posted::kNotYet) {
          break;
        }
        ++next[tag], ++received;
      }
      Turn(pair.b, static_cast<int>(random.Below(3)));
    }
    ASSERT_TRUE(pair.Pump([&] {
      return std::all_of(all.begin(), all.end(),
                         [](const One& one) { return one.send.done() && one.receive.done(); });
    }));
    for (One& one : all) {
      ASSERT_TRUE(one.send.status().ok() && one.receive.status().ok()) << one.receive.status();
      ASSERT_EQ(one.receive.bytes(), one.from.size());
      one.to.resize(one.from.size());
      ASSERT_TRUE(one.from == one.to);
    }
    EXPECT_EQ(pair.receiver->Counters().outstanding(), 0u);
    EXPECT_EQ(pair.receiver->Counters().waiting_for_peer(), 0u);
    EXPECT_EQ(pair.sender->Counters().outstanding(), 0u);
    EXPECT_EQ(pair.sender->Counters().bytes_matched, pair.sender->Counters().bytes_done);
  }
}

}  // namespace
}  // namespace weft::net
