#include "tools/plan/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"

namespace weft::plan {

Progress::Progress(std::string program, bool wanted)
    : program_(std::move(program)), shows_(wanted && isatty(STDERR_FILENO) != 0) {}

void Progress::Show(const std::string& stage, double share) {
  if (!shows_) return;
  absl::Time now = clock_.Now();
  if (stage != stage_) {
    stage_ = stage;
    begun_ = shown_ = now;
  }
  if (now - shown_ < absl::Milliseconds(200)) return;
  shown_ = now;
  absl::Duration left = (now - begun_) * ((1 - share) / std::max(share, 1e-3));
  absl::FPrintF(stderr, "\r\033[K%s: %s, %.0f %%, at most %.0f s left", program_, stage,
                100 * std::min(share, 1.0), absl::ToDoubleSeconds(left));
  std::fflush(stderr);
}

void Progress::End() {
  if (shows_ && !stage_.empty()) absl::FPrintF(stderr, "\r\033[K");
}

}  // namespace weft::plan
