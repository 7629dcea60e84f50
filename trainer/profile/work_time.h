// Where a step's time goes: the seconds that the calling thread spends in each kind of work.
//
// Every nanosecond belongs to exactly one kind, that of the innermost WorkScope, and to kRest
// outside all of them: the kinds add up to the time that has passed. A scope costs two readings of
// the clock. State is the thread's own: scopes and readings of other threads are theirs. What a
// thread starts on others, threads of OpenMP included, counts as long as the thread waits for it;
// on a GPU that is the time to start a kernel.
#ifndef WEFT_TRAINER_PROFILE_WORK_TIME_H_
#define WEFT_TRAINER_PROFILE_WORK_TIME_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace weft::train {

enum class Work {
  kGemm,           // products of activations with weights, and their gradients
  kAttention,      // and rotary positions
  kElementwise,    // norms, activations, residual sums, dropout
  kLoss,           // cross-entropy and its gradient, without the output projection
  kEmbedding,      // and the gradients of its tables
  kGradients,      // of biases, and copies to where gradients are reduced
  kOptimizer,      // and the norm of the gradient
  kCommunication,  // waits for other ranks
  kData,           // waits for the next batch
  kRest,
};
inline constexpr size_t kWorkKinds = static_cast<size_t>(Work::kRest) + 1;
// The name in metrics.jsonl: "gemm" for "work_gemm_seconds".
const char* NameOf(Work work);

class WorkScope {
 public:
  explicit WorkScope(Work work);
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  const Work before_;
};

// Seconds by kind.
struct WorkSeconds {
  std::array<double, kWorkKinds> of = {};
  double operator[](Work work) const { return of[static_cast<size_t>(work)]; }
  double total() const;
};
// The calling thread's times since its last call, or since its first scope.
WorkSeconds TakeWorkSeconds();

}  // namespace weft::train

#endif  // WEFT_TRAINER_PROFILE_WORK_TIME_H_
