#include "tools/ckpt/new_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tools/ending_signal.h"
#include "trainer/files/file.h"

namespace weft::ckpt {
namespace {

namespace fs = std::filesystem;

// The name that a rename can give the folder: what stands there without links, "." and "..", or
// `target` itself where there is nothing yet.
absl::StatusOr<std::string> FreePlace(const std::string& target) {
  if (target.empty()) {
    return absl::InvalidArgumentError("the target's name is empty; name a new or an empty folder");
  }
  std::error_code error;
  const fs::file_status status = fs::status(target, error);
  if (status.type() == fs::file_type::not_found) {
    if (fs::is_symlink(fs::symlink_status(target, error))) {
      return absl::NotFoundError(
          absl::StrCat(target, " is a link to ", fs::read_symlink(target, error).string(),
                       ", which is not there; make that folder, or name a new one"));
    }
    if (const std::string name = fs::path(target).filename().string();
        name == "." || name == "..") {
      return absl::InvalidArgumentError(
          absl::StrCat(target, " ends with '", name, "'; name the new folder itself"));
    }
    return target;
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("look at ", target));
  if (status.type() != fs::file_type::directory) {
    return absl::AlreadyExistsError(
        absl::StrCat(target, " exists and is no folder; name a new folder"));
  }
  const bool is_empty = fs::is_empty(target, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("list ", target));
  if (!is_empty) {
    return absl::AlreadyExistsError(
        absl::StrCat(target, " holds files already; name a new or an empty folder"));
  }
  const std::string place = fs::canonical(target, error).string();
  if (error) return ErrnoStatus(error.value(), absl::StrCat("look at ", target));
  struct stat own {};
  struct stat above {};
  if (stat(place.c_str(), &own) == 0 && stat(train::ParentFolder(place).c_str(), &above) == 0 &&
      own.st_dev != above.st_dev) {
    return absl::FailedPreconditionError(absl::StrCat(
        target, " is the root of a file system, which no folder replaces; name a folder in it"));
  }
  return place;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NewFolder>> NewFolder::Create(std::string target) {
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  WEFT_ASSIGN_OR_RETURN(target, FreePlace(target));
  const std::string parent = train::ParentFolder(target);
  WEFT_RETURN_IF_ERROR(train::MakeFolders(parent));
  const std::string name = fs::path(target).filename().string();
  std::string path = absl::StrCat(parent, "/.", name, ".converting-XXXXXX");
  auto unfinished = std::make_shared<Unfinished>();
  CleanUpAtEndingSignal([unfinished] {
    unfinished->mutex.lock();
    unfinished->command.Cancel();
    if (!unfinished->path.empty()) RemoveWhileWritten(unfinished->path);
  });
  const std::lock_guard<std::mutex> lock(unfinished->mutex);
  if (mkdtemp(path.data()) == nullptr) {
    return ErrnoStatus(errno, absl::StrCat("create folder ", path));
  }
  chmod(path.c_str(), 0755);
  unfinished->path = path;
  return std::unique_ptr<NewFolder>(new NewFolder(std::move(target), std::move(path), unfinished));
}

NewFolder::NewFolder(std::string target, std::string path, std::shared_ptr<Unfinished> unfinished)
    : target_(std::move(target)), path_(std::move(path)), unfinished_(std::move(unfinished)) {}

NewFolder::~NewFolder() {
  const std::lock_guard<std::mutex> lock(unfinished_->mutex);
  std::error_code ignored;
  if (!unfinished_->path.empty()) fs::remove_all(path_, ignored);
  unfinished_->path.clear();
}

absl::Status NewFolder::Commit() {
  std::vector<std::string> folders = {path_};
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(path_, error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (entry->is_directory(error)) folders.push_back(entry->path().string());
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("list ", path_));
  for (const std::string& folder : folders) WEFT_RETURN_IF_ERROR(train::SyncFolder(folder));
  const std::lock_guard<std::mutex> lock(unfinished_->mutex);
  // The kernel renames onto nothing, or onto an empty folder, and refuses the rest.
  if (rename(path_.c_str(), target_.c_str()) != 0) {
    const int failed = errno;
    if (failed == ENOTEMPTY || failed == EEXIST || failed == ENOTDIR) {
      return absl::AlreadyExistsError(
          absl::StrCat(target_, " was made by somebody else in the meantime; it is left as it is"));
    }
    return ErrnoStatus(failed, absl::StrCat("rename ", path_, " to ", target_));
  }
  unfinished_->path.clear();
  return train::SyncFolder(train::ParentFolder(target_));
}

}  // namespace weft::ckpt
