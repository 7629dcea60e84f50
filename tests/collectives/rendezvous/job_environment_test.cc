#include "collectives/rendezvous/job_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "net/secret.h"

namespace weft::collectives {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

absl::StatusOr<JobEnvironment> Parse(const std::map<std::string, std::string>& variables) {
  return JobEnvironment::Parse([&](absl::string_view name) -> std::optional<std::string> {
    auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

TEST(JobEnvironmentTest, NothingSetIsAProcessAlone) {
  auto job = Parse({});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->rank, Rank(0));
  EXPECT_EQ(job->world_size, 1);
  EXPECT_FALSE(job->torch_agent_store);
}

TEST(JobEnvironmentTest, KnowsWhetherRanksAreStartedAnewAndHowTheLastProcessEnded) {
  auto job = Parse({{"WEFT_RECOVER", "3"},
                    {"WEFT_GENERATION", "2"},
                    {"WEFT_LAST_END", "was killed by signal 9 (SIGKILL)"}});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->recover);
  EXPECT_EQ(job->generation, 2);
  EXPECT_EQ(job->last_end, "was killed by signal 9 (SIGKILL)");
  EXPECT_FALSE(Parse({})->recover);
  EXPECT_FALSE(Parse({{"WEFT_RECOVER", "0"}})->recover);
  EXPECT_FALSE(Parse({{"WEFT_RECOVER", "often"}}).ok());
}

TEST(JobEnvironmentTest, ReadsTorchrunsVariables) {
  auto job = Parse({{"RANK", "5"},
                    {"WORLD_SIZE", "8"},
                    {"LOCAL_RANK", "1"},
                    {"LOCAL_WORLD_SIZE", "4"},
                    {"GROUP_RANK", "1"},
                    {"MASTER_ADDR", "node0"},
                    {"MASTER_PORT", "29500"},
                    {"TORCHELASTIC_RUN_ID", "run7"},
                    {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->rank, Rank(5));
  EXPECT_EQ(job->world_size, 8);
  EXPECT_EQ(job->local_rank, 1);
  EXPECT_EQ(job->local_world_size, 4);
  EXPECT_EQ(job->group_rank, 1);
  EXPECT_EQ(job->master_addr, "node0");
  EXPECT_EQ(job->master_port, 29500);
  EXPECT_EQ(job->job, "run7");
  EXPECT_TRUE(job->torch_agent_store);
  EXPECT_EQ(StoreFromEnvironment(*job, absl::Seconds(30)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(JobEnvironmentTest, NamesEverythingThatIsMissingOrBad) {
  auto status = Parse({{"RANK", "x"}, {"LOCAL_RANK", "-1"}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("RANK='x'"), HasSubstr("WORLD_SIZE is not set"),
                    HasSubstr("LOCAL_RANK='-1'"), Not(HasSubstr("RANK is not set"))));
  status = Parse({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("MASTER_ADDR is not set"), HasSubstr("MASTER_PORT is not set")));
  status = Parse({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"WEFT_STORE", "a:1"}}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("RANK=2 is not below WORLD_SIZE=2"));
  status = Parse({{"WEFT_STORE", "nonsense"}, {"WEFT_JOB_SECRET", "12"}}).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("WEFT_STORE='nonsense'"), HasSubstr("WEFT_JOB_SECRET")));
  status = Parse({{"WEFT_JOB_SECRET", std::string(64, '0')}}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("WEFT_JOB_SECRET: a job's secret of noth"));
}

TEST(JobEnvironmentTest, SecretsSurviveTheirTextForm) {
  net::JobSecret secret = net::NewJobSecret();
  EXPECT_NE(secret, net::JobSecret{});
  EXPECT_EQ(net::SecretFromHex(net::SecretToHex(secret)).value(), secret);
}

TEST(JobEnvironmentTest, WhatIsNoSecretIsRefusedWithoutBeingShown) {
  for (const std::string& wrong : {std::string(63, 'a'), std::string(64, 'g'), std::string(64, '0'),
                                   std::string("swordfish")}) {
    const absl::Status status = net::SecretFromHex(wrong).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("64 hexadecimal digits"), Not(HasSubstr(wrong))));
    ASSERT_EQ(setenv("WEFT_JOB_SECRET", wrong.c_str(), 1), 0);
    EXPECT_THAT(std::string(net::SecretFromEnvironment().status().message()),
                AllOf(HasSubstr("WEFT_JOB_SECRET"), Not(HasSubstr(wrong))));
  }
  ASSERT_EQ(setenv("WEFT_JOB_SECRET", "", 1), 0);
  EXPECT_EQ(net::SecretFromEnvironment().value(), net::JobSecret{});
  ASSERT_EQ(unsetenv("WEFT_JOB_SECRET"), 0);
  EXPECT_EQ(net::SecretFromEnvironment().value(), net::JobSecret{});
}

TEST(JobEnvironmentTest, AProcessAloneServesItself) {
  auto job = Parse({});
  auto store = StoreFromEnvironment(*job, absl::Seconds(30));
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(store->store->Add("n", 3).value(), 3);
}

TEST(JobEnvironmentTest, RankZeroServesAtTheMastersPort) {
  // A port that is free now; nobody else is asked to take it in between.
  auto probe = StoreServer::Start({});
  ASSERT_TRUE(probe.ok());
  std::string port = std::to_string((*probe)->port());
  probe->reset();
  std::map<std::string, std::string> variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
  auto zero = StoreFromEnvironment(Parse(variables).value(), absl::Seconds(30));
  ASSERT_TRUE(zero.ok()) << zero.status();
  variables["RANK"] = "1";
  auto one = StoreFromEnvironment(Parse(variables).value(), absl::Seconds(30));
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(zero->store->Set("hello", "from zero").ok());
  EXPECT_EQ(one->store->Get("hello", absl::Seconds(30)).value(), "from zero");
  one->store.reset();  // before the server waits for it
}

}  // namespace
}  // namespace weft::collectives
