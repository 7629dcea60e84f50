#include "collectives/rendezvous/warm_process.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

// No more is written, so that a pipe takes a place at once, nor read.
constexpr size_t kPlaceBytesMax = size_t{32} << 10;
constexpr absl::string_view kEnd("\0\0", 2);  // of the last variable, and of the place

absl::Status Take(absl::string_view place) {
  place.remove_suffix(kEnd.size());
  for (absl::string_view line : absl::StrSplit(place, '\0')) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (parts.first.empty() || !absl::StrContains(line, '=')) {
      return absl::DataLossError(
          absl::StrCat("a place for this spare process has '", line, "', which is no NAME=value"));
    }
    setenv(parts.first.c_str(), parts.second.c_str(), 1);
  }
  return absl::OkStatus();
}

}  // namespace

bool IsWarmProcess() { return std::getenv(kWarmVariable) != nullptr; }

absl::Status AwaitPlace() {
  if (!IsWarmProcess()) return absl::OkStatus();
  std::string place;
  std::array<char, 4096> buffer{};
  while (!absl::EndsWith(place, kEnd)) {
    const ssize_t got = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read a place from standard input (WEFT_SPARE)");
    if (got == 0 && place.empty()) return absl::CancelledError("no place came");
    if (got == 0) return absl::DataLossError("a place for this spare process is cut short");
    place.append(buffer.data(), static_cast<size_t>(got));
    if (place.size() > kPlaceBytesMax) {
      return absl::DataLossError(
          absl::StrCat("a place for this spare process has more than ", kPlaceBytesMax, " bytes"));
    }
  }
  WEFT_RETURN_IF_ERROR(Take(place));
  unsetenv(kWarmVariable);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || dup2(null, STDIN_FILENO) < 0) return ErrnoStatus(errno, "open /dev/null");
  close(null);
  return absl::OkStatus();
}

absl::Status WritePlace(int pipe, const std::map<std::string, std::string>& variables) {
  std::string place;
  for (const auto& [name, value] : variables) {
    absl::StrAppend(&place, name, "=", value, absl::string_view("\0", 1));
  }
  place.push_back('\0');
  if (place.size() > kPlaceBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a place of ", place.size(), " bytes; ", kPlaceBytesMax, " are the most"));
  }
  // A pipe that nobody has written to takes this much at once.
  const ssize_t written = write(pipe, place.data(), place.size());
  if (written == static_cast<ssize_t>(place.size())) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the spare process took ", written, " of ",
                                             place.size(), " bytes of its place"));
}

}  // namespace weft::collectives
