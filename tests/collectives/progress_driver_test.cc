// Who drives, and who is woken, with an engine that moves nothing.
#include "collectives/progress_driver.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "collectives/operation.h"
#include "tests/collectives/idle_operation.h"

namespace weft::collectives {
namespace {

// A bound on hangs.
constexpr absl::Duration kPatience = absl::Seconds(30);

template <typename Condition>
bool Until(Condition condition) {
  for (const absl::Time end = absl::Now() + kPatience; absl::Now() < end;) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return false;
}

std::shared_ptr<Operation> NewOperation() {
  return std::make_shared<IdleOperation>(SystemClock::Nanoseconds());
}

// Quiet transports. The turn that takes the first operation lasts until the second is started.
class QuietEngine final : public ProgressEngine {
 public:
  ProgressDriver driver{this};
  std::atomic<int> started{0}, taken{0}, prepared{0};
  std::atomic<bool> in_first_turn{false};
  std::atomic<bool> slept_on_work{false};

  void AwaitSecond() {
    in_first_turn = true;
    EXPECT_TRUE(Until([this] { return started == 2; }));
  }

 private:
  bool Turn(int64_t now_ns) override {
    const int before = taken;
    const bool moved = TakeInbox(now_ns);
    if (before == 0 && taken == 1) AwaitSecond();
    return moved;
  }
  bool TakeInbox(int64_t now_ns) override {
    std::vector<std::shared_ptr<Operation>> operations;
    std::vector<ProgressDriver::Task> tasks;
    if (!driver.Take(operations, tasks)) return false;
    for (const auto& operation : operations) {
      driver.OnDone();
      operation->Finish(absl::OkStatus(), now_ns);
      ++taken;
    }
    for (auto& task : tasks) task();
    return true;
  }
  // The driver calls this before it sleeps, or before it leaves another thread asleep.
  bool PrepareWait() override {
    if (started > taken) slept_on_work = true;
    ++prepared;
    return true;
  }
  void FinishWait() override {}
  int64_t NextDeadline() const override { return INT64_MAX; }
};

class ProgressDriverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(engine_.driver.Open().ok());
    engine_.driver.Begin(absl::ZeroDuration(), absl::ZeroDuration());
    ASSERT_TRUE(Until([this] { return engine_.prepared > 0; })) << "nobody sleeps";
  }
  void TearDown() override { engine_.driver.Stop(); }

  void Start(int number) {
    engine_.driver.Start(NewOperation());
    engine_.started = number;
  }

  QuietEngine engine_;
};

// The background thread sleeps, and is rung by transports only.
TEST_F(ProgressDriverTest, WorkThatIsStartedDuringATurnIsNotSleptOn) {
  std::thread first([this] { engine_.driver.Start(NewOperation()); });
  ASSERT_TRUE(Until([this] { return engine_.in_first_turn.load(); }));
  Start(2);
  first.join();
  EXPECT_TRUE(Until([this] { return engine_.taken == 2; }));
  EXPECT_FALSE(engine_.slept_on_work);
}

TEST_F(ProgressDriverTest, WorkThatIsStartedDuringATaskIsNotSleptOn) {
  std::thread task([this] { engine_.driver.Run([this] { engine_.AwaitSecond(); }); });
  ASSERT_TRUE(Until([this] { return engine_.in_first_turn.load(); }));
  engine_.driver.Start(NewOperation());
  Start(2);
  task.join();
  EXPECT_TRUE(Until([this] { return engine_.taken == 2; }));
  EXPECT_FALSE(engine_.slept_on_work);
}

// Has deadlines, and nothing else. Counts the turns of the thread that makes it.
class DueEngine final : public ProgressEngine {
 public:
  ProgressDriver driver{this};
  int sleeps = 0;  // of that thread
  int polls = 0;   // sleeps that it took several turns for

 private:
  bool Turn(int64_t now_ns) override {
    if (std::this_thread::get_id() == own_) ++turns_;
    TakeInbox(now_ns);
    return false;
  }
  bool TakeInbox(int64_t) override {
    std::vector<std::shared_ptr<Operation>> operations;
    std::vector<ProgressDriver::Task> tasks;
    return driver.Take(operations, tasks);
  }
  bool PrepareWait() override {
    if (std::this_thread::get_id() != own_) return true;
    ++sleeps;
    if (std::exchange(turns_, 0) > 1) ++polls;
    return true;
  }
  void FinishWait() override {}
  int64_t NextDeadline() const override { return SystemClock::Nanoseconds() + 1'000'000; }

  const std::thread::id own_ = std::this_thread::get_id();
  int turns_ = 0;
};

// Else ranks that wait for each other would poll again and again where they outnumber the cores.
TEST(ProgressDriverDeadlineTest, AWaitThatOnlyADeadlineWakesDoesNotPollAnew) {
  DueEngine engine;
  ASSERT_TRUE(engine.driver.Open().ok());
  engine.driver.Begin(absl::ZeroDuration(), absl::Milliseconds(10));
  const auto operation = NewOperation();
  engine.driver.Start(operation);
  while (engine.sleeps < 40) {
    EXPECT_FALSE(engine.driver.WaitFor(*operation, absl::Milliseconds(400)).ok());
  }
  engine.driver.Stop();
  EXPECT_LT(engine.polls, engine.sleeps / 2);
}

// Waits for memory that another process writes, and counts who looks at it.
class LookedAtOperation final : public IdleOperation {
 public:
  LookedAtOperation() : IdleOperation(SystemClock::Nanoseconds()) {}
  Outlook outlook() const override {
    ++looks;
    if (done()) looked_when_done = true;  // what it ran on is at rest, or runs another by now
    return Outlook::kNothing;
  }
  mutable std::atomic<int> looks{0};
  mutable std::atomic<bool> looked_when_done{false};
};

// Takes what is started, and moves nothing of its own accord. Sleeps are as good as endless.
class IdleEngine final : public ProgressEngine {
 public:
  ProgressDriver driver{this, absl::Hours(1)};
  std::atomic<int> taken{0}, prepared{0};
  std::atomic<Operation*> due{nullptr};      // what the next turn finishes
  std::atomic<bool> brings_deadline{false};  // the next operation does: a millisecond later
  std::atomic<int> deadlines_met{0};

  // As the driver.
  void Finish(Operation& operation) {
    driver.OnDone();
    operation.Finish(absl::OkStatus(), SystemClock::Nanoseconds());
    driver.TellWaiters();
  }
  // Whether `thread` has prepared to sleep.
  bool HasPrepared(std::thread::id thread) {
    std::lock_guard<std::mutex> lock(mutex_);
    return prepared_by_.count(thread) > 0;
  }
  void ForgetThreads() {  // another thread may get the number of one that has ended
    std::lock_guard<std::mutex> lock(mutex_);
    prepared_by_.clear();
  }

 private:
  bool Turn(int64_t now_ns) override {
    TakeInbox(now_ns);
    if (now_ns >= deadline_ns_) {
      deadline_ns_ = INT64_MAX;
      ++deadlines_met;
    }
    Operation* const operation = due.exchange(nullptr);
    if (operation != nullptr) Finish(*operation);
    return operation != nullptr;
  }
  bool TakeInbox(int64_t) override {
    std::vector<std::shared_ptr<Operation>> operations;
    std::vector<ProgressDriver::Task> tasks;
    if (!driver.Take(operations, tasks)) return false;
    taken += static_cast<int>(operations.size());
    if (!operations.empty() && brings_deadline.exchange(false)) {
      deadline_ns_ = SystemClock::Nanoseconds() + 1'000'000;
    }
    for (auto& task : tasks) task();
    return true;
  }
  bool PrepareWait() override {
    std::lock_guard<std::mutex> lock(mutex_);
    prepared_by_.insert(std::this_thread::get_id());
    ++prepared;
    return true;
  }
  void FinishWait() override {}
  int64_t NextDeadline() const override { return deadline_ns_; }

  int64_t deadline_ns_ = INT64_MAX;  // the driver's
  std::mutex mutex_;
  std::set<std::thread::id> prepared_by_;
};

TEST(ProgressDriverLookTest, AnOperationThatAnotherThreadHasFinishedIsNotLookedAt) {
  IdleEngine engine;
  ASSERT_TRUE(engine.driver.Open().ok());
  engine.driver.Begin(absl::Microseconds(1), absl::ZeroDuration());
  const auto operation = std::make_shared<LookedAtOperation>();
  engine.driver.Start(operation);
  std::atomic<bool> waits{false};
  std::thread waiter([&] {
    waits = true;
    EXPECT_TRUE(engine.driver.WaitFor(*operation, absl::InfiniteDuration()).ok());
  });
  // It has looked, and then prepared to sleep.
  EXPECT_TRUE(Until([&] { return waits && operation->looks > 0; }));
  EXPECT_TRUE(Until([&] { return engine.HasPrepared(waiter.get_id()); }));
  engine.driver.Run([&] { engine.Finish(*operation); });
  waiter.join();
  EXPECT_FALSE(operation->looked_when_done);
  engine.driver.Stop();
}

// Other operations move in turns of the engine, and a waiter that only looks takes few of these.
TEST(ProgressDriverLookTest, WhileOthersAreUnderWayThereAreTurnsInsteadOfLooks) {
  IdleEngine engine;
  ASSERT_TRUE(engine.driver.Open().ok());
  engine.driver.Begin(absl::Seconds(1), absl::Seconds(1));
  const auto operation = std::make_shared<LookedAtOperation>();
  engine.driver.Start(operation);
  // The background thread may have the role, and no core, for as long as one such wait.
  ASSERT_TRUE(Until([&] {
    EXPECT_FALSE(engine.driver.WaitFor(*operation, absl::Milliseconds(20)).ok());
    return operation->looks > 0;
  }));
  engine.driver.Start(NewOperation());
  ASSERT_TRUE(Until([&] { return engine.taken == 2; }));
  const int looks = operation->looks;
  EXPECT_FALSE(engine.driver.WaitFor(*operation, absl::Milliseconds(20)).ok());
  EXPECT_EQ(operation->looks, looks);
  engine.driver.Stop();
}

// The thread that made the call may be about to wait for it.
TEST(ProgressDriverBackgroundTest, AnOperationThatHasJustBeenStartedIsLeftToItsThread) {
  IdleEngine engine;
  ASSERT_TRUE(engine.driver.Open().ok());
  const int64_t in_an_hour = SystemClock::Nanoseconds() + absl::ToInt64Nanoseconds(absl::Hours(1));
  engine.driver.Start(std::make_shared<IdleOperation>(in_an_hour));
  engine.driver.Begin(absl::ZeroDuration(), absl::ZeroDuration());
  absl::SleepFor(absl::Milliseconds(50));  // the thread looks every few hundred microseconds
  EXPECT_EQ(engine.prepared, 0);
  const int64_t before = SystemClock::Nanoseconds() - absl::ToInt64Nanoseconds(absl::Seconds(1));
  engine.driver.Start(std::make_shared<IdleOperation>(before));
  EXPECT_TRUE(Until([&] { return engine.prepared > 0; }));
  engine.driver.Stop();
}

// A thread that waits for an operation of its own, and is asleep before it is used.
class Sleeper {
 public:
  Sleeper(IdleEngine& engine, const std::shared_ptr<Operation>& operation)
      : thread_([this, &engine, operation] {
          EXPECT_TRUE(engine.driver.WaitFor(*operation, absl::InfiniteDuration()).ok());
          has_returned_ = true;
        }) {
    EXPECT_TRUE(Until([&] { return engine.HasPrepared(thread_.get_id()); }));
  }
  bool Returns() {
    return Until([this] { return has_returned_.load(); });
  }
  void Join() { thread_.join(); }

 private:
  std::atomic<bool> has_returned_{false};
  std::thread thread_;
};

// In the turn that a call takes; a task wakes who sleeps, whatever it does.
void FinishInTurn(IdleEngine& engine, Operation& operation) {
  engine.due = &operation;
  engine.driver.Start(NewOperation());
}

// The thread sleeps for an hour if nobody wakes it.
TEST(ProgressDriverSleepTest, WhoFinishesAnOperationWakesTheThreadThatWaitsForIt) {
  IdleEngine engine;
  ASSERT_TRUE(engine.driver.Open().ok());
  engine.driver.Begin(absl::ZeroDuration(), absl::ZeroDuration());
  for (int round = 0; round < 20; ++round) {
    const auto operation = NewOperation();
    engine.driver.Start(operation);
    engine.ForgetThreads();
    Sleeper sleeper(engine, operation);
    FinishInTurn(engine, *operation);
    const bool is_woken = sleeper.Returns();
    EXPECT_TRUE(is_woken);
    if (!is_woken) engine.driver.Stop();
    sleeper.Join();
    if (!is_woken) return;
  }
  engine.driver.Stop();
}

// One of the two threads sleeps on the descriptors, and the other until that one leaves.
TEST(ProgressDriverSleepTest, OfTwoThreadsEachIsWokenByItsOwnOperation) {
  IdleEngine engine;
  ASSERT_TRUE(engine.driver.Open().ok());
  const FileDescriptor bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_TRUE(engine.driver.Watch(bell.get()).ok());
  engine.driver.Begin(absl::ZeroDuration(), absl::ZeroDuration());
  for (int round = 0; round < 20; ++round) {
    const std::array operations = {NewOperation(), NewOperation()};
    for (const auto& operation : operations) engine.driver.Start(operation);
    engine.ForgetThreads();
    Sleeper first(engine, operations[0]), second(engine, operations[1]);
    const std::array sleepers = {&first, &second};
    const size_t before = round % 2, after = 1 - before;
    FinishInTurn(engine, *operations[before]);
    bool are_woken = sleepers[before]->Returns();
    EXPECT_TRUE(are_woken);
    // The other thread is the one that transports ring now.
    engine.due = operations[after].get();
    const uint64_t one = 1;
    EXPECT_EQ(write(bell.get(), &one, sizeof(one)), sizeof(one));
    are_woken = sleepers[after]->Returns() && are_woken;
    EXPECT_TRUE(are_woken);
    uint64_t count = 0;
    EXPECT_EQ(read(bell.get(), &count, sizeof(count)), sizeof(count));
    if (!are_woken) {
      for (const auto& operation : operations) {
        if (!operation->done()) engine.driver.Run([&] { engine.Finish(*operation); });
      }
      engine.driver.Stop();
    }
    for (Sleeper* sleeper : sleepers) sleeper->Join();
    if (!are_woken) return;
  }
  engine.driver.Stop();
}

// An engine with one operation, and a thread that waits for it asleep.
struct SleptForOperation {
  SleptForOperation() {
    EXPECT_TRUE(engine.driver.Open().ok());
    engine.driver.Begin(absl::ZeroDuration(), absl::ZeroDuration());
    engine.driver.Start(operation);
    engine.ForgetThreads();
    sleeper.emplace(engine, operation);
  }
  ~SleptForOperation() {
    sleeper->Join();
    engine.driver.Stop();
  }
  IdleEngine engine;
  const std::shared_ptr<Operation> operation = NewOperation();
  std::optional<Sleeper> sleeper;
};

// A task may change what a turn then acts upon.
TEST(ProgressDriverSleepTest, ATaskIsFollowedByATurn) {
  SleptForOperation slept;
  IdleEngine& engine = slept.engine;
  engine.driver.Run([&] { engine.due = slept.operation.get(); });
  const bool is_woken = slept.sleeper->Returns();
  EXPECT_TRUE(is_woken);
  if (!is_woken) engine.driver.Run([&] { engine.Finish(*slept.operation); });
}

// A call of another thread begins to make a link, which has such a deadline.
TEST(ProgressDriverSleepTest, ADeadlineThatAnotherThreadBringsIsNotSleptOver) {
  SleptForOperation slept;
  IdleEngine& engine = slept.engine;
  engine.brings_deadline = true;
  engine.driver.Start(NewOperation());
  EXPECT_TRUE(Until([&] { return engine.deadlines_met > 0; }));
  engine.driver.Run([&] { engine.Finish(*slept.operation); });
}

// Waits for a link to be made. Is looked at between turns by a thread that spins or yields.
class LinkingOperation final : public IdleOperation {
 public:
  LinkingOperation() : IdleOperation(SystemClock::Nanoseconds()) {}
  bool AwaitsLink() const override { return true; }
  Outlook outlook() const override {
    ++looks;
    return Outlook::kLinks;
  }
  mutable std::atomic<int> looks{0};
};

// Yields take the core from the very process that has the next step of the handshake to do.
TEST(ProgressDriverLinkTest, WhereRanksOutnumberCoresWhoWaitsForALinkSleepsAtOnce) {
  IdleEngine engine;
  ASSERT_TRUE(engine.driver.Open().ok());
  engine.driver.Begin(/*spin=*/absl::ZeroDuration(), /*yield=*/absl::Hours(1));
  const auto operation = std::make_shared<LinkingOperation>();
  engine.driver.Start(operation);
  engine.ForgetThreads();
  Sleeper sleeper(engine, operation);  // asleep, or it would yield for an hour
  engine.driver.Run([&] { engine.Finish(*operation); });
  sleeper.Join();
  engine.driver.Stop();
}

TEST(ProgressDriverLinkTest, WhereThereIsACoreForEachRankWhoWaitsForALinkPolls) {
  IdleEngine engine;
  ASSERT_TRUE(engine.driver.Open().ok());
  engine.driver.Begin(/*spin=*/absl::Microseconds(1), /*yield=*/absl::Hours(1));
  const auto operation = std::make_shared<LinkingOperation>();
  engine.driver.Start(operation);
  std::thread waiter(
      [&] { EXPECT_TRUE(engine.driver.WaitFor(*operation, absl::InfiniteDuration()).ok()); });
  // A thread that sleeps does so for an hour.
  EXPECT_TRUE(Until([&] { return operation->looks > 100; }));
  engine.driver.Run([&] { engine.Finish(*operation); });
  waiter.join();
  engine.driver.Stop();
}

// Waits for a process that waits on the same CPU, wherever that is.
class SharingOperation final : public IdleOperation {
 public:
  SharingOperation() : IdleOperation(SystemClock::Nanoseconds()) {}
  bool WaitsOnCpuOfPeer(int /*cpu*/) override {
    ++asked;
    return true;
  }
  std::atomic<int> asked{0};
};

// Finishes its operation once the thread that made it has slept three times; a sleep is short.
class SleepCountingEngine final : public ProgressEngine {
 public:
  static constexpr int kSleeps = 3;
  explicit SleepCountingEngine(std::shared_ptr<Operation> operation)
      : operation_(std::move(operation)) {}
  ProgressDriver driver{this};
  std::atomic<bool> counts{false};

 private:
  bool Turn(int64_t now_ns) override {
    TakeInbox(now_ns);
    if (sleeps_ < kSleeps || operation_->done()) return false;
    driver.OnDone();
    operation_->Finish(absl::OkStatus(), now_ns);
    driver.TellWaiters();
    return true;
  }
  bool TakeInbox(int64_t) override {
    std::vector<std::shared_ptr<Operation>> operations;
    std::vector<ProgressDriver::Task> tasks;
    return driver.Take(operations, tasks);
  }
  bool PrepareWait() override {
    if (counts && std::this_thread::get_id() == own_) ++sleeps_;
    return true;
  }
  void FinishWait() override {}
  int64_t NextDeadline() const override { return SystemClock::Nanoseconds() + 1'000'000; }

  const std::shared_ptr<Operation> operation_;
  const std::thread::id own_ = std::this_thread::get_id();
  std::atomic<int> sleeps_{0};
};

// Two ranks on one CPU would yield to each other for as long as the kernel leaves them there.
TEST(ProgressDriverCpuTest, WhoWaitsOnTheCpuOfItsPeerSleepsNowAndThen) {
  const auto operation = std::make_shared<SharingOperation>();
  SleepCountingEngine engine(operation);
  ASSERT_TRUE(engine.driver.Open().ok());
  engine.driver.Begin(absl::Microseconds(1), absl::Hours(1));
  engine.driver.Start(operation);
  engine.counts = true;
  const absl::Time start = absl::Now();
  EXPECT_TRUE(engine.driver.WaitFor(*operation, kPatience).ok());
  // Not more often than every 10 ms: where no CPU is idle it is of no use.
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(15));
  engine.driver.Stop();
}

TEST(ProgressDriverCpuTest, WhereRanksOutnumberCoresNobodyLeavesItsCpu) {
  const auto operation = std::make_shared<SharingOperation>();
  IdleEngine engine;
  ASSERT_TRUE(engine.driver.Open().ok());
  engine.driver.Begin(absl::ZeroDuration(), absl::Hours(1));
  engine.driver.Start(operation);
  EXPECT_FALSE(engine.driver.WaitFor(*operation, absl::Milliseconds(20)).ok());
  EXPECT_EQ(operation->asked, 0);
  engine.driver.Stop();
}

}  // namespace
}  // namespace weft::collectives
