// Who drives, and who is woken, with an engine that moves nothing.
#include "collectives/progress_driver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
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

// Takes what is started, and moves nothing.
class IdleEngine final : public ProgressEngine {
 public:
  ProgressDriver driver{this};
  std::atomic<int> taken{0}, prepared{0};

 private:
  bool Turn(int64_t now_ns) override {
    TakeInbox(now_ns);
    return false;
  }
  bool TakeInbox(int64_t) override {
    std::vector<std::shared_ptr<Operation>> operations;
    std::vector<ProgressDriver::Task> tasks;
    if (!driver.Take(operations, tasks)) return false;
    taken += static_cast<int>(operations.size());
    for (auto& task : tasks) task();
    return true;
  }
  bool PrepareWait() override {
    ++prepared;
    return true;
  }
  void FinishWait() override {}
  int64_t NextDeadline() const override { return INT64_MAX; }
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
  const int prepared = engine.prepared;
  EXPECT_TRUE(Until([&] { return engine.prepared > prepared; }));
  engine.driver.Run([&] {
    engine.driver.OnDone();
    operation->Finish(absl::OkStatus(), SystemClock::Nanoseconds());
    engine.driver.TellWaiters();
  });
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
  EXPECT_FALSE(engine.driver.WaitFor(*operation, absl::Milliseconds(20)).ok());
  EXPECT_GT(operation->looks, 0);
  engine.driver.Start(NewOperation());
  ASSERT_TRUE(Until([&] { return engine.taken == 2; }));
  const int looks = operation->looks;
  EXPECT_FALSE(engine.driver.WaitFor(*operation, absl::Milliseconds(20)).ok());
  EXPECT_EQ(operation->looks, looks);
  engine.driver.Stop();
}

}  // namespace
}  // namespace weft::collectives
