#include "base/write_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft {
namespace {

// The functions below return 0 or errno.

int WriteAll(int file, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = write(file, text.data(), text.size());
    if (wrote >= 0) {
      text.remove_prefix(static_cast<size_t>(wrote));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

// Returns `error`, or that of closing: file systems of a network may say only here that there was
// no room.
int Close(int file, int error) {
  return close(file) != 0 && errno != EINTR && error == 0 ? errno : error;
}

int WriteInPlace(const std::string& path, absl::string_view text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  return file < 0 ? errno : Close(file, WriteAll(file, text));
}

// Calls `create(draft)`, which returns 0 or errno, until the name of a file beside `path` is one
// that no other writer of it has, be it another thread or, where hosts share the folder, a process
// of the same number.
template <typename Create>
int NameDraft(const std::string& path, std::string& draft, Create create) {
  constexpr int kTries = 1000;
  int error = EEXIST;
  for (int i = 0; i < kTries && error == EEXIST; ++i) {
    draft = absl::StrCat(path, ".new-", getpid());
    if (i > 0) absl::StrAppend(&draft, "-", i);
    error = create(draft.c_str());
  }
  return error;
}

// Fills a file that is to take the place of `before`, whose owner and permissions it gets; null:
// there is none.
int Fill(int file, absl::string_view text, const struct stat* before) {
  if (before != nullptr && (fchown(file, before->st_uid, before->st_gid) != 0 ||
                            fchmod(file, before->st_mode & 07777) != 0)) {
    return EPERM;
  }
  return WriteAll(file, text);
}

// Writes a draft that gets a name once it is whole: that of a process which is killed before is
// gone. Nothing where there are no files without a name (O_TMPFILE), or they cannot get one here.
std::optional<int> WriteNameless(const std::string& path, absl::string_view text,
                                 const struct stat* before, std::string& draft) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int file = open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (file < 0) return std::nullopt;
  const int filled = Fill(file, text, before);
  if (filled != 0) return Close(file, filled);
  const std::string source = absl::StrCat("/proc/self/fd/", file);
  const int named = NameDraft(path, draft, [&](const char* name) {
    return linkat(AT_FDCWD, source.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
  });
  const int error = Close(file, named);
  if (named != 0) return std::nullopt;
  if (error != 0) unlink(draft.c_str());
  return error;
}

// Writes a draft beside the file; on errors there is none.
int WriteDraft(const std::string& path, absl::string_view text, const struct stat* before,
               std::string& draft) {
  if (const auto written = WriteNameless(path, text, before, draft)) return *written;
  int file = -1;
  int error = NameDraft(path, draft, [&](const char* name) {
    file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return file >= 0 ? 0 : errno;
  });
  if (error != 0) return error;
  error = Close(file, Fill(file, text, before));
  if (error != 0) unlink(draft.c_str());
  return error;
}

// Writes a draft, which takes the file's place once it is whole. `before`: the file that is there,
// whose owner and permissions stay; null: none.
int Replace(const std::string& path, absl::string_view text, const struct stat* before) {
  std::string draft;
  int error = WriteDraft(path, text, before, draft);
  if (error != 0) return error;
  if (rename(draft.c_str(), path.c_str()) != 0) error = errno;
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
  int error = WriteDraft(path, text, nullptr, draft);
  if (error == 0) {
    if (link(draft.c_str(), path.c_str()) != 0 && errno != EEXIST) error = errno;
    unlink(draft.c_str());
  }
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, absl::StrCat("write ", path));
}

absl::Status CheckOutput(const std::string& path) {
  if (path.empty() || path == "-") return absl::OkStatus();
  int error = 0;
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) {
      error = EISDIR;
    } else if (faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) {
      error = errno;
    }
  } else if (errno != ENOENT) {
    error = errno;
  } else if (lstat(path.c_str(), &info) != 0) {  // else a link, whose target is made by writing
    std::string draft;
    error = WriteDraft(path, "", nullptr, draft);
    if (error == 0) unlink(draft.c_str());
    if (error == ENAMETOOLONG) error = 0;  // the draft's name is longer than the file's
  }
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, absl::StrCat("write ", path));
}

absl::Status WriteOutput(const std::string& path, absl::string_view text) {
  if (path != "-") return WriteFile(path, text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "write");
}

}  // namespace weft
