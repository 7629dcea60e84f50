#include "base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft {
namespace {

// On the stack, where only what is read takes pages: a buffer of the heap that is first filled with
// zeros costs 0.6 ms of page faults a MiB, for a line of /proc too.
constexpr size_t kPiece = size_t{64} << 10;

absl::Status TooLarge(const std::string& path, Bytes size_max) {
  return absl::ResourceExhaustedError(absl::StrCat(path, ": has more than ", ToString(size_max),
                                                   ", the most that is read of such a file"));
}

absl::StatusOr<std::string> ReadAll(int file, const std::string& path, Bytes size_max) {
  const auto most = static_cast<size_t>(size_max.count());
  std::string content;
  struct stat info {};
  if (fstat(file, &info) == 0 && info.st_size > 0) {
    if (info.st_size > size_max.count()) return TooLarge(path, size_max);
    content.reserve(static_cast<size_t>(info.st_size));
  }
  std::array<char, kPiece> piece;
  while (true) {
    const ssize_t got = read(file, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (got == 0) return content;
    if (static_cast<size_t>(got) > most - content.size()) return TooLarge(path, size_max);
    content.append(piece.data(), static_cast<size_t>(got));
  }
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, Bytes size_max) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
  absl::StatusOr<std::string> content = ReadAll(file, path, size_max);
  close(file);
  return content;
}

absl::StatusOr<std::string> ReadInput(const std::string& path) {
  if (path == "-") return ReadAll(STDIN_FILENO, "standard input", kReadFileMost);
  return ReadFile(path);
}

}  // namespace weft
