// The store's server without sockets: its bounds, clients that do not behave, mutated bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/collectives/store/store_core_fixture.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST_F(StoreCoreTest, AnExchangeThatIsWantedInLargePartsStaysWithinTheMemory) {
  constexpr int kWide = 48;
  std::string value(4096, 'v');
  for (int rank = 0; rank < kWide; ++rank) {
    StoreConnections::Id id = static_cast<StoreConnections::Id>(rank) + 1;
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
  for (StoreConnections::Id id = 1; id <= kWide; ++id) {
    size_t values = Read(id)[1].values.size();
    EXPECT_TRUE(values == 21 || values == kWide + 1) << values;
    parts += values == 21 ? 1 : 0;
  }
  EXPECT_GT(parts, 0u);
  EXPECT_LT(parts, size_t{kWide});
}

TEST_F(StoreCoreTest, ForgetsAClientThatStaysAway) {
  Connect(1, "a");
  Ask(1, Make(StoreOp::kSet, 1, {"x"}, {"v"}));
  core_->connections().Close(1, now_);
  EXPECT_EQ(core_->sessions(), 1);
  now_ += absl::Seconds(30);
  core_->Advance(now_);
  EXPECT_EQ(core_->sessions(), 0);
  Connect(2, "b");
  Ask(2, Make(StoreOp::kGoodbye, 1, {}));
  EXPECT_EQ(core_->sessions(), 0);
  EXPECT_THAT(core_->connections().TakeClosings(), SizeIs(1));
}

TEST_F(StoreCoreTest, TurnsAwayWhoeverLacksTheSecret) {
  net::JobSecret wrong{};
  wrong[0] = 1;
  EXPECT_EQ(Connect(1, "a", wrong), net::HandshakeState::kFailed);
  EXPECT_THAT(core_->connections().TakeClosings(), SizeIs(1));
  core_->connections().Close(1, now_);
  EXPECT_EQ(core_->connections().size(), 0);
}

TEST_F(StoreCoreTest, ClosesConnectionsThatNeverFinishTheirHandshake) {
  core_->connections().Open(1, "silent", now_);
  EXPECT_EQ(core_->deadline(), now_ + net::kHandshakeTimeout);
  core_->Advance(now_ + net::kHandshakeTimeout);
  ASSERT_THAT(core_->connections().TakeClosings(), SizeIs(1));
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
  EXPECT_FALSE(core_->connections().WantsInput(1));
  // Two replies reach the bound; the rest waits unread, and comes once those are gone.
  size_t got = Read(1).size();
  EXPECT_EQ(got, 3u);
  while (got < 9) {
    size_t more = Read(1).size();
    ASSERT_GT(more, 0u);
    got += more;
  }
  EXPECT_TRUE(core_->connections().WantsInput(1));
  EXPECT_THAT(core_->connections().TakeClosings(), IsEmpty());
}

TEST_F(StoreCoreTest, ClosesASlowReaderWhoseAnswersPileUp) {
  Connect(1, "slow");
  Connect(2, "fast");
  for (uint64_t id = 1; id < 10; ++id) Ask(1, Make(StoreOp::kGet, id, {"v"}));
  Ask(2, Make(StoreOp::kSet, 1, {"v"}, {std::string(size_t{60} << 10, 'x')}));
  auto closings = core_->connections().TakeClosings();
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
    StoreConnections::Id id = 100 + c.at;
    Connect(id, absl::StrCat("client ", c.at));
    std::string bad = good;
    bad[c.at] = c.byte;
    core_->connections().Receive(id, bad, now_);
    auto closings = core_->connections().TakeClosings();
    ASSERT_THAT(closings, SizeIs(1)) << c.at;
    EXPECT_THAT(closings[0].reason, HasSubstr(c.reason));
    core_->connections().Close(id, now_);
  }
  EXPECT_EQ(core_->keys(), 0);
}

// What a client costs does not grow with the ranks that it speaks for, and it is charged for.
TEST_F(StoreCoreTest, ClientsThatSpeakForAMillionRanksStayWithinTheMemory) {
  auto connect = [&](uint64_t number, int32_t first, int32_t ranks, const std::string& job) {
    StoreHello hello;
    hello.id = absl::StrCat("client ", number);
    hello.id.resize(kStoreIdBytes, '.');
    hello.job = job;
    hello.rank = first;
    hello.ranks = ranks;
    core_->connections().Open(number, "tester", now_, /*local=*/true);
    const Bytes before = core_->memory();
    StoreRequest greeting = Make(StoreOp::kHello, 0, {EncodeHello(hello)});
    core_->connections().Receive(number, EncodeRequest(greeting), now_);
    return core_->memory() - before;
  };
  const Bytes one = connect(1, 5, 1, "job");
  for (uint64_t number = 2; number < 14; ++number) {
    EXPECT_LE(connect(number, 0, kStoreRanksMax, absl::StrCat("job ", number)), one * 4);
  }
  EXPECT_EQ(core_->sessions(), 13);
  EXPECT_THAT(core_->connections().TakeClosings(), IsEmpty());
  // One too many.
  connect(14, 1, kStoreRanksMax, "job");
  auto closings = core_->connections().TakeClosings();
  ASSERT_THAT(closings, SizeIs(1));
  EXPECT_THAT(closings[0].reason, HasSubstr("malformed hello"));
  // And more clients than there is room for.
  uint64_t number = 100;
  while (core_->connections().TakeClosings().empty() && number < 2000)
    connect(++number, 1, 1, "job");
  EXPECT_LT(number, 1000u);
  EXPECT_LT(core_->memory(), core_->memory_limit() + KiB(16));
  for (uint64_t id = 1; id <= number; ++id) core_->connections().Close(id, now_);
  now_ += absl::Minutes(1);
  core_->Advance(now_);
  EXPECT_EQ(core_->sessions(), 0);
}

TEST_F(StoreCoreTest, AFullStoreAnswersRequestsOfNothing) {
  Connect(1, "a");
  Bytes left = core_->memory_limit() - core_->memory();
  Ask(1,
      Make(StoreOp::kSet, 1, {"k"}, {std::string(static_cast<size_t>(left.count()) - 1200, 'v')}));
  ASSERT_TRUE(Read(1)[1].status.ok());
  // Requests that nobody acknowledges, until there is no room at all.
  uint64_t id = 2;
  while (core_->memory() <= core_->memory_limit()) Ask(1, Make(StoreOp::kDelete, id++, {"none"}));
  Ask(1, Make(StoreOp::kMultiSet, id, {}));
  Ask(1, Make(StoreOp::kMultiGet, id + 1, {}));
  Ask(1, Make(StoreOp::kCheck, id + 2, {}));
  Ask(1, Make(StoreOp::kWait, id + 3, {}));
  Ask(1, Make(StoreOp::kGet, id + 4, {"never"}));
  Ask(1, Make(StoreOp::kMultiSet, id + 5, {"x"}, {"y"}));
  Replies replies = Read(1);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(replies[id + i].status.ok()) << i;
  for (uint64_t i = 4; i < 6; ++i) {
    EXPECT_TRUE(absl::IsResourceExhausted(replies[id + i].status)) << i;
    EXPECT_THAT(std::string(replies[id + i].status.message()), HasSubstr("the store is full"));
  }
  EXPECT_EQ(core_->waiting(), 0);
}

// What was refused because of all else that was there is not done when a journal is read.
TEST_F(StoreCoreTest, AJournalHoldsNothingThatWasRefusedForWantOfMemory) {
  StoreCoreOptions options = Options();
  options.journal = true;
  core_ = std::make_unique<StoreCore>(options);
  for (StoreConnections::Id id = 2; id <= 60; ++id)
    core_->connections().Open(id, "unauthenticated", now_);
  Connect(1, "a");
  Ask(1, Make(StoreOp::kSet, 1, {"one"}, {std::string(size_t{600} << 10, 'x')}));
  Ask(1, Make(StoreOp::kSet, 2, {"two"}, {std::string(size_t{200} << 10, 'x')}));
  Replies replies = Read(1);
  EXPECT_TRUE(replies[1].status.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(replies[2].status)) << replies[2].status;
  StoreCore again(options);
  auto read = ReadRecords(core_->TakeJournal(),
                          [&](const StoreRecord& record) { return again.Replay(record, now_); });
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(again.keys(), 1);
}

TEST_F(StoreCoreTest, AReplyOfOneValueManyTimesIsChargedFor) {
  Connect(1, "a");
  Ask(1, Make(StoreOp::kSet, 1, {"k"}, {std::string(size_t{300} << 10, 'v')}));
  ASSERT_TRUE(Read(1)[1].status.ok());
  Ask(1, Make(StoreOp::kMultiGet, 2, {"k", "k"}));
  EXPECT_GT(core_->memory(), KiB(900)) << "the value, and twice in the reply that nobody has read";
  Connect(2, "b");
  Ask(2, Make(StoreOp::kMultiGet, 1, std::vector<std::string>(200, "k")));
  EXPECT_TRUE(absl::IsResourceExhausted(Read(2)[1].status));
  EXPECT_EQ(Read(1)[2].values.size(), 2u);
  EXPECT_LT(core_->memory(), KiB(320)) << "once it is read";
}

// Random requests, mutated, cut, doubled, on connections that come and go. Under a sanitizer, this
// looks for memory errors; always, for what is left over once everybody is gone.
TEST_F(StoreCoreTest, SurvivesMutatedBytes) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    core_ = std::make_unique<StoreCore>(Options());
    written_.clear();
    for (StoreConnections::Id id = 1; id <= 4; ++id) {
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
        core_->connections().Receive(id, bytes, now_);
        now_ += absl::Milliseconds(static_cast<int64_t>(random.Below(1000)));
        core_->Advance(now_);
        if (random.Below(4) == 0) (void)Written(id);
        for (const auto& closing : core_->connections().TakeClosings()) {
          core_->connections().Close(closing.connection, now_);
          written_.erase(closing.connection);
        }
      }
    }
    for (StoreConnections::Id id = 1; id <= 4; ++id) core_->connections().Close(id, now_);
    now_ += absl::Minutes(5);
    core_->Advance(now_);
    EXPECT_EQ(core_->connections().size(), 0);
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
  EXPECT_LT(core_->memory(), KiB(96));
  Ask(2, Make(StoreOp::kSet, 1, {"k"}, {std::string(1000, 'v')}));
  EXPECT_TRUE(Read(2)[1].status.ok());
  // Once it says what it has got, it is served again.
  StoreRequest more = Make(StoreOp::kAdd, 3000, {"n"});
  more.acknowledged = 3000;
  Ask(1, more);
  EXPECT_TRUE(Read(1)[3000].status.ok());
  core_->connections().Close(1, now_);
  now_ += absl::Minutes(1);
  core_->Advance(now_);
  EXPECT_LT(core_->memory(), KiB(9)) << "a job, a client, a connection, a value";
}

}  // namespace
}  // namespace weft::collectives
