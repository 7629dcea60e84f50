#include "trainer/loop/checkpoints.h"

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/run_states.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/files/file.h"

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
  if (parameters.IsReplica()) return;
  const ParameterStore& store = parameters.store();
  const std::vector<std::string> prefixes = StatePrefixes(parameters.optimizer());
  auto add = [&](const std::string& prefix, const OwnedSlice& slice, float* data) {
    const ParameterSpec& spec = store.parameters()[static_cast<size_t>(slice.parameter)];
    BufferPart part{absl::StrCat(prefix, spec.name), DType::kF32, spec.whole_elements()};
    part.shape = spec.whole_shape;
    for (const ElementRuns& runs : RunsOf(spec, slice.begin, slice.elements)) {
      part.ranges.push_back(PlaceOf(runs));
    }
    part.bytes = BytesOf(data, slice.elements);
    parts.push_back(std::move(part));
  };
  for (const ParameterBucket& bucket : store.buckets()) {
    if (!bucket.counts) continue;  // another rank saves it
    for (const OwnedSlice& slice : bucket.slices) {
      if (bucket.owned.scalar_type() == at::kFloat && bucket.owned.is_cpu()) {
        add(kParameterPrefix, slice, bucket.owned.data_ptr<float>() + slice.at);
      } else {
        std::vector<float>& copy = values.emplace_back(static_cast<size_t>(slice.elements));
        store.Read(slice, 0, absl::MakeSpan(copy));
        add(kParameterPrefix, slice, copy.data());
      }
      for (size_t k = 0; k < prefixes.size(); ++k) {
        if (slice.states[k] == nullptr) continue;
        const at::Tensor state = store.StateOf(slice, k);
        if (state.is_cpu()) {
          add(prefixes[k], slice, slice.states[k]);
        } else {
          std::vector<float>& copy = values.emplace_back(static_cast<size_t>(slice.elements));
          at::from_blob(copy.data(), {slice.elements}, at::kFloat).copy_(state);
          add(prefixes[k], slice, copy.data());
        }
      }
    }
  }
}
std::vector<BufferPart> Parts(const ParameterSets& parameters,
                              std::deque<std::vector<float>>& values) {
  std::vector<BufferPart> parts;
  for (const ShardedParameters* set : parameters.sets()) AppendParts(*set, values, parts);
  return parts;
}

absl::Status ReadSlice(const CheckpointReader& reader, const std::vector<std::string>& prefixes,
                       const OwnedSlice& slice, ParameterStore& store) {
  const ParameterSpec& spec = store.parameters()[static_cast<size_t>(slice.parameter)];
  std::vector<float> values;
  for (const ElementRuns& runs : RunsOf(spec, slice.begin, slice.elements)) {
    const int64_t from = runs.local - slice.begin, elements = runs.length * runs.count;
    values.resize(static_cast<size_t>(elements));
    WEFT_RETURN_IF_ERROR(reader.Read(absl::StrCat(kParameterPrefix, spec.name), PlaceOf(runs),
                                     BytesOf(values.data(), elements)));
    store.Write(slice, from, values);
    for (size_t k = 0; k < prefixes.size(); ++k) {
      if (slice.states[k] == nullptr) continue;
      WEFT_RETURN_IF_ERROR(reader.Read(absl::StrCat(prefixes[k], spec.name), PlaceOf(runs),
                                       BytesOf(values.data(), elements)));
      store.StateOf(slice, k)
          .narrow(0, from, elements)
          .copy_(at::from_blob(values.data(), {elements}, at::kFloat));
    }
  }
  return absl::OkStatus();
}

// Without an optimizer's states, those that `parameters` have stay: they begin at zero.
absl::Status ReadParts(const CheckpointReader& reader, bool has_optimizer,
                       ParameterSets& parameters) {
  std::vector<std::string> prefixes;
  if (has_optimizer) prefixes = StatePrefixes(parameters.optimizer());
  for (ShardedParameters* set : parameters.sets()) {
    for (const ParameterBucket& bucket : set->store().buckets()) {
      for (const OwnedSlice& slice : bucket.slices) {
        WEFT_RETURN_IF_ERROR(ReadSlice(reader, prefixes, slice, set->store()));
      }
    }
  }
  return absl::OkStatus();
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

void AppendReason(const PassedOver& entry, std::string& text) {
  absl::StrAppend(&text, "\n  step ", entry.step, ": ", entry.reason.message());
}

// Whether a run may go on from `latest`; see RunCheckpoints::Load.
absl::Status CheckLatest(const std::string& folder, const LatestCheckpoint& latest) {
  std::string unreadable;
  std::string all;
  for (const PassedOver& entry : latest.passed_over) {
    AppendReason(entry, all);
    if (!IsDamage(entry.reason)) AppendReason(entry, unreadable);
  }
  if (latest.path.empty() && !all.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot resume: no checkpoint in ", folder, " is whole and readable; nothing was changed",
        all, "\nMake one of them readable, or begin anew in another --run-dir"));
  }
  if (unreadable.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot resume: checkpoints newer than ", latest.path,
      " cannot be read, though they may be whole; nothing was changed", unreadable,
      "\nMake them readable, or move them out of ", folder, " to go on from step ", latest.step));
}

// Looks for the last checkpoint, and tidies the folder if there is one to go on from, or none.
absl::StatusOr<LatestCheckpoint> FindAndTidy(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(LatestCheckpoint latest, FindLatest(folder));
  WEFT_RETURN_IF_ERROR(CheckLatest(folder, latest));
  for (const std::string& path : latest.unfinished) {
    WEFT_LOG_WARN("removed ", path, ": it was never finished");
  }
  for (const PassedOver& entry : latest.passed_over) {
    WEFT_LOG_WARN("passed over step ", entry.step, ", which stays: ", entry.reason.message());
  }
  WEFT_RETURN_IF_ERROR(RemoveLeftovers(folder));
  // The name that it has now, if its replacement had been cut short.
  if (!latest.path.empty()) latest.path = absl::StrCat(folder, "/", CheckpointName(latest.step));
  return latest;
}

}  // namespace

std::vector<absl::Span<std::byte>> StateOf(const ParameterSets& parameters) {
  std::vector<absl::Span<std::byte>> parts;
  for (const ShardedParameters* set : parameters.sets()) {
    for (const ParameterBucket& bucket : set->store().buckets()) {
      parts.emplace_back(static_cast<std::byte*>(bucket.owned.data_ptr()), bucket.owned.nbytes());
      for (const OwnedSlice& slice : bucket.slices) {
        for (float* state : slice.states) {
          if (state != nullptr) parts.push_back(BytesOf(state, slice.elements));
        }
      }
    }
  }
  return parts;
}

RunCheckpoints::RunCheckpoints(std::string folder, const TrainConfig& config, Group& group)
    : folder_(std::move(folder)),
      config_(config),
      group_(group),
      retention_(folder_, config.checkpoint_keep) {}

absl::Status RunCheckpoints::ExpectNone() {
  absl::Status status;
  if (group_.rank() == 0) {
    absl::StatusOr<std::vector<std::string>> paths = ListCheckpoints(folder_);
    status = paths.status();
    if (paths.ok() && !paths->empty()) {
      status = absl::AlreadyExistsError(
          absl::StrCat(ParentFolder(folder_), " holds a run with the checkpoint ", paths->front(),
                       "; go on with it by --resume, or name another --run-dir"));
    } else if (paths.ok()) {
      status = RemoveLeftovers(folder_);
    }
  }
  return group_.Agree(status);
}

// Rank 0 looks for all: they must agree. Empty: there is none at all.
absl::StatusOr<std::string> RunCheckpoints::FindLast() {
  absl::Status status;
  std::string path;
  if (group_.rank() == 0) {
    absl::StatusOr<LatestCheckpoint> latest = FindAndTidy(folder_);
    status = latest.status();
    if (latest.ok() && !latest->path.empty()) {
      retention_.Resumed(*latest);
      path = latest->path;
    }
  }
  WEFT_RETURN_IF_ERROR(group_.Agree(status));
  return group_.FromFirst(path);
}

absl::StatusOr<RunPosition> RunCheckpoints::LoadHere(const std::string& path,
                                                     ParameterSets& parameters) {
  WEFT_ASSIGN_OR_RETURN(auto reader, CheckpointReader::Open(path));
  const Manifest& manifest = reader->manifest();
  auto identity = manifest.states.find(kIdentityState);
  if (identity == manifest.states.end()) {
    return absl::DataLossError(absl::StrCat(path, " is no checkpoint of weft-train"));
  }
  std::string difference = DescribeDifference(identity->second, ResumeIdentity(config_));
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot resume from ", path, ": ", difference));
  }
  const bool has_optimizer = HasOptimizer(manifest);
  if (has_optimizer) {
    WEFT_RETURN_IF_ERROR(CheckOptimizer(path, manifest, parameters.optimizer().name()));
  } else if (group_.rank() == 0) {
    WEFT_LOG_WARN(path, " has parameters alone: the states of the optimizer, ",
                  parameters.optimizer().name(), ", begin at zero");
  }
  WEFT_RETURN_IF_ERROR(ReadParts(*reader, has_optimizer, parameters));
  RunPosition position{.step = manifest.step, .samples = manifest.samples_consumed};
  for (auto [name, to] :
       {std::pair(kLossScaleState, &position.loss_scale), std::pair(kGemmState, &position.gemm),
        std::pair(kAttentionState, &position.attention)}) {
    if (auto state = manifest.states.find(name); state != manifest.states.end()) {
      *to = state->second;
    }
  }
  return position;
}

absl::StatusOr<std::optional<RunPosition>> RunCheckpoints::Load(ParameterSets& parameters) {
  WEFT_ASSIGN_OR_RETURN(std::string path, FindLast());
  if (path.empty()) return std::nullopt;
  absl::StatusOr<RunPosition> position = LoadHere(path, parameters);
  WEFT_RETURN_IF_ERROR(group_.Agree(position.status()));
  return *position;
}

absl::Status RunCheckpoints::Save(const RunPosition& position, const ParameterSets& parameters,
                                  absl::Status& failure) {
  CheckpointWriter writer(folder_, position.step, group_.size());
  std::deque<std::vector<float>> values;
  std::vector<BufferPart> parts = Parts(parameters, values);
  WEFT_RETURN_IF_ERROR(group_.Agree(writer.WriteShard(group_.rank(), parts), failure));
  absl::Status committed = failure;
  if (group_.rank() == 0) {
    if (failure.ok()) {
      committed =
          writer
              .Commit({.samples_consumed = position.samples,
                       .seed = config_.seed,
                       .states = {{kIdentityState, ResumeIdentity(config_)},
                                  {kOptimizerState, std::string(parameters.optimizer().name())},
                                  {kLossScaleState, position.loss_scale},
                                  {kGemmState, position.gemm},
                                  {kAttentionState, position.attention}},
                       .config_text = config_.text})
              .status();
    }
    if (committed.ok()) {
      retention_.Committed(position.step);
      absl::Status pruned = retention_.Prune().status();
      if (!pruned.ok()) WEFT_LOG_WARN("old checkpoints stay: ", pruned.ToString());
    } else {
      writer.Abandon();
    }
  }
  if (!failure.ok()) return absl::OkStatus();
  return group_.Agree(committed, failure);
}

absl::StatusOr<std::vector<at::Tensor>> LoadModel(const std::string& path,
                                                  const ModelConfig& config, Precision precision) {
  WEFT_ASSIGN_OR_RETURN(auto reader, CheckpointReader::Open(path));
  std::vector<at::Tensor> tensors;
  for (const ParameterSpec& spec : GptParameters(config)) {
    at::Tensor values = at::empty(spec.shape, at::kFloat);
    WEFT_RETURN_IF_ERROR(reader->Read(absl::StrCat(kParameterPrefix, spec.name), 0, spec.elements(),
                                      BytesOf(values.data_ptr<float>(), spec.elements())));
    tensors.push_back(values.to(TypeOf(precision)));
  }
  return tensors;
}

}  // namespace weft::train
