// The memory of this rank's parameters and of the optimizer's states: flat buckets (layout.h),
// sharded over the ranks that share them (ZeRO; Rajbhandari et al., SC'20). Nothing here
// communicates.
//
// A rank owns one shard of each bucket: fp32 values, or in the compute type where values are
// rounded stochastically, and the optimizer's states, fp32. Model parameters are views of the
// bucket's whole values in the compute type. With ZeRO stages 1 and 2 these are always there; with
// stage 3 their memory is there between Attach and Detach only, and the views are the same ones.
//
// Used by one thread.
#ifndef WEFT_TRAINER_PARALLEL_PARAMETER_STORE_H_
#define WEFT_TRAINER_PARALLEL_PARAMETER_STORE_H_

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "trainer/config.h"
#include "trainer/model/parameters.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/parallel/layout.h"

namespace weft::train {

// How training state is cut and in which types it is kept.
struct ShardedOptions {
  Precision precision = Precision::kFp32;  // of parameters in the forward pass
  bool stochastic_rounding = false;        // bf16 alone, no fp32 values
  bool reduce_fp32 = false;                // gradients cross the ranks in fp32
  int zero_stage = 1;
  int micro_steps = 1;        // backward passes a step
  bool tables_alone = false;  // tables of tokens are buckets of their own (layout.h)
  Bytes bucket_bytes = MiB(4);
  bool decay_all = false;
  uint64_t seed = 0;  // of stochastic rounding
  at::Device device = at::kCPU;
};

// A stretch of a parameter that this rank owns, and its state.
struct OwnedSlice {
  int parameter = 0;
  int bucket = 0;
  int64_t begin = 0;  // within the parameter
  int64_t at = 0;     // within the bucket's shard
  int64_t elements = 0;
  bool decays = false;
  bool is_matrix = false;  // of a block: what an optimizer's MatrixRule is for
  std::array<float*, kOptimizerStatesMost> states = {};  // null: has no such state
};

struct ParameterBucket {
  BucketLayout layout;
  bool counts = true;  // see ParameterSpec
  at::Tensor values;   // [shard * ranks], compute type
  at::Tensor owned;    // [shard]: what the optimizer changes; a view of `values`, or of its own
  std::vector<OwnedSlice> slices;
  bool is_written = false;  // the optimizer has just written the owned values into `values`, too
  at::Tensor memory;        // stage 3: of `values`; undefined: detached
};

class ParameterStore {
 public:
  // `rank` of `ranks` that share the parameters.
  ParameterStore(std::vector<ParameterSpec> parameters, const ShardedOptions& options,
                 const Optimizer& optimizer, int rank, int ranks);

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  const ShardedOptions& options() const { return options_; }
  at::ScalarType compute_type() const { return compute_type_; }
  at::TensorOptions OptionsOf(at::ScalarType type) const {
    return at::TensorOptions(type).device(options_.device);
  }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // Views, for the model.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  std::vector<ParameterBucket>& buckets() { return buckets_; }
  const std::vector<ParameterBucket>& buckets() const { return buckets_; }
  ParameterBucket& bucket(int index) { return buckets_[static_cast<size_t>(index)]; }
  // A parameter's bucket, and where it begins there.
  std::pair<int, int64_t> PlaceOf(int parameter) const {
    return places_[static_cast<size_t>(parameter)];
  }
  // Buckets that a unit (see ParameterSpec) reads.
  const std::vector<int>& BucketsOf(int unit) const {
    return unit_buckets_[static_cast<size_t>(unit)];
  }
  int units() const { return static_cast<int>(unit_buckets_.size()); }

  // This rank's shard of the whole values, to be gathered from.
  at::Tensor OwnPart(const ParameterBucket& bucket) const;
  // Whether the owned values are kept elsewhere, or in another type.
  bool KeepsApart(const ParameterBucket& bucket) const;
  // The owned values into that place, where they are kept apart and are not there yet.
  void WriteOwnPart(ParameterBucket& bucket) const;
  void Attach(ParameterBucket& bucket) const;
  void Detach(ParameterBucket& bucket) const;
  // The slice's part of a state that it has, fp32 [elements].
  at::Tensor StateOf(const OwnedSlice& slice, size_t state) const {
    return at::from_blob(slice.states[state], {slice.elements}, OptionsOf(at::kFloat));
  }
  bool ComesAndGoes() const { return options_.zero_stage == 3 && ranks_ > 1; }

  // `elements` owned values from `from` of the slice on, as fp32; rounded to nearest on the way in.
  void Read(const OwnedSlice& slice, int64_t from, absl::Span<float> values) const;
  void Write(const OwnedSlice& slice, int64_t from, absl::Span<const float> values);

 private:
  void Allocate(ParameterBucket& bucket) const;
  void AddSlices(int index, const Optimizer& optimizer);
  void AddViews(int index);

  const std::vector<ParameterSpec> parameters_;
  const ShardedOptions options_;
  const int rank_, ranks_;
  const at::ScalarType compute_type_;
  std::vector<ParameterBucket> buckets_;
  std::vector<at::Tensor> states_;  // what the slices point into
  std::vector<at::Tensor> tensors_;
  std::vector<std::pair<int, int64_t>> places_;
  std::vector<std::vector<int>> unit_buckets_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_PARAMETER_STORE_H_
