#include "collectives/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/failure.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/server/store_server.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);
// A rank that nobody meets has its calls of the store executed within this time, on a machine with
// much else to do as well.
constexpr absl::Duration kLongEnoughToBegin = absl::Seconds(3);
// Longer than the test may take: whoever waits it out fails it.
constexpr absl::Duration kForEver = absl::Minutes(10);
constexpr int kRanks = 4;

class RecoveryTest : public testing::Test {
 protected:
  // A process of the job: its connection to the store, and its part in recovery.
  struct Member {
    std::unique_ptr<StoreClient> client;
    std::unique_ptr<Recovery> recovery;
  };

  void SetUp() override {
    auto server = StoreServer::Start({});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  Member Start(int rank, int generation, const std::string& last_end = "") const {
    StoreClientOptions options;
    options.address = server_->address();
    options.rank = Rank(rank);
    options.generation = generation;
    auto client = StoreClient::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    JobEnvironment environment;
    environment.rank = Rank(rank);
    environment.world_size = kRanks;
    environment.generation = generation;
    environment.recover = true;
    environment.last_end = last_end;
    Member member{*std::move(client), nullptr};
    member.recovery = std::make_unique<Recovery>(member.client.get(), environment);
    return member;
  }

  // The members wait at once, each on a thread, as often as it takes to `least`; what they come to.
  static std::vector<absl::StatusOr<int64_t>> Meet(const std::vector<Member*>& members,
                                                   absl::Duration timeout = kPatience,
                                                   int64_t least = 1,
                                                   const Recovery::LetGo& let_go = nullptr) {
    std::vector<absl::StatusOr<int64_t>> epochs(members.size(), absl::UnknownError("never"));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < members.size(); ++i) {
      threads.emplace_back([&, i] {
        Recovery& recovery = *members[i]->recovery;
        const bool is_new = recovery.replaced() && recovery.epoch() == 0;
        epochs[i] = is_new ? recovery.First(timeout) : recovery.Next(timeout, let_go);
        while (epochs[i].ok() && *epochs[i] < least) epochs[i] = recovery.Next(timeout, let_go);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return epochs;
  }

  static void ExpectEpoch(const std::vector<absl::StatusOr<int64_t>>& epochs, int64_t epoch) {
    for (const auto& each : epochs) {
      ASSERT_TRUE(each.ok()) << each.status();
      EXPECT_EQ(*each, epoch);
    }
  }

  std::unique_ptr<StoreServer> server_;
};

TEST_F(RecoveryTest, AProcessOfTheFirstGenerationBeginsAtOnce) {
  Member member = Start(2, 0);
  EXPECT_EQ(member.recovery->First(kPatience).value(), 0);
}

TEST_F(RecoveryTest, SurvivorsMeetTheRankThatIsStartedAnewEachTime) {
  Member zero = Start(0, 0), one = Start(1, 0), two = Start(2, 0), three = Start(3, 1);
  ExpectEpoch(Meet({&zero, &one, &two, &three}), 1);
  zero = Start(0, 1);
  ExpectEpoch(Meet({&zero, &one, &two, &three}), 2);
}

TEST_F(RecoveryTest, RanksThatAreStartedAnewAtOnceMeetInOneEpoch) {
  Member zero = Start(0, 0), one = Start(1, 1), two = Start(2, 1), three = Start(3, 0);
  const auto epochs = Meet({&zero, &one, &two, &three});
  for (const auto& epoch : epochs) ASSERT_TRUE(epoch.ok()) << epoch.status();
  // Both may begin an epoch before any is ready, or one join the other's.
  EXPECT_GE(*epochs[0], 1);
  EXPECT_LE(*epochs[0], 2);
  ExpectEpoch(epochs, *epochs[0]);
}

TEST_F(RecoveryTest, ARankThatDiesOnItsWayIsSucceededAgain) {
  Member zero = Start(0, 0), one = Start(1, 0), two = Start(2, 0), first = Start(3, 1);
  // Begins an epoch, to which nobody else comes, and dies.
  EXPECT_TRUE(absl::IsDeadlineExceeded(first.recovery->First(kLongEnoughToBegin).status()));
  Member second = Start(3, 2);
  // The others may still meet in the epoch at which the dead one had arrived; they do not get far
  // there without it, and go on to the next.
  ExpectEpoch(Meet({&zero, &one, &two, &second}, kPatience, 2), 2);
  // The store knows the dead one's successor.
  EXPECT_TRUE(absl::IsAborted(first.client->Set("key", "value")));
}

TEST_F(RecoveryTest, WhereAllHaveWhatTheyHadOnlyWhatChangedIsJoined) {
  Member zero = Start(0, 0), one = Start(1, 0), two = Start(2, 0), three = Start(3, 1);
  const std::vector<Member*> survivors = {&zero, &one, &two};
  for (Member* member : survivors) member->recovery->Joined();
  const auto keep = [](const std::vector<int>&) { return absl::OkStatus(); };
  ExpectEpoch(Meet({&zero, &one, &two, &three}, kPatience, 1, keep), 1);
  for (Member* member : {&zero, &one, &two, &three}) {
    EXPECT_TRUE(member->recovery->rejoins());
    EXPECT_EQ(member->recovery->base(), 0);
    EXPECT_EQ(member->recovery->rejoining().replaced, std::vector<int>{3});
    member->recovery->Joined();
  }
  // One of them has lost more: all join as at the start.
  one = Start(1, 1);
  const auto lost = [](const std::vector<int>&) {
    return absl::FailedPreconditionError("a link to rank 3 is lost");
  };
  std::thread zero_meets([&] { EXPECT_EQ(zero.recovery->Next(kPatience, lost).value(), 2); });
  ExpectEpoch(Meet({&one, &two, &three}, kPatience, 2, keep), 2);
  zero_meets.join();
  for (Member* member : {&zero, &one, &two, &three}) {
    EXPECT_FALSE(member->recovery->rejoins());
    EXPECT_EQ(member->recovery->base(), 2);
    member->recovery->Joined();
  }
  // What was joined so is gone on from again.
  two = Start(2, 1);
  ExpectEpoch(Meet({&zero, &one, &two, &three}, kPatience, 3, keep), 3);
  EXPECT_TRUE(two.recovery->rejoins());
  EXPECT_EQ(two.recovery->base(), 2);
  EXPECT_EQ(two.recovery->rejoining().replaced, std::vector<int>{2});
}

// The first new process dies before all have joined: who has not joined has nothing to keep.
TEST_F(RecoveryTest, AJoinThatWasCutOffIsFollowedByOneOfAll) {
  Member zero = Start(0, 0), one = Start(1, 0), two = Start(2, 0), three = Start(3, 1);
  const auto keep = [](const std::vector<int>&) { return absl::OkStatus(); };
  for (Member* member : {&zero, &one, &two}) member->recovery->Joined();
  ExpectEpoch(Meet({&zero, &one, &two, &three}, kPatience, 1, keep), 1);
  zero.recovery->Joined();
  three = Start(3, 2);
  ExpectEpoch(Meet({&zero, &one, &two, &three}, kPatience, 2, keep), 2);
  EXPECT_FALSE(zero.recovery->rejoins());
  EXPECT_FALSE(three.recovery->rejoins());
}

// As where the ranks of a job die one after the other while it starts.
TEST_F(RecoveryTest, WhereNoRankIsLeftAllJoinAsAtTheStart) {
  Member zero = Start(0, 1), one = Start(1, 1), two = Start(2, 1), three = Start(3, 1);
  const std::vector<Member*> all = {&zero, &one, &two, &three};
  ExpectEpoch(Meet(all), kRanks);  // each has begun one
  for (const Member* member : all) {
    EXPECT_FALSE(member->recovery->rejoins());
    EXPECT_EQ(member->recovery->base(), kRanks);
  }
}

TEST_F(RecoveryTest, WhoIsStartedAnewAfterTheJobIsDoneLearnsThat) {
  Member zero = Start(0, 0), one = Start(1, 1);
  EXPECT_FALSE(one.recovery->IsOver().value());
  ASSERT_TRUE(zero.recovery->SetOver().ok());
  EXPECT_TRUE(one.recovery->IsOver().value());
  EXPECT_FALSE(zero.recovery->IsOver().value());  // of a process that was there from the start
}

// A launcher asks before it starts these ranks first: what they have met at is an earlier run's.
TEST_F(RecoveryTest, RanksThatMetOrWereReplacedHaveMet) {
  const Member zero = Start(0, 0);
  const auto have_met = [&](const std::vector<int>& some, int ranks) {
    return Recovery::HaveMet(*zero.client, some, ranks).value();
  };
  EXPECT_FALSE(have_met({0, 1, 2, 3}, kRanks));
  // Rank 2 has begun an epoch; ranks 1 and 3, as of a host that starts late, are not there yet.
  ASSERT_TRUE(zero.client->Set("recovery/epoch", "1 0 0 2").ok());
  ASSERT_TRUE(zero.client->Set("recovery/1/0", "here").ok());
  EXPECT_TRUE(have_met({0}, kRanks));  // has arrived
  EXPECT_TRUE(have_met({2}, kRanks));  // was replaced
  EXPECT_TRUE(have_met({1, 2}, kRanks));
  EXPECT_FALSE(have_met({1, 3}, kRanks));
  EXPECT_TRUE(have_met({0, 1}, 2));  // rank 2 is of a job of more ranks
}

TEST_F(RecoveryTest, WhoeverDoesNotComeIsNamed) {
  Member zero = Start(0, 0), one = Start(1, 0), three = Start(3, 1);
  const absl::Status alone = one.recovery->Next(absl::Milliseconds(50)).status();
  EXPECT_THAT(std::string(alone.message()), HasSubstr("no rank was started anew"));
  for (const auto& each : Meet({&zero, &one, &three}, absl::Seconds(2))) {
    EXPECT_EQ(each.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(each.status().message()), HasSubstr("missing of 4 ranks: 2"));
  }
}

// Ranks in the store index arrays of every process.
TEST_F(RecoveryTest, AnEpochOfRanksThatThereAreNotIsRefused) {
  Member zero = Start(0, 0);
  zero.recovery->Joined();
  for (const char* ranks : {"-5", "4", "1,1000000"}) {
    ASSERT_TRUE(zero.client->Set("recovery/epoch", absl::StrCat("9 0 0 ", ranks, " ready")).ok());
    bool asked = false;
    const absl::Status status = zero.recovery
                                    ->Next(kPatience,
                                           [&](const std::vector<int>&) {
                                             asked = true;
                                             return absl::OkStatus();
                                           })
                                    .status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("recovery/epoch"));
    EXPECT_FALSE(asked);
  }
}

TEST_F(RecoveryTest, TheSameFaultTwiceInOneStepIsGivenUp) {
  const std::string error = "exited with status 1: weft-train: the loss is nan";
  EXPECT_TRUE(Start(1, 1, "was killed by signal 11 (SIGSEGV)").recovery->GoOnFrom(7).ok());
  EXPECT_TRUE(Start(1, 2, error).recovery->GoOnFrom(7).ok());
  EXPECT_TRUE(Start(1, 3, error).recovery->GoOnFrom(8).ok());
  EXPECT_TRUE(Start(2, 1, error).recovery->GoOnFrom(8).ok());
  const absl::Status status = Start(1, 4, error).recovery->GoOnFrom(8);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 ended twice in the step after"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the loss is nan"));
  EXPECT_TRUE(Start(1, 0, "").recovery->GoOnFrom(8).ok());
}

TEST_F(RecoveryTest, TwoKillsFromOutsideInOneStepAreNotTheSameFault) {
  const std::string end = "was killed by signal 9 (SIGKILL)";
  EXPECT_TRUE(Start(1, 1, end).recovery->GoOnFrom(7).ok());
  EXPECT_TRUE(Start(1, 2, end).recovery->GoOnFrom(7).ok());
  EXPECT_TRUE(Start(1, 3, end).recovery->GoOnFrom(7).ok());
}

// Three ranks join in an epoch that the fourth has left: it died after all had met.
TEST_F(RecoveryTest, ADeathWhileAllJoinIsLearntAtOnce) {
  Member zero = Start(0, 0), one = Start(1, 0), two = Start(2, 0), three = Start(3, 1);
  ExpectEpoch(Meet({&zero, &one, &two, &three}), 1);
  std::vector<Member*> joining = {&zero, &one, &two};
  std::vector<absl::Status> ends(joining.size(), absl::UnknownError("never"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < joining.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto guard = joining[i]->recovery->GuardJoin();
      ends[i] = joining[i]
                    ->client
                    ->Exchange("epoch-1/records", static_cast<int>(i), kRanks, "mine",
                               RankSet::Below(kRanks), kForEver)
                    .status();
    });
  }
  Member again = Start(3, 2);
  // Begins the next epoch, where nobody can be yet; the others come once their join has ended.
  std::thread successor([&] { EXPECT_EQ(again.recovery->First(kForEver).value(), 2); });
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& end : ends) {
    EXPECT_TRUE(Recovery::Helps(end, 0)) << end;
    EXPECT_THAT(std::string(end.message()), HasSubstr("was started anew (epoch 2 after 1)"));
  }
  ExpectEpoch(Meet(joining, kForEver, 2), 2);
  successor.join();
}

// An epoch that has begun before the join does is seen as well.
TEST_F(RecoveryTest, AJoinOfAnEpochThatIsOverDoesNotWait) {
  Member zero = Start(0, 0), three = Start(3, 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(three.recovery->First(kLongEnoughToBegin).status()));
  const auto guard = zero.recovery->GuardJoin();
  EXPECT_TRUE(absl::IsUnavailable(zero.client->Get("epoch-0/never", kForEver).status()));
}

TEST_F(RecoveryTest, AfterAJoinCallsOfTheStoreWaitAgain) {
  Member zero = Start(0, 0);
  zero.recovery->GuardJoin().reset();
  EXPECT_TRUE(absl::IsDeadlineExceeded(zero.client->Get("never", absl::Milliseconds(20)).status()));
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(zero.client->Watch("never", 0, absl::Milliseconds(20)).status()));
}

TEST(RecoveryHelpsTest, OnlyTheLossOfAnotherRankIsRecoveredFrom) {
  const auto helps = [](absl::Status status, const Failure& failure) {
    return Recovery::Helps(WithFailure(std::move(status), failure), 1);
  };
  EXPECT_TRUE(helps(absl::UnavailableError("rank 2 is gone"), {}));
  EXPECT_TRUE(helps(absl::CancelledError("rank 2 destroyed it"), {}));
  EXPECT_FALSE(helps(absl::OkStatus(), {}));
  EXPECT_FALSE(helps(absl::AbortedError("the loss is nan"), {}));
  EXPECT_FALSE(helps(absl::DeadlineExceededError("rank 2 does not answer"),
                     {.scope = FailureScope::kRequest, .rank = 2}));
  EXPECT_TRUE(helps(absl::UnavailableError("rank 2 has died"),
                    {.scope = FailureScope::kProcess, .rank = 2}));
  EXPECT_TRUE(helps(absl::AbortedError("the other side does not acknowledge"),
                    {.scope = FailureScope::kConnection, .rank = 2}));
  EXPECT_TRUE(helps(absl::UnavailableError("mlx5_0 has failed"),
                    {.scope = FailureScope::kDevice, .rank = 2, .device = "mlx5_0"}));
  EXPECT_FALSE(helps(absl::UnavailableError("mlx5_0 has failed"),
                     {.scope = FailureScope::kDevice, .rank = 1, .device = "mlx5_0"}));
  EXPECT_FALSE(helps(absl::UnavailableError("mlx5_0 has failed"),
                     {.scope = FailureScope::kDevice, .device = "mlx5_0"}));
}

}  // namespace
}  // namespace weft::collectives
