#include "trainer/loop/saved_state.h"

#include <cstddef>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/log.h"
#include "base/read_file.h"
#include "base/status.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/run_states.h"
#include "trainer/resume_identity.h"

namespace weft::train {
namespace {

ElementRange PlaceOf(const ElementRuns& runs) {
  return {runs.begin, runs.length, runs.stride, runs.count};
}
absl::Span<std::byte> BytesOf(float* data, int64_t elements) {
  return {reinterpret_cast<std::byte*>(data), static_cast<size_t>(elements) * sizeof(float)};
}

// Names of the buffers of the optimizer's states, up to the parameter's name.
std::vector<std::string> StatePrefixes(const Optimizer& optimizer) {
  std::vector<std::string> prefixes;
  for (const OptimizerState& state : optimizer.states()) {
    prefixes.push_back(absl::StrCat(optimizer.state_prefix(), ".", state.name, "."));
  }
  return prefixes;
}

// What this rank writes. Values that are not kept in fp32 are copied to `values`.
void AppendParts(const ShardedParameters& parameters, std::deque<std::vector<float>>& values,
                 std::vector<BufferPart>& parts) {
  const ParameterStore& store = parameters.store();
  const std::vector<std::string> prefixes = StatePrefixes(parameters.optimizer());
  for (const SavedSlice& saved : parameters.Saved()) {
    const OwnedSlice& slice = *saved.slice;
    const ParameterSpec& spec = store.parameters()[static_cast<size_t>(slice.parameter)];
    auto add = [&](const std::string& prefix, float* data) {
      BufferPart part{absl::StrCat(prefix, spec.name), DType::kF32, spec.whole_elements()};
      part.shape = spec.whole_shape;
      for (const ElementRuns& runs : RunsOf(spec, slice.begin + saved.from, saved.elements)) {
        part.ranges.push_back(PlaceOf(runs));
      }
      part.bytes = BytesOf(data, saved.elements);
      parts.push_back(std::move(part));
    };
    auto copy = [&] { return values.emplace_back(static_cast<size_t>(saved.elements)).data(); };
    const at::Tensor& owned = store.buckets()[static_cast<size_t>(slice.bucket)].owned;
    if (owned.scalar_type() == at::kFloat && owned.is_cpu()) {
      add(kParameterPrefix, owned.data_ptr<float>() + slice.at + saved.from);
    } else {
      float* const copied = copy();
      store.Read(slice, saved.from, absl::MakeSpan(copied, static_cast<size_t>(saved.elements)));
      add(kParameterPrefix, copied);
    }
    for (size_t k = 0; k < prefixes.size(); ++k) {
      if (slice.states[k] == nullptr) continue;
      const at::Tensor state = store.StateOf(slice, k).narrow(0, saved.from, saved.elements);
      if (state.is_cpu()) {
        add(prefixes[k], state.data_ptr<float>());
        continue;
      }
      float* const copied = copy();
      at::from_blob(copied, {saved.elements}, at::kFloat).copy_(state);
      add(prefixes[k], copied);
    }
  }
}

// Where elements of a need belong: from element `at` of the slice on, the values or one of the
// optimizer's states.
struct Place {
  ParameterStore* store;
  const OwnedSlice* slice;
  std::optional<size_t> state;
  int64_t at;
};

// What this rank needs of a checkpoint, and where each need belongs.
struct Needs {
  std::vector<ReadNeed> needs;
  std::vector<Place> places;
};

// Without an optimizer's states, those that `parameters` have stay: they begin at zero.
absl::StatusOr<Needs> NeedsOf(const Manifest& manifest, const std::string& path, bool has_optimizer,
                              ParameterSets& parameters) {
  std::map<absl::string_view, size_t> numbers;
  for (const BufferLayout& buffer : manifest.buffers) numbers.emplace(buffer.name, numbers.size());
  std::vector<std::string> prefixes;
  if (has_optimizer) prefixes = StatePrefixes(parameters.optimizer());
  Needs all;
  auto add = [&](const std::string& prefix, const ParameterSpec& spec, const ElementRuns& runs,
                 const Place& place) -> absl::Status {
    const std::string name = absl::StrCat(prefix, spec.name);
    const auto found = numbers.find(name);
    if (found == numbers.end()) {
      return absl::FailedPreconditionError(absl::StrCat(path, " has no buffer '", name, "'"));
    }
    const BufferLayout& buffer = manifest.buffers[found->second];
    if (buffer.dtype != DType::kF32 || buffer.elements != spec.whole_elements()) {
      return absl::FailedPreconditionError(absl::StrCat(
          path, ": buffer '", name, "' has ", absl::StrJoin(buffer.shape, " x "), " = ",
          buffer.elements, " elements of ", NameOf(buffer.dtype), " instead of ",
          absl::StrJoin(spec.whole_shape, " x "), " = ", spec.whole_elements(), " of F32"));
    }
    all.needs.push_back({found->second, PlaceOf(runs)});
    all.places.push_back(place);
    return absl::OkStatus();
  };
  for (ShardedParameters* set : parameters.sets()) {
    ParameterStore& store = set->store();
    for (const ParameterBucket& bucket : store.buckets()) {
      for (const OwnedSlice& slice : bucket.slices) {
        const ParameterSpec& spec = store.parameters()[static_cast<size_t>(slice.parameter)];
        for (const ElementRuns& runs : RunsOf(spec, slice.begin, slice.elements)) {
          const int64_t at = runs.local - slice.begin;
          WEFT_RETURN_IF_ERROR(add(kParameterPrefix, spec, runs, {&store, &slice, {}, at}));
          for (size_t k = 0; k < prefixes.size(); ++k) {
            if (slice.states[k] == nullptr) continue;
            WEFT_RETURN_IF_ERROR(add(prefixes[k], spec, runs, {&store, &slice, k, at}));
          }
        }
      }
    }
  }
  return all;
}

// fp32 elements to where they belong, from element `to` of the need on.
void Put(const Place& place, int64_t to, absl::Span<const std::byte> bytes) {
  const auto elements = static_cast<int64_t>(bytes.size() / sizeof(float));
  std::vector<float> values(static_cast<size_t>(elements));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  if (!place.state.has_value()) {
    place.store->Write(*place.slice, place.at + to, values);
    return;
  }
  place.store->StateOf(*place.slice, *place.state)
      .narrow(0, place.at + to, elements)
      .copy_(at::from_blob(values.data(), {elements}, at::kFloat));
}

bool HasOptimizer(const Manifest& manifest) {
  auto found = manifest.states.find(kOptimizerState);
  return found == manifest.states.end() || found->second != kNoOptimizer;
}
// States of one optimizer mean nothing to another.
absl::Status CheckOptimizer(const std::string& path, const Manifest& manifest,
                            absl::string_view name) {
  auto found = manifest.states.find(kOptimizerState);
  const std::string before = found == manifest.states.end() ? "adamw" : found->second;
  if (before == name) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot resume from ", path, ": its optimizer is ", before, ", optimizer.name is now ", name,
      "; go on with optimizer.name = ", before, ", or begin anew in another --run-dir"));
}

}  // namespace

std::vector<at::Tensor> StateOf(const ParameterSets& parameters) {
  std::vector<at::Tensor> parts;
  for (const ShardedParameters* set : parameters.sets()) {
    for (const ParameterBucket& bucket : set->store().buckets()) {
      auto add = [&](void* data, size_t bytes) {
        parts.push_back(at::from_blob(data, {static_cast<int64_t>(bytes)},
                                      bucket.owned.options().dtype(at::kByte)));
      };
      add(bucket.owned.data_ptr(), bucket.owned.nbytes());
      for (const OwnedSlice& slice : bucket.slices) {
        for (float* state : slice.states) {
          if (state != nullptr) add(state, static_cast<size_t>(slice.elements) * sizeof(float));
        }
      }
    }
  }
  return parts;
}

at::Device DeviceOf(const ParameterSets& parameters) {
  return parameters.sets()[0]->store().options().device;
}

std::vector<BufferPart> PartsOf(const ParameterSets& parameters,
                                std::deque<std::vector<float>>& values) {
  std::vector<BufferPart> parts;
  for (const ShardedParameters* set : parameters.sets()) AppendParts(*set, values, parts);
  return parts;
}

CheckpointState ManifestStateOf(const RunPosition& position, const TrainConfig& config,
                                absl::string_view optimizer) {
  return {.samples_consumed = position.samples,
          .seed = config.seed,
          .states = {{kIdentityState, ResumeIdentity(config)},
                     {kOptimizerState, std::string(optimizer)},
                     {kLossScaleState, position.loss_scale},
                     {kGemmState, position.gemm},
                     {kAttentionState, position.attention},
                     {kCoreChoiceState, position.core_choice}},
          .config_text = config.text};
}

// One rank reads the manifest for all.
absl::StatusOr<LoadedState> LoadState(const std::string& path, const LocalCheckpoint& local,
                                      const TrainConfig& config, Group& group,
                                      ParameterSets& parameters, absl::Status& damage) {
  absl::StatusOr<std::string> text("");
  const std::string manifest_path = absl::StrCat(path, "/", kManifestName);
  if (group.rank() == static_cast<int>(local.manifest_rank)) text = ReadFile(manifest_path);
  WEFT_RETURN_IF_ERROR(group.Agree(text.status()));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, group.Gather(*text));
  WEFT_ASSIGN_OR_RETURN(Manifest parsed, ParseManifest(texts[local.manifest_rank], manifest_path));
  const auto reader = CheckpointReader::With(path, std::move(parsed));
  const Manifest& manifest = reader->manifest();
  auto identity = manifest.states.find(kIdentityState);
  if (identity == manifest.states.end()) {
    return absl::DataLossError(absl::StrCat(path, " is no checkpoint of weft-train"));
  }
  std::string difference = DescribeDifference(identity->second, ResumeIdentity(config));
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot resume from ", path, ": ", difference));
  }
  const bool has_optimizer = HasOptimizer(manifest);
  if (has_optimizer) {
    WEFT_RETURN_IF_ERROR(CheckOptimizer(path, manifest, parameters.optimizer().name()));
  } else if (group.rank() == 0) {
    WEFT_LOG_WARN(path, " has parameters alone: the states of the optimizer, ",
                  parameters.optimizer().name(), ", begin at zero");
  }
  absl::StatusOr<Needs> needs = NeedsOf(manifest, path, has_optimizer, parameters);
  WEFT_RETURN_IF_ERROR(group.Agree(needs.status()));
  absl::StatusOr<ReadTotals> totals = ReadTogether(
      *reader, needs->needs, group,
      [&](size_t need, int64_t to, absl::Span<const std::byte> bytes) {
        Put(needs->places[need], to, bytes);
      },
      local.holders);
  if (IsDamage(totals.status())) damage = totals.status();
  WEFT_RETURN_IF_ERROR(totals.status());
  RunPosition position{.step = manifest.step, .samples = manifest.samples_consumed};
  for (auto [name, to] :
       {std::pair(kLossScaleState, &position.loss_scale), std::pair(kGemmState, &position.gemm),
        std::pair(kAttentionState, &position.attention),
        std::pair(kCoreChoiceState, &position.core_choice)}) {
    if (auto state = manifest.states.find(name); state != manifest.states.end()) {
      *to = state->second;
    }
  }
  return LoadedState{std::move(position), *totals};
}

}  // namespace weft::train
