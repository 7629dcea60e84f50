#include "base/median.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/time/time.h"

namespace weft {
namespace {

TEST(Median, OfAnOddNumberIsTheOneInTheMiddle) {
  EXPECT_EQ(UpperMedian(std::vector<int>{9, 1, 5}), 5);
  EXPECT_EQ(LowerMedian(std::vector<int>{9, 1, 5}), 5);
  EXPECT_EQ(UpperMedian(std::vector<int>{7}), 7);
  EXPECT_EQ(LowerMedian(std::vector<int>{7}), 7);
}

TEST(Median, OfAnEvenNumberIsEitherOfTheTwoInTheMiddle) {
  EXPECT_EQ(UpperMedian(std::vector<double>{4, 1, 3, 2}), 3);
  EXPECT_EQ(LowerMedian(std::vector<double>{4, 1, 3, 2}), 2);
  EXPECT_EQ(UpperMedian(std::vector<double>{2, 1}), 2);
  EXPECT_EQ(LowerMedian(std::vector<double>{2, 1}), 1);
}

TEST(Median, OfNothingIsNothing) {
  EXPECT_EQ(UpperMedian(std::vector<double>{}), 0);
  EXPECT_EQ(LowerMedian(std::vector<absl::Duration>{}), absl::ZeroDuration());
}

TEST(Median, LeavesTheValuesOfItsCallerAsTheyAre) {
  const std::vector<int> values{3, 1, 2};
  EXPECT_EQ(UpperMedian(values), 2);
  EXPECT_EQ(values, (std::vector<int>{3, 1, 2}));
}

TEST(NthValue, HasThatManyBelowIt) {
  EXPECT_EQ(NthValue(std::vector<int>{30, 10, 20, 40}, 0), 10);
  EXPECT_EQ(NthValue(std::vector<int>{30, 10, 20, 40}, 3), 40);
}

}  // namespace
}  // namespace weft
