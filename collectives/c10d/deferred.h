// Operations of several rounds, each of which depends on what the round before it brought: they run
// one after the other, in the order of their calls, by a thread and on a communicator of their own,
// so that the collectives between them keep the same order on all ranks.
#ifndef WEFT_COLLECTIVES_C10D_DEFERRED_H_
#define WEFT_COLLECTIVES_C10D_DEFERRED_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "collectives/communicator.h"

namespace weft::collectives {

// Thread-safe.
class Deferred {
 public:
  using Body = std::function<absl::Status(Communicator&)>;

  explicit Deferred(std::unique_ptr<Communicator> communicator);
  // Fails what has not ended with kCancelled, and joins.
  ~Deferred();

  // `body` may block. Its outcome is the work's; what it throws fails the work and all that comes,
  // here and on the other ranks.
  WorkPtr Run(Body body);
  // Fails what has not ended, here and on the other ranks, and all that comes.
  void Abort(absl::Status reason) { communicator_->Abort(std::move(reason)); }

 private:
  class Item;
  void Serve();

  const std::unique_ptr<Communicator> communicator_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Item>> items_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_DEFERRED_H_
