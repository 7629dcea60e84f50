#include "trainer/parallel/parameter_store.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace weft::train {
namespace {

void AddOnce(std::vector<int>& list, int value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

}  // namespace

ParameterStore::ParameterStore(std::vector<ParameterSpec> parameters, const ShardedOptions& options,
                               const Optimizer& optimizer, int rank, int ranks)
    : parameters_(std::move(parameters)),
      options_(options),
      rank_(rank),
      ranks_(ranks),
      compute_type_(TypeOf(options.precision)) {
  tensors_.resize(parameters_.size());
  places_.resize(parameters_.size());
  std::vector<BucketLayout> layouts = LayOut(parameters_, options_.bucket_bytes,
                                             static_cast<int64_t>(c10::elementSize(compute_type_)),
                                             ranks_, ComesAndGoes(), options_.tables_alone);
  buckets_.resize(layouts.size());
  for (size_t b = 0; b < layouts.size(); ++b) {
    buckets_[b].layout = std::move(layouts[b]);
    Allocate(buckets_[b]);
    AddViews(static_cast<int>(b));
    AddSlices(static_cast<int>(b), optimizer);
  }
}

void ParameterStore::Allocate(ParameterBucket& bucket) const {
  const int64_t shard = bucket.layout.shard;
  if (ComesAndGoes()) {
    bucket.values = at::empty({shard * ranks_}, OptionsOf(compute_type_));
    Detach(bucket);
  } else {
    bucket.values = at::zeros({shard * ranks_}, OptionsOf(compute_type_));
  }
  const at::ScalarType type = options_.stochastic_rounding ? compute_type_ : at::kFloat;
  const bool is_view = type == compute_type_ && !ComesAndGoes();
  bucket.owned = is_view ? OwnPart(bucket) : at::zeros({shard}, OptionsOf(type));
}

void ParameterStore::AddViews(int index) {
  ParameterBucket& bucket = buckets_[static_cast<size_t>(index)];
  int last_unit = 0;
  for (const ParameterSpec& spec : parameters_) last_unit = std::max(last_unit, spec.unit);
  unit_buckets_.resize(static_cast<size_t>(last_unit) + 1);
  for (const BucketEntry& entry : bucket.layout.entries) {
    const size_t parameter = static_cast<size_t>(entry.parameter);
    const ParameterSpec& spec = parameters_[parameter];
    bucket.counts = spec.counts;
    places_[parameter] = {index, entry.offset};
    tensors_[parameter] = bucket.values.narrow(0, entry.offset, entry.elements).view(spec.shape);
    AddOnce(unit_buckets_[static_cast<size_t>(spec.unit)], index);
    // A tied embedding is read by the last unit again.
    if (spec.uses > 1) AddOnce(unit_buckets_.back(), index);
  }
}

void ParameterStore::AddSlices(int index, const Optimizer& optimizer) {
  ParameterBucket& bucket = buckets_[static_cast<size_t>(index)];
  for (const ShardSlice& slice : SlicesOf(bucket.layout, rank_)) {
    const ParameterSpec& spec = parameters_[static_cast<size_t>(slice.parameter)];
    OwnedSlice owned{.parameter = slice.parameter,
                     .bucket = index,
                     .begin = slice.begin,
                     .at = slice.at,
                     .elements = slice.elements};
    owned.decays = options_.decay_all || spec.is_matrix;
    owned.is_matrix = IsBlockMatrix(spec);
    bucket.slices.push_back(owned);
  }
  // Each state has one array a bucket, so that neighbours can be updated by one loop.
  const absl::Span<const OptimizerState> states = optimizer.states();
  for (size_t k = 0; k < states.size(); ++k) {
    auto has = [&](const OwnedSlice& slice) {
      const bool by_matrix_rule = optimizer.matrices() != nullptr && slice.is_matrix;
      return by_matrix_rule ? states[k].of_matrices : states[k].of_others;
    };
    const bool all = std::all_of(bucket.slices.begin(), bucket.slices.end(), has);
    int64_t elements = all ? bucket.layout.shard : 0;
    for (const OwnedSlice& slice : bucket.slices) {
      if (!all && has(slice)) elements += slice.elements;
    }
    states_.push_back(at::zeros({elements}, OptionsOf(at::kFloat)));
    float* next = states_.back().data_ptr<float>();
    for (OwnedSlice& slice : bucket.slices) {
      if (!has(slice)) continue;
      slice.states[k] = all ? next + slice.at : next;
      if (!all) next += slice.elements;
    }
  }
}

at::Tensor ParameterStore::OwnPart(const ParameterBucket& bucket) const {
  return bucket.values.narrow(0, bucket.layout.shard * rank_, bucket.layout.shard);
}

bool ParameterStore::KeepsApart(const ParameterBucket& bucket) const {
  return OwnPart(bucket).data_ptr() != bucket.owned.data_ptr();
}

void ParameterStore::WriteOwnPart(ParameterBucket& bucket) const {
  if (std::exchange(bucket.is_written, false)) return;
  if (KeepsApart(bucket)) OwnPart(bucket).copy_(bucket.owned);
}

// The views share the storage of `values`, whose memory is another tensor's while it is attached.
void ParameterStore::Attach(ParameterBucket& bucket) const {
  if (bucket.memory.defined()) return;
  bucket.memory = at::empty({bucket.layout.shard * ranks_}, OptionsOf(compute_type_));
  bucket.values.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(bucket.memory.data_ptr(), options_.device));
}

void ParameterStore::Detach(ParameterBucket& bucket) const {
  bucket.values.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(nullptr, options_.device));
  bucket.memory = at::Tensor();
}

void ParameterStore::Read(const OwnedSlice& slice, int64_t from, absl::Span<float> values) const {
  const ParameterBucket& bucket = buckets_[static_cast<size_t>(slice.bucket)];
  const int64_t count = static_cast<int64_t>(values.size());
  at::from_blob(values.data(), {count}, at::kFloat)
      .copy_(bucket.owned.narrow(0, slice.at + from, count));
}

void ParameterStore::Write(const OwnedSlice& slice, int64_t from, absl::Span<const float> values) {
  const int64_t count = static_cast<int64_t>(values.size());
  bucket(slice.bucket)
      .owned.narrow(0, slice.at + from, count)
      .copy_(at::from_blob(const_cast<float*>(values.data()), {count}, at::kFloat));
}

}  // namespace weft::train
