// The settings that a group may have of its own, and what follows its timeout= among them.
#ifndef WEFT_COLLECTIVES_C10D_BACKEND_SETTINGS_H_
#define WEFT_COLLECTIVES_C10D_BACKEND_SETTINGS_H_

#include <chrono>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/settings.h"
#include "collectives/group_settings.h"

namespace weft::collectives {

// Gives collective.timeout and store.timeout, where nobody has set them, the timeout of a group
// that makes an endpoint.
absl::Status FollowTimeout(Settings& settings, std::chrono::milliseconds timeout);

struct BackendSettings {
  GroupSettings group;
  bool follows_timeout = false;  // nobody has set collective.timeout

  // As GroupSettings::From().
  static absl::StatusOr<BackendSettings> From(const Settings& settings);
  // The settings of a group that is made of the one that has these. Where follows_timeout, a longer
  // `timeout` is also its collective.timeout; a shorter one bounds its waits alone.
  BackendSettings WithTimeout(std::chrono::milliseconds timeout) const;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_BACKEND_SETTINGS_H_
