// Where this process stands, as far as it can know by itself: the NUMA node of its CPUs, and its
// host's switch, NICs and their rates from the fabric that collective.fabric names, or that the
// plan directory of the setting `plan` was made for. The host's name (RankPlace::host) is the
// endpoint's to fill in.
#ifndef WEFT_COLLECTIVES_PLANNER_OWN_PLACE_H_
#define WEFT_COLLECTIVES_PLANNER_OWN_PLACE_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/settings.h"
#include "collectives/group_place.h"
#include "topology/host/affinity.h"

namespace weft::collectives::planner {

// InvalidArgument, NotFound: collective.fabric cannot be read, or does not have this host, which
// is collective.fabric_host or the kernel's name for it, with or without its domain. In a plan
// directory's fabric the host is the one of paths.txt that has an address of this machine; without
// such a one, or without fabric.toml, nothing is known of switches, and that is no error.
absl::StatusOr<RankPlace> OwnPlace(const Settings& settings);

// The NUMA node that all of `cpus` belong to, by the folder that is /sys/devices/system/node; -1:
// there is none, or no such folder.
int NumaNodeOf(const CpuSet& cpus, const std::string& folder);

}  // namespace weft::collectives::planner

#endif  // WEFT_COLLECTIVES_PLANNER_OWN_PLACE_H_
