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

namespace weft::train {
namespace {

constexpr absl::string_view kTemporaryPrefix = ".tmp-";
constexpr absl::string_view kDeletingPrefix = ".deleting-";
constexpr absl::string_view kReplacedPrefix = ".replaced-";

struct Entry {
  int64_t step;
  std::string path;
};

struct Listing {
  std::vector<Entry> checkpoints;  // newest first, whole or not
  std::vector<Entry> temporary;    // being written, or left by a killed writer
  std::vector<Entry> replaced;     // with their names back, or to be removed
  std::vector<std::string> deleting;
};

bool HasStep(const std::vector<Entry>& entries, int64_t step) {
  return std::any_of(entries.begin(), entries.end(),
                     [step](const Entry& entry) { return entry.step == step; });
}

void Classify(const std::filesystem::path& path, Listing& listing) {
  const std::string file_name = path.filename().string();
  absl::string_view name = file_name;
  std::vector<Entry>* kind = &listing.checkpoints;
  if (absl::StartsWith(name, kDeletingPrefix)) {
    listing.deleting.push_back(path.string());
    return;
  }
  if (absl::ConsumePrefix(&name, kTemporaryPrefix)) {
    kind = &listing.temporary;
  } else if (absl::ConsumePrefix(&name, kReplacedPrefix)) {
    kind = &listing.replaced;
  }
  int64_t step = 0;
  if (ParseCheckpointName(name, step)) kind->push_back({step, path.string()});
}

absl::StatusOr<Listing> List(const std::string& folder) {
  Listing listing;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory) return listing;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    Classify(entry->path(), listing);
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("list ", folder));
  // The writer was killed between its two renames: this is still the checkpoint of its step.
  for (const Entry& old : listing.replaced) {
    if (!HasStep(listing.checkpoints, old.step)) listing.checkpoints.push_back(old);
  }
  std::sort(listing.checkpoints.begin(), listing.checkpoints.end(),
            [](const Entry& a, const Entry& b) { return a.step > b.step; });
  return listing;
}

absl::Status OpenEntry(const Entry& entry, Verification verification,
                       const std::atomic<bool>& gives_up = false) {
  auto reader = CheckpointReader::Open(entry.path, verification, gives_up);
  if (!reader.ok()) return reader.status();
  if ((*reader)->manifest().step == entry.step) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(entry.path, " holds step ", (*reader)->manifest().step));
}

}  // namespace

absl::StatusOr<LatestCheckpoint> FindLatest(const std::string& folder, Verification verification,
                                            const std::map<std::string, absl::Status>& damaged) {
  WEFT_ASSIGN_OR_RETURN(Listing listing, List(folder));
  LatestCheckpoint latest;
  for (const Entry& entry : listing.checkpoints) {
    const auto known = damaged.find(entry.path);
    absl::Status status = known != damaged.end() ? known->second : OpenEntry(entry, verification);
    if (status.ok()) {
      latest.path = entry.path;
      latest.step = entry.step;
      break;
    }
    latest.passed_over.push_back({entry.step, entry.path, std::move(status)});
  }
  return latest;
}

absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(Listing listing, List(folder));
  std::vector<std::string> paths;
  for (const Entry& entry : listing.checkpoints) paths.push_back(entry.path);
  return paths;
}

absl::StatusOr<std::vector<std::string>> ListUnfinished(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(Listing listing, List(folder));
  std::vector<std::string> paths;
  for (const Entry& entry : listing.temporary) paths.push_back(entry.path);
  return paths;
}

absl::Status RemoveCheckpoint(const std::string& folder, const std::string& path, int64_t step) {
  std::string doomed = absl::StrCat(folder, "/", kDeletingPrefix, CheckpointName(step));
  WEFT_RETURN_IF_ERROR(RemoveTree(doomed));
  std::error_code error;
  std::filesystem::rename(path, doomed, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("rename ", path));
  return RemoveTree(doomed);
}

absl::Status RemoveLeftovers(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(Listing listing, List(folder));
  for (const Entry& entry : listing.replaced) {
    const std::string name = absl::StrCat(folder, "/", CheckpointName(entry.step));
    std::error_code error;
    if (std::filesystem::exists(name, error)) {
      WEFT_RETURN_IF_ERROR(RemoveTree(entry.path));
      continue;
    }
    if (!error) std::filesystem::rename(entry.path, name, error);
    if (error) {
      return ErrnoStatus(error.value(), absl::StrCat("rename ", entry.path, " to ", name));
    }
  }
  for (const Entry& entry : listing.temporary) WEFT_RETURN_IF_ERROR(RemoveTree(entry.path));
  for (const std::string& path : listing.deleting) WEFT_RETURN_IF_ERROR(RemoveTree(path));
  return absl::OkStatus();
}

Retention::Retention(std::string folder, int keep) : folder_(std::move(folder)), keep_(keep) {
  WEFT_CHECK(keep >= 1, "keep the last " << keep << " checkpoints");
}

void Retention::Resumed(const LatestCheckpoint& latest) {
  resumed_ = latest.step;
  if (latest.step >= 0) whole_.insert(latest.step);
  for (const PassedOver& entry : latest.passed_over) passed_over_.insert(entry.step);
}

void Retention::Committed(int64_t step) {
  committed_ = step;
  whole_.insert(step);
  passed_over_.erase(step);
}

bool Retention::Verify(const std::string& path, int64_t step, const std::atomic<bool>& gives_up) {
  const absl::Status status = OpenEntry({step, path}, Verification::kEverything, gives_up);
  if (absl::IsCancelled(status)) return false;
  (status.ok() ? whole_ : passed_over_).insert(step);
  return status.ok();
}

absl::StatusOr<std::vector<std::string>> Retention::Prune(const std::atomic<bool>& gives_up) {
  WEFT_ASSIGN_OR_RETURN(Listing listing, List(folder_));
  std::vector<std::string> removed;
  int kept = 0;
  bool may_verify = true;
  for (const Entry& entry : listing.checkpoints) {
    if (entry.step > committed_ || passed_over_.count(entry.step) > 0) continue;
    if (kept < keep_) {
      bool whole =
          whole_.count(entry.step) > 0 && OpenEntry(entry, Verification::kWhenTouched).ok();
      if (!whole && may_verify) {
        whole = Verify(entry.path, entry.step, gives_up);
        may_verify = false;
      }
      if (whole) ++kept;
    } else if (entry.step != resumed_ && OpenEntry(entry, Verification::kWhenTouched).ok()) {
      WEFT_RETURN_IF_ERROR(RemoveCheckpoint(folder_, entry.path, entry.step));
      removed.push_back(entry.path);
    }
  }
  for (const Entry& entry : listing.temporary) {
    if (entry.step > committed_) continue;  // perhaps being written
    WEFT_RETURN_IF_ERROR(RemoveTree(entry.path));
    removed.push_back(entry.path);
  }
  for (const std::string& path : listing.deleting) WEFT_RETURN_IF_ERROR(RemoveTree(path));
  return removed;
}

}  // namespace weft::train
