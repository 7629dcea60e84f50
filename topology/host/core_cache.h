// The cache that a core has, as the kernel tells it in a few small files of /sys. All caches of a
// machine, and which cores share one: topology/host/machine.h.
#ifndef WEFT_TOPOLOGY_HOST_CORE_CACHE_H_
#define WEFT_TOPOLOGY_HOST_CORE_CACHE_H_

#include <optional>
#include <string>

#include "base/units.h"

namespace weft::topology {

// The second-level cache for data of a CPU, by the folder "cache" of the CPU's own in
// /sys/devices/system/cpu. Nothing: there is no such folder, or it names none.
std::optional<Bytes> CoreCache(const std::string& folder);
// That of the first CPU that this process may use.
std::optional<Bytes> CoreCache();

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_CORE_CACHE_H_
