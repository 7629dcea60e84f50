#include "topology/host/hwloc_topology.h"

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::internal {

absl::StatusOr<HwlocTopology> LoadHwloc(const char* synthetic, HwlocDevices devices) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return ErrnoStatus(errno, "hwloc_topology_init");
  HwlocTopology topology(raw);
  if (synthetic != nullptr && hwloc_topology_set_synthetic(raw, synthetic) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", synthetic,
                     "\" is no synthetic description of a machine; write one as "
                     "\"pack:2 numa:1 core:8 pu:2\""));
  }
  if (devices == HwlocDevices::kImportant &&
      hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) != 0) {
    return ErrnoStatus(errno, "hwloc_topology_set_io_types_filter");
  }
  if (hwloc_topology_load(raw) != 0) return ErrnoStatus(errno, "hwloc_topology_load");
  return topology;
}

}  // namespace weft::internal
