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
  // All ranks call it together, each on its thread that computes, after LibTorch has been told of
  // `threads`. That thread is free again when the object goes; LibTorch's others stay bound.
  static absl::StatusOr<ComputeThreads> Bind(const ParallelGroups& groups, int threads);

  // The calling thread, which is Bind's, is free until Rebind: threads that it starts meanwhile may
  // run everywhere. No-ops where nothing is bound.
  void Unbind() { binding_.reset(); }
  void Rebind();

  // "bound to CPUs 0, 1 (rank 0), 2, 3 (rank 1)", or "not bound: " and why; the first rank's host.
  const std::string& description() const { return description_; }

 private:
  std::optional<ThreadBinding> binding_;
  int cpu_ = -1;  // of the calling thread; below 0: it is not bound
  std::string description_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_COMPUTE_THREADS_H_
