#include "tools/driver/own_record.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/tools/driver/slow_store.h"

namespace weft::driver {
namespace {

constexpr char kKey[] = "driver/host/a";

class OwnRecordTest : public ::testing::Test {
 protected:
  static std::string Text(const OwnRecord& own, int beat) {
    return absl::StrCat("beat ", beat, " by ", own.token());
  }
  static absl::Status TakeSimply(OwnRecord& own) {
    return own.Take([&](absl::string_view) -> absl::StatusOr<std::string> { return Text(own, 0); });
  }

  SlowStore store_;
  std::string other_;
};

TEST_F(OwnRecordTest, AWriteThatRanOutOfTimeIsNotTakenForAnothersAlthoughItArrived) {
  OwnRecord own(&store_, kKey);
  ASSERT_TRUE(TakeSimply(own).ok());
  store_.LoseNext();
  EXPECT_TRUE(absl::IsDeadlineExceeded(own.ReplaceAny(Text(own, 1), &other_)));
  EXPECT_EQ(*store_.Get(kKey, absl::Seconds(1)), Text(own, 1));
  EXPECT_EQ(own.ReplaceAny(Text(own, 2), &other_), absl::OkStatus());
  EXPECT_EQ(*store_.Get(kKey, absl::Seconds(1)), Text(own, 2));
}

TEST_F(OwnRecordTest, AnOwnerDecidesAnewOnAWriteOfItsOwnThatItDidNotLearnOf) {
  OwnRecord own(&store_, kKey);
  ASSERT_TRUE(TakeSimply(own).ok());
  store_.LoseNext();
  EXPECT_TRUE(absl::IsDeadlineExceeded(own.Replace(Text(own, 1), &other_)));
  EXPECT_TRUE(absl::IsFailedPrecondition(own.Replace(Text(own, 2), &other_)));
  EXPECT_EQ(other_, Text(own, 1));
  EXPECT_EQ(*store_.Get(kKey, absl::Seconds(1)), Text(own, 1));
  EXPECT_EQ(own.Replace(Text(own, 2), &other_), absl::OkStatus());
}

TEST_F(OwnRecordTest, ARecordThatTheStoreHasLostIsNamed) {
  OwnRecord own(&store_, kKey);
  ASSERT_TRUE(TakeSimply(own).ok());
  ASSERT_TRUE(*store_.Delete(kKey));
  EXPECT_TRUE(absl::IsDataLoss(own.ReplaceAny(Text(own, 1), &other_)));
}

TEST_F(OwnRecordTest, AnOwnerWhosePlaceAnotherHasTakenChangesNothing) {
  OwnRecord first(&store_, kKey), second(&store_, kKey);
  ASSERT_TRUE(TakeSimply(first).ok());
  ASSERT_TRUE(TakeSimply(second).ok());
  EXPECT_TRUE(absl::IsAborted(first.Replace(Text(first, 1), &other_)));
  EXPECT_EQ(other_, Text(second, 0));
  EXPECT_TRUE(absl::IsAborted(first.ReplaceAny(Text(first, 1), &other_)));
  EXPECT_EQ(*store_.Get(kKey, absl::Seconds(1)), Text(second, 0));
  EXPECT_EQ(second.Replace(Text(second, 1), &other_), absl::OkStatus());
}

TEST_F(OwnRecordTest, OfTwoThatTakeARecordAtOnceTheSlowerOneSeesTheOther) {
  OwnRecord first(&store_, kKey), second(&store_, kKey);
  ASSERT_NE(first.token(), second.token());
  std::vector<std::string> seen;
  const absl::Status taken =
      first.Take([&](absl::string_view before) -> absl::StatusOr<std::string> {
        if (seen.empty()) {
          EXPECT_TRUE(TakeSimply(second).ok());
        }
        seen.emplace_back(before);
        return Text(first, 0);
      });
  EXPECT_EQ(taken, absl::OkStatus());
  EXPECT_EQ(seen, (std::vector<std::string>{"", Text(second, 0)}));
  EXPECT_TRUE(absl::IsAborted(second.Replace(Text(second, 1), &other_)));
}

}  // namespace
}  // namespace weft::driver
