// What a group may have of its own. All other settings belong to the endpoint, whose transports,
// links and costs all groups of a process share.
#ifndef WEFT_COLLECTIVES_GROUP_SETTINGS_H_
#define WEFT_COLLECTIVES_GROUP_SETTINGS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "base/settings.h"
#include "collectives/communicator.h"
#include "collectives/planner/forced.h"

namespace weft::collectives {

struct GroupSettings {
  absl::Duration timeout;         // collective.timeout
  planner::Forced forced;         // collective.algorithm, collective.algorithm_by_kind
  bool verify_schedules = false;  // verify.schedules
  bool verify_buffers = false;    // verify.buffers

  // InvalidArgument where an algorithm is named that does not exist.
  static absl::StatusOr<GroupSettings> From(const Settings& settings);
  // Whether the setting of that name is one of those above.
  static bool Has(absl::string_view name);
  static std::string Names();  // "collective.timeout, ..."
};

// As Communicator::Create(), whose groups have the endpoint's settings. The algorithms have to be
// the same on all ranks.
absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(std::shared_ptr<Endpoint> endpoint,
                                                                 absl::string_view name,
                                                                 std::vector<Rank> ranks,
                                                                 GroupSettings settings);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_GROUP_SETTINGS_H_
