#include "trainer/loop/recovery_phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<RecoveryPhase> Names(const RecoveryPhases& phases) {
  std::vector<RecoveryPhase> names;
  for (const auto& [phase, _] : phases.Milliseconds()) names.push_back(phase);
  return names;
}

class RecoveryPhasesTest : public ::testing::Test {
 protected:
  ~RecoveryPhasesTest() override {
    for (const char* name : {"RANK", "WEFT_GENERATION", "WEFT_GENERATION_NS", "WEFT_LAST_END_NS"}) {
      unsetenv(name);
    }
  }
  // A process that was started 3 ms after the end of the one before, and has loaded in 40 ms.
  RecoveryPhases Started(bool is_spare, bool knows_end = true) {
    const int64_t now = SystemClock::Nanoseconds();
    setenv("RANK", "2", 1);
    setenv("WEFT_GENERATION", "1", 1);
    setenv("WEFT_GENERATION_NS", absl::StrCat(now - 40'000'000).c_str(), 1);
    if (knows_end) setenv("WEFT_LAST_END_NS", absl::StrCat(now - 43'000'000).c_str(), 1);
    return RecoveryPhases::FromEnvironment(now, is_spare);
  }
};

TEST_F(RecoveryPhasesTest, AProcessThatNoneWasBeforeTellsNothing) {
  RecoveryPhases phases = RecoveryPhases::FromEnvironment(SystemClock::Nanoseconds(), false);
  phases.Note(RecoveryPhase::kMeet);
  EXPECT_FALSE(phases.is_pending());
  EXPECT_EQ(phases.ToText(), "");
  EXPECT_FALSE(RecoveryPhases::FromText("")->is_pending());
}

TEST_F(RecoveryPhasesTest, PhasesCountFromTheEndThatTheLauncherSawAndReachRankZero) {
  RecoveryPhases phases = Started(/*is_spare=*/true);
  phases.Note(RecoveryPhase::kMeet);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  phases.Note(RecoveryPhase::kJoin);
  const absl::StatusOr<RecoveryPhases> told = RecoveryPhases::FromText(phases.ToText());
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->rank(), 2);
  EXPECT_TRUE(told->is_spare());
  EXPECT_THAT(Names(*told), ElementsAre(RecoveryPhase::kStart, RecoveryPhase::kLoad,
                                        RecoveryPhase::kMeet, RecoveryPhase::kJoin));
  const auto took = told->Milliseconds();
  EXPECT_NEAR(took[0].second, 3, 1e-6);
  EXPECT_NEAR(took[1].second, 40, 1e-6);
  EXPECT_GE(took[3].second, 5);
  EXPECT_THAT(told->Sentence(), HasSubstr("rank 2 (generation 1) is back"));
  EXPECT_THAT(told->Sentence(), HasSubstr("start 3, load 40 (spare process), meet"));
}

// The process before it was on a host that is lost.
TEST_F(RecoveryPhasesTest, WhereNobodySawTheEndPhasesCountFromTheStart) {
  const RecoveryPhases phases = Started(/*is_spare=*/false, /*knows_end=*/false);
  EXPECT_NEAR(phases.Milliseconds()[0].second, 0, 1e-6);
  EXPECT_NEAR(phases.Milliseconds()[1].second, 40, 1e-6);
}

TEST_F(RecoveryPhasesTest, PhasesThatCameToNothingAreCountedInTheOnesDoneAgain) {
  RecoveryPhases phases = Started(false);
  for (const auto phase : {RecoveryPhase::kMeet, RecoveryPhase::kJoin, RecoveryPhase::kBuild,
                           RecoveryPhase::kMeet, RecoveryPhase::kJoin}) {
    phases.Note(phase);
  }
  EXPECT_THAT(Names(phases), ElementsAre(RecoveryPhase::kStart, RecoveryPhase::kLoad,
                                         RecoveryPhase::kMeet, RecoveryPhase::kJoin));
}

TEST_F(RecoveryPhasesTest, TextThatIsNoneOfOursIsRefused) {
  for (const char* text : {"x", "1 2 3", "1 2 3 4 9 5", "1 2 3 4 -1 5", "1 2 3 4 5"}) {
    EXPECT_TRUE(absl::IsDataLoss(RecoveryPhases::FromText(text).status())) << text;
  }
}

}  // namespace
}  // namespace weft::train
