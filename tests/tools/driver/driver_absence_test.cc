#include "tools/driver/driver_absence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::driver {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLease = absl::Seconds(5);

// A host that reached its driver at `contact_` for the last time.
class DriverAbsenceTest : public ::testing::Test {
 protected:
  DriverAbsence::Answer Look(DriverAbsence& absence) {
    return absence.Look(now_, contact_, kLease, has_ranks_);
  }
  // So many seconds, in each of which the ranks do a step and hear from other nodes.
  void Step(DriverAbsence& absence, int seconds) {
    for (int second = 0; second < seconds; ++second) {
      now_ += absl::Seconds(1);
      absence.fence().Observe(now_, bytes_ += 1000, ++step_, absl::Seconds(1));
    }
  }

  absl::Time contact_ = absl::FromUnixSeconds(1000);
  absl::Time now_ = contact_;
  bool has_ranks_ = true;
  uint64_t bytes_ = 0;
  int64_t step_ = -1;
  DriverAbsence absence_{"store:1", absl::Minutes(1), /*is_alone=*/false};
};

TEST_F(DriverAbsenceTest, RanksThatMustEndAreEndedOnceInEachAbsence) {
  EXPECT_FALSE(Look(absence_).must_end);
  now_ += absl::Seconds(6);
  const DriverAbsence::Answer answer = Look(absence_);
  EXPECT_TRUE(answer.must_end);
  EXPECT_THAT(answer.text, HasSubstr("the store at store:1 was not reached for 5s"));
  now_ += absl::Seconds(1);
  EXPECT_FALSE(Look(absence_).must_end);
  EXPECT_THAT(Look(absence_).text, IsEmpty());
  contact_ = now_;
  EXPECT_FALSE(Look(absence_).must_end);
  now_ += absl::Seconds(6);
  EXPECT_TRUE(Look(absence_).must_end);
}

TEST_F(DriverAbsenceTest, AHostWithoutRanksSaysNothing) {
  has_ranks_ = false;
  now_ += absl::Seconds(6);
  const DriverAbsence::Answer answer = Look(absence_);
  EXPECT_FALSE(answer.must_end);
  EXPECT_THAT(answer.text, IsEmpty());
}

TEST_F(DriverAbsenceTest, RanksThatGoOnAreSaidSoOnceAndEndWhereTheyStopDoingSo) {
  Step(absence_, 6);
  const DriverAbsence::Answer answer = Look(absence_);
  EXPECT_FALSE(answer.must_end);
  EXPECT_THAT(answer.text, HasSubstr("they do steps with those of other nodes"));
  EXPECT_THAT(answer.text, HasSubstr("it may take 1m to come back"));
  Step(absence_, 1);
  EXPECT_THAT(Look(absence_).text, IsEmpty());
  now_ += absl::Seconds(6);
  EXPECT_TRUE(Look(absence_).must_end);
}

TEST_F(DriverAbsenceTest, RanksThatAreAllOfTheJobBesideItsDriverGoOn) {
  DriverAbsence alone("store:1", absl::Minutes(1), /*is_alone=*/true);
  now_ += absl::Minutes(10);
  const DriverAbsence::Answer answer = Look(alone);
  EXPECT_FALSE(answer.must_end);
  EXPECT_THAT(answer.text, HasSubstr("they are all of the job"));
}

}  // namespace
}  // namespace weft::driver
