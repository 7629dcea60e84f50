// The store's server without sockets: handshake, frames, sessions, bounds; and mutated bytes.
#include "collectives/rendezvous/store_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "collectives/rendezvous/store_protocol.h"
#include "net/handshake.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Replies = std::map<uint64_t, StoreResult>;

StoreRequest Make(StoreOp op, uint64_t id, std::vector<std::string> keys,
                  std::vector<std::string> values = {}) {
  StoreRequest request;
  request.op = op;
  request.id = id;
  request.keys.assign(keys.begin(), keys.end());
  request.values.assign(values.begin(), values.end());
  request.timeout = absl::Seconds(10);
  return request;
}

class StoreCoreTest : public testing::Test {
 protected:
  // What the core has written to a connection since the last call.
  std::string Written(StoreCore::ConnectionId id) {
    for (auto& output : core_->TakeOutput()) {
      std::string& written = written_[output.connection];
      written += std::string(output.frame.head.view());
      if (output.frame.body) written += *output.frame.body;
    }
    std::string bytes = std::exchange(written_[id], {});
    core_->Sent(id, bytes.size(), now_);
    return bytes;
  }

  net::ConnectorHandshake NewHandshake(const std::string& client, net::JobSecret secret = {}) {
    net::HandshakeIdentity identity;
    identity.secret = secret;
    identity.purpose = net::HandshakePurpose::kStore;
    return net::ConnectorHandshake(identity, Rank(), client, net::NewNonce());
  }

  // Connects a client whose number is `name`, padded. Returns its handshake's end.
  net::HandshakeState Connect(StoreCore::ConnectionId id, std::string name,
                              net::JobSecret secret = {}) {
    name.resize(kStoreIdBytes, '.');
    core_->Open(id, "tester", now_);
    net::ConnectorHandshake handshake = NewHandshake(name + "test client", secret);
    handshake.Feed(Written(id));
    core_->Receive(id, handshake.TakeOutput(), now_);
    handshake.Feed(Written(id));
    return handshake.state();
  }

  void Ask(StoreCore::ConnectionId id, const StoreRequest& request) {
    core_->Receive(id, EncodeRequest(request), now_);
  }

  Replies Read(StoreCore::ConnectionId id) {
    Replies replies;
    std::string bytes = Written(id);
    absl::string_view rest = bytes;
    StoreFrameReader reader(kStoreReplyBytesMax);
    while (!rest.empty()) {
      size_t used = 0;
      auto frame = reader.Feed(rest, &used);
      EXPECT_TRUE(frame.ok()) << frame.status();
      if (!frame.ok()) break;
      rest.remove_prefix(used);
      if (!frame->has_value()) continue;
      auto result = DecodeReply(**frame);
      EXPECT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(replies.emplace((*frame)->id, *result).second) << "answered twice";
    }
    return replies;
  }

  static StoreCoreOptions Options() {
    StoreCoreOptions options;
    options.memory_limit = MiB(1);
    options.output_pause = KiB(64);
    options.output_limit = KiB(256);
    return options;
  }

  absl::Time now_ = absl::UnixEpoch();
  std::map<StoreCore::ConnectionId, std::string> written_;
  std::unique_ptr<StoreCore> core_ = std::make_unique<StoreCore>(Options());
};

TEST_F(StoreCoreTest, AnswersAWaitWhenTheKeyIsSet) {
  ASSERT_EQ(Connect(1, "a"), net::HandshakeState::kDone);
  ASSERT_EQ(Connect(2, "b"), net::HandshakeState::kDone);
  Ask(1, Make(StoreOp::kMultiGet, 1, {"x", "y"}));
  EXPECT_THAT(Read(1), IsEmpty());
  Ask(2, Make(StoreOp::kSet, 1, {"y"}, {"2"}));
  Ask(2, Make(StoreOp::kSet, 2, {"x"}, {"1"}));
  EXPECT_THAT(Read(1)[1].values, testing::ElementsAre("1", "2"));
  EXPECT_THAT(Read(2), SizeIs(2));
  EXPECT_EQ(core_->deadline(), absl::InfiniteFuture());
}

TEST_F(StoreCoreTest, AWaitEndsAtItsDeadlineAndNotBefore) {
  Connect(1, "a");
  Ask(1, Make(StoreOp::kGet, 1, {"x"}));
  EXPECT_EQ(core_->deadline(), now_ + absl::Seconds(10));
  core_->Advance(now_ + absl::Seconds(9));
  EXPECT_THAT(Read(1), IsEmpty());
  core_->Advance(now_ + absl::Seconds(10));
  EXPECT_EQ(Read(1)[1].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(core_->waiting(), 0);
}

TEST_F(StoreCoreTest, AKeyThatIsDeletedAgainKeepsAWaitWaiting) {
  Connect(1, "a");
  Connect(2, "b");
  Ask(1, Make(StoreOp::kWait, 1, {"x", "y"}));
  Ask(2, Make(StoreOp::kSet, 1, {"x"}, {""}));
  Ask(2, Make(StoreOp::kDelete, 2, {"x"}));
  Ask(2, Make(StoreOp::kSet, 3, {"y"}, {""}));
  EXPECT_THAT(Read(1), IsEmpty());
  Ask(2, Make(StoreOp::kSet, 4, {"x"}, {""}));
  EXPECT_THAT(Read(1), SizeIs(1));
}

TEST_F(StoreCoreTest, WhatARecoveredClientSendsAgainIsDoneOnce) {
  Connect(1, "a");
  StoreRequest add = Make(StoreOp::kAdd, 1, {"n"});
  add.number = 5;
  Ask(1, add);
  core_->Close(1, now_);  // the reply is lost
  Connect(2, "a");
  Ask(2, add);
  EXPECT_EQ(Read(2)[1].number, 5);
  // Once the client has said that it got the reply, it is forgotten.
  Bytes before = core_->memory();
  StoreRequest next = Make(StoreOp::kKeyCount, 2, {});
  next.acknowledged = 2;
  Ask(2, next);
  EXPECT_LT(core_->memory(), before);
  EXPECT_EQ(Read(2)[2].number, 1);
}

TEST_F(StoreCoreTest, ABarrierSurvivesAReconnection) {
  Connect(1, "a");
  Connect(2, "b");
  StoreRequest first = Make(StoreOp::kBarrier, 1, {"k"});
  first.size = 2;
  Ask(1, first);
  core_->Close(1, now_);
  Connect(3, "a");
  Ask(3, first);
  StoreRequest second = first;
  second.rank = 1;
  Ask(2, second);
  EXPECT_TRUE(Read(3)[1].status.ok());
  EXPECT_TRUE(Read(2)[1].status.ok());
}

TEST_F(StoreCoreTest, AnExchangeAnswersEachClientWithItsOwnPart) {
  Connect(1, "a");
  Connect(2, "b");
  StoreArrivals arrivals;
  arrivals.op = StoreOp::kExchange;
  auto arrive = [&](StoreCore::ConnectionId id, int32_t first, const RankSet& wanted) {
    arrivals.ranks.clear();
    arrivals.values.clear();
    for (int32_t rank = first; rank < first + 8; ++rank) {
      arrivals.ranks.push_back(rank);
      arrivals.values.push_back(std::to_string(rank));
    }
    arrivals.wanted = wanted;
    StoreRequest request = EncodeArrivals("k", 16, arrivals);
    request.id = 1;
    request.timeout = absl::Seconds(10);
    Ask(id, request);
  };
  arrive(1, 0, RankSet({3, 8, 9}));
  Ask(1, Make(StoreOp::kGet, 2, {"k/11"}));
  EXPECT_THAT(Read(1), IsEmpty());
  arrive(2, 8, RankSet::Below(15));
  Replies replies = Read(1);
  EXPECT_THAT(replies[1].values, testing::ElementsAre(RankSet({3, 8, 9}).Encode(), "3", "8", "9"));
  EXPECT_THAT(replies[2].values, testing::ElementsAre("11")) << "it stays for whoever asks later";
  // Most of it is everything.
  Replies others = Read(2);
  ASSERT_THAT(others[1].values, SizeIs(17));
  EXPECT_EQ(others[1].values[0], RankSet::Below(16).Encode());
  EXPECT_EQ(others[1].values[16], "15");
  EXPECT_EQ(core_->keys(), 16);
}

TEST_F(StoreCoreTest, AnExchangeThatIsWantedInLargePartsStaysWithinTheMemory) {
  constexpr int kWide = 48;
  std::string value(4096, 'v');
  for (int rank = 0; rank < kWide; ++rank) {
    StoreCore::ConnectionId id = static_cast<StoreCore::ConnectionId>(rank) + 1;
    Connect(id, std::to_string(rank));
    RankSet wanted;
    for (int i = 0; i < 20; ++i) wanted.Add(RankSet({(rank + i) % kWide}));
    StoreRequest request = Make(StoreOp::kExchange, 1, {"k"}, {value, wanted.Encode()});
    request.rank = rank;
    request.size = kWide;
    Ask(id, request);
  }
  // Parts of their own would be 48 times 80 KiB; the replies are kept until they are acknowledged.
  EXPECT_LE(core_->memory(), Options().memory_limit + KiB(16)) << "beside what a reply costs";
  size_t parts = 0;
  for (StoreCore::ConnectionId id = 1; id <= kWide; ++id) {
    size_t values = Read(id)[1].values.size();
    EXPECT_TRUE(values == 21 || values == kWide + 1) << values;
    parts += values == 21 ? 1 : 0;
  }
  EXPECT_GT(parts, 0u);
  EXPECT_LT(parts, size_t{kWide});
}

TEST_F(StoreCoreTest, AReadThatWaitsIsDroppedWithItsConnection) {
  Connect(1, "a");
  Ask(1, Make(StoreOp::kGet, 1, {"x"}));
  core_->Close(1, now_);
  EXPECT_EQ(core_->waiting(), 0);
  Connect(2, "a");
  Ask(2, Make(StoreOp::kGet, 1, {"x"}));
  Ask(2, Make(StoreOp::kSet, 2, {"x"}, {"v"}));
  EXPECT_THAT(Read(2), SizeIs(2));
}

TEST_F(StoreCoreTest, ForgetsAClientThatStaysAway) {
  Connect(1, "a");
  Ask(1, Make(StoreOp::kSet, 1, {"x"}, {"v"}));
  core_->Close(1, now_);
  EXPECT_EQ(core_->sessions(), 1);
  now_ += absl::Seconds(30);
  core_->Advance(now_);
  EXPECT_EQ(core_->sessions(), 0);
  Connect(2, "b");
  Ask(2, Make(StoreOp::kGoodbye, 1, {}));
  EXPECT_EQ(core_->sessions(), 0);
  EXPECT_THAT(core_->TakeClosings(), SizeIs(1));
}

TEST_F(StoreCoreTest, ANewConnectionOfAClientReplacesTheOld) {
  Connect(1, "a");
  Ask(1, Make(StoreOp::kGet, 1, {"x"}));
  Connect(2, "a");
  auto closings = core_->TakeClosings();
  ASSERT_THAT(closings, SizeIs(1));
  EXPECT_EQ(closings[0].connection, 1u);
  core_->Close(1, now_);
  Ask(2, Make(StoreOp::kGet, 1, {"x"}));
  Ask(2, Make(StoreOp::kSet, 2, {"x"}, {"v"}));
  EXPECT_THAT(Read(2), SizeIs(2));
}

TEST_F(StoreCoreTest, TurnsAwayWhoeverLacksTheSecret) {
  net::JobSecret wrong{};
  wrong[0] = 1;
  EXPECT_EQ(Connect(1, "a", wrong), net::HandshakeState::kFailed);
  EXPECT_THAT(core_->TakeClosings(), SizeIs(1));
  core_->Close(1, now_);
  EXPECT_EQ(core_->connections(), 0);
}

TEST_F(StoreCoreTest, ClosesConnectionsThatNeverFinishTheirHandshake) {
  core_->Open(1, "silent", now_);
  EXPECT_EQ(core_->deadline(), now_ + net::kHandshakeTimeout);
  core_->Advance(now_ + net::kHandshakeTimeout);
  ASSERT_THAT(core_->TakeClosings(), SizeIs(1));
}

TEST_F(StoreCoreTest, RefusesWhatExceedsItsMemory) {
  Connect(1, "a");
  std::string half(size_t{600} << 10, 'x');
  Ask(1, Make(StoreOp::kSet, 1, {"one"}, {half}));
  Ask(1, Make(StoreOp::kSet, 2, {"two"}, {half}));
  Ask(1, Make(StoreOp::kDelete, 3, {"one"}));
  Ask(1, Make(StoreOp::kSet, 4, {"two"}, {half}));
  Replies replies = Read(1);
  EXPECT_TRUE(replies[1].status.ok());
  EXPECT_EQ(replies[2].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(replies[4].status.ok());
}

TEST_F(StoreCoreTest, ReadsNoMoreFromAClientThatDoesNotRead) {
  Connect(1, "slow");
  std::string value(size_t{40} << 10, 'x');
  Ask(1, Make(StoreOp::kSet, 1, {"v"}, {value}));
  for (uint64_t id = 2; id < 10; ++id) Ask(1, Make(StoreOp::kGet, id, {"v"}));
  EXPECT_FALSE(core_->WantsInput(1));
  // Two replies reach the bound; the rest waits unread, and comes once those are gone.
  size_t got = Read(1).size();
  EXPECT_EQ(got, 3u);
  while (got < 9) {
    size_t more = Read(1).size();
    ASSERT_GT(more, 0u);
    got += more;
  }
  EXPECT_TRUE(core_->WantsInput(1));
  EXPECT_THAT(core_->TakeClosings(), IsEmpty());
}

TEST_F(StoreCoreTest, ClosesASlowReaderWhoseAnswersPileUp) {
  Connect(1, "slow");
  Connect(2, "fast");
  for (uint64_t id = 1; id < 10; ++id) Ask(1, Make(StoreOp::kGet, id, {"v"}));
  Ask(2, Make(StoreOp::kSet, 1, {"v"}, {std::string(size_t{60} << 10, 'x')}));
  auto closings = core_->TakeClosings();
  ASSERT_THAT(closings, SizeIs(1));
  EXPECT_EQ(closings[0].connection, 1u);
  EXPECT_THAT(closings[0].reason, HasSubstr("reads too slowly"));
  EXPECT_TRUE(Read(2)[1].status.ok());
}

TEST_F(StoreCoreTest, ClosesOnFramesThatMakeNoSense) {
  const std::string good = EncodeRequest(Make(StoreOp::kSet, 1, {"k"}, {"v"}));
  struct Case {
    size_t at;
    char byte;
    const char* reason;
  };
  for (const Case& c :
       {Case{0, 'X', "bad magic"}, Case{4, 99, "version 99"}, Case{6, 77, "unknown operation"},
        Case{11, 0x7f, "at most"}, Case{12, 1, "reserved"}, Case{8, 3, "malformed"},
        Case{56, 2, "malformed"}, Case{63, 0x7f, "malformed"}}) {
    StoreCore::ConnectionId id = 100 + c.at;
    Connect(id, absl::StrCat("client ", c.at));
    std::string bad = good;
    bad[c.at] = c.byte;
    core_->Receive(id, bad, now_);
    auto closings = core_->TakeClosings();
    ASSERT_THAT(closings, SizeIs(1)) << c.at;
    EXPECT_THAT(closings[0].reason, HasSubstr(c.reason));
    core_->Close(id, now_);
  }
  EXPECT_EQ(core_->keys(), 0);
}

TEST_F(StoreCoreTest, TakesFramesCutAnywhere) {
  Connect(1, "a");
  std::string bytes = EncodeRequest(Make(StoreOp::kSet, 1, {"k"}, {"v"})) +
                      EncodeRequest(Make(StoreOp::kGet, 2, {"k"}));
  for (char byte : bytes) core_->Receive(1, absl::string_view(&byte, 1), now_);
  Replies replies = Read(1);
  EXPECT_THAT(replies[2].values, testing::ElementsAre("v"));
}

// Random requests, mutated, cut, doubled, on connections that come and go. Under a sanitizer, this
// looks for memory errors; always, for what is left over once everybody is gone.
TEST_F(StoreCoreTest, SurvivesMutatedBytes) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    core_ = std::make_unique<StoreCore>(Options());
    written_.clear();
    for (StoreCore::ConnectionId id = 1; id <= 4; ++id) {
      ASSERT_EQ(Connect(id, absl::StrCat(random.Below(3))), net::HandshakeState::kDone);
      for (int step = 0; step < 30; ++step) {
        auto op = static_cast<StoreOp>(1 + random.Below(static_cast<uint64_t>(kStoreOpLast)));
        StoreRequest request = Make(op, 1 + random.Below(20), {});
        request.timeout = absl::Seconds(static_cast<int64_t>(random.Below(5)));
        request.rank = static_cast<int32_t>(random.Below(4));
        request.size = static_cast<int32_t>(random.Below(4));
        request.number = static_cast<int64_t>(random());
        auto keys = random.Below(3);
        auto values = random.Below(3);
        for (uint64_t k = 0; k < keys; ++k) request.keys.push_back(std::to_string(random.Below(4)));
        for (uint64_t v = 0; v < values; ++v) request.values.emplace_back(random.Below(300), 'v');
        if (op == StoreOp::kGroup && random.Below(2) == 0) {
          StoreArrivals arrivals;
          arrivals.op = random.Below(2) == 0 ? StoreOp::kBarrier : StoreOp::kGather;
          arrivals.ranks = {static_cast<int32_t>(random.Below(3)), 3};
          if (arrivals.op == StoreOp::kGather) arrivals.values = {"a", "b"};
          request = EncodeArrivals("0", 4, arrivals);
          request.id = 1 + random.Below(20);
        }
        std::string bytes = EncodeRequest(request);
        if (random.Below(8) == 0) bytes[random.Below(bytes.size())] = static_cast<char>(random());
        if (random.Below(16) == 0) bytes.resize(random.Below(bytes.size()));
        if (random.Below(8) == 0) bytes += bytes;
        core_->Receive(id, bytes, now_);
        now_ += absl::Milliseconds(static_cast<int64_t>(random.Below(1000)));
        core_->Advance(now_);
        if (random.Below(4) == 0) (void)Written(id);
        for (const auto& closing : core_->TakeClosings()) {
          core_->Close(closing.connection, now_);
          written_.erase(closing.connection);
        }
      }
    }
    for (StoreCore::ConnectionId id = 1; id <= 4; ++id) core_->Close(id, now_);
    now_ += absl::Minutes(5);
    core_->Advance(now_);
    EXPECT_EQ(core_->connections(), 0);
    EXPECT_EQ(core_->sessions(), 0);
    EXPECT_EQ(core_->waiting(), 0);
    EXPECT_EQ(core_->deadline(), absl::InfiniteFuture());
  }
}

// A client that neither waits for replies nor acknowledges them.
TEST_F(StoreCoreTest, AFloodFillsItsOwnShareAndNotTheStore) {
  StoreCoreOptions options = Options();
  options.session_limit = KiB(64);
  core_ = std::make_unique<StoreCore>(options);
  Connect(1, "flood");
  Connect(2, "other");
  int refused = 0;
  for (uint64_t id = 1; id <= 2000; ++id) {
    StoreOp op = id % 2 == 0 ? StoreOp::kWait : StoreOp::kAdd;
    Ask(1, Make(op, id, {op == StoreOp::kWait ? absl::StrCat("never", id) : "n"}));
    for (const auto& [request, result] : Read(1)) {
      refused += absl::IsResourceExhausted(result.status) ? 1 : 0;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(core_->memory(), KiB(80));
  Ask(2, Make(StoreOp::kSet, 1, {"k"}, {std::string(1000, 'v')}));
  EXPECT_TRUE(Read(2)[1].status.ok());
  // Once it says what it has got, it is served again.
  StoreRequest more = Make(StoreOp::kAdd, 3000, {"n"});
  more.acknowledged = 3000;
  Ask(1, more);
  EXPECT_TRUE(Read(1)[3000].status.ok());
  core_->Close(1, now_);
  now_ += absl::Minutes(1);
  core_->Advance(now_);
  EXPECT_LT(core_->memory(), KiB(2));
}

// A Unix socket's connection begins with a hello frame, whatever else comes ends it.
TEST_F(StoreCoreTest, ALocalConnectionBeginsWithAHello) {
  StoreHello hello;
  hello.id = std::string(kStoreIdBytes, 'l');
  hello.name = "local";
  core_->Open(1, "local", now_, /*local=*/true);
  Ask(1, Make(StoreOp::kHello, 0, {EncodeHello(hello)}));
  Ask(1, Make(StoreOp::kSet, 1, {"k"}, {"v"}));
  Replies replies = Read(1);
  EXPECT_EQ(replies[0].values.at(0), core_->id());
  EXPECT_TRUE(replies[1].status.ok());
  core_->Open(2, "local", now_, /*local=*/true);
  Ask(2, Make(StoreOp::kSet, 1, {"k"}, {"w"}));
  ASSERT_THAT(core_->TakeClosings(), SizeIs(1));
  EXPECT_EQ(core_->keys(), 1);
}

TEST_F(StoreCoreTest, JobsDoNotSeeEachOthersKeys) {
  auto connect = [&](StoreCore::ConnectionId id, const std::string& job) {
    StoreHello hello;
    hello.id = absl::StrCat(id);
    hello.id.resize(kStoreIdBytes, '.');
    hello.job = job;
    core_->Open(id, "local", now_, /*local=*/true);
    Ask(id, Make(StoreOp::kHello, 0, {EncodeHello(hello)}));
    (void)Read(id);
  };
  connect(1, "one");
  connect(2, "two");
  connect(3, "one");
  Ask(1, Make(StoreOp::kSet, 1, {"k"}, {"v"}));
  Ask(2, Make(StoreOp::kCheck, 1, {"k"}));
  Ask(3, Make(StoreOp::kCheck, 1, {"k"}));
  Ask(2, Make(StoreOp::kKeyCount, 2, {}));
  EXPECT_EQ(Read(2)[1].number, 0);
  EXPECT_EQ(Read(3)[1].number, 1);
}

}  // namespace
}  // namespace weft::collectives
