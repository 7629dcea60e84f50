#include "trainer/loop/checkpoints.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/files/file.h"

namespace weft {
namespace {

constexpr char kIdentity[] = "identity";

struct Field {
  const char* prefix;
  float* OwnedSlice::*data;
};
constexpr std::array<Field, 3> kFields = {{{"parameters.", &OwnedSlice::values},
                                           {"adam.mean.", &OwnedSlice::mean},
                                           {"adam.variance.", &OwnedSlice::variance}}};

ElementRange PlaceOf(const ElementRuns& runs) {
  return {runs.begin, runs.length, runs.stride, runs.count};
}
absl::Span<std::byte> BytesOf(float* data, int64_t elements) {
  return {reinterpret_cast<std::byte*>(data), static_cast<size_t>(elements) * sizeof(float)};
}

std::vector<BufferPart> Parts(const ShardedParameters& parameters) {
  std::vector<BufferPart> parts;
  for (const Field& field : kFields) {
    for (const OwnedSlice& slice : parameters.owned()) {
      const ParameterSpec& spec = parameters.parameters()[static_cast<size_t>(slice.parameter)];
      if (!spec.counts) continue;  // another rank saves it
      BufferPart part{absl::StrCat(field.prefix, spec.name), DType::kF32, spec.whole_elements()};
      for (const ElementRuns& runs : RunsOf(spec, slice.begin, slice.elements)) {
        part.ranges.push_back(PlaceOf(runs));
      }
      part.bytes = BytesOf(slice.*field.data, slice.elements);
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

absl::Status ReadParts(const CheckpointReader& reader, ShardedParameters& parameters) {
  for (const Field& field : kFields) {
    for (const OwnedSlice& slice : parameters.owned()) {
      const ParameterSpec& spec = parameters.parameters()[static_cast<size_t>(slice.parameter)];
      for (const ElementRuns& runs : RunsOf(spec, slice.begin, slice.elements)) {
        WEFT_RETURN_IF_ERROR(reader.Read(
            absl::StrCat(field.prefix, spec.name), PlaceOf(runs),
            BytesOf(slice.*field.data + runs.local - slice.begin, runs.length * runs.count)));
      }
    }
  }
  return absl::OkStatus();
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
                                                     ShardedParameters& parameters) {
  WEFT_ASSIGN_OR_RETURN(auto reader, CheckpointReader::Open(path));
  const Manifest& manifest = reader->manifest();
  auto identity = manifest.states.find(kIdentity);
  if (identity == manifest.states.end()) {
    return absl::DataLossError(absl::StrCat(path, " is no checkpoint of weft-train"));
  }
  std::string difference = DescribeDifference(identity->second, ResumeIdentity(config_));
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot resume from ", path, ": ", difference));
  }
  WEFT_RETURN_IF_ERROR(ReadParts(*reader, parameters));
  return RunPosition{manifest.step, manifest.samples_consumed};
}

absl::StatusOr<std::optional<RunPosition>> RunCheckpoints::Load(ShardedParameters& parameters) {
  WEFT_ASSIGN_OR_RETURN(std::string path, FindLast());
  if (path.empty()) return std::nullopt;
  absl::StatusOr<RunPosition> position = LoadHere(path, parameters);
  WEFT_RETURN_IF_ERROR(group_.Agree(position.status()));
  return *position;
}

absl::Status RunCheckpoints::Save(const RunPosition& position, const ShardedParameters& parameters,
                                  absl::Status& failure) {
  CheckpointWriter writer(folder_, position.step, group_.size());
  std::vector<BufferPart> parts = Parts(parameters);
  WEFT_RETURN_IF_ERROR(group_.Agree(writer.WriteShard(group_.rank(), parts), failure));
  absl::Status committed = failure;
  if (group_.rank() == 0) {
    if (failure.ok()) {
      committed = writer
                      .Commit({.samples_consumed = position.samples,
                               .seed = config_.seed,
                               .states = {{kIdentity, ResumeIdentity(config_)}},
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
    WEFT_RETURN_IF_ERROR(reader->Read(absl::StrCat(kFields[0].prefix, spec.name), 0,
                                      spec.elements(),
                                      BytesOf(values.data_ptr<float>(), spec.elements())));
    tensors.push_back(precision == Precision::kBf16 ? values.to(at::kBFloat16) : values);
  }
  return tensors;
}

}  // namespace weft
