// One c10d::Work over one or several of ours, and the threads that complete its future.
//
// Received data that was staged is copied to its tensors by the first caller that finds the work
// done: wait(), isCompleted() or the future. Thread-safe.
//
// The interpreter's lock. A thread takes it when it drops C++'s last reference to a tensor that
// Python has seen, even where Python keeps the tensor (c10/util/intrusive_ptr.h), and when it runs
// a callback of a future. PyTorch holds it when it calls isCompleted(), result() and getFuture(),
// and when a work or a group goes. So in all of c10d
//
//   - under a mutex nothing goes that may hold a tensor (a state, a work, a future), and no future
//     is completed: what is to go moves to a variable declared before the lock, and goes after it;
//   - whoever may have that lock waits for works and threads without it (InterpreterUnlocked).
#ifndef WEFT_COLLECTIVES_C10D_WORK_H_
#define WEFT_COLLECTIVES_C10D_WORK_H_

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/c10d/fork.h"
#include "collectives/c10d/statistics.h"
#include "collectives/communicator.h"

namespace weft::collectives {

// What a call started, and what must live until that has ended.
struct TransferState {
  absl::InlinedVector<WorkPtr, 1> works;    // all must succeed
  absl::InlinedVector<at::Tensor, 2> held;  // memory in use; dropped at the end
  std::function<void()> deliver;            // copies what was staged; runs once, after success
  uint64_t bytes = 0;                       // for the statistics
  // Kept by waits, where nothing else does: the works need it. Once it is gone they are done.
  std::weak_ptr<Endpoint> endpoint;

  bool done() const;
  int64_t start_ns() const;  // of the first work; there is one
  int64_t busy_ns() const;   // from the first call to the last completion, once done
  // Until the works are done. Not OK while they are not: the bound ran out, or the thread was
  // interrupted (SetInterruptCheck).
  absl::Status WaitFor(absl::Duration bound);
  // The same for a caller who names no bound, with `timeout`, the group's; none where it is not
  // positive. Works that have the same bound get a second more, to say whom they wait for.
  absl::Status WaitAsGroup(std::chrono::milliseconds timeout);
  // Once, when the works are done: delivers, and counts the call as `title`. Null, or the error of
  // the call.
  std::exception_ptr Conclude(const char* title, Statistics& statistics);
};

class FutureThreads;

// A thread that waits asks `interrupted` now and then, when that is set, and gives up where it
// answers true: the wait throws, and the work goes on. Called without locks, by waiting threads of
// any kind. Set once, before the first wait.
void SetInterruptCheck(bool (*interrupted)());

// The interpreter of this process ends, on the calling thread. From now on calls of a backend and
// waits keep other threads, but for the futures', until the process is gone: CPython would end a
// thread that comes back to it by unwinding its stack, for which C++ aborts the process.
void BeginProcessEnd();
// Returns, unless the calling thread is to be kept.
void StayIfProcessEnds();

// While it lives, the calling thread is without the interpreter's lock, which it may have had.
class InterpreterUnlocked {
 public:
  InterpreterUnlocked();
  ~InterpreterUnlocked();
  InterpreterUnlocked(const InterpreterUnlocked&) = delete;
  InterpreterUnlocked& operator=(const InterpreterUnlocked&) = delete;

 private:
  void* const thread_;  // as `release` gave it
};
// How: `release` returns null where the calling thread does not have the lock, else what `retake`
// wants. Set once, before the first group.
void SetInterpreterLock(void* (*release)(), void (*retake)(void* thread));

// Waits for the end of a thread that may want the interpreter's lock.
void JoinThread(std::thread& thread);

class WeftWork final : public c10d::Work {
 public:
  // `title`: of the profiler's row, "weft:all_reduce"; a literal. The row is there with
  // `profiled_inputs` only, which it shows: for a profiler that is on now. `timeout`: of waits that
  // name none, and of the future; none where it is not positive.
  WeftWork(int rank, c10d::OpType type, const char* title,
           std::optional<at::TensorList> profiled_inputs, std::chrono::milliseconds timeout,
           std::shared_ptr<Statistics> statistics, std::weak_ptr<FutureThreads> futures);

  // Before anybody else sees the work.
  void set_state(TransferState state) { *state_ = std::move(state); }
  void set_results(at::TensorList results) { results_.assign(results.begin(), results.end()); }
  void set_sequence(uint64_t sequence) { sequence_ = sequence; }
  // Works that this one is made of; each finishes itself, at the latest when this one does.
  void set_parts(std::vector<c10::intrusive_ptr<WeftWork>> parts) { parts_ = std::move(parts); }
  at::TensorList results() const { return at::TensorList(results_.data(), results_.size()); }
  const std::shared_ptr<TransferState>& state() const { return state_; }
  // Has `call` called once this has ended or has run out of time, by the thread that completes
  // futures of its kind of call, and in their order.
  void AtEnd(std::function<void()> call);

  // These three throw in a process that was forked from the one that made the work.
  bool isCompleted() override;
  // True, or throws c10::DistBackendError.
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  bool isSuccess() const override;                // completed, and without an error
  std::exception_ptr exception() const override;  // null: none so far
  std::vector<at::Tensor> result() override;      // once completed
  void synchronize() override {}                  // of device streams, which the host has none of
  int sourceRank() const override;                // of a receive, once done
  void abort() override;
  float getDuration() const override;  // milliseconds
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  friend class FutureThreads;
  void CheckProcess() const;
  absl::Status WaitFor(absl::Duration bound);  // as that of the state; then Finish()
  void Finish();                               // once the works are done
  void CompleteFuture(c10::ivalue::Future& future);
  absl::Duration left() const;  // of the future's time, counted from the call

  const char* const title_;
  const int forks_ = ForkCount();               // at birth
  absl::InlinedVector<at::Tensor, 1> results_;  // result(), and the future's value
  std::vector<c10::intrusive_ptr<WeftWork>> parts_;
  uint64_t sequence_ = 0;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<TransferState> state_ = std::make_shared<TransferState>();
  const std::shared_ptr<Statistics> statistics_;
  const std::weak_ptr<FutureThreads> futures_;
  std::mutex finish_mutex_;
  bool finished_ = false;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Completes futures. Collectives have a thread that waits for them in their order. Sends and
// receives, whose order says nothing about which completes first, have another that looks at all of
// them. Each starts with its first future. A future whose work is not done when its time has run
// out completes with that error. A callback of a future may itself ask for futures of the same
// backend and wait for them: on these threads they are complete when they are made.
class FutureThreads {
 public:
  FutureThreads();
  // After every work handed in is done or about to be; joins.
  ~FutureThreads();

  void Complete(c10::intrusive_ptr<WeftWork> work, c10::intrusive_ptr<c10::ivalue::Future> future);

 private:
  struct Item {
    c10::intrusive_ptr<WeftWork> work;
    c10::intrusive_ptr<c10::ivalue::Future> future;
  };
  struct Lane {
    explicit Lane(absl::Duration slice) : slice(slice) {}
    const absl::Duration slice;  // wait for the oldest before a look at the others
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Item> items;
    bool stopping = false;
  };
  static void Run(std::shared_ptr<Lane> lane);

  const std::array<std::shared_ptr<Lane>, 2> lanes_;  // collectives; point to point
  std::mutex mutex_;
  std::array<std::thread, 2> threads_;
};

// The exception for a status: c10::DistBackendError with the whole text.
std::exception_ptr BackendError(const absl::Status& status);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_WORK_H_
