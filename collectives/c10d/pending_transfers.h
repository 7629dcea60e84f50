// The transfers that a backend's calls have started, each kept until it is done, as it uses the
// memory of tensors so long: whether or not anybody has kept its work. Thread-safe.
#ifndef WEFT_COLLECTIVES_C10D_PENDING_TRANSFERS_H_
#define WEFT_COLLECTIVES_C10D_PENDING_TRANSFERS_H_

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

namespace weft::collectives {

struct TransferState;  // collectives/c10d/work.h

class PendingTransfers {
 public:
  void Keep(std::shared_ptr<TransferState> transfer);
  // Lets go of transfers that are done. Some may stay behind one that is not done, until there are
  // many.
  void DropDone();
  // Until all that were kept so far are done, well or not.
  void Await();
  // The same, and lets go of them.
  void AwaitAndDrop();

 private:
  using Transfers = std::deque<std::shared_ptr<TransferState>>;
  static void Await(const Transfers& transfers);

  static constexpr size_t kSweepMin = 64;
  std::mutex mutex_;
  Transfers transfers_;           // oldest first
  size_t sweep_at_ = kSweepMin;   // with so many, those that are done go from behind others too
  std::atomic<bool> any_{false};  // to be asked without the mutex
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_PENDING_TRANSFERS_H_
