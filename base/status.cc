#include "base/status.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace weft {

absl::Status ErrnoStatus(int error_number, absl::string_view doing) {
  return absl::Status(absl::ErrnoToStatusCode(error_number),
                      absl::StrCat(doing, ": ", std::strerror(error_number)));
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view name, const absl::Cord& value) { annotated.SetPayload(name, value); });
  return annotated;
}

namespace internal {

void CheckFailed(const char* file, int line, const char* condition, const std::string& details) {
  std::fprintf(stderr, "%s:%d: invariant broken: %s (%s)\n", file, line, condition,
               details.c_str());
  std::abort();
}

}  // namespace internal
}  // namespace weft
