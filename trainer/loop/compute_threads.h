// Binds the compute threads of all ranks to a core each, on hosts whose cores suffice for that
// (topology/host/thread_binding.h says when).
#ifndef WEFT_TRAINER_LOOP_COMPUTE_THREADS_H_
#define WEFT_TRAINER_LOOP_COMPUTE_THREADS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "topology/host/thread_binding.h"
#include "trainer/groups/parallel_groups.h"

namespace weft::train {

class ComputeThreads {
 public:
  // All ranks call this together, each on its computing thread, after LibTorch has been given the
  // number `threads`. The destructor unbinds that thread; LibTorch's other threads stay bound.
  static absl::StatusOr<ComputeThreads> Bind(const ParallelGroups& groups, int threads);

  // Unbinds the calling thread, the one that called Bind, until Rebind: threads that it starts in
  // between may run on any CPU. Both do nothing where no thread is bound.
  void Unbind() { binding_.reset(); }
  void Rebind();

  // "bound to CPUs 0, 1 (rank 0), 2, 3 (rank 1)", or "not bound: " and why; for the host of
  // the first rank.
  const std::string& description() const { return description_; }

 private:
  std::optional<ThreadBinding> binding_;
  int cpu_ = -1;  // to which the thread that called Bind is bound; below 0: it is not bound
  std::string description_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_COMPUTE_THREADS_H_
