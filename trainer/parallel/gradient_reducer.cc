#include "trainer/parallel/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "trainer/device/device.h"

namespace weft::train {
namespace {

// Buffers for whole gradients that stages 2 and 3 begin with; more are made only when all are being
// written at the same time.
constexpr int kPoolBuffers = 3;
// Elements: gradients of a bucket begin with a cache line.
constexpr int64_t kAligned = 64;

}  // namespace

GradientReducer::GradientReducer(const ParameterStore* store, const ParallelGroups* groups)
    : store_(*store),
      groups_(*groups),
      group_(groups->shard_group()),
      reduce_type_(store->options().reduce_fp32 ? at::kFloat : store->compute_type()),
      buckets_(store->buckets().size()),
      uses_left_(store->parameters().size()) {
  Allocate();
}

void GradientReducer::Allocate() {
  if (ReducesEach()) {
    const at::ScalarType type = Accumulates() ? at::ScalarType::Float : reduce_type_;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      buckets_[b].shard = at::zeros({ShardOf(static_cast<int>(b))}, store_.OptionsOf(type));
    }
    return;
  }
  // One piece of memory: a large model has a thousand buckets, and a process as many descriptors.
  auto room = [&](size_t b) {
    const int64_t elements = ShardOf(static_cast<int>(b)) * group_.size();
    return (elements + kAligned - 1) / kAligned * kAligned;
  };
  int64_t elements = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) elements += room(b);
  const at::Tensor all = group_.Zeros(elements, store_.OptionsOf(reduce_type_));
  int64_t at = 0;
  for (size_t b = 0; b < buckets_.size(); at += room(b), ++b) {
    const int64_t shard = ShardOf(static_cast<int>(b));
    Bucket& bucket = buckets_[b];
    bucket.buffer = static_cast<int>(buffers_.size());
    buffers_.push_back({all.narrow(0, at, shard * group_.size()), at::Tensor()});
    bucket.shard = group_.size() == 1 ? buffers_.back().full
                                      : at::zeros({shard}, store_.OptionsOf(reduce_type_));
  }
}

void GradientReducer::BeginStep() {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].micro_step = 0;
    Expect(static_cast<int>(b));
  }
}

void GradientReducer::Expect(int bucket) {
  const BucketLayout& layout = store_.buckets()[static_cast<size_t>(bucket)].layout;
  buckets_[static_cast<size_t>(bucket)].missing = static_cast<int>(layout.entries.size());
  for (const BucketEntry& entry : layout.entries) {
    const size_t parameter = static_cast<size_t>(entry.parameter);
    uses_left_[parameter] = UsesOf(store_.parameters()[parameter]);
  }
}

int GradientReducer::TakeBuffer(Bucket& bucket) {
  if (free_buffers_.empty() && !reductions_.empty() &&
      buffers_.size() >= static_cast<size_t>(kPoolBuffers)) {
    absl::Status status = FinishOldest();
    if (status_.ok()) status_ = status;
  }
  if (free_buffers_.empty()) {
    int64_t shard = 0;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      shard = std::max(shard, ShardOf(static_cast<int>(b)));
    }
    free_buffers_.push_back(static_cast<int>(buffers_.size()));
    buffers_.push_back(
        {group_.Zeros(shard * group_.size(), store_.OptionsOf(reduce_type_)),
         Accumulates() ? at::zeros({shard}, store_.OptionsOf(reduce_type_)) : at::Tensor()});
  }
  bucket.buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return bucket.buffer;
}

GradientTarget GradientReducer::Begin(int parameter) {
  auto [b, offset] = store_.PlaceOf(parameter);
  Bucket& bucket = buckets_[static_cast<size_t>(b)];
  const ParameterSpec& spec = store_.parameters()[static_cast<size_t>(parameter)];
  if (bucket.buffer < 0) TakeBuffer(bucket);
  const bool add = uses_left_[static_cast<size_t>(parameter)] != UsesOf(spec);
  return {buffers_[static_cast<size_t>(bucket.buffer)]
              .full.narrow(0, offset, spec.elements())
              .view(spec.shape),
          add};
}

void GradientReducer::End(int parameter) {
  if (--uses_left_[static_cast<size_t>(parameter)] > 0) return;
  const int b = store_.PlaceOf(parameter).first;
  if (--buckets_[static_cast<size_t>(b)].missing == 0) StartReduction(b);
}

void GradientReducer::StartReduction(int bucket_index) {
  if (!status_.ok()) return;
  Bucket& bucket = buckets_[static_cast<size_t>(bucket_index)];
  const Buffer& buffer = buffers_[static_cast<size_t>(bucket.buffer)];
  const int64_t shard = ShardOf(bucket_index);
  Reduction reduction{bucket_index, bucket.buffer, bucket.micro_step, {}};
  if (ReducesEach()) {
    bucket.buffer = -1;
    ++bucket.micro_step;
    Expect(bucket_index);
  }
  if (group_.size() > 1) {
    at::Tensor out = Accumulates() ? buffer.shard.narrow(0, 0, shard) : bucket.shard;
    auto pending =
        group_.ReduceScatterAverage(out, buffer.full.narrow(0, 0, shard * group_.size()));
    if (!pending.ok()) {
      status_ = pending.status();
      return;
    }
    reduction.pending = *std::move(pending);
  }
  reductions_.push_back(std::move(reduction));
  // Sums over replicas start as soon as their shards are there; all ranks see the same buckets in
  // the same order.
  while (status_.ok() && groups_.replicas != nullptr && !reductions_.empty() &&
         reductions_.front().pending.done()) {
    status_ = FinishOldest();
  }
}

// Where each micro-batch is reduced: what it gave is added up, and its buffer is free again.
absl::Status GradientReducer::Retire(const Reduction& reduction) {
  if (ReducesEach()) {
    Bucket& bucket = buckets_[static_cast<size_t>(reduction.bucket)];
    const Buffer& buffer = buffers_[static_cast<size_t>(reduction.buffer)];
    const bool is_in_place = group_.size() > 1 && !Accumulates();
    if (!is_in_place) {
      at::Tensor part =
          (group_.size() == 1 ? buffer.full : buffer.shard).narrow(0, 0, ShardOf(reduction.bucket));
      if (reduction.micro_step == 0) {
        bucket.shard.copy_(part);
      } else {
        bucket.shard.add_(part);
      }
    }
    free_buffers_.push_back(reduction.buffer);
    if (reduction.micro_step + 1 < store_.options().micro_steps) return absl::OkStatus();
  }
  return StartReplicas(reduction.bucket);
}

absl::Status GradientReducer::StartReplicas(int bucket) {
  if (groups_.replicas == nullptr) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(
      Pending pending, groups_.replicas->AllReduceSum(buckets_[static_cast<size_t>(bucket)].shard));
  replica_sums_.emplace_back(bucket, std::move(pending));
  return absl::OkStatus();
}

absl::Status GradientReducer::FinishReplicas() {
  for (; !replica_sums_.empty(); replica_sums_.pop_front()) {
    auto& [bucket, pending] = replica_sums_.front();
    WEFT_RETURN_IF_ERROR(groups_.replicas->Wait(pending));
    buckets_[static_cast<size_t>(bucket)].shard.mul_(1.0 / groups_.replicas->size());
  }
  return absl::OkStatus();
}

absl::Status GradientReducer::FinishOldest() {
  Reduction reduction = std::move(reductions_.front());
  reductions_.pop_front();
  WEFT_RETURN_IF_ERROR(group_.Wait(reduction.pending));
  return Retire(reduction);
}

absl::Status GradientReducer::Finish() {
  while (status_.ok() && !reductions_.empty()) status_ = FinishOldest();
  if (status_.ok()) status_ = FinishReplicas();
  if (status_.ok()) status_ = AddUpShared();
  return status_;
}

absl::Status GradientReducer::AddUpShared() {
  std::vector<std::pair<Group*, Pending>> sums;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const SharedBy shared = store_.buckets()[b].layout.shared;
    if (shared == SharedBy::kNobody) continue;
    Group* group = shared == SharedBy::kTensor ? groups_.tensor.get() : groups_.ends.get();
    WEFT_ASSIGN_OR_RETURN(Pending pending, group->AllReduceSum(buckets_[b].shard));
    sums.emplace_back(group, std::move(pending));
  }
  for (auto& [group, pending] : sums) WEFT_RETURN_IF_ERROR(group->Wait(pending));
  return absl::OkStatus();
}

double GradientReducer::SumSquares() const {
  double sum = 0;
  // Replicas of a shard hold the same; the first one's counts.
  if (groups_.replicas != nullptr && groups_.replicas->rank() != 0) return sum;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (!store_.buckets()[b].counts) continue;
    const at::Tensor& shard = buckets_[b].shard;
    for (const ShardSlice& run : RunsOfShard(store_.buckets()[b].layout, store_.rank())) {
      WithGradient({.gradient = shard.data_ptr(),
                    .gradient_type = PrecisionOf(shard.scalar_type()),
                    .table = &KernelsOf(shard)},
                   [&](const auto& kernels, const auto* gradient) {
                     sum += kernels.sum_squares(run.elements, gradient + run.at);
                   });
    }
  }
  return sum;
}

}  // namespace weft::train
