#include "collectives/c10d/backend_settings.h"

#include <algorithm>

#include "absl/time/time.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

constexpr char kOrigin[] = "a group's timeout";

// What the settings allow.
constexpr absl::Duration kTimeoutMin = absl::Milliseconds(100), kTimeoutMax = absl::Hours(24);

bool IsSet(const Settings& settings, const char* name) {
  return !settings.IsDefault(name) && settings.Origin(name) != kOrigin;
}

}  // namespace

absl::Status FollowTimeout(Settings& settings, std::chrono::milliseconds timeout) {
  if (timeout <= std::chrono::milliseconds::zero()) return absl::OkStatus();
  const std::string text =
      absl::FormatDuration(std::clamp(absl::FromChrono(timeout), kTimeoutMin, kTimeoutMax));
  for (const char* name : {"collective.timeout", "store.timeout"}) {
    if (IsSet(settings, name)) continue;
    WEFT_RETURN_IF_ERROR(settings.Set(name, text, kOrigin));
  }
  return absl::OkStatus();
}

absl::StatusOr<BackendSettings> BackendSettings::From(const Settings& settings) {
  BackendSettings own;
  WEFT_ASSIGN_OR_RETURN(own.group, GroupSettings::From(settings));
  own.follows_timeout = !IsSet(settings, "collective.timeout");
  return own;
}

BackendSettings BackendSettings::WithTimeout(std::chrono::milliseconds timeout) const {
  BackendSettings own = *this;
  if (follows_timeout) {
    own.group.timeout = std::max(group.timeout, std::min(absl::FromChrono(timeout), kTimeoutMax));
  }
  return own;
}

}  // namespace weft::collectives
