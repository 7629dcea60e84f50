#include "trainer/parallel/sharded.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace weft {
namespace {

using kernels::Bf16;
using kernels::Kernels;

// Buffers for whole gradients that stage 2 begins with; more are made only when all are being
// written at the same time.
constexpr int kPoolBuffers = 3;

}  // namespace

ShardedParameters::ShardedParameters(std::vector<ParameterSpec> parameters,
                                     const ShardedOptions& options, const ParallelGroups* groups,
                                     Trace* trace)
    : parameters_(std::move(parameters)),
      options_(options),
      groups_(*groups),
      group_(groups->data.get()),
      trace_(trace),
      compute_type_(options.precision == Precision::kBf16 ? at::kBFloat16 : at::kFloat),
      reduce_type_(options.reduce_fp32 ? at::kFloat : compute_type_) {
  tensors_.resize(parameters_.size());
  places_.resize(parameters_.size());
  uses_left_.resize(parameters_.size());
  std::vector<BucketLayout> layouts =
      LayOut(parameters_, options_.bucket_bytes,
             static_cast<int64_t>(c10::elementSize(compute_type_)), group_->size());
  buckets_.resize(layouts.size());
  for (size_t b = 0; b < layouts.size(); ++b) {
    buckets_[b].layout = std::move(layouts[b]);
    AllocateBucket(buckets_[b]);
    MakeSegments(buckets_[b]);
    for (const BucketEntry& entry : buckets_[b].layout.entries) {
      const ParameterSpec& spec = parameters_[static_cast<size_t>(entry.parameter)];
      buckets_[b].counts = spec.counts;
      places_[static_cast<size_t>(entry.parameter)] = {static_cast<int>(b), entry.offset};
      tensors_[static_cast<size_t>(entry.parameter)] =
          buckets_[b].values.narrow(0, entry.offset, entry.elements).view(spec.shape);
      size_t unit = static_cast<size_t>(spec.unit);
      if (unit_buckets_.size() <= unit) unit_buckets_.resize(unit + 1);
      std::vector<int>& list = unit_buckets_[unit];
      if (list.empty() || list.back() != static_cast<int>(b)) list.push_back(static_cast<int>(b));
    }
    for (const ShardSlice& slice : SlicesOf(buckets_[b].layout, group_->rank())) {
      owned_.push_back({slice.parameter, slice.begin, slice.elements,
                        buckets_[b].master.data_ptr<float>() + slice.at,
                        buckets_[b].mean.data_ptr<float>() + slice.at,
                        buckets_[b].variance.data_ptr<float>() + slice.at});
    }
  }
}

void ShardedParameters::AllocateBucket(Bucket& bucket) {
  int64_t shard = bucket.layout.shard;
  int64_t all = shard * group_->size();
  bucket.values = at::zeros({all}, compute_type_);
  bucket.master = compute_type_ == at::kFloat
                      ? bucket.values.narrow(0, shard * group_->rank(), shard)
                      : at::zeros({shard}, at::kFloat);
  bucket.mean = at::zeros({shard}, at::kFloat);
  bucket.variance = at::zeros({shard}, at::kFloat);
  if (ReducesEach()) {
    bucket.gradient =
        at::zeros({shard}, options_.micro_steps > 1 ? at::ScalarType::Float : reduce_type_);
    return;
  }
  bucket.buffer = static_cast<int>(buffers_.size());
  buffers_.push_back({at::zeros({all}, reduce_type_), at::Tensor()});
  bucket.gradient = group_->size() == 1 ? buffers_.back().full : at::zeros({shard}, reduce_type_);
}

void ShardedParameters::MakeSegments(Bucket& bucket) {
  for (const ShardSlice& slice : SlicesOf(bucket.layout, group_->rank())) {
    bool decays = options_.decay_all || parameters_[static_cast<size_t>(slice.parameter)].is_matrix;
    if (!bucket.segments.empty()) {
      Segment& last = bucket.segments.back();
      if (last.decays == decays && last.at + last.elements == slice.at) {
        last.elements += slice.elements;
        continue;
      }
    }
    bucket.segments.push_back({slice.at, slice.elements, decays});
  }
}

// ---- Parameters ----

absl::Status ShardedParameters::Publish() {
  WEFT_RETURN_IF_ERROR(WaitAll());
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    if (compute_type_ != at::kFloat) {
      bucket->values.narrow(0, bucket->layout.shard * group_->rank(), bucket->layout.shard)
          .copy_(bucket->master);
    }
    WEFT_RETURN_IF_ERROR(StartGather(*bucket));
  }
  return absl::OkStatus();
}

absl::Status ShardedParameters::StartGather(Bucket& bucket) {
  at::Tensor mine =
      bucket.values.narrow(0, bucket.layout.shard * group_->rank(), bucket.layout.shard);
  WEFT_ASSIGN_OR_RETURN(bucket.gather, group_->AllGather(bucket.values, mine));
  return absl::OkStatus();
}

absl::Status ShardedParameters::WaitUnit(int unit) {
  for (int bucket : unit_buckets_[static_cast<size_t>(unit)]) {
    WEFT_RETURN_IF_ERROR(group_->Wait(buckets_[static_cast<size_t>(bucket)].gather));
  }
  return absl::OkStatus();
}

absl::Status ShardedParameters::WaitAll() {
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    WEFT_RETURN_IF_ERROR(group_->Wait(bucket->gather));
  }
  return absl::OkStatus();
}

// ---- Gradients ----

void ShardedParameters::BeginStep(int64_t step) {
  step_ = step;
  for (Bucket& bucket : buckets_) {
    bucket.micro_step = 0;
    ExpectGradients(bucket);
  }
}

void ShardedParameters::ExpectGradients(Bucket& bucket) {
  bucket.missing = static_cast<int>(bucket.layout.entries.size());
  for (const BucketEntry& entry : bucket.layout.entries) {
    const size_t parameter = static_cast<size_t>(entry.parameter);
    uses_left_[parameter] = UsesOf(parameters_[parameter]);
  }
}

int ShardedParameters::TakeBuffer(Bucket& bucket) {
  if (free_buffers_.empty() && !reductions_.empty() &&
      buffers_.size() >= static_cast<size_t>(kPoolBuffers)) {
    absl::Status status = FinishOldest();
    if (status_.ok()) status_ = status;
  }
  if (free_buffers_.empty()) {
    int64_t shard = 0;
    for (const Bucket& each : buckets_) shard = std::max(shard, each.layout.shard);
    free_buffers_.push_back(static_cast<int>(buffers_.size()));
    buffers_.push_back(
        {at::zeros({shard * group_->size()}, reduce_type_),
         options_.micro_steps > 1 ? at::zeros({shard}, reduce_type_) : at::Tensor()});
  }
  bucket.buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return bucket.buffer;
}

GradientTarget ShardedParameters::Begin(int parameter) {
  auto [b, offset] = places_[static_cast<size_t>(parameter)];
  Bucket& bucket = buckets_[static_cast<size_t>(b)];
  const ParameterSpec& spec = parameters_[static_cast<size_t>(parameter)];
  if (bucket.buffer < 0) TakeBuffer(bucket);
  const bool add = uses_left_[static_cast<size_t>(parameter)] != UsesOf(spec);
  return {buffers_[static_cast<size_t>(bucket.buffer)]
              .full.narrow(0, offset, spec.elements())
              .view(spec.shape),
          add};
}

void ShardedParameters::End(int parameter) {
  if (--uses_left_[static_cast<size_t>(parameter)] > 0) return;
  int b = places_[static_cast<size_t>(parameter)].first;
  if (--buckets_[static_cast<size_t>(b)].missing == 0) StartReduction(b);
}

void ShardedParameters::StartReduction(int bucket_index) {
  if (!status_.ok()) return;
  Bucket& bucket = buckets_[static_cast<size_t>(bucket_index)];
  const Buffer& buffer = buffers_[static_cast<size_t>(bucket.buffer)];
  int64_t shard = bucket.layout.shard;
  Reduction reduction{bucket_index, bucket.buffer, bucket.micro_step, {}};
  if (ReducesEach()) {
    bucket.buffer = -1;
    ++bucket.micro_step;
    ExpectGradients(bucket);
  }
  if (group_->size() > 1) {
    at::Tensor out = ReducesEach() && options_.micro_steps > 1 ? buffer.shard.narrow(0, 0, shard)
                                                               : bucket.gradient;
    auto pending =
        group_->ReduceScatterAverage(out, buffer.full.narrow(0, 0, shard * group_->size()));
    if (!pending.ok()) {
      status_ = pending.status();
      return;
    }
    reduction.pending = *std::move(pending);
  }
  reductions_.push_back(std::move(reduction));
}

// Stage 2: what a reduce-scatter gave is added up, and its buffer is free again.
void ShardedParameters::Retire(const Reduction& reduction) {
  if (!ReducesEach()) return;
  Bucket& bucket = buckets_[static_cast<size_t>(reduction.bucket)];
  const Buffer& buffer = buffers_[static_cast<size_t>(reduction.buffer)];
  bool is_in_place = group_->size() > 1 && options_.micro_steps == 1;
  if (!is_in_place) {
    at::Tensor part =
        (group_->size() == 1 ? buffer.full : buffer.shard).narrow(0, 0, bucket.layout.shard);
    if (reduction.micro_step == 0) {
      bucket.gradient.copy_(part);
    } else {
      bucket.gradient.add_(part);
    }
  }
  free_buffers_.push_back(reduction.buffer);
}

absl::Status ShardedParameters::FinishOldest() {
  Reduction reduction = std::move(reductions_.front());
  reductions_.pop_front();
  WEFT_RETURN_IF_ERROR(group_->Wait(reduction.pending));
  Retire(reduction);
  return absl::OkStatus();
}

absl::Status ShardedParameters::FinishGradients() {
  while (status_.ok() && !reductions_.empty()) status_ = FinishOldest();
  if (status_.ok()) status_ = AddUpShared();
  return status_;
}

absl::Status ShardedParameters::AddUpShared() {
  std::vector<std::pair<Group*, Pending>> sums;
  for (Bucket& bucket : buckets_) {
    if (bucket.layout.shared == SharedBy::kNobody) continue;
    Group* group =
        bucket.layout.shared == SharedBy::kTensor ? groups_.tensor.get() : groups_.ends.get();
    WEFT_ASSIGN_OR_RETURN(Pending pending, group->AllReduceSum(bucket.gradient));
    sums.emplace_back(group, std::move(pending));
  }
  for (auto& [group, pending] : sums) WEFT_RETURN_IF_ERROR(group->Wait(pending));
  return absl::OkStatus();
}

double ShardedParameters::SumSquares() const {
  double sum = 0;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.counts) continue;
    for (const Segment& segment : bucket.segments) {
      if (bucket.gradient.scalar_type() == at::kFloat) {
        sum += Kernels().f32.sum_squares(segment.elements,
                                         bucket.gradient.data_ptr<float>() + segment.at);
      } else {
        sum += Kernels().bf16.sum_squares(
            segment.elements, static_cast<const Bf16*>(bucket.gradient.data_ptr()) + segment.at);
      }
    }
  }
  return sum;
}

absl::Status ShardedParameters::Update(const kernels::AdamW& step) {
  WEFT_RETURN_IF_ERROR(status_);
  kernels::AdamW without_decay = step;
  without_decay.weight_decay = 0;
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    {
      TraceScope scope(trace_, "optimizer", kComputeTrack, step_);
      Bf16* compute = compute_type_ == at::kFloat ? nullptr
                                                  : static_cast<Bf16*>(bucket->values.data_ptr()) +
                                                        bucket->layout.shard * group_->rank();
      for (const Segment& segment : bucket->segments) {
        auto run = [&](const auto& typed, const auto* gradient) {
          typed.adamw(segment.elements, segment.decays ? step : without_decay,
                      gradient + segment.at, bucket->master.data_ptr<float>() + segment.at,
                      bucket->mean.data_ptr<float>() + segment.at,
                      bucket->variance.data_ptr<float>() + segment.at,
                      compute == nullptr ? nullptr : compute + segment.at);
        };
        if (bucket->gradient.scalar_type() == at::kFloat) {
          run(Kernels().f32, bucket->gradient.data_ptr<float>());
        } else {
          run(Kernels().bf16, static_cast<const Bf16*>(bucket->gradient.data_ptr()));
        }
      }
    }
    WEFT_RETURN_IF_ERROR(StartGather(*bucket));
  }
  return absl::OkStatus();
}

}  // namespace weft
