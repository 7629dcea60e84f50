#include "trainer/parallel/sharded_update.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/random.h"
#include "base/status.h"
#include "trainer/device/device.h"

namespace weft::train {
namespace {

using kernels::Bf16;

// Elements of values in bf16 that are widened at a time: on a CPU they stay in the first-level
// cache; a GPU has enough to do with so many that launches do not count, in 16 MiB.
constexpr int64_t kBlock = 4096;
constexpr int64_t kBlockOfDevice = 4 << 20;
// Elements that a thread updates before it rounds them to the compute type: with gradients and
// states they stay in the second-level cache, so that values are read from memory once.
constexpr int64_t kBlockOfThread = 32768;

// Elements from `at` on.
Stretch PartOfStretch(const Stretch& whole, int64_t at, int64_t elements) {
  Stretch part = whole;
  part.elements = elements;
  const int64_t width = SizeOf(whole.gradient_type);
  part.gradient = static_cast<const char*>(whole.gradient) + at * width;
  if (part.values != nullptr) part.values += at;
  for (float*& state : part.states) state = state == nullptr ? nullptr : state + at;
  return part;
}

bool IsMatrixOf(const Optimizer& optimizer, const OwnedSlice& slice) {
  return optimizer.matrices() != nullptr && slice.is_matrix;
}

// All ranks' parts of a matrix that is cut over them, [ranks, part], as the whole; and back.
at::Tensor Whole(const ParameterSpec& spec, const at::Tensor& parts) {
  const int64_t ranks = parts.size(0);
  if (spec.split_dim == 1) {
    return parts.view({ranks, spec.shape[0], spec.shape[1]})
        .transpose(0, 1)
        .reshape(spec.whole_shape);
  }
  return parts.view({ranks, spec.split_parts, -1}).transpose(0, 1).reshape(spec.whole_shape);
}
at::Tensor PartOf(const ParameterSpec& spec, const at::Tensor& whole, int64_t ranks, int64_t rank) {
  if (spec.split_dim == 1) return whole.view({spec.shape[0], ranks, spec.shape[1]}).select(1, rank);
  return whole.view({spec.split_parts, ranks, -1}).select(1, rank);
}

}  // namespace

ShardedUpdate::ShardedUpdate(const Optimizer* optimizer, ParameterStore* store,
                             const GradientReducer* gradients, const ParallelGroups* groups,
                             std::vector<std::string> all_parameters, Trace* trace)
    : optimizer_(*optimizer),
      store_(*store),
      gradients_(*gradients),
      groups_(*groups),
      norms_(all_parameters.size()),
      trace_(trace) {
  std::map<std::string, size_t> numbers;
  for (size_t i = 0; i < all_parameters.size(); ++i) numbers[all_parameters[i]] = i;
  for (const ParameterSpec& spec : store_.parameters()) numbers_.push_back(numbers.at(spec.name));
}

Stretch ShardedUpdate::StretchOf(const ParameterBucket& bucket, size_t index,
                                 const OwnedSlice& slice) const {
  const at::Tensor& gradient = gradients_.shard(index);
  Stretch stretch{.elements = slice.elements, .decays = slice.decays, .states = slice.states};
  stretch.table = &KernelsOf(bucket.owned);
  stretch.gradient_type = PrecisionOf(gradient.scalar_type());
  stretch.gradient =
      static_cast<const char*>(gradient.data_ptr()) + slice.at * gradient.element_size();
  if (bucket.owned.scalar_type() == at::kFloat) {
    stretch.values = bucket.owned.data_ptr<float>() + slice.at;
  }
  return stretch;
}

bool ShardedUpdate::WritesAtOnce(const ParameterBucket& bucket) const {
  return bucket.owned.is_cpu() && bucket.owned.scalar_type() == at::kFloat &&
         !store_.ComesAndGoes() && store_.KeepsApart(bucket);
}

void ShardedUpdate::OnValues(const OptimizerStep& step, size_t index, const OwnedSlice& slice,
                             bool changes,
                             const std::function<void(const Stretch&, int64_t)>& body) {
  const ParameterBucket& bucket = store_.buckets()[index];
  const Stretch whole = StretchOf(bucket, index, slice);
  if (whole.values != nullptr) {
    if (!changes || !WritesAtOnce(bucket)) {
      body(whole, 0);
      return;
    }
    const at::Tensor written = store_.OwnPart(bucket).narrow(0, slice.at, slice.elements);
    const at::Tensor values = bucket.owned.narrow(0, slice.at, slice.elements);
    const int64_t block = kBlockOfThread * at::get_num_threads();
    for (int64_t at = 0; at < slice.elements; at += block) {
      const int64_t elements = std::min(block, slice.elements - at);
      body(PartOfStretch(whole, at, elements), at);
      written.narrow(0, at, elements).copy_(values.narrow(0, at, elements));
    }
    return;
  }
  // Replicas of a parameter draw alike: the key is its name's and the step's.
  const ParameterSpec& spec = store_.parameters()[static_cast<size_t>(slice.parameter)];
  uint64_t key = store_.options().seed ^ HashName(spec.name);
  key = SplitMix64(key) + static_cast<uint64_t>(step.step);
  key = SplitMix64(key);
  Bf16* values = static_cast<Bf16*>(bucket.owned.data_ptr()) + slice.at;
  const kernels::Fp32Kernels& kernels = whole.table->fp32;
  const bool on_device = GoesDeviceWay(bucket.owned);
  const int64_t most = std::min(on_device ? kBlockOfDevice : kBlock, slice.elements);
  std::array<float, kBlock> cached;
  const at::Tensor memory =
      on_device ? at::empty({most}, store_.OptionsOf(at::kFloat)) : at::Tensor();
  float* const block = on_device ? memory.data_ptr<float>() : cached.data();
  for (int64_t at = 0; at < slice.elements; at += most) {
    Stretch part = PartOfStretch(whole, at, std::min(most, slice.elements - at));
    part.values = block;
    kernels.widen(part.elements, values + at, block);
    body(part, at);
    if (!changes) continue;
    kernels.round_stochastically(part.elements, key, slice.begin + at, block, values + at);
  }
}

// Neighbours that are treated alike as one; of values in bf16 each parameter draws by itself.
std::vector<OwnedSlice> ShardedUpdate::Merged(const ParameterBucket& bucket) const {
  std::vector<OwnedSlice> merged;
  const bool may_merge = optimizer_.norms() == nullptr && bucket.owned.scalar_type() == at::kFloat;
  for (const OwnedSlice& slice : bucket.slices) {
    if (IsMatrixOf(optimizer_, slice)) continue;
    if (may_merge && !merged.empty()) {
      OwnedSlice& last = merged.back();
      bool follows = last.decays == slice.decays && last.at + last.elements == slice.at;
      for (size_t k = 0; k < slice.states.size(); ++k) {
        follows = follows &&
                  (slice.states[k] == nullptr ? last.states[k] == nullptr
                                              : last.states[k] + last.elements == slice.states[k]);
      }
      if (follows) {
        last.elements += slice.elements;
        continue;
      }
    }
    merged.push_back(slice);
  }
  return merged;
}

absl::Status ShardedUpdate::MeasureAll(const OptimizerStep& step) {
  std::vector<double> sums(2 * norms_.size(), 0.0);
  // Replicas of a shard hold the same; the first one's counts.
  const bool is_counted = groups_.replicas == nullptr || groups_.replicas->rank() == 0;
  for (size_t b = 0; b < store_.buckets().size(); ++b) {
    const ParameterBucket& bucket = store_.buckets()[b];
    for (const OwnedSlice& slice : bucket.slices) {
      const size_t number = numbers_[static_cast<size_t>(slice.parameter)];
      OnValues(step, b, slice, /*changes=*/false, [&](const Stretch& stretch, int64_t) {
        const ParameterNorms part = optimizer_.norms()->Measure(step, stretch);
        if (!is_counted || !bucket.counts) return;
        sums[2 * number] += part.values;
        sums[2 * number + 1] += part.direction;
      });
    }
  }
  WEFT_RETURN_IF_ERROR(groups_.world->Sum(absl::MakeSpan(sums)));
  for (size_t i = 0; i < norms_.size(); ++i) norms_[i] = {sums[2 * i], sums[2 * i + 1]};
  return absl::OkStatus();
}

void ShardedUpdate::UpdateBucket(const OptimizerStep& step, size_t bucket) {
  for (const OwnedSlice& slice : Merged(store_.buckets()[bucket])) {
    OnValues(step, bucket, slice, /*changes=*/true, [&](const Stretch& stretch, int64_t) {
      if (optimizer_.norms() == nullptr) {
        optimizer_.Update(step, stretch);
      } else {
        optimizer_.norms()->Apply(step, stretch,
                                  norms_[numbers_[static_cast<size_t>(slice.parameter)]]);
      }
    });
  }
}

// `part`: this rank's part of the matrix; the whole one's where the tensor axis does not cut it.
absl::Status ShardedUpdate::OrthogonalizeOne(const ParameterSpec& spec, at::Tensor part) const {
  if (spec.split_dim < 0) {
    optimizer_.matrices()->Orthogonalize(part.view({spec.shape[0], spec.shape[1]}));
    return absl::OkStatus();
  }
  Group& tensor = *groups_.tensor;
  at::Tensor parts = at::empty({tensor.size(), part.numel()}, part.options());
  WEFT_ASSIGN_OR_RETURN(Pending pending, tensor.AllGather(parts, part.contiguous()));
  WEFT_RETURN_IF_ERROR(tensor.Wait(pending));
  at::Tensor whole = Whole(spec, parts).contiguous();
  optimizer_.matrices()->Orthogonalize(whole);
  const at::Tensor mine = PartOf(spec, whole, tensor.size(), tensor.rank());
  part.view(mine.sizes()).copy_(mine);
  return absl::OkStatus();
}

// This rank's shard of the bucket's orthogonal matrices; undefined where there are none.
absl::StatusOr<at::Tensor> ShardedUpdate::Orthogonal(const OptimizerStep& step, size_t index) {
  const ParameterBucket& bucket = store_.buckets()[index];
  const auto& entries = bucket.layout.entries;
  auto spec_of = [&](const BucketEntry& entry) -> const ParameterSpec& {
    return store_.parameters()[static_cast<size_t>(entry.parameter)];
  };
  if (std::none_of(entries.begin(), entries.end(),
                   [&](const BucketEntry& entry) { return IsBlockMatrix(spec_of(entry)); })) {
    return at::Tensor();
  }
  Group& group = groups_.shard_group();
  const int64_t shard = bucket.layout.shard;
  at::Tensor full = at::zeros({shard * group.size()}, store_.OptionsOf(at::kFloat));
  at::Tensor own = full.narrow(0, shard * group.rank(), shard);
  for (const OwnedSlice& slice : bucket.slices) {
    if (!slice.is_matrix) continue;
    optimizer_.matrices()->Direction(step, StretchOf(bucket, index, slice),
                                     own.data_ptr<float>() + slice.at);
  }
  WEFT_ASSIGN_OR_RETURN(Pending gather, group.AllGather(full, own));
  WEFT_RETURN_IF_ERROR(group.Wait(gather));
  for (const BucketEntry& entry : entries) {
    const ParameterSpec& spec = spec_of(entry);
    at::Tensor part = full.narrow(0, entry.offset, entry.elements);
    // The parameter's number is the same on all ranks of a tensor group, which meet here.
    if (IsBlockMatrix(spec) && entry.parameter % group.size() == group.rank()) {
      WEFT_RETURN_IF_ERROR(OrthogonalizeOne(spec, part));
    } else {
      part.zero_();
    }
  }
  if (group.size() == 1) return full;
  at::Tensor mine = at::empty({shard}, full.options());
  WEFT_ASSIGN_OR_RETURN(Pending scatter, group.ReduceScatterSum(mine, full));
  WEFT_RETURN_IF_ERROR(group.Wait(scatter));
  return mine;
}

absl::Status ShardedUpdate::UpdateMatrices(const OptimizerStep& step, size_t index) {
  WEFT_ASSIGN_OR_RETURN(at::Tensor directions, Orthogonal(step, index));
  if (!directions.defined()) return absl::OkStatus();
  for (const OwnedSlice& slice : store_.buckets()[index].slices) {
    if (!slice.is_matrix) continue;
    const std::vector<int64_t>& shape =
        store_.parameters()[static_cast<size_t>(slice.parameter)].whole_shape;
    const float* direction = directions.data_ptr<float>() + slice.at;
    OnValues(step, index, slice, /*changes=*/true, [&](const Stretch& stretch, int64_t offset) {
      optimizer_.matrices()->Apply(step, stretch, shape[0], shape[1], direction + offset);
    });
  }
  return absl::OkStatus();
}

absl::Status ShardedUpdate::Run(const OptimizerStep& step,
                                const std::function<absl::Status(int)>& changed) {
  if (optimizer_.norms() != nullptr) {
    TraceScope scope(trace_, "optimizer", kComputeTrack, step.step);
    WEFT_RETURN_IF_ERROR(MeasureAll(step));
  }
  for (size_t b = store_.buckets().size(); b-- > 0;) {
    {
      TraceScope scope(trace_, "optimizer", kComputeTrack, step.step);
      UpdateBucket(step, b);
      if (optimizer_.matrices() != nullptr) WEFT_RETURN_IF_ERROR(UpdateMatrices(step, b));
    }
    ParameterBucket& bucket = store_.buckets()[b];
    bucket.is_written = WritesAtOnce(bucket);
    WEFT_RETURN_IF_ERROR(changed(static_cast<int>(b)));
  }
  return absl::OkStatus();
}

}  // namespace weft::train
