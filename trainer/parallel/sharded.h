// Data parallelism with sharded optimizer state, ZeRO stage 1 or 2 (Rajbhandari et al., SC'20),
// with the communication under the computation as in MegaScale, section 3.2:
//
//   forward pass     WaitUnit(u) before unit u: its parameters' all-gather, started in the last
//                    step, is done
//   backward pass    Begin/End of each parameter; with a bucket's last gradient its reduce-scatter
//                    starts and the pass goes on
//   FinishGradients  waits for the reduce-scatters: each rank holds its shard of the averages; and
//                    adds up those that ranks of one replica share (SharedBy)
//   Update           AdamW on the shards; each bucket's all-gather starts at once, in the order of
//                    the next forward pass
//
// Stage 1: whole gradients accumulate over the micro-batches and are reduced with the last one.
// Stage 2: they are reduced with every micro-batch, shards accumulate in fp32, and the buffers for
// whole gradients are a few that are used over and over.
//
// Parameters and gradients are flat buckets (layout.h); model parameters are views of them. A rank
// keeps fp32 master values and AdamW's moments of its shard. With one rank nothing is communicated
// and gradients are used where they are.
//
// Used by one thread. The first failure of a collective is kept and returned by the next call. The
// groups count and trace the time that is spent blocked.
#ifndef WEFT_TRAINER_PARALLEL_SHARDED_H_
#define WEFT_TRAINER_PARALLEL_SHARDED_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "base/trace.h"
#include "trainer/config.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/kernels/kernels.h"
#include "trainer/model/gradient_sink.h"
#include "trainer/model/parameters.h"
#include "trainer/parallel/layout.h"

namespace weft {

struct ShardedOptions {
  Precision precision = Precision::kFp32;  // of parameters in the forward pass
  bool reduce_fp32 = false;                // gradients cross the ranks in fp32
  int zero_stage = 1;
  int micro_steps = 1;  // backward passes a step
  Bytes bucket_bytes = MiB(4);
  bool decay_all = false;
};

// A stretch of a parameter that this rank owns, and its state.
struct OwnedSlice {
  int parameter = 0;
  int64_t begin = 0;  // within the parameter
  int64_t elements = 0;
  float* values = nullptr;  // master
  float* mean = nullptr;
  float* variance = nullptr;
};

class ShardedParameters final : public GradientSink {
 public:
  // `groups` and `trace` (may be null) must outlive this object. Parameters are uninitialised until
  // Publish.
  ShardedParameters(std::vector<ParameterSpec> parameters, const ShardedOptions& options,
                    const ParallelGroups* groups, Trace* trace);

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }  // for Gpt
  // To be filled before Publish, and to be saved.
  const std::vector<OwnedSlice>& owned() const { return owned_; }
  int buckets() const { return static_cast<int>(buckets_.size()); }

  // Master values -> parameters of every rank.
  absl::Status Publish();
  absl::Status WaitUnit(int unit);
  absl::Status WaitAll();

  // Before the first backward pass of a step. Backward passes of one parameter come one micro-batch
  // after the other; stage 2 needs each bucket's to be whole before the next micro-batch begins.
  void BeginStep(int64_t step);
  GradientTarget Begin(int parameter) override;
  void End(int parameter) override;

  absl::Status FinishGradients();
  // Of this rank's shard, after FinishGradients: the sum over all ranks is the squared gradient
  // norm.
  double SumSquares() const;
  absl::Status Update(const kernels::AdamW& step);

 private:
  // A stretch of the shard that is updated with one kernel call.
  struct Segment {
    int64_t at = 0;
    int64_t elements = 0;
    bool decays = false;
  };
  struct Buffer {  // whole gradients of one bucket
    at::Tensor full;
    at::Tensor shard;  // stage 2 with several micro-batches: what one reduce-scatter gives
  };
  struct Bucket {
    BucketLayout layout;
    at::Tensor values;  // [shard * ranks], compute type
    at::Tensor master;  // [shard], fp32; a view of `values` in fp32
    at::Tensor mean, variance;
    at::Tensor gradient;  // [shard]: what the optimizer reads
    std::vector<Segment> segments;
    int buffer = -1;     // index into buffers_ while gradients are being written
    int missing = 0;     // parameters whose gradient is not whole
    int micro_step = 0;  // stage 2: reductions started in this step
    bool counts = true;  // see ParameterSpec
    Pending gather;
  };
  struct Reduction {
    int bucket = 0;
    int buffer = 0;
    int micro_step = 0;
    Pending pending;
  };

  void AllocateBucket(Bucket& bucket);
  void MakeSegments(Bucket& bucket);
  bool ReducesEach() const { return options_.zero_stage == 2; }
  int TakeBuffer(Bucket& bucket);
  void StartReduction(int bucket_index);
  absl::Status FinishOldest();
  void Retire(const Reduction& reduction);
  absl::Status StartGather(Bucket& bucket);
  absl::Status AddUpShared();
  void ExpectGradients(Bucket& bucket);
  int UsesOf(const ParameterSpec& spec) const {
    return ReducesEach() ? spec.uses : spec.uses * options_.micro_steps;
  }

  const std::vector<ParameterSpec> parameters_;
  const ShardedOptions options_;
  const ParallelGroups& groups_;
  Group* const group_;  // the data axis
  Trace* const trace_;
  const at::ScalarType compute_type_;
  const at::ScalarType reduce_type_;
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> tensors_;
  std::vector<OwnedSlice> owned_;
  std::vector<std::pair<int, int64_t>> places_;  // of each parameter: bucket, offset
  std::vector<std::vector<int>> unit_buckets_;
  std::vector<Buffer> buffers_;
  std::vector<int> free_buffers_;
  std::vector<int> uses_left_;  // of each parameter, until its gradient can be reduced
  std::deque<Reduction> reductions_;
  absl::Status status_;
  int64_t step_ = 0;
};

}  // namespace weft

#endif  // WEFT_TRAINER_PARALLEL_SHARDED_H_
