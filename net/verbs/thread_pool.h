// Threads for system calls that may take long, while the thread that drives the transport goes on
// with other queue pairs. Connecting a queue pair on RoCE waits until the other side's address is
// resolved, a second where no host answers; destroying one waits, in rdma_rxe, for its packets, and
// those may wait for such a resolution. Threads are made when they are needed; where not even one
// can be made, the caller waits. Thread-safe.
#ifndef WEFT_NET_VERBS_THREAD_POOL_H_
#define WEFT_NET_VERBS_THREAD_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace weft::net {

class ThreadPool {
 public:
  explicit ThreadPool(size_t threads_most) : threads_most_(threads_most) {}
  // Waits until all submitted work is done.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Without any thread, `what` is done when this returns.
  void Submit(absl::AnyInvocable<void()> what);

 private:
  void AddThread();  // with mutex_ held
  void Run();

  const size_t threads_most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<absl::AnyInvocable<void()>> waiting_;
  size_t idle_ = 0;  // threads
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_THREAD_POOL_H_
