// Where machines come from: this one, a file of another, a description.
#ifndef WEFT_TOPOLOGY_HOST_DISCOVER_H_
#define WEFT_TOPOLOGY_HOST_DISCOVER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/host/machine.h"

namespace weft::topology {

// The machine that we run on, as hwloc and /sys show it, its cores cut to the affinity mask of the
// calling thread. Vendor tools (NVML, CUDA, ROCm SMI) are not needed: GPUs are found by their PCI
// class; without them NVLinks are not known. Up to some 100 ms on a large host.
absl::StatusOr<Machine> DiscoverMachine();

// hwloc's synthetic form, as "pack:2 numa:1 core:8 pu:2": no devices.
absl::StatusOr<Machine> MachineFromSynthetic(absl::string_view description);

// `lstopo machine.xml` of another machine, and NCCL_TOPO_FILE or NCCL_TOPO_DUMP_FILE. Errors name
// file and line.
absl::StatusOr<Machine> ReadHwlocFile(const std::string& path);
absl::StatusOr<Machine> ReadNcclFile(const std::string& path);

namespace internal {
// Adds what hwloc does not tell, from `sys` ("/sys"): what PCI links are trained to and could be,
// and rate, state and GUID of NIC ports. What is not there stays as it was.
void AddFromSys(const std::string& sys, MachineParts& parts);
}  // namespace internal

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_DISCOVER_H_
