#include "base/write_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft {
namespace {

// The functions below return 0 or errno.

int WriteAndClose(int file, absl::string_view text) {
  int error = 0;
  while (error == 0 && !text.empty()) {
    const ssize_t wrote = write(file, text.data(), text.size());
    if (wrote >= 0) {
      text.remove_prefix(static_cast<size_t>(wrote));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  // File systems of a network may say only here that there was no room.
  if (close(file) != 0 && errno != EINTR && error == 0) error = errno;
  return error;
}

int WriteInPlace(const std::string& path, absl::string_view text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  return file < 0 ? errno : WriteAndClose(file, text);
}

// A file beside `path` that no other writer of it has, be it another thread or, where hosts share
// the folder, a process of the same number. -1: errno says why there is none.
int CreateDraft(const std::string& path, std::string& draft) {
  constexpr int kTries = 1000;
  for (int i = 0; i < kTries; ++i) {
    draft = absl::StrCat(path, ".new-", getpid());
    if (i > 0) absl::StrAppend(&draft, "-", i);
    const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0 || errno != EEXIST) return file;
  }
  return -1;
}

// Writes a draft beside the file, which takes its place once it is whole. `before`: the file that
// is there, whose owner and permissions stay; null: none.
int Replace(const std::string& path, absl::string_view text, const struct stat* before) {
  std::string draft;
  const int file = CreateDraft(path, draft);
  if (file < 0) return errno;
  int error = 0;
  if (before != nullptr && (fchown(file, before->st_uid, before->st_gid) != 0 ||
                            fchmod(file, before->st_mode & 07777) != 0)) {
    error = EPERM;
    close(file);
  } else {
    error = WriteAndClose(file, text);
  }
  if (error == 0 && rename(draft.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) unlink(draft.c_str());
  return error;
}

// Whether the error means that the file may not be replaced; it may be written all the same.
bool IsForbidden(int error) {
  return error == EACCES || error == EPERM || error == EROFS || error == EBUSY ||
         error == ENAMETOOLONG;
}

}  // namespace

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  struct stat before {};
  const bool is_there = lstat(path.c_str(), &before) == 0;
  // Devices, pipes and links stay what they are; what may not be written is not replaced either.
  const bool is_plain = is_there && S_ISREG(before.st_mode) && before.st_nlink == 1 &&
                        faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
  int error = is_plain || !is_there ? Replace(path, text, is_there ? &before : nullptr) : EPERM;
  if (IsForbidden(error)) error = WriteInPlace(path, text);
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, absl::StrCat("write ", path));
}

absl::Status WriteNewFile(const std::string& path, absl::string_view text) {
  std::string draft;
  const int file = CreateDraft(path, draft);
  int error = file < 0 ? errno : WriteAndClose(file, text);
  if (error == 0 && link(draft.c_str(), path.c_str()) != 0 && errno != EEXIST) error = errno;
  if (file >= 0) unlink(draft.c_str());
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, absl::StrCat("write ", path));
}

absl::Status WriteOutput(const std::string& path, absl::string_view text) {
  if (path != "-") return WriteFile(path, text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "write");
}

}  // namespace weft
