// One call of a backend on its way: the communicator that it uses, what it started there, what must
// live or be done until the end, and the work that it returns.
//
// The work is made last, and not at all for a call that is waited for at once (Backend::Start): of
// a small call it would be a good part. While a profiler is on it is made first, so that the
// profiler's event spans the whole call.
#ifndef WEFT_COLLECTIVES_C10D_CALL_H_
#define WEFT_COLLECTIVES_C10D_CALL_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/c10d/backend.h"
#include "collectives/c10d/tensors.h"
#include "collectives/c10d/work.h"
#include "collectives/communicator.h"

namespace weft::collectives {

// What a profiler's event record_param_comms says of a call, as PyTorch's backend for NCCL counts.
struct Traffic {
  int64_t input_elements = 0, output_elements = 0;
  // Group rank of the root, or of the other end of a message; kOwnRank: the call has neither.
  static constexpr int kOwnRank = -1, kUnknownRank = -2;
  int peer = kOwnRank;
  // In rows, of an uneven all-to-all; null: none.
  const std::vector<int64_t>* input_splits = nullptr;
  const std::vector<int64_t>* output_splits = nullptr;
};
int64_t ElementsOf(at::TensorList tensors);

class Call {
 public:
  // `title` is a literal as the profiler shows it: "weft:all_reduce". `inputs` of this rank and
  // `traffic` are for the profiler, and the bytes of `inputs` for the statistics.
  Call(WeftBackend& backend, c10d::OpType type, const char* title,
       std::chrono::milliseconds timeout, at::TensorList inputs, const Traffic& traffic);
  // Where something has thrown, what was started before goes on: the backend keeps it.
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Communicator& communicator() { return *communicator_; }
  // At the end of a wait, where the thread may be kept for ever.
  void LetGo() { communicator_.reset(); }

  // A tensor whose bytes are read: itself or a plain copy.
  at::Tensor Source(const at::Tensor& tensor) { return Hold(Plain(tensor)); }
  // A tensor that is written, and read too with `keep`: itself, or a plain one that is copied to it
  // at the end.
  at::Tensor Target(const at::Tensor& tensor, bool keep);
  // The same for lists, whose elements come one behind the other.
  at::Tensor FlatSource(const std::vector<at::Tensor>& tensors) { return Hold(Flattened(tensors)); }
  at::Tensor FlatTarget(const std::vector<at::Tensor>& tensors);
  // The tensor times the factor of PREMUL_SUM, of the tensor's type: itself where `op` is another.
  static at::Tensor Scaled(const at::Tensor& tensor, const c10d::ReduceOp& op);
  at::Tensor FlatScaled(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op);
  // What is reduced in place: as Target(), of the scaled tensor.
  at::Tensor Reduced(const at::Tensor& tensor, const c10d::ReduceOp& op);

  void Add(WorkPtr work) { state_.works.push_back(std::move(work)); }
  void AtEnd(std::function<void()> action);

  c10d::OpType type() const { return type_; }
  const char* title() const { return title_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  bool is_profiled() const { return work_ != nullptr; }
  TransferState& state() { return state_; }
  // Gives it what was started; the last use of this call. `results`: of the work.
  c10::intrusive_ptr<WeftWork> TakeWork(at::TensorList results);

 private:
  at::Tensor Hold(at::Tensor tensor) {
    state_.held.push_back(tensor);
    return tensor;
  }
  c10::intrusive_ptr<WeftWork> NewWork(std::optional<at::TensorList> profiled_inputs) const;

  WeftBackend& backend_;
  const c10d::OpType type_;
  const char* const title_;
  std::chrono::milliseconds timeout_;  // of a wait for it; none where it is not positive
  std::shared_ptr<Communicator> communicator_;
  TransferState state_;
  c10::intrusive_ptr<WeftWork> work_;  // null while no profiler is on
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_CALL_H_
