// What a relay makes of its clients' requests and of the answers to them, without sockets.
#include "collectives/store/relay/store_relay_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/store/protocol/store_exchange.h"

namespace weft::collectives {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kWorld = 16;

std::string Bytes(const StoreFrameOut& frame) {
  return std::string(frame.head.view()) + (frame.body ? *frame.body : "");
}

// A relay that has met the root.
class StoreRelayTableTest : public testing::Test {
 protected:
  void Start(bool files) {
    StoreRelayTableOptions options;
    options.name = "relay";
    options.world = kWorld;
    options.expected = 4;
    options.files = files;
    table_ = std::make_unique<StoreRelayTable>(&up_, options);
    up_.Connected(/*local=*/true);
    StoreReply hello;
    auto body = std::make_shared<std::string>();
    AppendValue(*body, std::string(kStoreIdBytes, 's'));
    AppendValue(*body, "root");
    hello.values = 2;
    hello.body = std::move(body);
    ASSERT_TRUE(up_.Receive(Bytes(EncodeReply(StoreOp::kHello, 0, hello))).ok());
    (void)Sent();
  }

  // Two ranks of one relay below, or one rank.
  void Arrive(uint64_t session, std::vector<int32_t> ranks, const RankSet& wanted) {
    StoreArrivals arrivals;
    arrivals.op = StoreOp::kExchange;
    arrivals.ranks = std::move(ranks);
    for (int32_t rank : arrivals.ranks) arrivals.values.push_back(absl::StrCat("value ", rank));
    arrivals.wanted = wanted;
    StoreRequest request = EncodeArrivals("k", kWorld, arrivals);
    request.timeout = absl::Seconds(10);
    table_->Execute({session, 1}, std::move(request), now_);
  }

  std::vector<StoreRequest> Sent() {
    table_->Advance(now_);
    std::vector<StoreRequest> requests;
    std::string bytes;
    std::array<iovec, 16> parts;
    while (up_.HasOutput()) {
      size_t written = 0;
      for (size_t i = 0, count = up_.Gather(parts.data(), parts.size()); i < count; ++i) {
        bytes.append(static_cast<char*>(parts[i].iov_base), parts[i].iov_len);
        written += parts[i].iov_len;
      }
      up_.Wrote(written);
    }
    StoreFrameReader reader(kStoreRequestBytesMax);
    absl::string_view rest = bytes;
    while (!rest.empty()) {
      size_t used = 0;
      auto frame = reader.Feed(rest, &used);
      EXPECT_TRUE(frame.ok() && frame->has_value());
      requests.push_back(DecodeRequest(**frame).value());
      rest.remove_prefix(used);
    }
    return requests;
  }

  std::map<uint64_t, StoreReply> Answered(uint64_t id, const StoreReply& reply) {
    EXPECT_TRUE(up_.Receive(Bytes(EncodeReply(StoreOp::kGroup, id, reply))).ok());
    table_->Advance(now_);
    std::vector<StoreAnswer> answers;
    table_->TakeAnswers(answers);
    std::map<uint64_t, StoreReply> replies;
    for (StoreAnswer& answer : answers) {
      EXPECT_TRUE(replies.emplace(answer.ticket.session, std::move(answer.reply)).second);
    }
    return replies;
  }

  static StoreReply ReplyFor(const RankSet& ranks) {
    std::vector<std::string> values;
    for (int rank : ranks.ranks()) values.push_back(absl::StrCat("value ", rank));
    return EncodeExchanged(ranks, {values.begin(), values.end()});
  }

  absl::Time now_ = absl::UnixEpoch();
  StoreClientCore up_{{}, StoreHello()};
  std::unique_ptr<StoreRelayTable> table_;
};

TEST_F(StoreRelayTableTest, AsksAboveForWhatAnyOfItsRanksWants) {
  Start(/*files=*/true);
  Arrive(1, {0, 1}, RankSet({1, 8}));
  EXPECT_THAT(Sent(), testing::IsEmpty()) << "two ranks of four have come";
  Arrive(2, {2, 3}, RankSet({3, 8, 9}));
  std::vector<StoreRequest> sent = Sent();
  ASSERT_EQ(sent.size(), 1u);
  StoreArrivals arrivals = TakeArrivals(sent[0]).value();
  EXPECT_THAT(arrivals.ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(arrivals.values, ElementsAre("value 0", "value 1", "value 2", "value 3"));
  EXPECT_EQ(arrivals.wanted, RankSet({1, 3, 8, 9}));
  // A host's ranks share one answer.
  auto replies = Answered(sent[0].id, ReplyFor(arrivals.wanted));
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[1].body, replies[2].body);
  EXPECT_EQ(replies[1].shared, 2u);
}

TEST_F(StoreRelayTableTest, GivesEachRelayBelowItsOwnPart) {
  Start(/*files=*/false);
  Arrive(1, {0, 1}, RankSet({1, 8}));
  Arrive(2, {2, 3}, RankSet({3, 8, 9}));
  std::vector<StoreRequest> sent = Sent();
  ASSERT_EQ(sent.size(), 1u);
  // The root may give more than was asked for.
  auto replies = Answered(sent[0].id, ReplyFor(RankSet::Below(kWorld)));
  for (auto [session, wanted] : {std::pair(1, RankSet({1, 8})), {2, RankSet({3, 8, 9})}}) {
    StoreReply expected = ReplyFor(wanted);
    const StoreReply& reply = replies[static_cast<uint64_t>(session)];
    ASSERT_TRUE(reply.status.ok()) << reply.status;
    EXPECT_EQ(reply.values, expected.values);
    EXPECT_EQ(*reply.body, *expected.body);
  }
}

TEST_F(StoreRelayTableTest, AnAnswerThatLacksWhatWasWantedIsAnError) {
  Start(/*files=*/false);
  Arrive(1, {0, 1, 2, 3}, RankSet({1, 8}));
  auto replies = Answered(Sent().at(0).id, ReplyFor(RankSet({1})));
  EXPECT_EQ(replies[1].status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(replies[1].status.message()), HasSubstr("1 values for 1 ranks"));
}

TEST_F(StoreRelayTableTest, WhoWantsARankThatIsNoneFailsAlone) {
  Start(/*files=*/true);
  StoreRequest request;
  request.op = StoreOp::kExchange;
  request.keys = {"k"};
  request.rank = 0;
  request.size = kWorld;
  request.values = {"value", RankSet({kWorld}).Encode()};
  table_->Execute({1, 1}, std::move(request), now_);
  std::vector<StoreAnswer> answers;
  table_->TakeAnswers(answers);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].reply.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answers[0].reply.status.message()),
              HasSubstr("exchange 'k': malformed set of ranks"));
  now_ += absl::Seconds(1);
  EXPECT_THAT(Sent(), testing::IsEmpty());
}

}  // namespace
}  // namespace weft::collectives
