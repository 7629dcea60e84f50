#include "base/status.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace weft {

absl::Status ErrnoStatus(int error_number, absl::string_view doing) {
  return absl::Status(absl::ErrnoToStatusCode(error_number),
                      absl::StrCat(doing, ": ", std::strerror(error_number)));
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

namespace internal {

void CheckFailed(const char* file, int line, const char* condition, const std::string& details) {
  std::fprintf(stderr, "%s:%d: invariant broken: %s (%s)\n", file, line, condition,
               details.c_str());
  std::abort();
}

}  // namespace internal
}  // namespace weft
