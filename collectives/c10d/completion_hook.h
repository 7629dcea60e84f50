// What hears of every call of a group when the call has ended: c10d's registerOnCompletionHook().
#ifndef WEFT_COLLECTIVES_C10D_COMPLETION_HOOK_H_
#define WEFT_COLLECTIVES_C10D_COMPLETION_HOOK_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "collectives/communicator.h"

namespace weft::collectives {

class WeftWork;  // collectives/c10d/work.h

// Thread-safe. Its functions may hold Python's objects: they are called, and let go, without a
// mutex.
class CompletionHook : public std::enable_shared_from_this<CompletionHook> {
 public:
  using Function = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  // What `hook` throws fails `communicator`, as in PyTorch's backend for NCCL.
  CompletionHook(Function hook, std::weak_ptr<Communicator> communicator)
      : hook_(std::move(hook)), communicator_(std::move(communicator)) {}

  // Has the hook called by one of the threads that complete futures, once `work` has ended, well or
  // not, or has run out of time.
  void Follow(WeftWork& work);
  // Until the hook has heard of all that is followed. Not by the hook itself.
  void Await();

 private:
  void Call(c10d::OpType type, uint64_t sequence, int64_t start_ns, int64_t end_ns);

  const Function hook_;
  const std::weak_ptr<Communicator> communicator_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int followed_ = 0;  // works of which the hook has not heard
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_COMPLETION_HOOK_H_
