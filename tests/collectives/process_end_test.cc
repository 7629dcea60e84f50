#include "collectives/process_end.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/failure.h"

namespace weft::collectives {
namespace {

constexpr int kRank = 2;

ProcessEnd Killed(int signal) { return {.signal = signal}; }
ProcessEnd Exited(const std::string& cause, int status = 1) {
  return {.status = status, .cause = cause};
}

TEST(ProcessEnd, TextsAreReadBack) {
  const std::string killed = "was killed by signal 9 (SIGKILL)";
  EXPECT_EQ(ToText(Killed(9)), killed);
  EXPECT_EQ(ParseProcessEnd(killed).signal, 9);
  const std::string exited = "exited with status 3: weft-train: the disk: is full";
  EXPECT_EQ(ToText(Exited("weft-train: the disk: is full", 3)), exited);
  EXPECT_EQ(ParseProcessEnd(exited).status, 3);
  EXPECT_EQ(ParseProcessEnd(exited).cause, "weft-train: the disk: is full");
  EXPECT_EQ(ParseProcessEnd("exited with status 1").cause, "");
  for (const std::string other : {"", "exited with status", "was killed by signal x", "gone"}) {
    EXPECT_EQ(ToText(ParseProcessEnd(other)), other);
  }
}

TEST(ProcessEnd, ASignalFromOutsideIsNobodysFault) {
  for (const int signal : {9, 15, 2, 1}) {
    EXPECT_FALSE(IsSameFault(Killed(signal), Killed(signal), kRank)) << signal;
  }
  for (const int signal : {11, 6, 7, 8, 4}) {
    EXPECT_TRUE(IsSameFault(Killed(signal), Killed(signal), kRank)) << signal;
  }
  EXPECT_FALSE(IsSameFault(Killed(11), Killed(6), kRank));
}

TEST(ProcessEnd, ErrorsAreComparedByWhatTheySay) {
  EXPECT_TRUE(IsSameFault(Exited(""), Exited(""), kRank));
  EXPECT_TRUE(IsSameFault(Exited("the loss is nan"), Exited("the loss is nan"), kRank));
  EXPECT_TRUE(IsSameFault(Exited("pid 17: port 4711 is taken"),
                          Exited("pid 9124: port 81 is taken"), kRank));
  EXPECT_FALSE(IsSameFault(Exited("the loss is nan"), Exited("no memory"), kRank));
  EXPECT_FALSE(IsSameFault(Exited("the loss is nan"), Exited("the loss is nan", 3), kRank));
  EXPECT_FALSE(IsSameFault(Exited("the loss is nan"), Killed(11), kRank));
}

TEST(ProcessEnd, WhatOthersDidIsNoOwnFault) {
  const absl::Status gone = absl::UnavailableError("rank 3 is gone");
  auto end = [&](const Failure& failure) {
    return Exited(absl::StrCat("weft-train: ", DescribeFailure(WithFailure(gone, failure))));
  };
  for (const FailureScope scope :
       {FailureScope::kConnection, FailureScope::kPath, FailureScope::kDevice}) {
    EXPECT_FALSE(IsSameFault(end({.scope = scope}), end({.scope = scope}), kRank));
  }
  const Failure other{.scope = FailureScope::kProcess, .rank = 3};
  EXPECT_FALSE(IsSameFault(end(other), end(other), kRank));
  EXPECT_TRUE(IsSameFault(end(other), end(other), 3));
  const Failure request{.scope = FailureScope::kRequest};
  EXPECT_TRUE(IsSameFault(end(request), end(request), kRank));
}

TEST(ProcessEnd, CausesAreBoundedAndKeepTheirEnds) {
  const std::string line = "begins" + std::string(10'000, 'x') + "\x1b\n ends [process rank=1]";
  const std::string cause = CauseFrom(line);
  EXPECT_LT(cause.size(), 500U);
  EXPECT_EQ(cause.substr(0, 6), "begins");
  EXPECT_EQ(cause.substr(cause.size() - 16), "[process rank=1]");
  EXPECT_EQ(cause.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace weft::collectives
