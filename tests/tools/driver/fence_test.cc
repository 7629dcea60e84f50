#include "tools/driver/fence.h"

#include <gtest/gtest.h>

namespace weft::driver {
namespace {

constexpr absl::Duration kLease = absl::Seconds(5);
constexpr absl::Duration kStep = absl::Milliseconds(300);

// A host that reached its driver at `contact_` for the last time.
class FenceTest : public ::testing::Test {
 protected:
  // So many seconds, in each of which the ranks do so many steps and hear so many bytes.
  void Pass(int seconds, int steps, uint64_t bytes) {
    for (int second = 0; second < seconds; ++second) {
      now_ += absl::Seconds(1);
      step_ += steps;
      bytes_ += bytes;
      fence_.Observe(now_, bytes_, step_, step_time_);
    }
  }
  bool MustEnd() const { return fence_.MustEnd(now_, contact_, kLease); }

  const absl::Time contact_ = absl::FromUnixSeconds(1000);
  absl::Time now_ = contact_;
  int64_t step_ = -1;
  absl::Duration step_time_ = kStep;
  uint64_t bytes_ = 0;
  Fence fence_;
};

TEST_F(FenceTest, RanksThatStepAndHearFromOtherNodesOutlastADriverThatIsAway) {
  Pass(60, 3, 1000);
  EXPECT_FALSE(MustEnd());
}

TEST_F(FenceTest, RanksOfWhichNothingIsKnownEndWithTheLease) {
  Pass(5, 0, 0);
  EXPECT_FALSE(MustEnd());
  Pass(1, 0, 0);
  EXPECT_TRUE(MustEnd());
}

// As one whose peers have gone on with others in its place.
TEST_F(FenceTest, RanksThatNobodyTalksToEndALeaseLater) {
  Pass(60, 3, 1000);
  Pass(5, 0, 0);
  EXPECT_FALSE(MustEnd());
  Pass(1, 0, 0);
  EXPECT_TRUE(MustEnd());
}

// Some hosts on one side of a cut talk with each other still, but a step needs all.
TEST_F(FenceTest, RanksThatTalkButDoNoStepEnd) {
  Pass(60, 3, 1000);
  Pass(6, 0, 1000);
  EXPECT_TRUE(MustEnd());
}

// They may be all that there is to the program, with others in their place elsewhere.
TEST_F(FenceTest, RanksThatStepButHearFromNoOtherNodeEnd) {
  Pass(60, 3, 0);
  EXPECT_TRUE(MustEnd());
}

TEST_F(FenceTest, AStepThatTakesLongerThanTheLeaseEndsNobody) {
  step_time_ = absl::Seconds(20);
  for (int step = 0; step < 3; ++step) {
    Pass(19, 0, 1000);
    Pass(1, 1, 1000);
  }
  Pass(40, 0, 1000);
  EXPECT_FALSE(MustEnd());
  Pass(21, 0, 1000);
  EXPECT_TRUE(MustEnd());
}

TEST_F(FenceTest, StepsThatAreDoneAgainAfterARestartProveNothing) {
  Pass(60, 3, 1000);
  step_ = 0;
  Pass(6, 0, 1000);
  EXPECT_TRUE(MustEnd());
}

}  // namespace
}  // namespace weft::driver
