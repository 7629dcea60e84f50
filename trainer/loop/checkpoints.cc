#include "trainer/loop/checkpoints.h"

#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/writer.h"

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

std::vector<BufferPart> Parts(const ShardedParameters& parameters) {
  std::vector<BufferPart> parts;
  for (const Field& field : kFields) {
    for (const OwnedSlice& slice : parameters.owned()) {
      const ParameterSpec& spec = parameters.parameters()[static_cast<size_t>(slice.parameter)];
      parts.push_back({absl::StrCat(field.prefix, spec.name),
                       DType::kF32,
                       spec.elements(),
                       slice.begin,
                       {reinterpret_cast<const std::byte*>(slice.*field.data),
                        static_cast<size_t>(slice.elements) * sizeof(float)}});
    }
  }
  return parts;
}

absl::Status ReadParts(const CheckpointReader& reader, ShardedParameters& parameters) {
  for (const Field& field : kFields) {
    for (const OwnedSlice& slice : parameters.owned()) {
      const ParameterSpec& spec = parameters.parameters()[static_cast<size_t>(slice.parameter)];
      WEFT_RETURN_IF_ERROR(reader.Read(absl::StrCat(field.prefix, spec.name), slice.begin,
                                       slice.begin + slice.elements,
                                       {reinterpret_cast<std::byte*>(slice.*field.data),
                                        static_cast<size_t>(slice.elements) * sizeof(float)}));
    }
  }
  return absl::OkStatus();
}

// Rank 0 looks for all: they must agree.
absl::StatusOr<std::string> FindTogether(const std::string& folder, Group& group) {
  absl::Status status;
  std::string path;
  if (group.rank() == 0) {
    status = RemoveLeftovers(folder);
    if (status.ok()) {
      absl::StatusOr<LatestCheckpoint> latest = FindLatest(folder);
      status = latest.status();
      if (latest.ok()) {
        for (const std::string& reason : latest->skipped) WEFT_LOG_WARN("passed over ", reason);
        path = latest->path;
      }
    }
  }
  WEFT_RETURN_IF_ERROR(group.Agree(status));
  return group.FromFirst(path);
}

absl::StatusOr<RunPosition> LoadHere(const std::string& path, const TrainConfig& config,
                                     ShardedParameters& parameters) {
  WEFT_ASSIGN_OR_RETURN(auto reader, CheckpointReader::Open(path));
  const Manifest& manifest = reader->manifest();
  auto identity = manifest.states.find(kIdentity);
  if (identity == manifest.states.end()) {
    return absl::DataLossError(absl::StrCat(path, " is no checkpoint of weft-train"));
  }
  std::string difference = DescribeDifference(identity->second, ResumeIdentity(config));
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot resume from ", path, ": ", difference));
  }
  WEFT_RETURN_IF_ERROR(ReadParts(*reader, parameters));
  return RunPosition{manifest.step, manifest.samples_consumed};
}

}  // namespace

absl::StatusOr<std::string> SaveCheckpoint(const std::string& folder, const RunPosition& position,
                                           const TrainConfig& config,
                                           const ShardedParameters& parameters, Group& group) {
  CheckpointWriter writer(folder, position.step, group.size());
  std::vector<BufferPart> parts = Parts(parameters);
  absl::Status written = group.Agree(writer.WriteShard(group.rank(), parts));
  absl::StatusOr<std::string> path = std::string();
  if (group.rank() == 0) {
    if (written.ok()) {
      path = writer.Commit({.samples_consumed = position.samples,
                            .seed = config.seed,
                            .states = {{kIdentity, ResumeIdentity(config)}},
                            .config_text = config.text});
      if (path.ok()) {
        absl::Status pruned = Prune(folder, config.checkpoint_keep).status();
        if (!pruned.ok()) WEFT_LOG_WARN("old checkpoints stay: ", pruned.ToString());
      }
    } else {
      writer.Abandon();
    }
  }
  WEFT_RETURN_IF_ERROR(written);
  WEFT_RETURN_IF_ERROR(group.Agree(path.status()));
  return group.FromFirst(*path);
}

absl::StatusOr<RunPosition> LoadCheckpoint(const std::string& folder, const TrainConfig& config,
                                           ShardedParameters& parameters, Group& group) {
  WEFT_ASSIGN_OR_RETURN(std::string path, FindTogether(folder, group));
  if (path.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no whole checkpoint in ", folder));
  }
  absl::StatusOr<RunPosition> position = LoadHere(path, config, parameters);
  WEFT_RETURN_IF_ERROR(group.Agree(position.status()));
  return position;
}

}  // namespace weft
