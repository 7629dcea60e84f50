#include "trainer/checkpoint/retention.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "trainer/files/file.h"

namespace weft {
namespace {

constexpr absl::string_view kTemporaryPrefix = ".tmp-";
constexpr absl::string_view kDeletingPrefix = ".deleting-";

struct Entry {
  int64_t step;
  std::string path;
};

struct Listing {
  std::vector<Entry> checkpoints;  // newest first, whole or not
  std::vector<Entry> temporary;    // being written, or left by a killed writer
  std::vector<std::string> deleting;
};

absl::StatusOr<Listing> List(const std::string& folder) {
  Listing listing;
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return listing;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path().string();
    const std::string file_name = entry->path().filename().string();
    absl::string_view name = file_name;
    int64_t step = 0;
    if (absl::StartsWith(name, kDeletingPrefix)) {
      listing.deleting.push_back(path);
    } else if (absl::ConsumePrefix(&name, kTemporaryPrefix)) {
      if (ParseCheckpointName(name, step)) listing.temporary.push_back({step, path});
    } else if (ParseCheckpointName(name, step)) {
      listing.checkpoints.push_back({step, path});
    }
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("list ", folder));
  std::sort(listing.checkpoints.begin(), listing.checkpoints.end(),
            [](const Entry& a, const Entry& b) { return a.step > b.step; });
  return listing;
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? ErrnoStatus(error.value(), absl::StrCat("remove ", path)) : absl::OkStatus();
}

// Out of sight in one rename before the first file goes.
absl::Status RemoveCheckpoint(const std::string& folder, const Entry& entry) {
  std::string doomed = absl::StrCat(folder, "/", kDeletingPrefix, CheckpointName(entry.step));
  WEFT_RETURN_IF_ERROR(RemoveTree(doomed));
  std::error_code error;
  std::filesystem::rename(entry.path, doomed, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("rename ", entry.path));
  return RemoveTree(doomed);
}

}  // namespace

absl::StatusOr<LatestCheckpoint> FindLatest(const std::string& folder, Verification verification) {
  WEFT_ASSIGN_OR_RETURN(Listing listing, List(folder));
  LatestCheckpoint latest;
  for (const Entry& entry : listing.temporary) {
    latest.skipped.push_back(absl::StrCat(entry.path, " was never finished"));
  }
  for (const Entry& entry : listing.checkpoints) {
    auto reader = CheckpointReader::Open(entry.path, verification);
    if (reader.ok() && (*reader)->manifest().step == entry.step) {
      latest.path = entry.path;
      latest.step = entry.step;
      return latest;
    }
    latest.skipped.push_back(
        reader.ok() ? absl::StrCat(entry.path, " holds step ", (*reader)->manifest().step)
                    : std::string(reader.status().message()));
  }
  return latest;
}

absl::StatusOr<std::vector<std::string>> Prune(const std::string& folder, int keep_last) {
  if (keep_last < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep the last ", keep_last, " checkpoints; at least 1 is right"));
  }
  WEFT_ASSIGN_OR_RETURN(Listing listing, List(folder));
  std::vector<std::string> removed;
  int64_t newest = -1;
  int whole = 0;
  for (const Entry& entry : listing.checkpoints) {
    if (!CheckpointReader::Open(entry.path).ok()) continue;
    newest = std::max(newest, entry.step);
    if (++whole <= keep_last) continue;
    WEFT_RETURN_IF_ERROR(RemoveCheckpoint(folder, entry));
    removed.push_back(entry.path);
  }
  for (const Entry& entry : listing.temporary) {
    if (entry.step > newest) continue;  // perhaps being written
    WEFT_RETURN_IF_ERROR(RemoveTree(entry.path));
    removed.push_back(entry.path);
  }
  for (const std::string& path : listing.deleting) WEFT_RETURN_IF_ERROR(RemoveTree(path));
  return removed;
}

absl::Status RemoveLeftovers(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(Listing listing, List(folder));
  for (const Entry& entry : listing.temporary) WEFT_RETURN_IF_ERROR(RemoveTree(entry.path));
  for (const std::string& path : listing.deleting) WEFT_RETURN_IF_ERROR(RemoveTree(path));
  return absl::OkStatus();
}

}  // namespace weft
