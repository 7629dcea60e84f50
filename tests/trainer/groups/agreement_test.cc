// How ranks agree. Jobs are threads of this process.
#include "trainer/groups/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "tests/trainer/groups/agreements.h"
#include "trainer/groups/status_error.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(AgreementTest, AllRanksReturnTheErrorOfTheFirstThatHasOne) {
  RunAgreements(3, {}, [](Agreement& world, const EndpointPtr&) {
    EXPECT_TRUE(world.Agree(absl::OkStatus()).ok());
    const absl::Status mine = world.rank() == 0   ? absl::OkStatus()
                              : world.rank() == 1 ? absl::DataLossError("a full disk")
                                                  : absl::NotFoundError("");
    const absl::Status agreed = world.Agree(mine);
    EXPECT_EQ(agreed.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(agreed.message(), "rank 1: a full disk");
    EXPECT_TRUE(IsAgreed(agreed));
  });
}

// Rank 0 of the job is no member, and knows nothing of it.
TEST(AgreementTest, ARankIsNamedByItsNumberInTheJob) {
  RunAgreements(3, {}, [](Agreement& world, const EndpointPtr& endpoint) {
    if (world.rank() > 0) {
      const std::vector<Rank> members = {Rank(1), Rank(2)};
      const auto communicator = collectives::Communicator::Create(endpoint, "pair", members);
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      Agreement pair(communicator->get(), members, /*job_size=*/3);
      const absl::Status agreed =
          pair.Agree(pair.rank() == 1 ? absl::DataLossError("a full disk") : absl::OkStatus());
      EXPECT_EQ(agreed.message(), "rank 2: a full disk");
      EXPECT_FALSE(IsAgreed(agreed));
    }
    EXPECT_TRUE(world.Agree(absl::OkStatus()).ok());
  });
}

TEST(AgreementTest, TextsAndSumsAreTheSameOnAllRanks) {
  RunAgreements(2, {}, [](Agreement& world, const EndpointPtr&) {
    const auto texts = world.Gather(world.rank() == 0 ? "" : "of rank 1");
    ASSERT_TRUE(texts.ok()) << texts.status();
    EXPECT_THAT(*texts, ElementsAre("", "of rank 1"));
    const auto first = world.FromFirst(world.rank() == 0 ? "of rank 0" : "not asked for");
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(*first, "of rank 0");
    std::vector<double> values = {1.0, static_cast<double>(world.rank())};
    EXPECT_TRUE(world.Sum(absl::MakeSpan(values)).ok());
    EXPECT_THAT(values, ElementsAre(2.0, 1.0));
  });
}

TEST(AgreementTest, TextsOfAllRanksReachTheFirstAlone) {
  RunAgreements(3, {}, [](Agreement& world, const EndpointPtr&) {
    const std::vector<std::string> texts = {"the first", "", std::string(3 << 20, 'x')};
    for (int time = 0; time < 2; ++time) {
      const auto found = world.GatherOnFirst(texts[static_cast<size_t>(world.rank())]);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_TRUE(*found == (world.rank() == 0 ? texts : std::vector<std::string>()));
    }
  });
}

// Rank 0 works until some meetings have ended; rank 1 has nothing to do.
TEST(AgreementTest, RanksMeetWhileOneOfThemWorks) {
  const collectives::SettingPairs by_messages = {"shm.multicast_max=0"};  // which are counted
  RunAgreements(2, by_messages, [](Agreement& world, const EndpointPtr& endpoint) {
    const auto messages = [&] {
      uint64_t done = 0;
      for (const auto& link : endpoint->Counters()) done += link.counters.messages_done;
      return done;
    };
    absl::Status agreed;
    const absl::Status status = world.RunTogether(
        [&]() -> absl::Status {
          if (world.rank() > 0) return absl::OkStatus();
          const absl::Time limit = absl::Now() + absl::Seconds(30);
          for (const uint64_t before = messages(); messages() < before + 20;) {
            if (absl::Now() > limit) return absl::DeadlineExceededError("no meetings");
            std::this_thread::yield();
          }
          return absl::DataLossError("a full disk");
        },
        agreed, absl::Milliseconds(1));
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(agreed.code(), absl::StatusCode::kDataLoss) << agreed;
    EXPECT_EQ(agreed.message(), "rank 0: a full disk");
    // Rank 0 alone has work.
    int worked = 0;
    EXPECT_TRUE(world.RunOnFirst([&] { return ++worked, absl::OkStatus(); }, agreed).ok());
    EXPECT_TRUE(agreed.ok()) << agreed;
    EXPECT_EQ(worked, world.rank() == 0 ? 1 : 0);
  });
}

// Rank 0's work fails after the group has.
TEST(AgreementTest, AnErrorOfTheWorkIsNotLostWhereTheGroupFails) {
  for (const bool gives_up : {false, true}) {
    SCOPED_TRACE(gives_up);
    RunAgreements(2, {}, [gives_up](Agreement& world, const EndpointPtr&) {
      absl::Status agreed;
      const absl::Status status = world.RunOnFirst(
          [&]() -> absl::Status {
            world.Abort(absl::UnavailableError("the network is gone"));
            const absl::Time limit = absl::Now() + absl::Seconds(30);
            while (!world.has_failed() && absl::Now() < limit) std::this_thread::yield();
            EXPECT_TRUE(world.has_failed());
            return gives_up ? absl::CancelledError("given up") : absl::DataLossError("a full disk");
          },
          agreed);
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("the network is gone"));
      EXPECT_THAT(std::string(status.message()), Not(HasSubstr("given up")));
      const bool has_own = world.rank() == 0 && !gives_up;
      EXPECT_EQ(absl::StartsWith(status.message(), "a full disk; and the group has failed: "),
                has_own)
          << status;
    });
  }
}

TEST(AgreementTest, AnExceptionOfTheWorkIsItsStatus) {
  RunAgreements(2, {}, [](Agreement& world, const EndpointPtr&) {
    absl::Status agreed;
    const absl::Status status = world.RunOnFirst(
        []() -> absl::Status { throw StatusError(absl::DataLossError("a full disk")); }, agreed);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(agreed.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(agreed.message(), "rank 0: a full disk");
  });
}

TEST(AgreementTest, ARankAloneAgreesWithItself) {
  Agreement alone;
  EXPECT_EQ(alone.rank(), 0);
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.Agree(absl::DataLossError("a full disk")), absl::DataLossError("a full disk"));
  EXPECT_THAT(*alone.Gather("mine"), ElementsAre("mine"));
  EXPECT_THAT(*alone.GatherOnFirst("mine"), ElementsAre("mine"));
  absl::Status agreed;
  EXPECT_TRUE(alone.RunOnFirst([] { return absl::DataLossError("a full disk"); }, agreed).ok());
  EXPECT_EQ(agreed, absl::DataLossError("a full disk"));
  alone.Abort(agreed);
  EXPECT_FALSE(alone.has_failed());
}

}  // namespace
}  // namespace weft::train
