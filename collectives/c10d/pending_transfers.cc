#include "collectives/c10d/pending_transfers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "collectives/c10d/work.h"

namespace weft::collectives {

void PendingTransfers::Keep(std::shared_ptr<TransferState> transfer) {
  std::lock_guard<std::mutex> lock(mutex_);
  transfers_.push_back(std::move(transfer));
  any_.store(true, std::memory_order_relaxed);
}

void PendingTransfers::DropDone() {
  if (!any_.load(std::memory_order_relaxed)) return;
  absl::InlinedVector<std::shared_ptr<TransferState>, 4> done;  // goes after the mutex (work.h)
  std::lock_guard<std::mutex> lock(mutex_);
  while (!transfers_.empty() && transfers_.front()->done()) {
    done.push_back(std::move(transfers_.front()));
    transfers_.pop_front();
  }
  // A receive may wait for long, and must not keep what was called after it.
  if (transfers_.size() >= sweep_at_) {
    const auto gone = std::stable_partition(transfers_.begin(), transfers_.end(),
                                            [](const auto& transfer) { return !transfer->done(); });
    done.insert(done.end(), std::make_move_iterator(gone),
                std::make_move_iterator(transfers_.end()));
    transfers_.erase(gone, transfers_.end());
    sweep_at_ = std::max(kSweepMin, 2 * transfers_.size());
  }
  any_.store(!transfers_.empty(), std::memory_order_relaxed);
}

void PendingTransfers::Await() {
  Transfers transfers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    transfers = transfers_;
  }
  Await(transfers);
}

void PendingTransfers::AwaitAndDrop() {
  Transfers transfers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    transfers.swap(transfers_);
  }
  Await(transfers);
}

void PendingTransfers::Await(const Transfers& transfers) {
  for (const auto& transfer : transfers) {
    for (const WorkPtr& work : transfer->works) work->Wait().IgnoreError();
  }
}

}  // namespace weft::collectives
