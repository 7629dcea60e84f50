// What a relay makes of its clients' requests and of the answers to them, without sockets.
#include "collectives/store/relay/store_relay_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <iterator>
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
    table_ = std::make_unique<StoreRelayTable>(up_.get(), options);
    Greet();
    (void)Sent();
  }

  void Greet() {
    up_->Connected(/*local=*/true);
    StoreReply hello;
    auto body = std::make_shared<std::string>();
    AppendValue(*body, std::string(kStoreIdBytes, 's'));
    AppendValue(*body, "root");
    hello.values = 2;
    hello.body = std::move(body);
    ASSERT_TRUE(up_->Receive(Bytes(EncodeReply(StoreOp::kHello, 0, hello))).ok());
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
    while (up_->HasOutput()) {
      size_t written = 0;
      for (size_t i = 0, count = up_->Gather(parts.data(), parts.size()); i < count; ++i) {
        bytes.append(static_cast<char*>(parts[i].iov_base), parts[i].iov_len);
        written += parts[i].iov_len;
      }
      up_->Wrote(written);
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
    EXPECT_TRUE(up_->Receive(Bytes(EncodeReply(StoreOp::kGroup, id, reply))).ok());
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

  // The values of a reply, encoded, wherever they are.
  static std::string TextOf(const StoreReply& reply) {
    if (reply.file == nullptr) return reply.body == nullptr ? "" : *reply.body;
    std::string text(reply.file_bytes + 1, '\0');  // one more than there may be
    const ssize_t got = pread(reply.file->get(), text.data(), text.size(), 0);
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return text;
  }

  static size_t OpenFiles() {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }

  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<StoreClientCore> up_ =
      std::make_unique<StoreClientCore>(net::JobSecret{}, StoreHello());
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

// The root answers again, under the same number, on the next connection.
TEST_F(StoreRelayTableTest, AnAnswerThatWasCutOffIsTakenAnew) {
  const RankSet all = RankSet::Below(kWorld);
  const auto reply_of = [&](size_t size) {
    std::vector<std::string> values;
    for (int rank : all.ranks()) values.emplace_back(size, static_cast<char>('a' + rank));
    return EncodeExchanged(all, {values.begin(), values.end()});
  };
  for (const bool files : {false, true}) {
    // The second answer may be another than the first, and short.
    for (const size_t size : {2500, 1500, 20}) {
      SCOPED_TRACE(absl::StrCat("files ", files, ", values of ", size));
      up_ = std::make_unique<StoreClientCore>(net::JobSecret{}, StoreHello());
      Start(files);
      Arrive(1, {0, 1, 2, 3}, all);
      const uint64_t id = Sent().at(0).id;
      const std::string first = Bytes(EncodeReply(StoreOp::kGroup, id, reply_of(2500)));
      ASSERT_TRUE(up_->Receive(first.substr(0, first.size() / 2)).ok());
      up_->Lost();
      Greet();
      EXPECT_EQ(Sent().back().id, id) << "after the hello";
      const StoreReply expected = reply_of(size);
      const StoreReply reply = Answered(id, expected)[1];
      ASSERT_TRUE(reply.status.ok()) << reply.status;
      EXPECT_EQ(reply.values, expected.values);
      EXPECT_TRUE(TextOf(reply) == *expected.body);
    }
  }
}

TEST_F(StoreRelayTableTest, AnAnswerThatNobodyWaitsForIsNotKept) {
  Start(/*files=*/true);
  const auto ask = [&](uint64_t request) {
    StoreRequest get;
    get.op = StoreOp::kGet;
    get.keys = {"k"};
    table_->Execute({1, request}, std::move(get), now_);
    return Sent().at(0).id;
  };
  StoreReply large;
  large.values = 1;
  large.body = std::make_shared<const std::string>(EncodeValue(std::string(9000, 'v')));
  const size_t before = OpenFiles();
  // It goes away before the answer comes, and while it comes.
  for (const size_t half : {size_t{0}, size_t{4500}}) {
    const uint64_t id = ask(1 + half);
    const std::string bytes = Bytes(EncodeReply(StoreOp::kGet, id, large));
    ASSERT_TRUE(up_->Receive(bytes.substr(0, half)).ok());
    table_->Forget({1, 1 + half});
    ASSERT_TRUE(up_->Receive(bytes.substr(half)).ok());
    table_->Advance(now_);
    EXPECT_EQ(OpenFiles(), before);
  }
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
