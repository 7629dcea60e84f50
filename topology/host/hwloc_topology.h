// hwloc's topology as an owned object. Internal to topology/host.
#ifndef WEFT_TOPOLOGY_HOST_HWLOC_TOPOLOGY_H_
#define WEFT_TOPOLOGY_HOST_HWLOC_TOPOLOGY_H_

#include <hwloc.h>

#include <memory>
#include <type_traits>

#include "absl/status/statusor.h"

namespace weft::internal {

struct HwlocTopologyDeleter {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology =
    std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, HwlocTopologyDeleter>;

enum class HwlocDevices { kNone, kImportant };  // those of a class that hwloc deems important

// Discovers this machine, or makes what a synthetic description says unless it is null.
// InvalidArgument: no such description.
absl::StatusOr<HwlocTopology> LoadHwloc(const char* synthetic, HwlocDevices devices);

}  // namespace weft::internal

#endif  // WEFT_TOPOLOGY_HOST_HWLOC_TOPOLOGY_H_
