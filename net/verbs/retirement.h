// Where queue pairs go that are done with. To destroy one can take seconds in the kernel: rdma_rxe
// waits for its packets, and those may stand in an address resolution that nobody answers. The
// thread that drives the transport has other queue pairs to see to meanwhile, so a few threads,
// made when they are needed, destroy them. Thread-safe.
#ifndef WEFT_NET_VERBS_RETIREMENT_H_
#define WEFT_NET_VERBS_RETIREMENT_H_

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net/verbs/nic.h"

namespace weft::net {

class Retirement {
 public:
  Retirement() = default;
  // Returns when all have been destroyed, and so no later than the kernel is done with the slowest
  // of every kThreadsMost.
  ~Retirement();
  Retirement(const Retirement&) = delete;
  Retirement& operator=(const Retirement&) = delete;

  // It has been reset: nothing of it reads or writes memory, or completes, any more. Its device and
  // its queues must outlive this.
  void Take(std::unique_ptr<NicQueuePair> pair);

 private:
  static constexpr size_t kThreadsMost = 8;
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<NicQueuePair>> waiting_;
  size_t idle_ = 0;  // threads
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_RETIREMENT_H_
