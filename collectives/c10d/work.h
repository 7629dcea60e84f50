// One c10d::Work over one or several of ours, and the threads that complete its future.
//
// Received data that was staged is copied to its tensors by whoever first finds the work done:
// wait(), isCompleted() or the future. Thread-safe.
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
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"

namespace weft::collectives {

// What must outlive the transfer, whether or not anybody keeps the work.
struct TransferState {
  std::vector<WorkPtr> works;     // all must succeed
  std::vector<at::Tensor> held;   // memory in use; dropped at the end
  std::function<void()> deliver;  // copies what was staged; runs once, after success

  bool done() const;
};

class FutureThreads;

class WeftWork final : public c10d::Work {
 public:
  struct Details {
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;      // of the profiler's row: "weft:all_reduce"; a literal
    std::vector<at::Tensor> results;  // result(), and the future's value
    uint64_t sequence = 0;
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;  // of waits that name none
  };
  WeftWork(int rank, Details details, std::shared_ptr<TransferState> state,
           std::weak_ptr<FutureThreads> futures);

  bool isCompleted() override;
  bool isSuccess() const override;                // completed, and without an error
  std::exception_ptr exception() const override;  // null: none so far
  std::vector<at::Tensor> result() override;      // once completed
  void synchronize() override { wait(kNoTimeout); }
  // True, or throws c10::DistBackendError.
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override;  // milliseconds
  uint64_t getSequencenumber() const override { return details_.sequence; }

 private:
  friend class FutureThreads;
  absl::Status WaitFor(absl::Duration bound);  // kDeadlineExceeded while not done: the bound
  void Finish();                               // once the works are done
  void CompleteFuture(c10::ivalue::Future& future);

  const Details details_;
  const std::shared_ptr<TransferState> state_;
  const std::weak_ptr<FutureThreads> futures_;
  std::mutex finish_mutex_;
  bool finished_ = false;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Completes futures. Collectives have a thread that waits for them in their order. Sends and
// receives, whose order says nothing about which completes first, have another that looks at all of
// them. Each starts with its first future. A callback of a future may itself ask for futures of the
// same backend and wait for them: on these threads they are complete when they are made.
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
