#include "tools/observe/simulate_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::observe {
namespace {

using testing::SizeIs;

// Whoever it is and wherever in the step: the one cause among hundreds that wait.
TEST(SimulateWaits, LeavesAJobWhoseCauseIsNamed) {
  for (const SimulatedFault fault :
       {SimulatedFault::kHang, SimulatedFault::kStuckFlow, SimulatedFault::kSlow}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const auto job = SimulateWaits(256, fault, seed);
      ASSERT_TRUE(job.ok()) << job.status();
      const std::vector<Finding> findings = Diagnose(job->view);
      ASSERT_THAT(findings, SizeIs(1)) << static_cast<int>(fault) << " seed " << seed;
      EXPECT_EQ(findings[0].fault, job->fault) << static_cast<int>(fault) << " seed " << seed;
      EXPECT_EQ(findings[0].culprits, job->culprits) << static_cast<int>(fault) << " seed " << seed;
    }
  }
}

TEST(SimulateWaits, RefusesWhatIsNoSuchJob) {
  EXPECT_FALSE(SimulateWaits(100, SimulatedFault::kHang, 1).ok());
  EXPECT_FALSE(SimulateWaits(0, SimulatedFault::kHang, 1).ok());
}

}  // namespace
}  // namespace weft::observe
