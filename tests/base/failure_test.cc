#include "base/failure.h"

#include <gtest/gtest.h>

#include <string>

#include "base/status.h"

namespace weft {
namespace {

TEST(Failure, WhatTheLowestLevelSaidStaysAndTheRestIsAdded) {
  absl::Status status = WithFailure(absl::UnavailableError("mlx5_0 has failed"),
                                    {.scope = FailureScope::kDevice, .device = "mlx5_0"});
  status = Annotate(status, "rank 2 is gone");
  status = WithFailure(status, {.scope = FailureScope::kConnection, .rank = 2, .device = "other"});
  const Failure expected{.scope = FailureScope::kDevice, .rank = 2, .device = "mlx5_0"};
  EXPECT_EQ(FailureOf(status), expected);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DescribeFailure(status),
            "rank 2 is gone: mlx5_0 has failed [device rank=2 device=mlx5_0]");
}

TEST(Failure, NothingIsSaidOfAStatusThatCarriesNothing) {
  EXPECT_EQ(FailureOf(absl::OkStatus()), Failure{});
  EXPECT_TRUE(WithFailure(absl::OkStatus(), {.scope = FailureScope::kPath}).ok());
  EXPECT_EQ(DescribeFailure(absl::InternalError("no")), "no");
}

TEST(Failure, TextAndBack) {
  for (const Failure& failure : {Failure{}, Failure{FailureScope::kRequest, 7, "", ""},
                                 Failure{FailureScope::kPath, 0, "eth0", "10.0.0.2:49152"},
                                 Failure{FailureScope::kProcess, 12287, "", ""}}) {
    EXPECT_EQ(ParseFailure(ToText(failure)), failure) << ToText(failure);
  }
  EXPECT_EQ(ToText({.scope = FailureScope::kDevice, .device = "a b"}), "device device=a_b");
}

TEST(Failure, WhatIsNoFailureIsUnknown) {
  for (const char* text : {"", "procass", "process rank=-1", "process rank=x",
                           "process rank=", "process what=1", "process  rank=1"}) {
    EXPECT_EQ(ParseFailure(text), Failure{}) << text;
  }
  EXPECT_EQ(ParseFailure("process device=" + std::string(300, 'x')), Failure{});
}

}  // namespace
}  // namespace weft
