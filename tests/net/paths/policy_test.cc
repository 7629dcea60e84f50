#include "net/paths/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "net/paths/plb.h"
#include "net/paths/reps.h"

namespace weft::net {
namespace {

const absl::Time kStart = absl::UnixEpoch();

PathSetOptions Paths(int count) {
  PathSetOptions options;
  options.paths = count;
  return options;
}

PathAck AckOf(PathId path, bool marked = false, absl::Time now = kStart) {
  return {.now = now,
          .path = path,
          .rtt = absl::Microseconds(10),
          .marked = marked,
          .bytes = Bytes(4096)};
}

class PolicyTest : public testing::TestWithParam<PolicyKind> {
 protected:
  std::unique_ptr<PathPolicy> Make(int paths) {
    return MakePolicy({.kind = GetParam(), .seed = 5, .window = Bytes(16 * 4096)}, paths);
  }
};

TEST_P(PolicyTest, NeverTakesAPathThatWasLeftWhileOthersLive) {
  PathSet paths(Paths(8));
  auto policy = Make(8);
  for (PathId dead : {0, 1, 2, 4, 5, 7}) paths.Leave(dead, kStart);
  for (int i = 0; i < 1000; ++i) {
    PathId path = policy->Choose(paths, kStart);
    ASSERT_TRUE(path == 3 || path == 6) << path;
    policy->OnAck(AckOf(path, i % 7 == 0));
    // Late news of paths that were left since.
    policy->OnAck(AckOf(static_cast<PathId>(i % 8)));
    policy->OnLoss(static_cast<PathId>(i % 8), PathLoss::kTimeout, kStart);
  }
}

TEST_P(PolicyTest, UsesAnythingOnceAllAreLeft) {
  PathSet paths(Paths(3));
  auto policy = Make(3);
  for (PathId path = 0; path < 3; ++path) paths.Leave(path, kStart);
  for (int i = 0; i < 100; ++i) ASSERT_LT(policy->Choose(paths, kStart), 3);
}

TEST_P(PolicyTest, SameSeedSamePaths) {
  PathSet paths(Paths(16));
  auto a = Make(16), b = Make(16);
  for (int i = 0; i < 200; ++i) {
    PathId path = a->Choose(paths, kStart);
    ASSERT_EQ(path, b->Choose(paths, kStart));
    a->OnAck(AckOf(path));
    b->OnAck(AckOf(path));
  }
}

INSTANTIATE_TEST_SUITE_P(All, PolicyTest, testing::ValuesIn(AllPolicies()), [](const auto& info) {
  std::string name(ToString(info.param));
  std::erase(name, '-');
  return name;
});

TEST(PathSetTest, LeavesOnceProbesWithDoublingIntervalsAndComesBack) {
  PathSet paths(Paths(4));
  EXPECT_TRUE(paths.Leave(2, kStart));
  EXPECT_FALSE(paths.Leave(2, kStart));
  EXPECT_EQ(paths.live(), 3);
  absl::Time now = kStart;
  for (int us : {200, 400, 800, 1600}) {
    EXPECT_EQ(paths.deadline(), now + absl::Microseconds(us));
    EXPECT_FALSE(paths.NextProbe(now).has_value());
    now = paths.deadline();
    EXPECT_EQ(paths.NextProbe(now), PathId{2});
    EXPECT_FALSE(paths.NextProbe(now).has_value()) << "once each time";
  }
  EXPECT_TRUE(paths.OnAck(2, absl::Microseconds(10)));
  EXPECT_TRUE(paths.IsLive(2));
  EXPECT_EQ(paths.deadline(), absl::InfiniteFuture());
}

TEST(PathSetTest, ASlowPathIsTakenOnlyBesideAnother) {
  PathSetOptions options{.paths = 2, .slow_factor = 2};
  PathSet paths(options);
  paths.OnAck(0, absl::Milliseconds(5));
  paths.OnAck(1, absl::Microseconds(10));
  ASSERT_TRUE(paths.IsSlow(0));
  EXPECT_FALSE(paths.IsUsable(0)) << "the faster one is idle";
  EXPECT_TRUE(paths.IsUsable(1));
  paths.OnSent(1, 1000);
  EXPECT_TRUE(paths.IsUsable(0));
  paths.OnSent(0, 1000);
  EXPECT_FALSE(paths.IsUsable(0)) << "one packet at a time";
  paths.OnResolved(0, 1000);
  paths.OnResolved(1, 1000);
  EXPECT_FALSE(paths.IsUsable(0));
}

TEST(RoundRobinTest, FollowsTheWeights) {
  PathSetOptions options = Paths(3);
  options.weights = {4, 2, 1};  // rails of 400, 200 and 100 Gb/s
  PathSet paths(options);
  auto policy = MakePolicy({.kind = PolicyKind::kRoundRobin}, 3);
  std::map<PathId, int> count;
  for (int i = 0; i < 700; ++i) ++count[policy->Choose(paths, kStart)];
  EXPECT_EQ(count[0], 400);
  EXPECT_EQ(count[1], 200);
  EXPECT_EQ(count[2], 100);
}

TEST(TwoChoicesTest, PrefersShorterRoundTrips) {
  PathSet paths(Paths(2));
  for (int i = 0; i < 20; ++i) {
    paths.OnAck(0, absl::Microseconds(10));
    paths.OnAck(1, absl::Microseconds(50));
  }
  auto policy = MakePolicy({.kind = PolicyKind::kTwoChoices}, 2);
  int slow = 0;
  for (int i = 0; i < 1000; ++i) slow += policy->Choose(paths, kStart);
  EXPECT_NEAR(slow, 250, 60) << "only when both draws are the slow one";
}

// The smoothed round trip of a path that is used now and then tells of queues that are long gone.
TEST(TwoChoicesTest, BelievesTheNewestRoundTrip) {
  PathSet paths(Paths(2));
  for (int i = 0; i < 20; ++i) {
    paths.OnAck(0, absl::Microseconds(10));
    paths.OnAck(1, absl::Microseconds(50));
  }
  paths.OnAck(0, absl::Microseconds(20));
  paths.OnAck(1, absl::Microseconds(15));
  ASSERT_LT(paths.rtt(0), paths.rtt(1));
  auto policy = MakePolicy({.kind = PolicyKind::kTwoChoices}, 2);
  int second = 0;
  for (int i = 0; i < 1000; ++i) second += policy->Choose(paths, kStart);
  EXPECT_NEAR(second, 750, 60) << "but when both draws are the first";
}

TEST(TwoChoicesTest, CountsWhatIsOnItsWay) {
  PathSet paths(Paths(2));
  for (PathId path : {PathId{0}, PathId{1}}) paths.OnAck(path, absl::Microseconds(10));
  auto policy = MakePolicy({.kind = PolicyKind::kTwoChoices}, 2);
  paths.OnSent(0, 1000);  // nothing of it is heard yet
  int second = 0;
  for (int i = 0; i < 1000; ++i) second += policy->Choose(paths, kStart);
  EXPECT_NEAR(second, 750, 60);
  EXPECT_EQ(paths.ExpectedRtt(0), absl::Microseconds(20));
  paths.OnResolved(0, 1000);
  EXPECT_EQ(paths.ExpectedRtt(0), absl::Microseconds(10));
}

TEST(RepsTest, RecyclesTheOldestUnmarkedPathAndSpendsIt) {
  PathSet paths(Paths(1000));
  Reps reps(1, 0, absl::Milliseconds(1));
  reps.OnAck(AckOf(7));
  reps.OnAck(AckOf(8, true));  // marked: forgotten
  reps.OnAck(AckOf(9));
  EXPECT_EQ(reps.Choose(paths, kStart), 7);
  EXPECT_EQ(reps.Choose(paths, kStart), 9);
  std::set<PathId> drawn;
  for (int i = 0; i < 50; ++i) drawn.insert(reps.Choose(paths, kStart));
  EXPECT_GT(drawn.size(), 40U) << "nothing cached: at random";
}

TEST(RepsTest, ATimeoutFreezesToTheCachedPaths) {
  PathSet paths(Paths(1000));
  Reps reps(1, 0, absl::Milliseconds(1));
  for (PathId path = 100; path < 108; ++path) reps.OnAck(AckOf(path));
  for (int i = 0; i < 8; ++i) reps.Choose(paths, kStart);
  reps.OnLoss(500, PathLoss::kTimeout, kStart);
  std::set<PathId> used;
  for (int i = 0; i < 64; ++i) used.insert(reps.Choose(paths, kStart));
  EXPECT_EQ(used.size(), 8U);
  EXPECT_EQ(*used.begin(), 100);
  absl::Time thawed = kStart + absl::Milliseconds(1);
  std::set<PathId> explored;
  for (int i = 0; i < 16; ++i) explored.insert(reps.Choose(paths, thawed));
  EXPECT_GT(explored.size(), 8U);
}

TEST(PenaltyTest, PassesOverAPathAsOftenAsItsPenaltySays) {
  PathSet paths(Paths(4));
  auto policy = MakePolicy({.kind = PolicyKind::kPenalty}, 4);
  policy->OnLoss(2, PathLoss::kTrimmed, kStart);
  std::map<PathId, int> count;
  for (int i = 0; i < 4 * 3; ++i) ++count[policy->Choose(paths, kStart)];
  EXPECT_EQ(count[2], 0) << "four rounds pay it off";
  for (int i = 0; i < 4 * 10; ++i) ++count[policy->Choose(paths, kStart)];
  EXPECT_GE(count[2], 9);
}

TEST(PlbTest, MovesAfterThreeCongestedRoundsInARow) {
  PathSet paths(Paths(64));
  Plb plb(1, 64, absl::Microseconds(10));
  PathId first = plb.Choose(paths, kStart);
  absl::Time now = kStart;
  auto round = [&](bool marked) {
    now += absl::Microseconds(11);
    plb.OnAck(AckOf(plb.Choose(paths, now), marked, now));
  };
  for (int i = 0; i < 10; ++i) {
    round(true);
    round(true);
    round(false);
  }
  EXPECT_EQ(plb.Choose(paths, now), first);
  for (int i = 0; i < 3; ++i) round(true);
  EXPECT_NE(plb.Choose(paths, now), first);
}

TEST(PlbTest, MovesAtOnceOnATimeout) {
  PathSet paths(Paths(64));
  Plb plb(1, 64, absl::Microseconds(10));
  PathId first = plb.Choose(paths, kStart);
  plb.OnLoss(first, PathLoss::kDropped, kStart);
  EXPECT_EQ(plb.Choose(paths, kStart), first);
  plb.OnLoss(first, PathLoss::kTimeout, kStart);
  EXPECT_NE(plb.Choose(paths, kStart), first);
}

TEST(PlannedTest, TakesItsListInTurnAndAnythingElseWhenAllOfItDied) {
  PathSet paths(Paths(8));
  auto policy = MakePolicy({.kind = PolicyKind::kPlanned, .planned = {5, 3}}, 8);
  EXPECT_EQ(policy->Choose(paths, kStart), 5);
  EXPECT_EQ(policy->Choose(paths, kStart), 3);
  paths.Leave(5, kStart);
  EXPECT_EQ(policy->Choose(paths, kStart), 3);
  paths.Leave(3, kStart);
  PathId other = policy->Choose(paths, kStart);
  EXPECT_TRUE(paths.IsLive(other));
}

TEST(PlannedTest, TakesTheBestSpareWhileAllOfItIsDeadAndThenGoesBack) {
  PathSet paths(Paths(8));
  auto policy = MakePolicy({.kind = PolicyKind::kPlanned, .planned = {5}, .spare = {2, 7}}, 8);
  paths.Leave(5, kStart);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(policy->Choose(paths, kStart), 2);
  paths.Leave(2, kStart);
  EXPECT_EQ(policy->Choose(paths, kStart), 7);
  paths.Leave(7, kStart);
  EXPECT_TRUE(paths.IsLive(policy->Choose(paths, kStart)));
  paths.OnAck(2, absl::Microseconds(10));
  EXPECT_EQ(policy->Choose(paths, kStart), 2);
  paths.OnAck(5, absl::Microseconds(10));
  EXPECT_EQ(policy->Choose(paths, kStart), 5);
}

TEST(PathChooserTest, KeepsToAPathForAPiece) {
  PathSet paths(Paths(4));
  PathChooser chooser(MakePolicy({.kind = PolicyKind::kRoundRobin}, 4), Bytes(16'384));
  std::map<PathId, int> count;
  PathId last = 0;
  int changes = 0;
  for (int i = 0; i < 64; ++i) {
    PathId path = chooser.Choose(paths, Bytes(4096), kStart);
    changes += i > 0 && path != last ? 1 : 0;
    last = path;
    ++count[path];
  }
  EXPECT_EQ(changes, 15);
  EXPECT_EQ(count[0], 16);
}

TEST(PolicyNamesTest, ErrorsNameWhatIsKnown) {
  EXPECT_EQ(*ParsePolicy("reps"), PolicyKind::kReps);
  EXPECT_THAT(ParsePolicy("ecmp").status().message(),
              testing::HasSubstr("there are single, round-robin, random"));
}

}  // namespace
}  // namespace weft::net
