// A driver and the hosts that it drives, on a store in memory: no process is started.
#ifndef WEFT_TESTS_TOOLS_DRIVER_DRIVEN_HOSTS_H_
#define WEFT_TESTS_TOOLS_DRIVER_DRIVEN_HOSTS_H_

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/collectives/memory_store.h"
#include "tools/driver/driver.h"
#include "tools/driver/orders.h"

namespace weft::driver {

inline constexpr absl::Duration kLease = absl::Seconds(4);

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

}  // namespace weft::driver

#endif  // WEFT_TESTS_TOOLS_DRIVER_DRIVEN_HOSTS_H_
