// The gradients of one step on their way from the backward pass to the shards: written by the
// operations into flat buckets, reduced over the ranks as soon as a bucket is whole, while the pass
// goes on (MegaScale, section 3.2).
//
//   backward pass  Begin/End of each parameter; with a bucket's last gradient its reduce-scatter
//                  starts
//   Finish         waits for the reduce-scatters: each rank has its shard of the averages. Adds up
//                  those that ranks of one replica share (SharedBy), and averages over replicas of
//                  the shards
//
// Stage 1: whole gradients accumulate over the micro-batches and are reduced with the last one.
// Stages 2 and 3: they are reduced with every micro-batch, shards accumulate in fp32, and the
// buffers for whole gradients are a few that are used over and over. With one rank nothing is
// communicated and gradients are used where they are. The ranks of a host reduce whole gradients
// where they lie (Group::Zeros).
//
// Used by one thread. The first failure of a collective is kept and returned by the next call.
#ifndef WEFT_TRAINER_PARALLEL_GRADIENT_REDUCER_H_
#define WEFT_TRAINER_PARALLEL_GRADIENT_REDUCER_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/model/gradient_sink.h"
#include "trainer/parallel/parameter_store.h"

namespace weft::train {

class GradientReducer final : public GradientSink {
 public:
  // Both outlive this object.
  GradientReducer(const ParameterStore* store, const ParallelGroups* groups);

  // Before the first backward pass of a step. Stages 2 and 3 need a bucket of several parameters to
  // be whole before its next micro-batch begins. A parameter that is alone in its bucket may come
  // in any order: what is reduced is added up.
  void BeginStep();
  GradientTarget Begin(int parameter) override;
  void End(int parameter) override;
  bool TakesAnyOrder() const override { return !ReducesEach(); }
  absl::Status Finish();

  // After Finish. [shard], fp32 or the compute type.
  const at::Tensor& shard(size_t bucket) const { return buckets_[bucket].shard; }
  // This rank's shards' sum; all ranks' sums add up to the squared norm of the whole gradient.
  double SumSquares() const;

 private:
  struct Buffer {  // whole gradients of one bucket
    at::Tensor full;
    at::Tensor shard;  // with several micro-batches that are reduced each: what one of them gives
  };
  struct Bucket {
    at::Tensor shard;    // what the optimizer reads
    int buffer = -1;     // index into buffers_ while gradients are being written
    int missing = 0;     // parameters whose gradient is not whole
    int micro_step = 0;  // reductions started in this step
  };
  struct Reduction {
    int bucket = 0;
    int buffer = 0;
    int micro_step = 0;
    Pending pending;
  };

  bool ReducesEach() const { return store_.options().zero_stage >= 2; }
  bool Accumulates() const { return ReducesEach() && store_.options().micro_steps > 1; }
  int64_t ShardOf(int bucket) const {
    return store_.buckets()[static_cast<size_t>(bucket)].layout.shard;
  }
  void Allocate();
  void Expect(int bucket);
  int TakeBuffer(Bucket& bucket);
  void StartReduction(int bucket_index);
  absl::Status FinishOldest();
  absl::Status Retire(const Reduction& reduction);
  absl::Status AddUpShared();
  absl::Status StartReplicas(int bucket);
  absl::Status FinishReplicas();
  int UsesOf(const ParameterSpec& spec) const {
    return ReducesEach() ? spec.uses : spec.uses * store_.options().micro_steps;
  }

  const ParameterStore& store_;
  const ParallelGroups& groups_;
  Group& group_;  // the ranks that share the parameters
  const at::ScalarType reduce_type_;
  std::vector<Bucket> buckets_;
  std::vector<Buffer> buffers_;
  std::vector<int> free_buffers_;
  std::vector<int> uses_left_;  // of each parameter, until its gradient can be reduced
  std::deque<Reduction> reductions_;
  std::deque<std::pair<int, Pending>> replica_sums_;  // by bucket
  absl::Status status_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_GRADIENT_REDUCER_H_
