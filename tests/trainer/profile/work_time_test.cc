// Kinds of work share out the time of a thread, and nothing of it twice.
#include "trainer/profile/work_time.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

#include "base/clock.h"

namespace weft::train {
namespace {

constexpr int64_t kSpin = 200'000;  // ns

double SecondsOf(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

void Spin() {
  const int64_t start = SystemClock::Nanoseconds();
  while (SystemClock::Nanoseconds() - start < kSpin) {
  }
}

TEST(WorkTime, KindsAddUpToWhatHasPassed) {
  const int64_t before = SystemClock::Nanoseconds();
  TakeWorkSeconds();
  const int64_t begin = SystemClock::Nanoseconds();
  {
    const WorkScope loss(Work::kLoss);
    Spin();
    const WorkScope gemm(Work::kGemm);
    Spin();
  }
  Spin();
  const int64_t end = SystemClock::Nanoseconds();
  const WorkSeconds seconds = TakeWorkSeconds();
  const int64_t after = SystemClock::Nanoseconds();
  EXPECT_GE(seconds.total(), SecondsOf(end - begin) - 1e-9);
  EXPECT_LE(seconds.total(), SecondsOf(after - before) + 1e-9);
  for (Work work : {Work::kLoss, Work::kGemm, Work::kRest}) {
    EXPECT_GE(seconds[work], SecondsOf(kSpin)) << NameOf(work);
  }
  EXPECT_EQ(seconds[Work::kAttention], 0);
}

TEST(WorkTime, AnInnerScopesTimeIsNotTheOuterOnes) {
  TakeWorkSeconds();
  const int64_t before = SystemClock::Nanoseconds();
  {
    const WorkScope outer(Work::kOptimizer);
    const WorkScope inner(Work::kCommunication);
    Spin();
  }
  const int64_t after = SystemClock::Nanoseconds();
  const WorkSeconds seconds = TakeWorkSeconds();
  EXPECT_GE(seconds[Work::kCommunication], SecondsOf(kSpin));
  EXPECT_LE(seconds[Work::kOptimizer], SecondsOf(after - before - kSpin) + 1e-9);
}

TEST(WorkTime, WhatWasTakenIsGone) {
  { const WorkScope scope(Work::kData); }
  TakeWorkSeconds();
  EXPECT_EQ(TakeWorkSeconds()[Work::kData], 0);
}

TEST(WorkTime, AnotherThreadsScopesAreItsOwn) {
  TakeWorkSeconds();
  std::thread([] {
    const WorkScope scope(Work::kAttention);
    Spin();
  }).join();
  EXPECT_EQ(TakeWorkSeconds()[Work::kAttention], 0);
}

TEST(WorkTime, EachKindHasItsName) {
  std::set<std::string> names;
  for (size_t kind = 0; kind < kWorkKinds; ++kind) names.insert(NameOf(static_cast<Work>(kind)));
  EXPECT_EQ(names.size(), kWorkKinds);
}

}  // namespace
}  // namespace weft::train
