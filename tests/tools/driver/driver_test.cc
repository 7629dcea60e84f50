// The driver and its executors' rules, on a store in memory: no process is started.
#include "tools/driver/driver.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/first_line.h"
#include "base/random.h"
#include "base/write_file.h"
#include "collectives/recovery.h"
#include "collectives/rendezvous/job_environment.h"
#include "tests/collectives/memory_store.h"
#include "tests/fuzz_budget.h"
#include "tests/scratch_folder.h"
#include "tests/tools/driver/slow_store.h"
#include "tools/driver/orders.h"
#include "tools/driver/page.h"

namespace weft::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLease = absl::Seconds(4);

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

// A host with its executor, as far as the driver sees it.
class Host {
 public:
  Host(collectives::Store* store, std::string name, int ranks) : store_(store) {
    local_.host = std::move(name);
    local_.ranks.resize(static_cast<size_t>(ranks));
    ends_.resize(static_cast<size_t>(ranks));
  }
  const std::string& name() const { return local_.host; }
  bool is_there() const { return there_; }
  bool has_exited() const { return exit_status_ >= 0; }
  int exit_status() const { return exit_status_; }
  LocalState& local() { return local_; }

  void Join() {
    const std::string before = Read(ReportKey(name()));
    report_ = {};
    report_.incarnation = before.empty() ? 1 : ParseHostReport(before)->incarnation + 1;
    local_.incarnation = report_.incarnation;
    local_.node = -1;
    local_.ranks.assign(local_.ranks.size(), LocalRank{});
    text_ = ToJson(report_);
    EXPECT_EQ(*store_->CompareSet(ReportKey(name()), before, text_), text_);
    if (before.empty()) (void)store_->Append(kHostsKey, absl::StrCat(name(), "\n"));
    there_ = true;
    exit_status_ = -1;
  }
  void Die() {
    there_ = false;
    for (LocalRank& rank : local_.ranks) rank.alive = false;
  }
  void EndRank(size_t rank, const std::string& end) {
    local_.ranks[rank].alive = false;
    ends_[rank] = end;
  }
  // False: another executor has joined in this one's place.
  bool Beat() {
    report_.ranks.clear();
    for (size_t i = 0; i < local_.ranks.size(); ++i) {
      if (local_.ranks[i].generation < 0) continue;
      report_.ranks.push_back(
          {.rank = local_.node * static_cast<int>(local_.ranks.size()) + static_cast<int>(i),
           .generation = local_.ranks[i].generation,
           .alive = local_.ranks[i].alive,
           .end = local_.ranks[i].alive ? "" : ends_[i]});
    }
    ++report_.beat;
    std::string text = ToJson(report_);
    const std::string held = *store_->CompareSet(ReportKey(name()), text_, text);
    text_ = text;
    return held == text;
  }
  HostReport& report() { return report_; }

  // What a rank was started as; asks `may` for each.
  template <typename Started>
  void Obey(Started started) {
    const std::string text = Read(kStateKey);
    if (text.empty()) return;
    for (const Order& order : OrdersFor(*ParseDriverRecord(text), local_)) {
      switch (order.kind) {
        case OrderKind::kKillAll:
        case OrderKind::kEndAll:
          for (size_t i = 0; i < local_.ranks.size(); ++i) {
            if (local_.ranks[i].alive) EndRank(i, "was killed by signal 9 (SIGKILL)");
          }
          break;
        case OrderKind::kTakeNode:
          local_.node = order.node;
          local_.ranks.assign(local_.ranks.size(), LocalRank{});
          break;
        case OrderKind::kKillRank:
          EndRank(static_cast<size_t>(order.local_rank), "was killed by signal 9 (SIGKILL)");
          break;
        case OrderKind::kStartRank:
          local_.ranks[static_cast<size_t>(order.local_rank)] = {order.generation, true};
          started(local_.node * static_cast<int>(local_.ranks.size()) + order.local_rank,
                  order.generation);
          break;
        case OrderKind::kTest:
          local_.test = order.test;
          report_.test = order.test;
          report_.passed = true;
          break;
        case OrderKind::kReplay:
          local_.replayed = order.test;
          report_.replay = order.test;
          report_.digests.assign(order.parts.size(), "right");
          break;
        case OrderKind::kHelp:
          local_.helped = order.test;
          break;
        case OrderKind::kExit:
          exit_status_ = order.exit_status;
          there_ = false;
          break;
      }
    }
  }

 private:
  std::string Read(const std::string& key) {
    return *store_->Check({key}) ? *store_->Get(key, absl::Seconds(1)) : "";
  }

  collectives::Store* const store_;
  LocalState local_;
  HostReport report_;
  std::string text_;
  std::vector<std::string> ends_;
  bool there_ = false;
  int exit_status_ = -1;
};

class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override { driver_ = Open(); }
  std::unique_ptr<Driver> Open() { return *Driver::Open(&store_, options_, now_); }
  Host& Add(const std::string& name) {
    hosts_.push_back(std::make_unique<Host>(&store_, name, 2));
    hosts_.back()->Join();
    return *hosts_.back();
  }
  // Everybody once.
  void Turn() {
    now_ += absl::Seconds(1);
    for (const auto& host : hosts_) {
      if (!host->is_there()) continue;
      host->Obey([this](int rank, int generation) {
        EXPECT_TRUE(started_.emplace(rank, generation).second)
            << "rank " << rank << " was started twice in generation " << generation;
      });
      EXPECT_TRUE(!host->is_there() || host->Beat());
    }
    ASSERT_TRUE(driver_->Turn(now_).ok());
  }
  void Turns(int turns) {
    for (int i = 0; i < turns; ++i) Turn();
  }
  int Alive() const {
    int alive = 0;
    for (const auto& host : hosts_) {
      for (const LocalRank& rank : host->local().ranks) alive += rank.alive ? 1 : 0;
    }
    return alive;
  }

  const DriverOptions options_{.policy = {.nodes = 2, .ranks_per_node = 2, .restarts_most = 20},
                               .lease = kLease};
  collectives::MemoryStore store_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::unique_ptr<Driver> driver_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::set<std::pair<int, int>> started_;
};

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

TEST_F(DriverTest, ThePageShowsTheJobAndEvicts) {
  Add("a");
  Add("b");
  Add("c");
  Turns(4);
  std::vector<recovery::Action> said;
  const auto ask = [&](const std::string& method, const std::string& path) {
    return Answer(*driver_, {.method = method, .path = path}, now_, said);
  };
  EXPECT_THAT(ask("GET", "/job.json").body, HasSubstr(R"("nodes":["a","b"])"));
  EXPECT_EQ(ask("POST", "/evict/nobody").status, 404);
  EXPECT_EQ(ask("GET", "/evict/a").status, 404);
  EXPECT_THAT(ask("POST", "/evict/a").body, HasSubstr("place node 0 on c"));
  EXPECT_FALSE(said.empty());
  Turns(3);
  EXPECT_EQ(Alive(), 4);
  EXPECT_EQ(hosts_[0]->exit_status(), kEvictedStatus);
  EXPECT_EQ(ask("POST", "/stop").status, 200);
  Turns(2);
  EXPECT_EQ(Alive(), 0);
  EXPECT_EQ(hosts_[2]->exit_status(), 1);
}

// As on a full disk: a file without its token would end every later driver.
TEST(PageTokenTest, WhatCannotBeWrittenLeavesNoFile) {
  ScratchFolder folder;
  const std::string file = folder / "page-token";
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const rlim_t room : {0, 10}) {
    const rlimit small{room, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const absl::Status full = PageToken(file).status();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_THAT(std::string(full.message()), HasSubstr("write the page's token to"));
  }
  const absl::StatusOr<std::string> token = PageToken(file);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(*PageToken(file), *token);
  EXPECT_THAT(std::string(PageToken(folder / "none/page-token").status().message()),
              HasSubstr("none/page-token"));
}

// As where the host of an earlier driver lost power before the token was on the disk.
TEST(PageTokenTest, AFileThatIsEmptyGetsAToken) {
  ScratchFolder folder;
  const std::string file = folder / "page-token";
  ASSERT_TRUE(WriteFile(file, "").ok());
  const absl::StatusOr<std::string> token = PageToken(file);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(*PageToken(file), *token);
  ASSERT_TRUE(WriteFile(file, "short\n").ok());
  EXPECT_THAT(std::string(PageToken(file).status().message()), HasSubstr("has 5 characters"));
}

// A pipe has no size, and yet a token that is read, as of `--token-file <(...)`; a device may have
// none, and none is written there.
TEST(PageTokenTest, WhatIsNoFileIsReadAndNotWritten) {
  ScratchFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  FileDescriptor both(open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(both);
  const std::string line = "the token of a pipe\n";
  ASSERT_EQ(write(both.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
  EXPECT_EQ(*PageToken(pipe), "the token of a pipe");
  EXPECT_THAT(std::string(PageToken("/dev/null").status().message()),
              HasSubstr("the token in /dev/null has 0 characters"));
}

// As another driver that has just begun to write: its file is neither removed nor written.
TEST(PageTokenTest, AFileThatAnotherDriverHasLockedIsLeftToIt) {
  ScratchFolder folder;
  const std::string file = folder / "page-token";
  FileDescriptor other(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
  const absl::Status locked = PageToken(file, absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsUnavailable(locked)) << locked;
  EXPECT_THAT(std::string(locked.message()), HasSubstr(file + " is empty, and another process"));
  EXPECT_THAT(std::string(locked.message()), HasSubstr("end that process, delete the file"));
  const std::string line = "the other driver's token\n";
  ASSERT_EQ(write(other.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
  EXPECT_EQ(*PageToken(file, absl::ZeroDuration()), "the other driver's token");
}

// With an empty file, and without any.
TEST(PageTokenTest, DriversThatStartAtOnceHaveOneToken) {
  ScratchFolder folder;
  constexpr int kRounds = 100, kDrivers = 4;
  for (int round = 0; round < kRounds; ++round) {
    const std::string file = folder / absl::StrCat("page-token-", round);
    if (round % 2 == 0) {
      ASSERT_TRUE(WriteFile(file, "").ok());
    }
    std::vector<absl::StatusOr<std::string>> tokens(kDrivers);
    std::atomic<int> ready = 0;
    std::vector<std::thread> drivers;
    for (auto& token : tokens) {
      drivers.emplace_back([&] {
        ++ready;
        while (ready < kDrivers) std::this_thread::yield();
        token = PageToken(file);
      });
    }
    for (std::thread& driver : drivers) driver.join();
    for (const auto& token : tokens) {
      ASSERT_TRUE(token.ok()) << token.status();
      EXPECT_EQ(*token, FirstLine(file)) << "round " << round;
    }
  }
}

// Requests that any client with the token may send: what is no route changes nothing.
TEST_F(DriverTest, AnyRequestIsAnsweredAndOnlyARouteActs) {
  Add("a");
  Add("b");
  Turns(4);
  const std::vector<std::string> routes = {
      "GET /", "GET /job.json", "POST /evict/c", "POST /evict/a%20", "POST /replay", "POST /stop/"};
  FuzzBudget budget(5000);
  while (const auto seed = budget.Next()) {
    Random random(*seed);
    std::string text = absl::StrCat(routes[random.Below(routes.size())],
                                    " HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    for (uint64_t i = random.Below(6); i > 0; --i) {
      text[random.Below(text.size())] = static_cast<char>(random.Below(256));
    }
    if (random.Below(4) == 0) text.insert(random.Below(text.size()), "/../%00%2fevict/");
    observe::HttpRequest request;
    if (observe::ParseHttpRequest(text, &request) != observe::HttpParse::kDone) continue;
    const bool acts =
        request.method == "POST" &&
        (request.path == "/stop" || request.path == "/evict/a" || request.path == "/evict/b");
    if (acts) continue;
    const recovery::JobState before = driver_->job();
    std::vector<recovery::Action> said;
    const observe::HttpResponse answer = Answer(*driver_, request, now_, said);
    EXPECT_TRUE(answer.status == 200 || answer.status == 404 || answer.status == 409)
        << answer.status << " to " << request.method << " " << request.path;
    if (answer.status == 200) {
      EXPECT_EQ(request.method, "GET") << request.path;
    }
    EXPECT_TRUE(said.empty()) << ToText(said.front());
    ASSERT_EQ(driver_->job(), before) << request.method << " " << request.path;
  }
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
