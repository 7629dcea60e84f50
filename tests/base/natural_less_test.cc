#include "base/natural_less.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(NaturalLessTest, RunsOfDigitsAreNumbers) {
  EXPECT_TRUE(NaturalLess("h2", "h10"));
  EXPECT_FALSE(NaturalLess("h10", "h2"));
  EXPECT_TRUE(NaturalLess("mlx5_2", "mlx5_10"));
  EXPECT_TRUE(NaturalLess("h99999999999999999999", "h100000000000000000000"));
}

TEST(NaturalLessTest, WhatIsShorterComesFirst) { EXPECT_TRUE(NaturalLess("h2", "h2-ib")); }

TEST(NaturalLessTest, DifferentNamesAreNeverEqual) {
  EXPECT_TRUE(NaturalLess("h01", "h1") != NaturalLess("h1", "h01"));
  EXPECT_FALSE(NaturalLess("h1", "h1"));
}

}  // namespace
}  // namespace weft
