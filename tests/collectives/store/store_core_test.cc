// The store's server without sockets: who is answered what, and when; sessions and jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/collectives/store/store_core_fixture.h"

namespace weft::collectives {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

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
  core_->connections().Close(1, now_);  // the reply is lost
  Connect(2, "a");
  Ask(2, add);
  EXPECT_EQ(Read(2)[1].number, 5);
  // Once the client has said that it got the replies, they are forgotten.
  const Bytes before = core_->memory();
  for (uint64_t id = 2; id < 100; ++id) Ask(2, Make(StoreOp::kAdd, id, {"n"}));
  EXPECT_THAT(Read(2), SizeIs(98));
  EXPECT_GT(core_->memory(), before + KiB(10));
  StoreRequest next = Make(StoreOp::kKeyCount, 100, {});
  next.acknowledged = 100;
  Ask(2, next);
  EXPECT_EQ(Read(2)[100].number, 1);
  EXPECT_LE(core_->memory(), before);
}

TEST_F(StoreCoreTest, ABarrierSurvivesAReconnection) {
  Connect(1, "a");
  Connect(2, "b");
  StoreRequest first = Make(StoreOp::kBarrier, 1, {"k"});
  first.size = 2;
  Ask(1, first);
  core_->connections().Close(1, now_);
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
  auto arrive = [&](StoreConnections::Id id, int32_t first, const RankSet& wanted) {
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

// A gather's ranks are answered when they come, and a rank whose client is gone has come: neither
// comes again, however often the server is started.
TEST_F(StoreCoreTest, ASnapshotHoldsRanksThatHaveArrivedAndWaitForNothing) {
  StoreCoreOptions options = Options();
  options.journal = true;
  core_ = std::make_unique<StoreCore>(options);
  const auto arrive = [&](StoreConnections::Id id, uint64_t request, StoreOp op, int32_t rank,
                          int32_t size) {
    StoreRequest arrival = Make(op, request, {ToString(op)});
    if (op != StoreOp::kBarrier) arrival.values = {absl::StrCat("value ", rank)};
    if (op == StoreOp::kExchange) arrival.values.push_back(RankSet({1}).Encode());
    arrival.rank = rank;
    arrival.size = size;
    Ask(id, arrival);
  };
  const std::vector<StoreOp> met = {StoreOp::kBarrier, StoreOp::kAllGather, StoreOp::kExchange};
  Connect(9, "gone");
  for (size_t i = 0; i < met.size(); ++i) arrive(9, i + 1, met[i], 1, 2);
  EXPECT_THAT(Read(9), IsEmpty());
  core_->connections().Close(9, now_);
  now_ += absl::Minutes(1);
  core_->Advance(now_);
  ASSERT_EQ(core_->sessions(), 0);
  for (int32_t rank = 1; rank < 4; ++rank) {
    const auto id = static_cast<StoreConnections::Id>(rank);
    Connect(id, absl::StrCat("rank ", rank));
    arrive(id, 1, StoreOp::kGather, rank, 4);
    EXPECT_TRUE(Read(id)[1].status.ok());
  }
  for (int start = 0; start < 2; ++start) {
    const std::string snapshot = core_->Snapshot();
    core_ = std::make_unique<StoreCore>(options);
    const auto read = ReadRecords(
        snapshot, [&](const StoreRecord& record) { return core_->Replay(record, now_); });
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, snapshot.size());
    EXPECT_EQ(core_->sessions(), 3);
    EXPECT_EQ(core_->waiting(), 0);
  }
  Connect(1, "rank 0");
  arrive(1, 1, StoreOp::kGather, 0, 4);
  for (size_t i = 0; i < met.size(); ++i) arrive(1, i + 2, met[i], 0, 2);
  Replies replies = Read(1);
  EXPECT_THAT(replies[1].values, ElementsAre("value 0", "value 1", "value 2", "value 3"));
  ASSERT_THAT(replies, SizeIs(1 + met.size()));
  for (size_t i = 0; i < met.size(); ++i) EXPECT_TRUE(replies[i + 2].status.ok()) << i;
  EXPECT_THAT(replies[3].values, ElementsAre("value 0", "value 1"));
  EXPECT_THAT(replies[4].values, testing::Contains("value 1"));
}

TEST_F(StoreCoreTest, AReadThatWaitsIsDroppedWithItsConnection) {
  Connect(1, "a");
  Ask(1, Make(StoreOp::kGet, 1, {"x"}));
  core_->connections().Close(1, now_);
  EXPECT_EQ(core_->waiting(), 0);
  Connect(2, "a");
  Ask(2, Make(StoreOp::kGet, 1, {"x"}));
  Ask(2, Make(StoreOp::kSet, 2, {"x"}, {"v"}));
  EXPECT_THAT(Read(2), SizeIs(2));
}

TEST_F(StoreCoreTest, ANewConnectionOfAClientReplacesTheOld) {
  Connect(1, "a");
  Ask(1, Make(StoreOp::kGet, 1, {"x"}));
  Connect(2, "a");
  auto closings = core_->connections().TakeClosings();
  ASSERT_THAT(closings, SizeIs(1));
  EXPECT_EQ(closings[0].connection, 1u);
  core_->connections().Close(1, now_);
  Ask(2, Make(StoreOp::kGet, 1, {"x"}));
  Ask(2, Make(StoreOp::kSet, 2, {"x"}, {"v"}));
  EXPECT_THAT(Read(2), SizeIs(2));
}

TEST_F(StoreCoreTest, TakesFramesCutAnywhere) {
  Connect(1, "a");
  std::string bytes = EncodeRequest(Make(StoreOp::kSet, 1, {"k"}, {"v"})) +
                      EncodeRequest(Make(StoreOp::kGet, 2, {"k"}));
  for (char byte : bytes) core_->connections().Receive(1, absl::string_view(&byte, 1), now_);
  Replies replies = Read(1);
  EXPECT_THAT(replies[2].values, testing::ElementsAre("v"));
}

// A Unix socket's connection begins with a hello frame, whatever else comes ends it.
TEST_F(StoreCoreTest, ALocalConnectionBeginsWithAHello) {
  StoreHello hello;
  hello.id = std::string(kStoreIdBytes, 'l');
  hello.name = "local";
  core_->connections().Open(1, "local", now_, /*local=*/true);
  Ask(1, Make(StoreOp::kHello, 0, {EncodeHello(hello)}));
  Ask(1, Make(StoreOp::kSet, 1, {"k"}, {"v"}));
  Replies replies = Read(1);
  EXPECT_EQ(replies[0].values.at(0), core_->id());
  EXPECT_TRUE(replies[1].status.ok());
  core_->connections().Open(2, "local", now_, /*local=*/true);
  Ask(2, Make(StoreOp::kSet, 1, {"k"}, {"w"}));
  ASSERT_THAT(core_->connections().TakeClosings(), SizeIs(1));
  EXPECT_EQ(core_->keys(), 1);
}

TEST_F(StoreCoreTest, JobsDoNotSeeEachOthersKeys) {
  auto connect = [&](StoreConnections::Id id, const std::string& job) {
    StoreHello hello;
    hello.id = absl::StrCat(id);
    hello.id.resize(kStoreIdBytes, '.');
    hello.job = job;
    core_->connections().Open(id, "local", now_, /*local=*/true);
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
