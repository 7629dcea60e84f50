#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace weft {
namespace {

TEST(ErrnoStatus, HasTheCodeAndBothTexts) {
  absl::Status status = ErrnoStatus(ECONNREFUSED, "connect to 10.0.0.1:29500");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "connect to 10.0.0.1:29500: Connection refused");
}

TEST(Annotate, KeepsTheCodeAndPrecedesTheMessage) {
  absl::Status status = Annotate(absl::NotFoundError("no such key"), "rank 3");
  EXPECT_EQ(status, absl::NotFoundError("rank 3: no such key"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "rank 3").ok());
}

absl::Status PassOn(const absl::Status& status, int* reached) {
  WEFT_RETURN_IF_ERROR(status);
  ++*reached;
  return absl::OkStatus();
}

TEST(ReturnIfError, ReturnsAtOnceOrGoesOn) {
  int reached = 0;
  EXPECT_EQ(PassOn(absl::AbortedError("x"), &reached), absl::AbortedError("x"));
  EXPECT_EQ(reached, 0);
  EXPECT_TRUE(PassOn(absl::OkStatus(), &reached).ok());
  EXPECT_EQ(reached, 1);
}

absl::StatusOr<std::unique_ptr<int>> Make(absl::StatusOr<int> value) {
  WEFT_ASSIGN_OR_RETURN(int number, value);
  return std::make_unique<int>(number);
}

absl::StatusOr<int> Twice(absl::StatusOr<int> value) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<int> first, Make(value));  // move-only values
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<int> second, Make(std::move(value)));
  return *first + *second;
}

TEST(AssignOrReturn, MovesTheValueOrReturnsTheError) {
  EXPECT_EQ(*Twice(21), 42);
  EXPECT_EQ(Twice(absl::InternalError("y")).status(), absl::InternalError("y"));
}

TEST(CheckDeath, PrintsPlaceConditionAndOperands) {
  int a = 3;
  WEFT_CHECK(a == 3, "never printed");
  EXPECT_DEATH(WEFT_CHECK(a < 2, "a=" << a),
               "status_test.cc:[0-9]+: invariant broken: a < 2 \\(a=3\\)");
}

}  // namespace
}  // namespace weft
