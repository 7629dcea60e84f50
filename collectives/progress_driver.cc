#include "collectives/progress_driver.h"

#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "topology/host/thread_binding.h"

namespace weft::collectives {
namespace {

// Interval at which the background thread looks for works that no thread waits for; it doubles, up
// to the maximum, while the thread finds none.
constexpr int64_t kLookIntervalMinNs = 300'000;
constexpr int64_t kLookIntervalMaxNs = 4'800'000;
// The thread that made a call so short a time ago may be about to wait for it. If the background
// thread took the role before that, and went to sleep, the next calls would arm the transports and
// ring it, until it runs again: not at once where a launcher has bound both to one core. Calls that
// follow each other faster take turns themselves.
constexpr int64_t kJustCalledNs = 100'000;
// After this long without calls the thread sleeps until a link has work.
constexpr int64_t kQuietNs = 20'000'000;
// A sleep, and being woken by another process, takes 10 to 50 us: so often it costs half a percent
// at most, where no other CPU is idle and it does not help.
constexpr int64_t kLeaveCpuPeriodNs = 10'000'000;
// Half of the period at which operations are examined: one that has just been started does not ring
// a thread that was asleep before.
constexpr int64_t kSoonNs = 10'000'000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

absl::Status ProgressDriver::Open() {
  WEFT_ASSIGN_OR_RETURN(epoll_, Epoll::Create());
  event_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_) return ErrnoStatus(errno, "create an eventfd");
  return Watch(event_.get());
}

absl::Status ProgressDriver::Watch(int fd) { return epoll_.Add(fd, EPOLLIN, {.fd = fd}); }

void ProgressDriver::Begin(absl::Duration spin, absl::Duration yield, CpuSet cpus) {
  spin_ns_ = absl::ToInt64Nanoseconds(spin);
  yield_ns_ = absl::ToInt64Nanoseconds(yield);
  thread_ = std::thread([this, cpus = std::move(cpus)] {
    pthread_setname_np(pthread_self(), "weft-progress");
    // The thread that starts this one may be bound to a core of its own.
    weft::internal::UseUnboundCpus();
    std::optional<NearBinding> binding;
    if (!cpus.empty()) {
      // Where the kernel refuses, the thread runs where it may.
      if (auto near = NearBinding::To(cpus); near.ok()) binding.emplace(*std::move(near));
    }
    Background();
  });
}

void ProgressDriver::Stop() {
  {
    Lock lock(mutex_);
    stop_ = true;
    background_.notify_all();
    Wake();
    changed_.notify_all();
    resting_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  // Works that are done have waiters that may still be on their way out.
  for (bool busy = true; busy;) {
    Lock lock(mutex_);
    busy = waiters_.load() > 0 || driving_ || has_sleeper_;
    lock.unlock();
    if (busy) sched_yield();
  }
}

void ProgressDriver::TakeRole() {
  driving_ = true;
  if (armed_) engine_->FinishWait();
  armed_ = false;
}

void ProgressDriver::LayDownRole(bool needs_turn) {
  driving_ = false;
  if (has_sleeper_) {  // it relies on being rung
    // Start() and Run() ring nobody where they find the role taken. What they have added under
    // mutex_ since the driver looked last is seen here, and from here on they take the role.
    const bool is_quiet = inbox_.empty() && tasks_.empty();
    armed_ = is_quiet && engine_->PrepareWait();
    if (is_quiet && !armed_) engine_->FinishWait();
    if (!armed_ || needs_turn || IsDueBeforeSleeper()) Wake();
  }
  if (waiters_.load(std::memory_order_relaxed) > 0) {
    changed_.notify_all();
    if (!has_sleeper_) resting_.notify_all();
  } else if (looks_seldom_ && unfinished_.load(std::memory_order_relaxed) > 0) {
    background_.notify_one();
  }
}

bool ProgressDriver::IsDueBeforeSleeper() {
  const int64_t next_ns = engine_->NextDeadline();
  if (next_ns >= sleeper_until_ns_ || next_ns >= SystemClock::Nanoseconds() + kSoonNs) return false;
  sleeper_until_ns_ = next_ns;
  return true;
}

void ProgressDriver::Look(const Operation& operation, void (*wait)()) const {
  constexpr int kLooks = 8;
  const auto is_alone = [this] {
    return unfinished_.load(std::memory_order_relaxed) <= 1 &&
           !inbox_full_.load(std::memory_order_relaxed);
  };
  for (int i = 0; i < kLooks && is_alone() && operation.outlook() == Outlook::kNothing; ++i) wait();
}

bool ProgressDriver::ShouldLeaveCpu(Operation& operation, int64_t now_ns) {
  // Without spinning, ranks outnumber the cores, and every CPU is somebody's.
  if (spin_ns_ == 0 || now_ns - left_cpu_ns_ < kLeaveCpuPeriodNs) return false;
  if (!operation.WaitsOnCpuOfPeer(sched_getcpu())) return false;
  left_cpu_ns_ = now_ns;
  return true;
}

void ProgressDriver::Wake() {
  const uint64_t one = 1;
  (void)!write(event_.get(), &one, sizeof(one));
}

ProgressDriver::Woken ProgressDriver::Sleep(Lock& lock, const Operation* operation,
                                            int64_t until_ns) {
  if (!inbox_.empty() || !tasks_.empty() || stop_) return Woken::kByNews;
  const int64_t deadline =
      std::min({until_ns, SystemClock::Nanoseconds() + sleep_max_ns_, engine_->NextDeadline()});
  if (!engine_->PrepareWait()) {
    engine_->FinishWait();
    return Woken::kByNews;
  }
  armed_ = true;
  driving_ = false;
  // The background thread takes the role only while nobody sleeps.
  if (has_sleeper_) return Rest(lock, *operation, deadline);
  has_sleeper_ = true;
  sleeper_operation_ = operation;
  sleeper_until_ns_ = deadline;
  lock.unlock();
  const int64_t left = deadline - SystemClock::Nanoseconds();
  int rung = 0;
  if (left > 0) {
    epoll_event events[4];
    rung = epoll_.Wait(absl::MakeSpan(events), absl::Nanoseconds(left));
  }
  uint64_t count;
  (void)!read(event_.get(), &count, sizeof(count));
  lock.lock();
  has_sleeper_ = false;
  if (driving_) return Woken::kWithoutRole;
  TakeRole();
  return rung > 0 ? Woken::kByNews : Woken::kByTime;
}

ProgressDriver::Woken ProgressDriver::Rest(Lock& lock, const Operation& operation,
                                           int64_t until_ns) {
  // The background thread leaves its place to a thread that waits, which the transports then wake
  // without a hand-over.
  if (sleeper_operation_ == nullptr) Wake();
  ++waiters_;
  while (!operation.done() && has_sleeper_ && !stop_) {
    const int64_t left = until_ns - SystemClock::Nanoseconds();
    if (left <= 0) break;
    resting_.wait_for(lock, std::chrono::nanoseconds(left));
  }
  --waiters_;
  // Who leaves with its operation done leaves no gap: either a thread still sleeps, or all who rest
  // have been notified.
  if (driving_ || operation.done()) return Woken::kWithoutRole;
  TakeRole();
  return Woken::kByTime;
}

void ProgressDriver::Run(const Task& task) {
  Lock lock(mutex_);
  if (!driving_) {
    TakeRole();
    lock.unlock();
    engine_->TakeInbox(SystemClock::Nanoseconds());
    task();
    lock.lock();
    LayDownRole(/*needs_turn=*/true);
    return;
  }
  bool ran = false;
  tasks_.push_back([this, &task, &ran] {
    task();
    Lock inner(mutex_);
    ran = true;
    changed_.notify_all();
  });
  inbox_full_.store(true, std::memory_order_release);
  while (!ran) {
    if (!driving_) {  // its thread stopped driving before it looked
      TakeRole();
      lock.unlock();
      engine_->TakeInbox(SystemClock::Nanoseconds());
      lock.lock();
      LayDownRole(/*needs_turn=*/true);
      continue;
    }
    ++waiters_;
    changed_.wait(lock);
    --waiters_;
  }
}

void ProgressDriver::Start(std::shared_ptr<Operation> operation) {
  const int64_t now_ns = operation->start_ns();
  unfinished_.fetch_add(1, std::memory_order_relaxed);
  busy_ns_.store(now_ns, std::memory_order_relaxed);
  Lock lock(mutex_);
  inbox_.push_back(std::move(operation));
  inbox_full_.store(true, std::memory_order_release);
  if (driving_) return;
  TakeRole();
  lock.unlock();
  engine_->Turn(now_ns);
  lock.lock();
  LayDownRole();
}

absl::Status ProgressDriver::WaitFor(Operation& operation, absl::Duration timeout) {
  const int64_t until_ns = timeout >= absl::Hours(24 * 365)
                               ? INT64_MAX
                               : SystemClock::Nanoseconds() + absl::ToInt64Nanoseconds(timeout);
  Lock lock(mutex_);
  while (!operation.done()) {
    if (until_ns != INT64_MAX && SystemClock::Nanoseconds() >= until_ns) {
      return absl::DeadlineExceededError(
          absl::StrCat(operation.Describe(), " is not done after ", absl::FormatDuration(timeout)));
    }
    if (driving_) {
      ++waiters_;
      if (until_ns == INT64_MAX) {
        changed_.wait(lock);
      } else {
        changed_.wait_for(lock, std::chrono::nanoseconds(
                                    std::max<int64_t>(until_ns - SystemClock::Nanoseconds(), 0)));
      }
      --waiters_;
      continue;
    }
    TakeRole();
    lock.unlock();
    const bool driving = Drive(&operation, until_ns);
    lock.lock();
    if (driving) LayDownRole();
  }
  busy_ns_.store(operation.end_ns(), std::memory_order_relaxed);
  return absl::OkStatus();
}

bool ProgressDriver::Drive(Operation* operation, int64_t until_ns) {
  int64_t moved_ns = SystemClock::Nanoseconds();
  int64_t now_ns = moved_ns;
  while (true) {
    // What comes through memory alone needs no turn to be seen.
    if (operation != nullptr && spin_ns_ > 0) Look(*operation, Pause);
    if (engine_->Turn(now_ns)) moved_ns = now_ns;
    if (operation != nullptr) {
      if (operation->done() || now_ns >= until_ns) return true;
    } else if (waiters_.load(std::memory_order_relaxed) > 0) {
      return true;
    }
    now_ns = SystemClock::Nanoseconds();
    const int64_t idle_ns = now_ns - moved_ns;
    // Nobody waits for what the background thread does: it leaves the cores to those who compute.
    if (operation != nullptr && idle_ns < spin_ns_) {
      Pause();
    } else if (operation != nullptr && idle_ns < spin_ns_ + yield_ns_ && MayYield(*operation) &&
               !ShouldLeaveCpu(*operation, now_ns)) {
      sched_yield();
      Look(*operation, [] { sched_yield(); });
      now_ns = SystemClock::Nanoseconds();
    } else if (idle_ns > 0) {
      Lock lock(mutex_);
      if (operation == nullptr) {
        if (stop_ || waiters_.load(std::memory_order_relaxed) > 0) return true;
        const bool busy = unfinished_.load(std::memory_order_relaxed) == 0 &&
                          now_ns - busy_ns_.load(std::memory_order_relaxed) < kQuietNs;
        if (busy) return true;  // the next call comes soon; it shall find the role free
      }
      const Woken woken = Sleep(lock, operation, until_ns);
      if (woken == Woken::kWithoutRole) return false;
      now_ns = SystemClock::Nanoseconds();
      // Another thread may have driven meanwhile, and have finished it.
      if (operation != nullptr && operation->done()) return true;
      // A look at deadlines is no reason to poll: many ranks on few cores would do little else.
      if (operation != nullptr && woken == Woken::kByNews) moved_ns = now_ns;
    }
  }
}

void ProgressDriver::Background() {
  int64_t interval_ns = kLookIntervalMinNs;
  Lock lock(mutex_);
  while (!stop_) {
    looks_seldom_ = interval_ns >= kLookIntervalMaxNs;
    background_.wait_for(lock, std::chrono::nanoseconds(interval_ns));
    const bool woken = looks_seldom_ && unfinished_.load(std::memory_order_relaxed) > 0;
    looks_seldom_ = false;
    if (woken) {  // the thread that started a work may be about to wait for it
      interval_ns = kLookIntervalMinNs;
      background_.wait_for(lock, std::chrono::nanoseconds(interval_ns));
    }
    const int64_t now_ns = SystemClock::Nanoseconds();
    const bool quiet = now_ns - busy_ns_.load(std::memory_order_relaxed) >= kQuietNs;
    const bool work = unfinished_.load(std::memory_order_relaxed) > 0;
    if (driving_ || has_sleeper_ || waiters_.load() > 0 || (!work && !quiet)) {
      interval_ns = std::min(interval_ns * 2, kLookIntervalMaxNs);
      continue;
    }
    interval_ns = kLookIntervalMinNs;
    if (now_ns - busy_ns_.load(std::memory_order_relaxed) < kJustCalledNs) continue;
    TakeRole();
    lock.unlock();
    const bool driving = Drive(nullptr, INT64_MAX);
    lock.lock();
    if (driving) LayDownRole();
  }
}

void ProgressDriver::Post(Task task) {
  Lock lock(mutex_);
  tasks_.push_back(std::move(task));
  inbox_full_.store(true, std::memory_order_release);
  background_.notify_one();
  Wake();
}

bool ProgressDriver::Take(std::vector<std::shared_ptr<Operation>>& operations,
                          std::vector<Task>& tasks) {
  if (!inbox_full_.load(std::memory_order_acquire)) return false;
  Lock lock(mutex_);
  inbox_full_.store(false, std::memory_order_relaxed);
  for (auto& operation : inbox_) operations.push_back(std::move(operation));
  inbox_.clear();
  tasks.swap(tasks_);
  return true;
}

void ProgressDriver::TellWaiters() {
  // Under the mutex: a waiter that saw its operation unfinished is counted by now, or sleeps.
  Lock lock(mutex_);
  if (waiters_.load(std::memory_order_relaxed) > 0) {
    changed_.notify_all();
    resting_.notify_all();
  }
  if (has_sleeper_ && sleeper_operation_ != nullptr && sleeper_operation_->done()) Wake();
}

}  // namespace weft::collectives
