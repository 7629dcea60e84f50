#include "trainer/loop/remote_checkpoints.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "trainer/checkpoint/manifest.h"

namespace weft::train {

void RemoteCheckpoints::Begin(int64_t step) {
  committed_ = step;
  const absl::Status status =
      mirror_.Begin(absl::StrCat(source_, "/", CheckpointName(step)), is_mirrored_);
  if (!status.ok()) WEFT_LOG_WARN(status.message());
}

absl::Status RemoteCheckpoints::Finish(absl::Duration timeout) {
  const absl::Time until = SystemClock().Now() + timeout;
  absl::Status status = mirror_.Finish(timeout);
  if (absl::IsDeadlineExceeded(status) || committed_ < 0) return status;
  if (!is_mirrored_ || !status.ok()) {
    if (!status.ok()) WEFT_LOG_WARN(status.message());
    Begin(committed_);
    status = mirror_.Finish(std::max(absl::ZeroDuration(), until - SystemClock().Now()));
    if (status.ok() && !is_mirrored_) {
      status = absl::UnavailableError(
          absl::StrCat("step ", committed_, " was not copied to ", mirror_.folder()));
    }
  }
  return status;
}

}  // namespace weft::train
