// The driver and its executors' rules, on a store in memory: no process is started.
#include "tools/driver/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/recovery.h"
#include "collectives/rendezvous/job_environment.h"
#include "tests/collectives/memory_store.h"
#include "tests/tools/driver/driven_hosts.h"
#include "tests/tools/driver/slow_store.h"
#include "tools/driver/orders.h"

namespace weft::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(DriverTest, HostsThatReportJoinAndRunTheirRanks) {
  Add("a");
  Add("b");
  Turns(4);
  EXPECT_EQ(Alive(), 4);
  hosts_[1]->EndRank(0, "was killed by signal 9 (SIGKILL)");
  Turns(2);
  EXPECT_EQ(Alive(), 4);
  EXPECT_EQ(driver_->job().ranks[2].generation, 1);
  EXPECT_EQ(driver_->job().restarts, 1);
}

TEST_F(DriverTest, ARankThatDiesOnItsWayOutOfAJobThatSaysItIsDoneEndsNoJob) {
  Add("a");
  Add("b");
  Turns(4);
  collectives::JobEnvironment rank;
  rank.world_size = 4;
  rank.recover = true;
  ASSERT_TRUE(collectives::Recovery(&store_, rank).SetOver().ok());
  hosts_[0]->EndRank(0, "exited with status 0");
  hosts_[1]->EndRank(0, "was killed by signal 9 (SIGKILL)");  // at once
  Turns(2);
  EXPECT_FALSE(driver_->job().outcome.has_value());
  EXPECT_EQ(driver_->job().ranks[2].generation, 1);
  EXPECT_EQ(Alive(), 3);
}

TEST_F(DriverTest, ASilentHostIsLostAfterItsLeaseAndNotBefore) {
  Add("a");
  Add("b");
  Add("c");
  Turns(4);
  hosts_[0]->Die();
  Turns(5);  // a lease and a quarter
  EXPECT_EQ(driver_->job().nodes[0].host, "a");
  Turns(3);
  EXPECT_EQ(driver_->job().nodes[0].host, "c");
  EXPECT_EQ(Alive(), 4);
  hosts_[0]->Join();
  Turns(4);
  EXPECT_EQ(driver_->job().hosts.at("a").node, -1);
}

// The report of a host that died long ago is still in the store.
TEST_F(DriverTest, ANewDriverTakesNobodyForAliveWhoDoesNotReport) {
  Add("a");
  Add("b");
  Add("c");
  Turns(4);
  hosts_[2]->Die();
  Turns(8);
  EXPECT_EQ(driver_->job().hosts.count("c"), 0U);
  driver_ = Open();
  Turns(3);
  EXPECT_EQ(driver_->job().hosts.count("c"), 0U);
  EXPECT_EQ(Alive(), 4);
}

TEST_F(DriverTest, AnEarlierDriverChangesNothing) {
  Add("a");
  Add("b");
  Turns(4);
  std::unique_ptr<Driver> earlier = std::exchange(driver_, Open());
  EXPECT_TRUE(absl::IsAborted(earlier->Evict("a", "by hand", now_).status()));
  EXPECT_EQ(Open()->job().nodes[0].host, "a");
}

// The next command must not find the driver's own record and take it for another driver's.
TEST_F(DriverTest, ACommandWhoseAnswerCameTooLateIsDoneOnceAndTheDriverStays) {
  SlowStore store;
  const auto driver = *Driver::Open(&store, options_, now_);
  store.LoseNext();
  EXPECT_TRUE(absl::IsDeadlineExceeded(driver->Stop(7, "by hand", now_).status()));
  const absl::StatusOr<std::vector<recovery::Action>> again = driver->Stop(8, "again", now_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->empty());
  ASSERT_TRUE(driver->job().outcome.has_value());
  EXPECT_EQ(driver->job().outcome->exit_status, 7);
  EXPECT_TRUE(driver->Turn(now_).ok());
}

TEST_F(DriverTest, ADriverForAnotherJobIsRefused) {
  DriverOptions other = options_;
  other.policy.nodes = 3;
  const auto refused = Driver::Open(&store_, other, now_);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("2 nodes with 2 ranks"));
}

TEST_F(DriverTest, AJobThatIsOverIsNotGoneOnWithOnceEverybodyKnows) {
  ASSERT_TRUE(driver_->Stop(7, "rank 1 exited with status 7", now_).ok());
  // The first driver died before it had told the others.
  driver_ = Open();
  EXPECT_EQ(driver_->job().outcome->exit_status, 7);
  ASSERT_TRUE(driver_->Close().ok());
  const auto refused = Driver::Open(&store_, options_, now_);
  EXPECT_TRUE(absl::IsAlreadyExists(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("is over since 1970-01-01 00:16:40 UTC, with status 7: rank 1 exited with "
                        "status 7"));
}

TEST_F(DriverTest, OptionsThatAreGivenChangeAJobThatGoesOnAndTheOthersStay) {
  DriverOptions options = options_;
  options.policy.restarts_most = 50;
  options.policy.vacancy_most = absl::Hours(1);
  options.policy.self_tests = false;
  options.lease = absl::Minutes(1);
  options.given = {"--recover", "--lease", "--self-tests"};
  driver_ = *Driver::Open(&store_, options, now_);
  EXPECT_THAT(driver_->changes(),
              testing::ElementsAre("--recover 50 (was 20)", "--self-tests off (was on)",
                                   "--lease 1m (was 4s)"));
  EXPECT_EQ(driver_->record().policy.restarts_most, 50);
  EXPECT_EQ(driver_->record().policy.vacancy_most, options_.policy.vacancy_most);
  EXPECT_EQ(driver_->record().lease, absl::Minutes(1));
  EXPECT_EQ(driver_->record().history.back().text, "--lease 1m (was 4s)");
}

TEST_F(DriverTest, AShorterLeaseHoldsForAHostOnceItsExecutorKnows) {
  Add("a").report().lease = kLease;
  Add("b").report().lease = kLease / 2;
  Add("c");
  Turns(4);
  DriverOptions options = options_;
  options.lease = kLease / 2;
  options.given = {"--lease"};
  driver_ = *Driver::Open(&store_, options, now_);
  Turns(2);
  for (const auto& host : hosts_) host->Die();
  Turns(4);
  EXPECT_EQ(driver_->job().hosts.count("b"), 0U);
  EXPECT_EQ(driver_->job().hosts.count("a"), 1U);
  Turns(2);
  EXPECT_EQ(driver_->job().hosts.count("a"), 0U);
}

// As by SIGSTOP, or in a virtual machine that was suspended.
TEST_F(DriverTest, ADriverThatWasStoppedForLongTakesNobodyForLost) {
  Add("a");
  Add("b");
  Add("c");
  Turns(4);
  now_ += 100 * kLease;
  ASSERT_TRUE(driver_->Turn(now_).ok());
  Turns(4);
  EXPECT_EQ(driver_->job().notices_made, 0);
  EXPECT_EQ(driver_->job().ranks[0].generation, 0);
  // One that is silent afterwards is lost all the same.
  hosts_[0]->Die();
  Turns(8);
  EXPECT_EQ(driver_->job().nodes[0].host, "c");
}

// Hosts may have joined while no driver was there to hear of them.
TEST_F(DriverTest, ADriverThatWasAwayForLongStopsNoJobForWantOfAHostAtOnce) {
  Add("a");
  Add("b");
  Turns(4);
  hosts_[0]->Die();
  Turns(8);
  ASSERT_EQ(driver_->job().nodes[0].host, "");
  for (const absl::Duration away : {absl::Hours(1), -absl::Hours(2)}) {  // its clock is another one
    now_ += away;
    driver_ = Open();
    Turns(2);
    ASSERT_FALSE(driver_->job().outcome.has_value()) << driver_->job().outcome->reason;
  }
  Add("c");
  Turns(5);
  EXPECT_EQ(driver_->job().nodes[0].host, "c");
  EXPECT_EQ(Alive(), 4);
}

TEST_F(DriverTest, OfAFaultOfSeveralHostsEachIsSuspectedOnce) {
  Add("a");
  Add("b");
  Turns(4);
  const auto actions =
      driver_->Diagnosed({0, 1, 2, 3, 99, -1}, recovery::Blame::kHost, "device error", now_);
  ASSERT_TRUE(actions.ok()) << actions.status();
  std::vector<std::string> done;
  for (const recovery::Action& action : *actions) done.push_back(ToText(action));
  EXPECT_THAT(done,
              ElementsAre("test a: diagnosis: device error", "test b: diagnosis: device error"));
}

TEST_F(DriverTest, TheRanksOfAHostThatIsReplacedBlameNotTheSpareForIt) {
  DriverOptions options = options_;
  options.policy.self_tests = false;
  options.given = {"--self-tests"};
  driver_ = *Driver::Open(&store_, options, now_);
  for (const char* host : {"a", "b", "c", "d"}) Add(host);
  Turns(5);
  ASSERT_TRUE(driver_->Diagnosed({0, 1}, recovery::Blame::kHost, "device error", now_).ok());
  EXPECT_EQ(driver_->job().nodes[0].host, "c");
  EXPECT_TRUE(driver_->job().hosts.at("a").evicted);
  EXPECT_FALSE(driver_->job().hosts.at("c").evicted);
}

TEST_F(DriverTest, AnExecutorOfAnEarlierIncarnationEnds) {
  Host& first = Add("a");
  Add("b");
  Turns(4);
  Host second(&store_, "a", 2);
  second.Join();
  EXPECT_FALSE(first.Beat());
  for (int i = 0; i < 3; ++i) {
    now_ += absl::Seconds(1);
    EXPECT_TRUE(second.Beat());
    EXPECT_TRUE(hosts_[1]->Beat());
    ASSERT_TRUE(driver_->Turn(now_).ok());
    second.Obey([](int, int generation) { EXPECT_EQ(generation, 1); });
    first.Obey([](int, int) { ADD_FAILURE() << "it is not this host any more"; });
  }
  EXPECT_EQ(first.exit_status(), kReplacedStatus);
  EXPECT_TRUE(second.local().ranks[0].alive);
}

TEST_F(DriverTest, ALostHostIsANoticeUntilTheSiteHasBeenTold) {
  Add("a");
  Add("b");
  Add("c");
  Turns(4);
  hosts_[0]->Die();
  Turns(8);
  driver_ = Open();  // the one before died, and had told nobody
  ASSERT_EQ(driver_->job().notices.size(), 1U);
  EXPECT_EQ(driver_->job().notices[0].host, "a");
  EXPECT_EQ(driver_->job().hosts.count("a"), 0U);
  ASSERT_TRUE(driver_->SiteTold(driver_->job().notices[0].number, now_).ok());
  EXPECT_TRUE(Open()->job().notices.empty());
}

TEST(OrdersTest, AHostThatHelpsWithATestBeginsItsOwnOrAReplayOnceItHasHelped) {
  DriverRecord record;
  record.policy = {.nodes = 2, .ranks_per_node = 1};
  record.job = recovery::NewJob(record.policy, absl::UnixEpoch());
  recovery::HostState& a = record.job.hosts["a"] = {.incarnation = 1, .node = 0};
  recovery::HostState& b = record.job.hosts["b"] = {.incarnation = 1, .node = 1};
  LocalState local{.host = "b", .incarnation = 1, .node = 1, .ranks = {{}}};
  const auto kinds = [&] {
    std::vector<OrderKind> kinds;
    for (const Order& order : OrdersFor(record, local)) kinds.push_back(order.kind);
    return kinds;
  };
  a.test = 1;
  a.test_helpers = {"b"};
  record.job.replay = recovery::Replay{.task = 1, .groups = {{.hosts = {"b"}}}};
  EXPECT_THAT(kinds(), ElementsAre(OrderKind::kHelp));
  local.helped = 1;
  local.helps = true;
  EXPECT_THAT(kinds(), IsEmpty());
  local.helps = false;
  EXPECT_THAT(kinds(), ElementsAre(OrderKind::kReplay));
  record.job.replay.reset();
  b.test = 2;
  EXPECT_THAT(kinds(), ElementsAre(OrderKind::kTest));
  local.helps = true;
  EXPECT_THAT(kinds(), IsEmpty());
}

// A store whose client dies after some more calls: the last one may have had its effect.
class DyingStore final : public collectives::Store {
 public:
  explicit DyingStore(collectives::Store* store) : store_(store) {}
  void DieAfter(int calls, bool with_effect) {
    left_ = calls;
    with_effect_ = with_effect;
  }
  absl::StatusOr<bool> Check(const std::vector<std::string>& keys) override {
    return Call([&] { return store_->Check(keys); });
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    return Call([&] { return store_->Get(key, timeout); });
  }
  absl::StatusOr<std::vector<std::string>> MultiGet(const std::vector<std::string>& keys,
                                                    absl::Duration timeout) override {
    return Call([&] { return store_->MultiGet(keys, timeout); });
  }
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    return Call([&] { return store_->CompareSet(key, expected, desired); });
  }
  absl::Status Set(absl::string_view, absl::string_view) override { return Unused(); }
  absl::StatusOr<int64_t> Add(absl::string_view, int64_t) override { return Unused(); }
  absl::StatusOr<bool> Delete(absl::string_view) override { return Unused(); }
  absl::StatusOr<int64_t> KeyCount() override { return Unused(); }
  absl::Status Wait(const std::vector<std::string>&, absl::Duration) override { return Unused(); }
  absl::Status Append(absl::string_view, absl::string_view) override { return Unused(); }
  absl::Status MultiSet(const std::vector<std::string>&, const std::vector<std::string>&) override {
    return Unused();
  }
  absl::Status Barrier(absl::string_view, int, int, absl::Duration) override { return Unused(); }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view, int, int, absl::string_view,
                                                     absl::Duration) override {
    return Unused();
  }

 private:
  static absl::Status Unused() { return absl::UnimplementedError("the driver does not call it"); }
  template <typename Do>
  auto Call(Do call) -> decltype(call()) {
    if (left_ > 0 && --left_ == 0) {
      if (with_effect_) (void)call();
      left_ = -1;
    }
    if (left_ < 0) return absl::UnavailableError("the driver is dead");
    return call();
  }

  collectives::Store* const store_;
  int left_ = 0;  // 0: for ever; -1: dead
  bool with_effect_ = false;
};

// A driver that is killed at any moment, before or after any of its calls had its effect, while
// ranks and hosts die: no rank is started twice in a generation, the site is told of every host
// that is gone, never again once that is written down, and the job ends.
TEST(DriverSeedsTest, ADriverKilledAtAnyMomentDoesNothingTwiceAndTheJobGoesOn) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto draw = [&random](int below) {
      return static_cast<int>(random() % static_cast<uint64_t>(below));
    };
    const DriverOptions options{
        .policy = {.nodes = 1 + draw(3), .ranks_per_node = 1 + draw(3), .restarts_most = 1000},
        .lease = kLease};
    const int nodes = options.policy.nodes, each = options.policy.ranks_per_node;
    collectives::MemoryStore store;
    std::vector<std::unique_ptr<Host>> hosts;
    for (int i = 0; i < nodes + 2; ++i) {
      hosts.push_back(std::make_unique<Host>(&store, absl::StrCat("host", i), each));
      hosts.back()->Join();
    }
    absl::Time now = absl::FromUnixSeconds(1000);
    auto connection = std::make_unique<DyingStore>(&store);
    std::unique_ptr<Driver> driver;
    std::map<int, int> newest;
    std::set<int64_t> told, written;  // notices
    int faults = 20, deaths = 0, turn = 0;
    bool is_over = false;
    for (; turn < 3000 && !is_over; ++turn) {
      now += absl::Milliseconds(500);
      if (driver == nullptr || (faults > 0 && draw(3) == 0)) {
        if (faults > 0) connection->DieAfter(1 + draw(8), draw(2) == 0);
      }
      if (driver == nullptr) {
        if (auto opened = Driver::Open(connection.get(), options, now); opened.ok()) {
          driver = *std::move(opened);
        }
      }
      bool lives = driver != nullptr && driver->Turn(now).ok();
      while (lives && !driver->job().notices.empty()) {
        const int64_t notice = driver->job().notices.front().number;
        EXPECT_EQ(written.count(notice), 0U) << "notice " << notice << " was written down as told";
        told.insert(notice);
        lives = driver->SiteTold(notice, now).ok();
        if (lives) written.insert(notice);
      }
      if (lives) {
        is_over = driver->job().outcome.has_value();
      } else {
        ++deaths;
        driver = nullptr;
        connection = std::make_unique<DyingStore>(&store);
      }
      for (const auto& host : hosts) {
        if (!host->is_there()) {
          if (!host->has_exited() && draw(20) == 0) host->Join();
          continue;
        }
        host->Obey([&](int rank, int generation) {
          const auto before = newest.find(rank);
          EXPECT_TRUE(before == newest.end() || before->second < generation)
              << "rank " << rank << " in generation " << generation << " after " << before->second;
          newest[rank] = generation;
        });
        if (!host->is_there()) continue;
        EXPECT_TRUE(host->Beat());
      }
      if (faults > 0 && turn > 10 && draw(10) == 0) {
        --faults;
        Host& host = *hosts[static_cast<size_t>(draw(static_cast<int>(hosts.size())))];
        const auto rank = static_cast<size_t>(draw(each));
        if (draw(4) == 0) {
          host.Die();
        } else if (host.local().ranks[rank].alive) {
          host.EndRank(rank, draw(2) == 0 ? "was killed by signal 9 (SIGKILL)"
                                          : "exited with status 1: no way to a rank [connection]");
        }
      }
      // All ranks have met, and nothing happens any more.
      int alive = 0;
      for (const auto& host : hosts) {
        for (const LocalRank& rank : host->local().ranks) alive += rank.alive ? 1 : 0;
      }
      if (faults == 0 && alive == nodes * each) {
        for (const auto& host : hosts) {
          for (size_t i = 0; i < host->local().ranks.size(); ++i) {
            if (host->local().ranks[i].alive) host->EndRank(i, "exited with status 0");
          }
        }
      }
    }
    EXPECT_TRUE(is_over) << "after " << turn << " turns";
    EXPECT_GT(deaths, 0);
    if (!is_over) continue;
    EXPECT_EQ(driver->job().outcome->exit_status, 0) << driver->job().outcome->reason;
    EXPECT_EQ(newest.size(), static_cast<size_t>(nodes * each));
    EXPECT_EQ(told.size(), static_cast<size_t>(driver->job().notices_made));
  }
}

}  // namespace
}  // namespace weft::driver
