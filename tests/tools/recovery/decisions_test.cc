#include "tools/recovery/decisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft::recovery {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kVacancyMost = absl::Seconds(60);

// Two nodes of two ranks each.
class DecisionsTest : public ::testing::Test {
 protected:
  DecisionsTest() { state_ = NewJob(policy_, now_); }

  std::vector<std::string> Tell(Event event) {
    event.now = now_;
    std::vector<std::string> texts;
    for (const Action& action : Decide(policy_, state_, event)) texts.push_back(ToText(action));
    return texts;
  }
  std::vector<std::string> Join(const std::string& host, int64_t incarnation = 1) {
    return Tell({.kind = EventKind::kHostJoined, .host = host, .incarnation = incarnation});
  }
  std::vector<std::string> End(int rank, collectives::ProcessEnd end, int64_t step = -1) {
    return Tell({.kind = EventKind::kRankEnded,
                 .rank = rank,
                 .generation = state_.ranks[static_cast<size_t>(rank)].generation,
                 .end = std::move(end),
                 .step = step});
  }
  std::vector<std::string> Pass(absl::Duration time) {
    now_ += time;
    return Tell({});
  }
  void Start(int spares) {
    Join("a");
    Join("b");
    for (int i = 0; i < spares; ++i) Join(absl::StrCat("spare", i));
    ASSERT_TRUE(state_.started);
  }

  static collectives::ProcessEnd Killed(int signal) { return {.signal = signal}; }
  static collectives::ProcessEnd Error(const std::string& line) {
    return {.status = 1, .cause = line};
  }
  void ExpectOver(int status, const std::string& reason) {
    ASSERT_TRUE(state_.outcome.has_value());
    EXPECT_EQ(state_.outcome->exit_status, status);
    EXPECT_THAT(state_.outcome->reason, HasSubstr(reason));
    for (const RankState& rank : state_.ranks) EXPECT_FALSE(rank.runs);
  }

  Policy policy_{
      .nodes = 2, .ranks_per_node = 2, .restarts_most = 20, .vacancy_most = kVacancyMost};
  absl::Time now_ = absl::FromUnixSeconds(1000);
  JobState state_;
};

TEST_F(DecisionsTest, RanksStartOnceEveryNodeHasAHost) {
  EXPECT_THAT(Join("a"), testing::ElementsAre("place node 0 on a"));
  EXPECT_THAT(Join("a"), IsEmpty());
  EXPECT_THAT(Join("b"), testing::ElementsAre(
                             "place node 1 on b", "start rank 0 (generation 0) on a",
                             "start rank 1 (generation 0) on a", "start rank 2 (generation 0) on b",
                             "start rank 3 (generation 0) on b"));
  EXPECT_THAT(Join("c"), IsEmpty());  // a spare
}

TEST_F(DecisionsTest, AProcessThatDiesIsStartedInPlace) {
  Start(1);
  for (const auto& end :
       {Killed(9), Error("out of luck"), Error("rank 0 is gone [process rank=0]"),
        Error("no way to rank 1 [connection rank=1]"), Error("no way [path path=10.0.0.1:4000]")}) {
    const int before = state_.ranks[2].generation;
    EXPECT_THAT(End(2, end),
                testing::ElementsAre(absl::StrCat("start rank 2 (generation ", before + 1,
                                                  ") on b: ", collectives::ToText(end))));
    now_ += absl::Minutes(1);
  }
  EXPECT_EQ(state_.restarts, 5);
}

TEST_F(DecisionsTest, AnEndThatWasAnsweredIsNotAnsweredAgain) {
  Start(0);
  const Event end{
      .kind = EventKind::kRankEnded, .now = now_, .rank = 1, .generation = 0, .end = Killed(9)};
  EXPECT_EQ(Decide(policy_, state_, end).size(), 1U);
  const JobState after = state_;
  EXPECT_THAT(Decide(policy_, state_, end), IsEmpty());
  EXPECT_EQ(state_, after);
}

TEST_F(DecisionsTest, ADeviceFaultHasTheHostOfTheRankThatItNamesTestItself) {
  Start(1);
  const auto done = End(0, Error("mlx5_0 has failed [device rank=3 device=mlx5_0]"));
  EXPECT_THAT(done[0], HasSubstr("test b"));
  EXPECT_EQ(state_.hosts["b"].test_helpers, (std::vector<std::string>{"a", "spare0"}));
  EXPECT_TRUE(state_.ranks[0].runs);  // on its own host
  End(3, Error("mlx5_0 has failed [device rank=3 device=mlx5_0]"));
  EXPECT_FALSE(state_.ranks[3].runs);
  EXPECT_THAT(Tell({.kind = EventKind::kSelfTest,
                    .host = "b",
                    .test = state_.hosts["b"].test,
                    .passed = true}),
              testing::ElementsAre(HasSubstr("start rank 3 (generation 1) on b")));
  // It has passed once: the next time, the spare is surer.
  EXPECT_THAT(End(3, Error("mlx5_0 [device rank=3 device=mlx5_0]"))[0],
              HasSubstr("evict b from node 1"));
  EXPECT_EQ(state_.nodes[1].host, "spare0");
}

TEST_F(DecisionsTest, AHostThatCannotBeTestedGoesOnAndIsEvictedByItsNextDeviceFault) {
  Start(1);
  const std::string fault = "mlx5_0 has failed [device rank=3 device=mlx5_0]";
  End(3, Error(fault));
  EXPECT_THAT(Tell({.kind = EventKind::kSelfTest,
                    .host = "b",
                    .test = state_.hosts["b"].test,
                    .untested = true,
                    .text = "there is no weft-executor in PATH"}),
              testing::ElementsAre("start rank 3 (generation 1) on b: its host was not tested: "
                                   "there is no weft-executor in PATH"));
  EXPECT_THAT(End(3, Error(fault)), testing::Contains(HasSubstr("evict b from node 1")));
}

TEST_F(DecisionsTest, HostsBelowTheSameSwitchHelpFirst) {
  for (const auto& [host, rack] : {std::pair("a", "s1"), std::pair("b", "s2"), std::pair("c", "s1"),
                                   std::pair("d", "s2"), std::pair("e", "s1")}) {
    Tell({.kind = EventKind::kHostJoined, .host = host, .incarnation = 1, .rack = rack});
  }
  End(0, Error("x [device device=mlx5_0]"));
  EXPECT_EQ(state_.hosts["a"].test_helpers, (std::vector<std::string>{"c", "e"}));
  End(2, Error("x [device device=mlx5_0]"));
  EXPECT_EQ(state_.hosts["b"].test_helpers, (std::vector<std::string>{"d", "c"}));
}

TEST_F(DecisionsTest, WithoutSelfTestsADeviceFaultEvictsTheHostOfTheRankThatItNames) {
  policy_.self_tests = false;
  Start(1);
  const auto done = End(0, Error("mlx5_0 has failed [device rank=3 device=mlx5_0]"));
  EXPECT_THAT(done[0], HasSubstr("evict b from node 1"));
  EXPECT_EQ(state_.nodes[1].host, "spare0");
  EXPECT_EQ(state_.ranks[0].generation, 1);  // on its own host
  EXPECT_EQ(state_.nodes[0].host, "a");
  EXPECT_EQ(state_.ranks[2].generation, 1);
  EXPECT_EQ(state_.ranks[3].generation, 1);
  EXPECT_THAT(Join("b", 2), IsEmpty());  // stays out
  EXPECT_EQ(state_.hosts["b"].node, -1);
}

TEST_F(DecisionsTest, TheCulpritThatTheDiagnosisNamesIsSuspectedAndNotTheVictimThatEndsFirst) {
  Start(1);
  const Event nic_down{
      .kind = EventKind::kDiagnosed, .text = "NIC down", .rank = 3, .blame = Blame::kHost};
  EXPECT_THAT(Tell(nic_down), testing::ElementsAre("test b: NIC down"));
  EXPECT_THAT(Tell(nic_down), IsEmpty());
  // Rank 0 takes its own NIC for the one that failed.
  EXPECT_THAT(End(0, Error("mlx5_0 has failed [device rank=0 device=mlx5_0]")),
              testing::ElementsAre(HasSubstr("start rank 0 (generation 1) on a")));
  EXPECT_EQ(state_.hosts["a"].test, 0);
  Tell({.kind = EventKind::kSelfTest, .host = "b", .test = state_.hosts["b"].test, .text = "no"});
  EXPECT_EQ(state_.nodes[1].host, "spare0");
}

// Rank 0 suffers from the host that is gone by the time that it ends.
TEST_F(DecisionsTest, AHostInThePlaceOfABlamedOneIsNotSuspectedForIt) {
  policy_.self_tests = false;
  Start(2);
  const std::string fault = "mlx5_0 has failed [device rank=0 device=mlx5_0]";
  Tell({.kind = EventKind::kDiagnosed, .text = "NIC down", .rank = 3, .blame = Blame::kHost});
  EXPECT_EQ(state_.nodes[1].host, "spare0");
  EXPECT_THAT(End(0, Error(fault)),
              testing::ElementsAre(HasSubstr("start rank 0 (generation 1) on a")));
  EXPECT_FALSE(state_.hosts["spare0"].evicted);
  now_ += absl::Minutes(1);
  EXPECT_THAT(End(0, Error(fault))[0], HasSubstr("evict a from node 0"));
}

TEST_F(DecisionsTest, ABlamedHostThatHasPassedItsTestIsNotSuspectedForAnothersDevice) {
  Start(1);
  Tell({.kind = EventKind::kDiagnosed, .text = "NIC down", .rank = 3, .blame = Blame::kHost});
  Tell({.kind = EventKind::kSelfTest, .host = "b", .test = state_.hosts["b"].test, .passed = true});
  EXPECT_THAT(End(0, Error("mlx5_0 has failed [device rank=0 device=mlx5_0]"))[0],
              HasSubstr("test a"));
  EXPECT_EQ(state_.nodes[1].host, "b");
}

TEST_F(DecisionsTest, OfTwoBlamedHostsEachIsSuspectedForItsOwnDevice) {
  Start(1);
  for (const int rank : {0, 3}) {
    Tell({.kind = EventKind::kDiagnosed, .text = "XID", .rank = rank, .blame = Blame::kHost});
  }
  const int64_t test_of_a = state_.hosts["a"].test;
  Tell({.kind = EventKind::kSelfTest,
        .host = "b",
        .test = state_.hosts["b"].test,
        .untested = true,
        .text = "no weft-executor"});
  EXPECT_THAT(End(3, Error("mlx5_0 has failed [device rank=3 device=mlx5_0]"))[0],
              HasSubstr("evict b from node 1"));
  EXPECT_EQ(state_.hosts["a"].test, test_of_a);
}

TEST_F(DecisionsTest, ADriverThatGoesOnCountsNoTimeOfAnothersClock) {
  Start(0);
  Tell({.kind = EventKind::kHostLost, .host = "b"});
  for (int i = 0; i < 2; ++i) End(0, Killed(9));
  Tell({.kind = EventKind::kDiagnosed, .text = "XID", .rank = 1, .blame = Blame::kHost});
  for (const absl::Duration ahead : {absl::Hours(1), -absl::Hours(1)}) {
    SCOPED_TRACE(ahead);
    JobState state = state_;
    const absl::Time now = now_ + ahead;
    GoOn(policy_, state, now);
    EXPECT_EQ(state.nodes[1].vacant_since, now);
    EXPECT_LE(NextStart(state), now + policy_.backoff_most);
    EXPECT_LE(state.hosts["a"].blamed, now);
    for (const RankState& rank : state.ranks) EXPECT_LE(rank.started, now);
    Decide(policy_, state, {.now = now});
    EXPECT_FALSE(state.outcome.has_value());
  }
}

TEST_F(DecisionsTest, ARankThatTheOthersWaitForIsStartedAnewOnceAGeneration) {
  Start(0);
  const Event hangs{.kind = EventKind::kDiagnosed, .text = "it hangs", .rank = 2};
  EXPECT_THAT(Tell(hangs), testing::ElementsAre("start rank 2 (generation 1) on b: it hangs"));
  EXPECT_THAT(Tell(hangs), testing::ElementsAre("start rank 2 (generation 2) on b: it hangs"));
  EXPECT_EQ(state_.restarts, 2);
}

TEST_F(DecisionsTest, WrongNumbersAreReplayed) {
  policy_.replay_hosts = 1;
  Start(1);
  EXPECT_THAT(Tell({.kind = EventKind::kDiagnosed,
                    .text = "replica differs",
                    .rank = 1,
                    .blame = Blame::kNumbers})[0],
              HasSubstr("replay: phase 1 of 2, groups a | b | spare0: replica differs"));
  for (const RankState& rank : state_.ranks) EXPECT_FALSE(rank.runs);
}

TEST_F(DecisionsTest, WithoutASpareAHostWithADeviceFaultTestsItself) {
  Start(0);
  EXPECT_THAT(End(2, Error("x [device device=mlx5_0]"))[0], HasSubstr("test b"));
  EXPECT_FALSE(state_.ranks[2].runs);
  Event passed{.kind = EventKind::kSelfTest, .host = "b", .test = 7, .passed = true};
  EXPECT_THAT(Tell(passed), IsEmpty());  // another test
  passed.test = state_.hosts["b"].test;
  EXPECT_THAT(Tell(passed)[0], HasSubstr("start rank 2 (generation 1) on b"));
  EXPECT_THAT(Tell(passed), IsEmpty());

  End(2, Error("x [device device=mlx5_0]"));
  EXPECT_THAT(Tell({.kind = EventKind::kSelfTest,
                    .host = "b",
                    .test = state_.hosts["b"].test,
                    .text = "no link"})[0],
              HasSubstr("evict b from node 1: it failed its self-test: no link"));
  EXPECT_THAT(Pass(kVacancyMost - absl::Seconds(1)), IsEmpty());
  EXPECT_THAT(Join("c")[0], HasSubstr("place node 1 on c"));
  EXPECT_TRUE(state_.ranks[3].runs);
}

TEST_F(DecisionsTest, DeathsBySignalsOfTheProgramsOwnMakeAHostSuspect) {
  Start(1);
  for (int i = 0; i < 2; ++i) EXPECT_THAT(End(i, Killed(11))[0], HasSubstr("start rank"));
  EXPECT_THAT(End(1, Killed(7))[0], HasSubstr("test a: 3 deaths there"));
  for (int i = 0; i < 5; ++i) {
    now_ += absl::Minutes(1);
    EXPECT_THAT(End(2, Killed(9))[0], HasSubstr("start rank 2"));
  }
}

TEST_F(DecisionsTest, ALostHostIsReplacedByASpareOrTheNextThatJoins) {
  Start(1);
  EXPECT_THAT(Tell({.kind = EventKind::kHostLost, .host = "a"}),
              testing::ElementsAre(HasSubstr("evict a from node 0"), "place node 0 on spare0",
                                   HasSubstr("start rank 0 (generation 1) on spare0"),
                                   HasSubstr("start rank 1 (generation 1) on spare0")));
  EXPECT_THAT(Tell({.kind = EventKind::kHostLost, .host = "a"}), IsEmpty());
  EXPECT_EQ(Tell({.kind = EventKind::kHostLost, .host = "b"}).size(), 1U);
  EXPECT_THAT(Join("a", 2)[0], "place node 1 on a");
  EXPECT_EQ(state_.ranks[3].generation, 1);
}

TEST_F(DecisionsTest, TheSpareNearestToTheLostHostTakesItsPlace) {
  const auto join = [this](const std::string& host, const std::string& rack) {
    return Tell({.kind = EventKind::kHostJoined, .host = host, .incarnation = 1, .rack = rack});
  };
  join("a", "spine1.leaf1");
  join("b", "spine2.leaf3");
  join("c-unknown", "");
  join("d-other-spine", "spine1.leaf2");
  join("e-same-spine", "spine2.leaf4");
  join("f-same-leaf", "spine2.leaf3");
  for (const std::string next : {"f-same-leaf", "e-same-spine", "d-other-spine", "c-unknown"}) {
    const std::string host = state_.nodes[1].host;
    state_.hosts[host].rack = "spine2.leaf3";
    EXPECT_THAT(Tell({.kind = EventKind::kHostLost, .host = host}),
                testing::Contains("place node 1 on " + next));
  }
}

TEST_F(DecisionsTest, ASpareThatTestsItselfIsPlacedOnceItHasPassedAndNeverIfItFails) {
  Start(2);
  state_.hosts["spare0"].test = 7;
  state_.hosts["spare1"].test = 8;
  EXPECT_THAT(Tell({.kind = EventKind::kHostLost, .host = "a"}),
              testing::ElementsAre(HasSubstr("evict a from node 0")));
  EXPECT_THAT(Tell({.kind = EventKind::kSelfTest, .host = "spare0", .test = 7, .text = "bad"}),
              testing::ElementsAre(HasSubstr("evict spare0: it failed its self-test: bad")));
  EXPECT_EQ(state_.nodes[0].host, "");
  EXPECT_THAT(Tell({.kind = EventKind::kSelfTest, .host = "spare1", .test = 8, .passed = true}),
              testing::Contains("place node 0 on spare1"));
}

TEST_F(DecisionsTest, ASpareThatWasNeverSuspectedIsPlacedBeforeOneThatHasPassedATest) {
  Start(2);
  state_.hosts["spare0"].cleared = true;
  EXPECT_THAT(Tell({.kind = EventKind::kHostLost, .host = "a"}),
              testing::Contains("place node 0 on spare1"));
}

TEST_F(DecisionsTest, AJobWithoutAHostForANodeStopsInTime) {
  Start(0);
  Tell({.kind = EventKind::kHostEvicted, .host = "a", .text = "by hand"});
  EXPECT_THAT(Pass(kVacancyMost - absl::Seconds(1)), IsEmpty());
  EXPECT_EQ(Pass(absl::Seconds(1)).size(), 1U);
  ExpectOver(kNoHostsStatus, "node 0 has had no host for 1m");
  EXPECT_THAT(Join("c"), IsEmpty());
}

TEST_F(DecisionsTest, AnExecutorThatComesBackStartsItsRanksAnew) {
  Start(0);
  EXPECT_EQ(Join("a", 2).size(), 2U);
  EXPECT_THAT(Join("a", 1), IsEmpty());  // of the past
  EXPECT_EQ(state_.hosts["a"].incarnation, 2);
  EXPECT_EQ(state_.ranks[0].generation, 1);
}

TEST_F(DecisionsTest, TheSameFaultInTheSameStepStops) {
  Start(1);
  End(1, Error("the loss is nan at 0x12"), 7);
  End(1, Error("the loss is nan at 0x13"), 8);
  EXPECT_FALSE(state_.outcome.has_value());
  End(1, Error("the loss is nan at 0x14"), 8);
  ExpectOver(1, "in the same step (after step 8)");
}

TEST_F(DecisionsTest, TheSameFaultTwiceSoonAfterTheStartStopsWithoutAnyStep) {
  Start(1);
  End(1, Error("no module named 'model'"));
  EXPECT_FALSE(state_.outcome.has_value());
  now_ += absl::Hours(1);
  End(1, Error("no module named 'model'"));  // a program that says nothing of its steps
  EXPECT_FALSE(state_.outcome.has_value());
  now_ += absl::Seconds(1);
  End(1, Error("no module named 'model'"));
  ExpectOver(1, "soon after its start, without a step");
}

TEST_F(DecisionsTest, ARankThatDiesAtOnceIsStartedAfterPausesThatDoubleUpToTheMost) {
  policy_.backoff_first = absl::Seconds(1);
  policy_.backoff_most = absl::Seconds(3);
  Start(0);
  EXPECT_THAT(End(2, Killed(9))[0], HasSubstr("start rank 2 (generation 1) on b: was"));
  int generation = 2;
  for (const int pause : {1, 2, 3, 3}) {
    EXPECT_THAT(End(2, Killed(9)),
                testing::ElementsAre(HasSubstr(
                    absl::StrCat("start rank 2 (generation ", generation, ") on b later: in ",
                                 pause, "s, for it has ended ", generation, " times in a row"))));
    EXPECT_EQ(NextStart(state_), now_ + absl::Seconds(pause));
    EXPECT_FALSE(state_.ranks[2].runs);
    EXPECT_THAT(Pass(absl::Seconds(pause) - absl::Milliseconds(1)), IsEmpty());
    EXPECT_THAT(Pass(absl::Milliseconds(1)),
                testing::ElementsAre(
                    HasSubstr(absl::StrCat("start rank 2 (generation ", generation++, ") on b"))));
    EXPECT_EQ(NextStart(state_), absl::InfiniteFuture());
  }
  // A new step, or a long life, and the next start is at once again.
  EXPECT_THAT(End(2, Killed(9), 7)[0], HasSubstr("on b: was killed"));
  End(2, Killed(9), 7);
  now_ += absl::Minutes(1);
  EXPECT_THAT(End(2, Killed(9), 7)[0], HasSubstr("on b: was killed"));
}

TEST_F(DecisionsTest, ARankThatWaitsForItsStartMovesWithItsNodeAndEndsWithTheJob) {
  Start(1);
  for (int i = 0; i < 2; ++i) End(2, Killed(9));
  EXPECT_LT(NextStart(state_), absl::InfiniteFuture());
  const auto done = Tell({.kind = EventKind::kHostLost, .host = "b"});
  EXPECT_THAT(done[2], HasSubstr("start rank 2 (generation 2) on spare0"));
  EXPECT_EQ(NextStart(state_), absl::InfiniteFuture());
  End(3, Killed(9));
  End(3, Killed(9));
  Tell({.kind = EventKind::kStopped, .exit_status = 1, .text = "by hand"});
  EXPECT_EQ(NextStart(state_), absl::InfiniteFuture());
}

TEST_F(DecisionsTest, WhatIsNoFaultOfItsOwnNeverCountsAsTheSame) {
  Start(0);
  for (int i = 0; i < 6; ++i) {
    now_ += absl::Minutes(1);
    End(1, i < 3 ? Killed(9) : Error("rank 0 is gone [process rank=0]"), 8);
    EXPECT_TRUE(state_.ranks[1].runs);
  }
  EXPECT_FALSE(state_.outcome.has_value());
}

TEST_F(DecisionsTest, RanksOfAPartOfAJobAreNamedAndJudgedByTheirNumbersInTheJob) {
  policy_.numbers = {5, 4, 1, 0};
  Start(0);
  for (int i = 0; i < 3; ++i) {
    now_ += absl::Minutes(1);
    End(1, Error("rank 1 is gone [process rank=1]"), 8);  // another one, which is the third here
    EXPECT_TRUE(state_.ranks[1].runs);
  }
  End(1, Error("this rank is confused [process rank=4]"), 9);
  EXPECT_TRUE(state_.ranks[1].runs);
  End(1, Error("this rank is confused [process rank=4]"), 9);
  ExpectOver(1, "rank 4 exited with status 1: this rank is confused");
}

TEST_F(DecisionsTest, AStatusThatSaysWhyStops) {
  Start(1);
  End(3, {.status = 4, .cause = "twice"});
  ExpectOver(4, "rank 3 exited with status 4: twice");
}

TEST_F(DecisionsTest, RestartsAreCounted) {
  policy_.restarts_most = 2;
  Start(0);
  End(0, Killed(9));
  End(1, Killed(9));
  End(0, Killed(9));
  ExpectOver(128 + 9, "2 times, of 2");
}

TEST_F(DecisionsTest, TheJobIsDoneWhenAllRanksAre) {
  Start(0);
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(End(rank, {}), IsEmpty());
  EXPECT_EQ(End(3, {}).size(), 1U);
  ExpectOver(0, "all ranks are done");
}

TEST_F(DecisionsTest, NobodyIsStartedToMeetARankThatIsDone) {
  Start(1);
  End(0, {});
  End(2, Killed(9));
  ExpectOver(128 + 9, "rank 0 is done already");
}

// Then its new process meets nobody: it learns that all is done, and ends.
TEST_F(DecisionsTest, ARankThatDiesOnItsWayOutOfADoneJobIsStartedAnew) {
  Start(1);
  End(0, {});
  const auto anew =
      Tell({.kind = EventKind::kRankEnded, .rank = 2, .end = Killed(9), .over = true});
  EXPECT_THAT(anew, testing::ElementsAre(HasSubstr("start rank 2 (generation 1) on b")));
  End(2, {});
  // Its host is lost with the last one: only that one is started elsewhere.
  EXPECT_THAT(Tell({.kind = EventKind::kHostLost, .host = "b", .over = true}),
              testing::ElementsAre(HasSubstr("evict b"), "place node 1 on spare0",
                                   HasSubstr("start rank 3 (generation 1) on spare0")));
  for (const int rank : {1, 3}) End(rank, {});
  ExpectOver(0, "all ranks are done");
}

TEST_F(DecisionsTest, AHostWhoseRanksAreDoneNeedsNoOtherOne) {
  Start(1);
  End(0, {});
  End(1, {});
  EXPECT_EQ(Tell({.kind = EventKind::kHostLost, .host = "a"}).size(), 1U);
  EXPECT_THAT(Pass(10 * kVacancyMost), IsEmpty());
  End(2, {});
  End(3, {});
  ExpectOver(0, "all ranks are done");
}

// Whatever comes in whatever order: generations only rise, a rank that ought to run has a host that
// is there, no host has two nodes, and every action is new.
TEST(DecisionsSeedsTest, EveryOrderOfEventsKeepsTheStateWhole) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto draw = [&random](int below) {
      return static_cast<int>(random() % static_cast<uint64_t>(below));
    };
    const Policy policy{.nodes = 1 + draw(4),
                        .ranks_per_node = 1 + draw(3),
                        .restarts_most = draw(40),
                        .vacancy_most = absl::Seconds(30)};
    absl::Time now = absl::FromUnixSeconds(1000);
    JobState state = NewJob(policy, now);
    std::set<std::pair<int, int>> started;
    for (int turn = 0; turn < 200; ++turn) {
      now += absl::Seconds(draw(10));
      Event event{.kind = static_cast<EventKind>(draw(static_cast<int>(EventKind::kStopped))),
                  .now = now};
      event.host = absl::StrCat("host", draw(policy.nodes + 2));
      event.incarnation = draw(5);
      event.test = state.tests;
      event.passed = draw(2) == 0;
      event.rank = draw(static_cast<int>(state.ranks.size()));
      const RankState& rank = state.ranks[static_cast<size_t>(event.rank)];
      event.generation = rank.generation - draw(2);
      const std::vector<collectives::ProcessEnd> ends = {
          {.signal = 9}, {.signal = 11}, {.status = 1, .cause = "x [device device=mlx5_0]"}, {}};
      event.end = ends[static_cast<size_t>(draw(turn < 150 ? 3 : 4))];
      const JobState before = state;
      for (const Action& action : Decide(policy, state, event)) {
        if (action.kind != ActionKind::kStart) continue;
        EXPECT_TRUE(started.emplace(action.rank, action.generation).second) << ToText(action);
      }
      std::set<std::string> hosts;
      for (size_t node = 0; node < state.nodes.size(); ++node) {
        const std::string& host = state.nodes[node].host;
        if (host.empty()) continue;
        EXPECT_TRUE(hosts.insert(host).second);
        ASSERT_EQ(state.hosts.count(host), 1U);
        EXPECT_EQ(state.hosts[host].node, static_cast<int>(node));
        EXPECT_FALSE(state.hosts[host].evicted);
      }
      for (size_t i = 0; i < state.ranks.size(); ++i) {
        EXPECT_GE(state.ranks[i].generation, before.ranks[i].generation);
        const size_t node = i / static_cast<size_t>(policy.ranks_per_node);
        EXPECT_FALSE(state.ranks[i].runs && state.nodes[node].host.empty());
        EXPECT_FALSE(state.ranks[i].runs && state.outcome.has_value());
      }
      JobState again = state;
      if (event.kind == EventKind::kRankEnded) {
        EXPECT_THAT(Decide(policy, again, event), IsEmpty());
      }
    }
  }
}

}  // namespace
}  // namespace weft::recovery
