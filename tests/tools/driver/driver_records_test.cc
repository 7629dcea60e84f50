// The records of a driver and of its hosts as text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tools/driver/driver.h"

namespace weft::driver {
namespace {

using ::testing::HasSubstr;

TEST(DriverRecordsTest, SurviveTheirText) {
  recovery::Policy policy{.nodes = 2, .ranks_per_node = 1, .restarts_most = 3, .self_tests = false};
  DriverRecord record{.incarnation = 7, .policy = policy, .lease = absl::Milliseconds(1500)};
  record.job = recovery::NewJob(policy, absl::FromUnixSeconds(99));
  for (const char* host : {"a", "b", "c"}) {
    recovery::Decide(policy, record.job,
                     {.kind = recovery::EventKind::kHostJoined,
                      .host = host,
                      .incarnation = 2,
                      .address = "10.0.0.1"});
  }
  recovery::Decide(policy, record.job,
                   {.kind = recovery::EventKind::kHostEvicted, .host = "b", .text = "\"\xff"});
  record.policy.replay_hosts = 1;
  recovery::Decide(record.policy, record.job,
                   {.kind = recovery::EventKind::kHostJoined, .host = "d", .incarnation = 1});
  recovery::Decide(record.policy, record.job,
                   {.kind = recovery::EventKind::kReplay, .text = "by hand"});
  ASSERT_TRUE(record.job.replay.has_value());
  recovery::Decide(record.policy, record.job,
                   {.kind = recovery::EventKind::kReplayed,
                    .host = "a",
                    .test = 1,
                    .passed = true,
                    .text = "digest"});
  record.history.push_back({.time = absl::FromUnixSeconds(5), .text = "line"});
  const auto again = ParseDriverRecord(ToJson(record));
  ASSERT_TRUE(again.ok()) << again.status();
  // What is no text is replaced.
  record.job.hosts["b"].reason = record.job.notices[0].why = "\"\xEF\xBF\xBD";
  EXPECT_EQ(again->job, record.job);
  EXPECT_EQ(again->incarnation, 7);
  EXPECT_EQ(again->lease, record.lease);
  EXPECT_EQ(again->history, record.history);
  EXPECT_EQ(ToJson(*again), ToJson(*ParseDriverRecord(ToJson(*again))));
}

TEST(DriverRecordsTest, WhatIsNoRecordIsRefusedByName) {
  DriverRecord record;
  record.policy = {.nodes = 2, .replay_hosts = 1};
  record.job = recovery::NewJob(record.policy, absl::UnixEpoch());
  for (const char* host : {"a", "b", "c"}) {
    recovery::Decide(record.policy, record.job,
                     {.kind = recovery::EventKind::kHostJoined, .host = host, .incarnation = 1});
  }
  recovery::Decide(record.policy, record.job,
                   {.kind = recovery::EventKind::kHostLost, .host = "c"});
  recovery::Decide(record.policy, record.job,
                   {.kind = recovery::EventKind::kReplay, .text = "by hand"});
  ASSERT_TRUE(record.job.replay.has_value());
  const std::string whole = ToJson(record);
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    EXPECT_TRUE(absl::IsDataLoss(ParseDriverRecord(whole.substr(0, cut)).status()));
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string changed = whole;
    for (int n = 0; n < 3; ++n) changed[random() % changed.size()] = static_cast<char>(random());
    (void)ParseDriverRecord(changed);
    std::string report = ToJson(HostReport{
        .ranks = {{.rank = 1}}, .digests = {"x"}, .findings = {"x"}, .recoveries = {"x"}});
    report[random() % report.size()] = static_cast<char>(random());
    (void)ParseHostReport(report);
  }
  // A number that would be another one in the variable that takes it.
  for (const char* number : {"4294967296", "-2147483649", "18446744073709551615", "1e3", "true"}) {
    std::string changed = whole;
    const std::string member = R"("restarts":)";
    const size_t at = changed.find(member) + member.size();
    changed.replace(at, changed.find(',', at) - at, number);
    EXPECT_THAT(std::string(ParseDriverRecord(changed).status().message()),
                HasSubstr("'restarts' that is no number"))
        << number;
  }
  EXPECT_THAT(std::string(ParseHostReport("{}").status().message()),
              HasSubstr("a host's report has no 'incarnation'"));
}

}  // namespace
}  // namespace weft::driver
