#include "base/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr rlim_t kLimitMost = rlim_t{1} << 30;
constexpr int64_t kLimitUnknown = 1024;  // what most systems begin with

}  // namespace

int64_t OpenFilesLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLimitUnknown;
  return static_cast<int64_t>(std::min(limit.rlim_cur, kLimitMost));
}

int64_t RaiseOpenFilesLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return OpenFilesLimit();
}

void RestoreOpenFilesLimit(int64_t limit) {
  rlimit now{};
  if (getrlimit(RLIMIT_NOFILE, &now) != 0 || now.rlim_cur <= static_cast<rlim_t>(limit)) return;
  now.rlim_cur = static_cast<rlim_t>(limit);
  setrlimit(RLIMIT_NOFILE, &now);
}

absl::Status DescriptorsExhausted(int error_number, absl::string_view doing) {
  return absl::ResourceExhaustedError(absl::StrCat(doing, ": ", std::strerror(error_number),
                                                   " (limit of this process: ", OpenFilesLimit(),
                                                   " descriptors); raise it with ulimit -n"));
}

}  // namespace weft
