// weft-init on a GPU: real communicators from unique ids, by ncclCommInitRankScalable and
// ncclCommSplit where NCCL has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/run_program.h"

namespace weft::init {
namespace {

using testing::HasSubstr;

constexpr int kUnavailable = 3;

TEST(WeftInitGpuTest, EveryGroupsCommunicatorAddsUpItsRanks) {
  // An id a rank, so that a group of two has two.
  weft::Outcome outcome = RunProgram("weft-init nccl --layout tp2,dp2 --ranks-per-root 1");
  if (outcome.status == kUnavailable) GTEST_SKIP() << outcome.output;
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("a communicator of all ranks"));
}

}  // namespace
}  // namespace weft::init
