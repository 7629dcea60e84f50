// Threads for what a kernel may take long over, while the thread that drives the transport has
// other queue pairs to see to. To connect a queue pair on RoCE waits until the other side's address
// is resolved, a second where nobody answers; to destroy one, rdma_rxe waits for its packets, and
// those may stand in such a resolution. Threads are made when they are needed. Thread-safe.
#ifndef WEFT_NET_VERBS_ASIDE_H_
#define WEFT_NET_VERBS_ASIDE_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace weft::net {

class Aside {
 public:
  explicit Aside(size_t threads_most) : threads_most_(threads_most) {}
  // Returns when all has been done, and so no later than the kernel is done with the slowest of
  // every `threads_most`.
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  void Do(absl::AnyInvocable<void()> what);

 private:
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

#endif  // WEFT_NET_VERBS_ASIDE_H_
