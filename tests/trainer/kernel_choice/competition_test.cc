// The turns of a competition, whatever the clock says.
#include "trainer/kernel_choice/competition.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace weft::train {
namespace {

// Whose turns come one behind the other, beginning with the two runs beforehand; neighbouring turns
// of one contender are one letter.
std::string Turns(const Deadlines& deadlines) {
  std::string turns;
  const auto run = [&turns](char name) {
    if (turns.empty() || turns.back() != name) turns += name;
  };
  std::vector<Contender> contenders = {{.run = [&] { run('a'); }}, {.run = [&] { run('b'); }}};
  Compete(contenders, deadlines);
  for (const Contender& each : contenders) {
    EXPECT_GT(each.best, 0);
    EXPECT_GE(each.next, each.best);
    EXPECT_TRUE(std::isfinite(each.next));
  }
  return turns;
}

TEST(CompeteTest, BehindTheDeadlineOfTheTrialThereIsOneRound) {
  EXPECT_EQ(Turns({.own = 0, .all = 0}), "abab");
}

// ab beforehand, then ab, ba, ab.
TEST(CompeteTest, BehindTheDeadlineOfAProductThereAreThreeRoundsEachInTheOtherOrder) {
  EXPECT_EQ(Turns({.own = 0, .all = WallSeconds() + 1e6}), "ababab");
}

}  // namespace
}  // namespace weft::train
