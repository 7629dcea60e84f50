#include "plugins/nccl/idle_progress_thread.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/random.h"

namespace weft::nccl {
namespace {

constexpr std::chrono::seconds kLong(30);

absl::Time Now() { return SystemClock().Now(); }

// A connection of which somebody wants something whenever Ring() is called.
class Bell final : public IdleProgressThread::Client {
 public:
  explicit Bell(IdleProgressThread& idle_thread)
      : idle_thread_(idle_thread), fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    EXPECT_TRUE(idle_thread_.Add(*this).ok());
  }
  ~Bell() { idle_thread_.Remove(*this); }

  void Ring() {
    const uint64_t once = 1;
    ASSERT_EQ(write(fd_.get(), &once, sizeof(once)), static_cast<ssize_t>(sizeof(once)));
  }
  void set_next(absl::Duration next) {
    std::lock_guard lock(mutex_);
    next_ = next;
  }
  int times() {
    std::lock_guard lock(mutex_);
    return times_;
  }
  // False: not within kLong.
  bool AwaitRings(int rings) { return Await(rings_, rings); }
  bool AwaitTimes(int times) { return Await(times_, times); }

 private:
  int wait_fd() const override { return fd_.get(); }
  absl::Time ProgressIdle(absl::Time now) override {
    std::lock_guard lock(mutex_);
    ++times_;
    uint64_t rung = 0;
    if (read(fd_.get(), &rung, sizeof(rung)) > 0) rings_ += static_cast<int>(rung);
    progressed_.notify_all();
    return now + next_;
  }
  bool Await(const int& count, int wanted) {
    std::unique_lock lock(mutex_);
    return progressed_.wait_until(lock, std::chrono::system_clock::now() + kLong,
                                  [&] { return count >= wanted; });
  }

  IdleProgressThread& idle_thread_;
  FileDescriptor fd_;
  std::mutex mutex_;
  std::condition_variable progressed_;
  absl::Duration next_ = absl::InfiniteDuration();
  int times_ = 0, rings_ = 0;
};

TEST(IdleProgressThreadTest, DrivesEachIdleClient) {
  IdleProgressThread idle_thread;
  Bell one(idle_thread), other(idle_thread);
  one.Ring();
  EXPECT_TRUE(one.AwaitRings(1));
  other.Ring();
  EXPECT_TRUE(other.AwaitRings(1));
  for (int i = 2; i <= 20; ++i) {
    one.Ring();
    ASSERT_TRUE(one.AwaitRings(i)) << i;
  }
}

TEST(IdleProgressThreadTest, ComesAgainWhenItWasAskedTo) {
  IdleProgressThread idle_thread;
  Bell bell(idle_thread);
  bell.set_next(absl::Milliseconds(1));
  bell.Ring();  // the first look may have been before the call above
  EXPECT_TRUE(bell.AwaitTimes(5));
}

// Work that no descriptor shows is handed round; each call comes while its client may be under
// ProgressIdle().
class Runner final : public IdleProgressThread::Client {
 public:
  static constexpr int kRounds = 2000;
  Runner(IdleProgressThread& idle_thread, std::atomic<int>& rounds)
      : idle_thread_(idle_thread), rounds_(rounds), fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    EXPECT_TRUE(idle_thread_.Add(*this).ok());
  }
  ~Runner() { idle_thread_.Remove(*this); }
  void set_next(Runner* next) { next_ = next; }
  void Give() {
    has_.store(true);
    idle_thread_.Call(*this);
  }

 private:
  int wait_fd() const override { return fd_.get(); }
  absl::Time ProgressIdle(absl::Time /*now*/) override {
    if (has_.exchange(false) && ++rounds_ < kRounds) next_.load()->Give();
    return absl::InfiniteFuture();
  }

  IdleProgressThread& idle_thread_;
  std::atomic<int>& rounds_;
  FileDescriptor fd_;
  std::atomic<Runner*> next_{this};
  std::atomic<bool> has_{false};
};

TEST(IdleProgressThreadTest, ComesToWhoIsCalled) {
  IdleProgressThread idle_thread;
  std::atomic<int> rounds{0};
  Runner one(idle_thread, rounds), other(idle_thread, rounds);
  one.set_next(&other);  // the other goes on calling itself, while it is progressed
  one.Give();
  const absl::Time give_up = Now() + absl::FromChrono(kLong);
  while (rounds < Runner::kRounds && Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(rounds, Runner::kRounds);
}

TEST(IdleProgressThreadTest, DoesNotDriveWhatSomebodyElseDrives) {
  IdleProgressThread idle_thread;
  Bell bell(idle_thread);
  ASSERT_TRUE(bell.AwaitTimes(1));
  const absl::Time begin = Now();
  absl::Time last = begin;  // before the last NoteDriven()
  idle_thread.NoteDriven(bell);
  const int before = bell.times();
  int times = before;
  absl::Duration longest;  // no pause between two calls, nor after the last one, took longer
  while (last - begin < 20 * IdleProgressThread::kQuiet) {
    bell.Ring();
    const absl::Time now = Now();
    idle_thread.NoteDriven(bell);
    times = bell.times();
    longest = std::max(longest, Now() - last);
    last = now;
  }
  // Unless this thread was held up for so long that it was no driver.
  if (longest < IdleProgressThread::kQuiet) {
    EXPECT_EQ(times, before);
  }
  EXPECT_TRUE(bell.AwaitTimes(before + 1)) << "nobody drives it any more";
}

TEST(IdleProgressThreadTest, IsNotAtWorkOnceItIsRemoved) {
  IdleProgressThread idle_thread;
  for (int i = 0; i < 200; ++i) {
    Bell bell(idle_thread);  // whose destructor would find ProgressIdle() in the freed object
    bell.set_next(absl::ZeroDuration());
    if (i % 2 == 0) {
      ASSERT_TRUE(bell.AwaitTimes(1));
    }
  }
}

TEST(IdleProgressThreadTest, IsNotAtWorkAfterTheEndThoughClientsAreThere) {
  IdleProgressThread idle_thread;
  Bell bell(idle_thread);
  bell.set_next(absl::ZeroDuration());
  ASSERT_TRUE(bell.AwaitTimes(1));
  idle_thread.End();
  const int before = bell.times();
  idle_thread.NoteDriven(bell);
  idle_thread.Call(bell);
  bell.Ring();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(bell.times(), before);
}

TEST(IdleProgressThreadTest, BearsManyThatComeAndGo) {
  IdleProgressThread idle_thread;
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(t);
      for (int i = 0; i < 50; ++i) {
        Bell bell(idle_thread);
        for (uint64_t drives = random.Below(100); drives > 0; --drives) {
          idle_thread.NoteDriven(bell);
        }
        bell.Ring();
        if (random.Below(4) == 0 && !bell.AwaitRings(1)) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace weft::nccl
