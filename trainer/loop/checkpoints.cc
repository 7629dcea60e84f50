#include "trainer/loop/checkpoints.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/read_file.h"
#include "base/status.h"
#include "topology/host/thread_binding.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/run_states.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/device/side_stream.h"
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
std::vector<BufferPart> Parts(const ParameterSets& parameters,
                              std::deque<std::vector<float>>& values) {
  std::vector<BufferPart> parts;
  for (const ShardedParameters* set : parameters.sets()) AppendParts(*set, values, parts);
  return parts;
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
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": buffer '", name, "' has ", buffer.elements, " elements of ",
                       NameOf(buffer.dtype), " instead of ", spec.whole_elements(), " of F32"));
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

absl::Status RemoveUnfinishedOf(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListUnfinished(folder));
  for (const std::string& path : paths) {
    WEFT_LOG_WARN("removed ", path, ": it was never finished");
  }
  return RemoveLeftovers(folder);
}

// The bytes of `parts` into `pool`, where they are from now on.
void MoveInto(std::vector<std::byte>& pool, std::vector<BufferPart>& parts) {
  size_t bytes = 0;
  for (const BufferPart& part : parts) bytes += part.bytes.size();
  pool.resize(bytes);
  std::byte* to = pool.data();
  for (BufferPart& part : parts) {
    std::memcpy(to, part.bytes.data(), part.bytes.size());
    part.bytes = {to, part.bytes.size()};
    to += part.bytes.size();
  }
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

RunCheckpoints::RunCheckpoints(std::string folder, const TrainConfig& config,
                               ParallelGroups& groups, std::function<void()> before_copy)
    : folder_(std::move(folder)),
      config_(config),
      groups_(groups),
      group_(*groups.world),
      before_copy_(std::move(before_copy)),
      retention_(folder_, config.checkpoint_keep) {
  if (!config.checkpoint_remote_folder.empty() && group_.rank() == 0) {
    mirror_.emplace(config.checkpoint_remote_folder, config.checkpoint_keep);
  }
  if (!config.checkpoint_local_folder.empty()) {
    local_.emplace(config.checkpoint_local_folder, config.checkpoint_keep, groups);
  }
}

absl::Status RunCheckpoints::ExpectNone() {
  absl::Status status;
  if (group_.rank() == 0) {
    for (const std::string& folder : {folder_, config_.checkpoint_remote_folder}) {
      if (folder.empty() || !status.ok()) continue;
      absl::StatusOr<std::vector<std::string>> paths = ListCheckpoints(folder);
      status = paths.status();
      if (paths.ok() && !paths->empty()) {
        status = absl::AlreadyExistsError(
            absl::StrCat(ParentFolder(folder), " holds a run with the checkpoint ", paths->front(),
                         "; go on with it by --resume, or name another ",
                         folder == folder_ ? "--run-dir" : "checkpoint.remote_folder"));
      } else if (paths.ok()) {
        status = RemoveLeftovers(folder);
      }
    }
  }
  if (status.ok() && local_) status = local_->ExpectNone();
  WEFT_RETURN_IF_ERROR(group_.Agree(status));
  return group_.Agree(local_ ? local_->Tidy() : absl::OkStatus());
}

// The last one of the remote folder. Where that cannot be read, none, if the run's own folder has
// one.
absl::StatusOr<LatestCheckpoint> RunCheckpoints::FindRemote(bool has_own) const {
  absl::StatusOr<LatestCheckpoint> remote =
      FindLatest(mirror_->folder(), Verification::kWhenTouched, damaged_);
  if (remote.ok() || !has_own) return remote;
  WEFT_LOG_WARN("checkpoint.remote_folder: ", remote.status().message(),
                "; the run goes on from its own folder");
  return LatestCheckpoint{};
}

// The last checkpoint of all tiers; an error where it is not one to go on from. Of the same step,
// that of the faster tier.
absl::StatusOr<RunCheckpoints::Found> RunCheckpoints::Find(int64_t local_step) const {
  Found found;
  WEFT_ASSIGN_OR_RETURN(found.own, FindLatest(folder_, Verification::kWhenTouched, damaged_));
  found.best = found.own;
  if (mirror_) {
    WEFT_ASSIGN_OR_RETURN(found.remote, FindRemote(std::max(found.own.step, local_step) >= 0));
    LatestCheckpoint& best = found.best;
    best.passed_over.insert(best.passed_over.end(), found.remote.passed_over.begin(),
                            found.remote.passed_over.end());
    if (found.remote.step > best.step) {
      best.path = found.remote.path;
      best.step = found.remote.step;
    }
  }
  LatestCheckpoint& best = found.best;
  if (local_ && local_step >= 0 && local_step >= best.step) {
    best.path = local_->PathOf(local_step);
    best.step = local_step;
  }
  // What another tier has whole is not missed.
  best.passed_over.erase(
      std::remove_if(best.passed_over.begin(), best.passed_over.end(),
                     [&](const PassedOver& entry) { return entry.step <= best.step; }),
      best.passed_over.end());
  WEFT_RETURN_IF_ERROR(CheckLatest(folder_, found.best));
  return found;
}

// Of the run's folder and the remote one.
absl::Status RunCheckpoints::RemoveUnfinished() {
  WEFT_RETURN_IF_ERROR(RemoveUnfinishedOf(folder_));
  if (!mirror_) return absl::OkStatus();
  const absl::Status tidied = RemoveUnfinishedOf(mirror_->folder());
  if (!tidied.ok()) WEFT_LOG_WARN(tidied.message());
  return absl::OkStatus();
}

// For a run that goes on from `found`.
absl::Status RunCheckpoints::TidyAfter(const Found& found) {
  for (const PassedOver& entry : found.best.passed_over) {
    WEFT_LOG_WARN("passed over step ", entry.step, ", which stays: ", entry.reason.message());
  }
  WEFT_RETURN_IF_ERROR(RemoveUnfinished());
  if (mirror_) mirror_->Resumed(found.remote);
  retention_.Resumed(found.own);
  return absl::OkStatus();
}

// The state is there: no checkpoint is opened, and a folder that cannot be read now keeps nobody
// from going on. Which checkpoints are whole, retention_ learns after the next save.
absl::Status RunCheckpoints::Tidy() {
  absl::Status tidied;
  if (group_.rank() == 0) tidied = RemoveUnfinished();
  if (local_) tidied.Update(local_->Tidy());
  if (!tidied.ok()) WEFT_LOG_WARN("checkpoints that were never finished stay: ", tidied.message());
  return group_.Agree(absl::OkStatus());
}

// One rank reads the manifest for all. `damage` is what is wrong with the files, the same on all
// ranks. `local`: what the hosts have of it, where it is on their disks.
absl::StatusOr<RunPosition> RunCheckpoints::LoadHere(const std::string& path,
                                                     const LocalCheckpoint& local,
                                                     ParameterSets& parameters,
                                                     absl::Status& damage) {
  absl::StatusOr<std::string> text("");
  const std::string manifest_path = absl::StrCat(path, "/", kManifestName);
  if (group_.rank() == static_cast<int>(local.manifest_rank)) text = ReadFile(manifest_path);
  WEFT_RETURN_IF_ERROR(group_.Agree(text.status()));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, group_.Gather(*text));
  WEFT_ASSIGN_OR_RETURN(Manifest parsed, ParseManifest(texts[local.manifest_rank], manifest_path));
  const auto reader = CheckpointReader::With(path, std::move(parsed));
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
  absl::StatusOr<Needs> needs = NeedsOf(manifest, path, has_optimizer, parameters);
  WEFT_RETURN_IF_ERROR(group_.Agree(needs.status()));
  absl::StatusOr<ReadTotals> totals = ReadTogether(
      *reader, needs->needs, group_,
      [&](size_t need, int64_t to, absl::Span<const std::byte> bytes) {
        Put(needs->places[need], to, bytes);
      },
      local.holders);
  if (IsDamage(totals.status())) damage = totals.status();
  WEFT_RETURN_IF_ERROR(totals.status());
  read_ = *totals;
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

// Rank 0 looks for all: they must agree.
absl::StatusOr<RunCheckpoints::Newest> RunCheckpoints::FindNewest() {
  Newest newest;
  if (local_) {
    WEFT_ASSIGN_OR_RETURN(newest.local, local_->Find(group_));
  }
  constexpr absl::string_view kLocal = "local:", kShared = "shared:";
  std::string text;
  absl::Status status;
  if (group_.rank() == 0) {
    absl::StatusOr<Found> found = Find(newest.local.step);
    status = found.status();
    if (found.ok()) {
      newest.found = *std::move(found);
      const std::string& path = newest.found.best.path;
      const bool is_local =
          local_ && newest.local.step >= 0 && path == local_->PathOf(newest.local.step);
      text = absl::StrCat(is_local ? kLocal : kShared, path);
    }
  }
  WEFT_RETURN_IF_ERROR(group_.Agree(status));
  WEFT_ASSIGN_OR_RETURN(text, group_.FromFirst(text));
  absl::string_view path = text;
  if (absl::ConsumePrefix(&path, kShared)) {
    newest.local = {};
    newest.path = std::string(path);
  } else {
    newest.path = local_->PathOf(newest.local.step);  // hosts may name their folders otherwise
  }
  return newest;
}

// A damaged one, which the next search leaves out.
void RunCheckpoints::PassOver(const Newest& newest, const absl::Status& damage) {
  if (newest.local.step < 0) {
    damaged_[newest.path] = damage;
    return;
  }
  if (group_.rank() == 0) {
    WEFT_LOG_WARN("passed over step ", newest.local.step,
                  " of the local disks: ", damage.message());
  }
  local_->FoundDamaged(newest.local.step);
}

// What proves to be damaged while it is read is passed over, and the next one is tried.
absl::StatusOr<std::optional<RunPosition>> RunCheckpoints::Load(ParameterSets& parameters) {
  while (true) {
    WEFT_ASSIGN_OR_RETURN(Newest newest, FindNewest());
    std::optional<RunPosition> position;
    if (!newest.path.empty()) {
      absl::Status damage;
      absl::StatusOr<RunPosition> loaded = LoadHere(newest.path, newest.local, parameters, damage);
      WEFT_RETURN_IF_ERROR(group_.Agree(damage.ok() ? loaded.status() : absl::OkStatus()));
      if (!damage.ok()) {
        PassOver(newest, damage);
        continue;
      }
      position = *loaded;
      // The name that it has soon, if its replacement had been cut short.
      loaded_from_ = absl::StrCat(ParentFolder(newest.path), "/", CheckpointName(position->step));
    }
    absl::Status tidied;
    if (group_.rank() == 0) {
      // What has not been read may not be whole.
      for (LatestCheckpoint* other : {&newest.found.own, &newest.found.remote}) {
        if (other->path != newest.path) other->step = -1;
      }
      tidied = TidyAfter(newest.found);
    }
    if (tidied.ok() && local_) tidied = local_->Tidy();
    WEFT_RETURN_IF_ERROR(group_.Agree(tidied));
    return position;
  }
}

absl::Status RunCheckpoints::Save(const RunPosition& position, const ParameterSets& parameters,
                                  absl::Status& failure) {
  std::deque<std::vector<float>> values;
  std::vector<BufferPart> parts;
  {
    const SaveTimes::Scope scope(&times_, SavePhase::kCopy);
    parts = Parts(parameters, values);
  }
  // The run stands still, and with it all compute threads but this one.
  return Write(position, parameters.optimizer().name(), parts, group_,
               /*cores_are_idle=*/at::get_num_threads() > 1, failure);
}

absl::Status RunCheckpoints::Begin(const RunPosition& position, const ParameterSets& parameters,
                                   bool& began, SavedInBackground& saved) {
  // Rank 0 is done when all others have nothing left to do but to end.
  saved = {};
  const bool is_busy =
      saving_.valid() && saving_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  WEFT_ASSIGN_OR_RETURN(const std::string first, group_.FromFirst(is_busy ? "busy" : "free"));
  began = first == "free";
  if (!began) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(FinishSaving(saved));
  std::promise<void> copied;
  copied_ = copied.get_future();
  saving_step_ = position.step;
  saving_ = StartUnbound([this, position, &parameters, copied = std::move(copied),
                          beside = SideStream(DeviceOf(parameters))]() mutable -> absl::Status {
    if (before_copy_) before_copy_();
    std::deque<std::vector<float>> values;
    std::vector<BufferPart> parts;
    {
      const SaveTimes::Scope scope(&times_, SavePhase::kCopy);
      beside.Run([&] { parts = Parts(parameters, values); });
      MoveInto(pool_, parts);
    }
    const std::string optimizer(parameters.optimizer().name());
    copied.set_value();
    values.clear();
    return local_ ? WriteLocal(position, optimizer, parts)
                  : Write(position, optimizer, parts, *groups_.checkpoints,
                          /*cores_are_idle=*/false, saving_failure_);
  });
  return absl::OkStatus();
}

void RunCheckpoints::FinishCopy() {
  if (copied_.valid()) copied_.get();
}

absl::Status RunCheckpoints::Finish(SavedInBackground& saved) {
  WEFT_RETURN_IF_ERROR(FinishSaving(saved));
  return local_copying_.valid() ? local_copying_.get() : absl::OkStatus();
}

absl::Status RunCheckpoints::FinishSaving(SavedInBackground& saved) {
  saved = {};
  if (!saving_.valid()) return absl::OkStatus();
  FinishCopy();
  WEFT_RETURN_IF_ERROR(saving_.get());
  saved = {saving_step_, std::exchange(saving_failure_, absl::OkStatus())};
  return absl::OkStatus();
}

CheckpointState RunCheckpoints::StateAfter(const RunPosition& position,
                                           absl::string_view optimizer) const {
  return {.samples_consumed = position.samples,
          .seed = config_.seed,
          .states = {{kIdentityState, ResumeIdentity(config_)},
                     {kOptimizerState, std::string(optimizer)},
                     {kLossScaleState, position.loss_scale},
                     {kGemmState, position.gemm},
                     {kAttentionState, position.attention}},
          .config_text = config_.text};
}

absl::Status RunCheckpoints::Write(const RunPosition& position, absl::string_view optimizer,
                                   const std::vector<BufferPart>& parts, Group& group,
                                   bool cores_are_idle, absl::Status& failure) {
  CheckpointWriter writer(folder_, position.step, group.size());
  writer.set_times(&times_);
  writer.set_checksums_beside(cores_are_idle);
  times_.CountSave();
  std::optional<SaveTimes::Scope> scope;
  WEFT_RETURN_IF_ERROR(group.RunTogether(
      [&] {
        FinishPruning();  // so that the disk holds one checkpoint more than are kept, and not two
        absl::Status wrote = writer.WriteShard(group.rank(), parts);
        scope.emplace(&times_, SavePhase::kMeet);
        return wrote;
      },
      failure));
  scope.emplace(&times_, SavePhase::kCommit);
  return CommitByFirst(
      writer, position.step,
      [&] { return writer.Commit(StateAfter(position, optimizer)).status(); }, group, failure);
}

// In the run's folder, by rank 0, where `failure` is OK: all have written.
absl::Status RunCheckpoints::CommitByFirst(CheckpointWriter& writer, int64_t step,
                                           const std::function<absl::Status()>& commit,
                                           Group& group, absl::Status& failure) {
  if (!failure.ok()) {
    if (group.rank() == 0) writer.Abandon();
    return absl::OkStatus();
  }
  return group.RunOnFirst(
      [&] {
        const absl::Status committed = commit();
        if (!committed.ok()) {
          writer.Abandon();
          return committed;
        }
        FinishPruning();
        retention_.Committed(step);
        if (mirror_) Mirror(step);
        BeginPruning();
        return committed;
      },
      failure);
}

// To the local disks, and on to the run's folder where the one before is through.
absl::Status RunCheckpoints::WriteLocal(const RunPosition& position, absl::string_view optimizer,
                                        const std::vector<BufferPart>& parts) {
  Group& group = *groups_.checkpoints;
  WEFT_ASSIGN_OR_RETURN(Manifest manifest,
                        local_->Write(position.step, parts, StateAfter(position, optimizer), group,
                                      saving_failure_, times_));
  if (!saving_failure_.ok()) return absl::OkStatus();
  // Rank 0 is through when all others have nothing left to do but to end.
  const bool is_busy = local_copying_.valid() && local_copying_.wait_for(std::chrono::seconds(0)) !=
                                                     std::future_status::ready;
  WEFT_ASSIGN_OR_RETURN(const std::string first, group.FromFirst(is_busy ? "busy" : "free"));
  if (first != "free") {
    ++local_left_out_;
    return absl::OkStatus();
  }
  if (local_copying_.valid()) WEFT_RETURN_IF_ERROR(local_copying_.get());
  // Open before it may be deleted.
  absl::StatusOr<MappedFile> shard = MappedFile::Open(
      absl::StrCat(local_->PathOf(position.step), "/", ShardName(group.rank(), group.size())));
  local_copying_ = StartUnbound([this, manifest = std::move(manifest), shard = std::move(shard)] {
    return CopyToRunFolder(manifest, shard);
  });
  return absl::OkStatus();
}

absl::Status RunCheckpoints::CopyToRunFolder(const Manifest& manifest,
                                             const absl::StatusOr<MappedFile>& shard) {
  Group& group = *groups_.checkpoint_copies;
  CheckpointWriter writer(folder_, manifest.step, group.size());
  const ShardInfo& info = manifest.shards[static_cast<size_t>(group.rank())];
  absl::Status failure;
  WEFT_RETURN_IF_ERROR(group.RunTogether(
      [&]() -> absl::Status {
        WEFT_RETURN_IF_ERROR(shard.status());
        WEFT_RETURN_IF_ERROR(MakeFolders(writer.temporary()));
        return CopyShard(*shard, info, absl::StrCat(writer.temporary(), "/", info.file),
                         /*gives_up=*/false);
      },
      failure));
  WEFT_RETURN_IF_ERROR(CommitByFirst(
      writer, manifest.step, [&] { return writer.CommitCopy(manifest).status(); }, group, failure));
  if (failure.ok()) {
    ++local_copied_;
  } else if (group.rank() == 0) {
    WEFT_LOG_WARN("copy step ", manifest.step, " from the local disks to ", folder_, ": ",
                  failure.message());
  }
  return absl::OkStatus();
}

// Nobody has to wait for that: to free the pages of a checkpoint takes as long as to write some.
void RunCheckpoints::BeginPruning() {
  gives_up_verifying_.store(false);
  pruning_ = StartUnbound([this] {
    const SaveTimes::Scope scope(&times_, SavePhase::kRemove);
    const absl::Status pruned = retention_.Prune(gives_up_verifying_).status();
    if (!pruned.ok()) WEFT_LOG_WARN("old checkpoints stay: ", pruned.ToString());
  });
}

// All ranks wait for rank 0 meanwhile. What is being deleted goes; a checkpoint that is being
// verified, which takes as long as to read the state of all ranks, is left for the next time.
void RunCheckpoints::FinishPruning() {
  gives_up_verifying_.store(true);
  if (pruning_.valid()) pruning_.get();
}

void RunCheckpoints::Mirror(int64_t step) {
  committed_ = step;
  const absl::Status status =
      mirror_->Begin(absl::StrCat(folder_, "/", CheckpointName(step)), is_mirrored_);
  if (!status.ok()) WEFT_LOG_WARN(status.message());
}

absl::Status RunCheckpoints::FinishMirror() {
  FinishPruning();
  if (!mirror_) return absl::OkStatus();
  const absl::Time until = absl::Now() + config_.checkpoint_remote_timeout;
  absl::Status status = mirror_->Finish(config_.checkpoint_remote_timeout);
  if (absl::IsDeadlineExceeded(status) || committed_ < 0) return status;
  if (!is_mirrored_ || !status.ok()) {
    if (!status.ok()) WEFT_LOG_WARN(status.message());
    Mirror(committed_);
    status = mirror_->Finish(std::max(absl::ZeroDuration(), until - absl::Now()));
    if (status.ok() && !is_mirrored_) {
      status = absl::UnavailableError(
          absl::StrCat("step ", committed_, " was not copied to ", mirror_->folder()));
    }
  }
  return status;
}

}  // namespace weft::train
