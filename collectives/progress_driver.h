// Which thread drives an endpoint's engine (docs/decisions/0003). One thread at a time takes turns
// of moving bytes and advancing operations. To drive is a role, not a thread:
//
//   - Start() takes one turn if nobody drives, else the driver finds the operation in the inbox.
//   - WaitFor() drives until its operation is done, or waits while another thread drives.
//   - The background thread drives when operations are under way and nobody waits for any, and,
//     after a quiet while, listens, so that an idle process answers questions and accepts links. It
//     looks every few hundred microseconds and is not woken by Start(): a call that is waited for
//     at once costs no hand-over between threads.
//
// A driver with nothing to do spins, then yields, then lays the role down and sleeps on the
// transports' descriptors; any other thread may take the role meanwhile. Where ranks outnumber
// cores, it does not spin; nor does it yield while its operation waits for a link to be made, since
// each step of a handshake needs a core for the other process, and a thread that yields takes its
// turns from that. One thread sleeps there at a time, so that whoever has finished its operation
// can wake that very thread; others that have nothing to do either rest until it leaves, or their
// own operation is done.
//
// Thread-safe, but for Open(), Watch(), Begin() and Stop().
#ifndef WEFT_COLLECTIVES_PROGRESS_DRIVER_H_
#define WEFT_COLLECTIVES_PROGRESS_DRIVER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/epoll.h"
#include "base/file_descriptor.h"
#include "collectives/operation.h"
#include "topology/host/affinity.h"

namespace weft::collectives {

// What is driven. Called by the driver alone; Turn() and TakeInbox() without the driver's lock.
class ProgressEngine {
 public:
  virtual bool Turn(int64_t now_ns) = 0;       // true: something moved
  virtual bool TakeInbox(int64_t now_ns) = 0;  // see ProgressDriver::Take; true: there was anything
  virtual bool PrepareWait() = 0;              // false: there is work, do not sleep
  virtual void FinishWait() = 0;               // after every PrepareWait()
  virtual int64_t NextDeadline() const = 0;    // when the next turn is due without any event

 protected:
  ~ProgressEngine() = default;
};

class ProgressDriver {
 public:
  using Task = std::function<void()>;
  static constexpr absl::Duration kSleepMax = absl::Milliseconds(100);

  // A sleep is never longer than `sleep_max`, so that overdue operations are examined in time.
  explicit ProgressDriver(ProgressEngine* engine, absl::Duration sleep_max = kSleepMax)
      : engine_(engine), sleep_max_ns_(absl::ToInt64Nanoseconds(sleep_max)) {}
  ProgressDriver(const ProgressDriver&) = delete;
  ProgressDriver& operator=(const ProgressDriver&) = delete;

  absl::Status Open();
  absl::Status Watch(int fd);  // wakes a sleeping driver when it is readable
  // How long a driver with nothing to do spins, then yields, before it sleeps; `spin` 0 says that
  // ranks outnumber cores. Starts the background thread, "weft-progress", on `cpus` of the
  // process's (NearBinding); empty: on all.
  void Begin(absl::Duration spin, absl::Duration yield, CpuSet cpus = {});
  // Ends the background thread, and returns when no other thread is in here any more.
  void Stop();

  void Start(std::shared_ptr<Operation> operation);
  // kDeadlineExceeded: it goes on, but is not done after `timeout`.
  absl::Status WaitFor(Operation& operation, absl::Duration timeout);
  // Runs `task` as the driver, or has the present one run it; returns afterwards.
  void Run(const Task& task);
  // Has the next turn run `task`.
  void Post(Task task);

  // ---- By the driver.
  // Adds what was started to `operations` and what was posted to `tasks`; false: nothing was.
  bool Take(std::vector<std::shared_ptr<Operation>>& operations, std::vector<Task>& tasks);
  void OnDone() { unfinished_.fetch_sub(1, std::memory_order_relaxed); }  // one; before Finish()
  void TellWaiters();  // after operations were finished

 private:
  // With mutex_ held unless said otherwise. While nobody drives and a thread sleeps, either it is
  // woken, or inbox_ and tasks_ are empty and the transports are armed to ring it: whoever sleeps
  // or lays the role down sees to that before it gives up mutex_. While threads rest, one sleeps,
  // or one drives, or they have been notified.
  using Lock = std::unique_lock<std::mutex>;
  void TakeRole();
  // `needs_turn`: a task that was run without one may have left work.
  void LayDownRole(bool needs_turn = false);
  // Whether a turn has brought a deadline that comes soon, and before the sleeper wakes; once for
  // each. One that is farther away may be late by the rest of the sleep.
  bool IsDueBeforeSleeper();
  // Lays the role down and sleeps until something happens, or a deadline has come; what woke it.
  // Without the role, another thread drives, or `operation` is done. `operation`: that the thread
  // waits for; null: the background thread.
  enum class Woken : uint8_t { kByNews, kByTime, kWithoutRole };
  Woken Sleep(Lock& lock, const Operation* operation, int64_t until_ns);
  // Instead, while another thread sleeps; the role is laid down already, and the transports armed.
  Woken Rest(Lock& lock, const Operation& operation, int64_t until_ns);
  void Wake();
  void Background();
  // Without mutex_: turns until `operation` is done, `until_ns`, or the role should go to somebody
  // else; spins, yields and sleeps in between. False if the role went while it slept.
  bool Drive(Operation* operation, int64_t until_ns);
  // Without mutex_, as the driver: until `operation`, which is not done, can move, or links may
  // have something for it, or for a few times. Not while there are others, which move by turns.
  void Look(const Operation& operation, void (*wait)()) const;
  // By the driver, which has nothing to do: whether it may yield instead of sleeping.
  bool MayYield(const Operation& operation) const {
    return spin_ns_ > 0 || !operation.AwaitsLink();
  }
  // By the driver, which has spun in vain: whether `operation` waits for a process that has just
  // waited on this CPU, too. To yield would keep both there; the kernel wakes one that sleeps on a
  // CPU that is idle. True once in 10 ms at most, and never where ranks outnumber cores.
  bool ShouldLeaveCpu(Operation& operation, int64_t now_ns);

  ProgressEngine* const engine_;
  const int64_t sleep_max_ns_;
  int64_t spin_ns_ = 0, yield_ns_ = 0;  // constant after Begin()
  Epoll epoll_;
  FileDescriptor event_;

  std::mutex mutex_;                    // guards what follows
  std::condition_variable changed_;     // an operation is done, or the role is free
  std::condition_variable resting_;     // an operation is done, or nobody sleeps any more
  std::condition_variable background_;  // for the background thread alone
  bool driving_ = false;
  bool armed_ = false;  // PrepareWait without FinishWait
  bool stop_ = false;
  bool looks_seldom_ = false;  // the background thread looks at the longest interval
  bool has_sleeper_ = false;   // a thread is in epoll_
  const Operation* sleeper_operation_ = nullptr;  // what it waits for; null: background thread
  int64_t sleeper_until_ns_ = 0;
  std::vector<std::shared_ptr<Operation>> inbox_;
  std::vector<Task> tasks_;

  std::atomic<int> waiters_{0};  // written under mutex_: threads that wait on changed_ or resting_
  std::atomic<bool> inbox_full_{false};  // inbox_ or tasks_ hold something
  std::atomic<int> unfinished_{0};       // operations started and not done
  std::atomic<int64_t> busy_ns_{0};      // when a thread last started or waited
  int64_t left_cpu_ns_ = INT64_MIN / 2;  // the driver's: when ShouldLeaveCpu() said so last
  std::thread thread_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_PROGRESS_DRIVER_H_
