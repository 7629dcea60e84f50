#include "trainer/loop/step_replay.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/files/file.h"

namespace weft::train {

namespace fs = std::filesystem;

namespace {

// One folder: a job's name may hold anything, as "..".
std::string FolderName(absl::string_view name) {
  return absl::StrCat("job-", absl::StrReplaceAll(name, {{"/", "_"}}));
}

}  // namespace

absl::StatusOr<StepReplay> StepReplay::Plan(const std::string& run_dir, const std::string& name,
                                            TrainConfig& config) {
  std::error_code error;
  const std::string run = fs::absolute(run_dir, error).string();
  if (error) return ErrnoStatus(error.value(), absl::StrCat("find ", run_dir));
  WEFT_ASSIGN_OR_RETURN(LatestCheckpoint latest,
                        FindLatest(run + "/checkpoints", Verification::kWhenTouched));
  if (!config.checkpoint_remote_folder.empty()) {
    // One that cannot be read does not keep the run from its own.
    absl::StatusOr<LatestCheckpoint> remote = FindLatest(
        fs::absolute(config.checkpoint_remote_folder, error).string(), Verification::kWhenTouched);
    if (remote.ok() && remote->step > latest.step) latest = *std::move(remote);
  }
  StepReplay replay;
  replay.folder_ = absl::StrCat(run, "/replay/", FolderName(name));
  replay.checkpoint_ = latest.path;
  replay.step_ = std::max<int64_t>(0, latest.step) + 1;
  config.steps = replay.step_;
  config.checkpoint_every = 0;
  config.checkpoint_local_folder.clear();
  config.checkpoint_remote_folder.clear();
  config.sample_tokens = 0;
  config.tensorboard = false;
  return replay;
}

absl::Status StepReplay::Begin() const {
  WEFT_RETURN_IF_ERROR(RemoveTree(folder_));
  WEFT_RETURN_IF_ERROR(MakeFolders(folder_ + "/checkpoints"));
  if (checkpoint_.empty()) return absl::OkStatus();
  std::error_code error;
  fs::create_directory_symlink(
      checkpoint_, folder_ + "/checkpoints/" + fs::path(checkpoint_).filename().string(), error);
  return error ? ErrnoStatus(error.value(), absl::StrCat("link to ", checkpoint_))
               : absl::OkStatus();
}

absl::StatusOr<std::string> StepReplay::Digest() const {
  std::vector<std::string> files;
  std::error_code error;
  // The link to the checkpoint that the step began with is not followed.
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("list ", folder_));
  if (files.empty()) {
    return absl::DataLossError(absl::StrCat(folder_, ": the replay has left no *.safetensors"));
  }
  std::sort(files.begin(), files.end());
  uint32_t crc = 0;
  for (const std::string& file : files) {
    WEFT_RETURN_IF_ERROR(ReadInChunks(
        file, [&crc](absl::Span<const std::byte> bytes) { crc = Crc32c(bytes, crc); }));
  }
  return absl::StrFormat("step %d, %d files, crc32c %08x", step_, files.size(), crc);
}

absl::Status StepReplay::End() const { return RemoveTree(folder_); }

}  // namespace weft::train
