// hwloc's XML, as `lstopo machine.xml` writes it, to a Machine.
//
// Why not hwloc's own reader: version 2.9.0's ends in a segmentation fault on one mutated file in
// a hundred (156 of 20,000; docs/host-topology.md), and it names no lines. So hwloc discovers and
// describes, and its XML, of this machine as of another, is read here.
//
// What stays: packages, NUMA nodes, caches, cores, switches, GPUs, NICs, NVSwitches, storage.
// Other PCI functions (DMA engines, management controllers' displays) and the kernel's virtual
// interfaces (lo, docker0, veth...) go.
#ifndef WEFT_TOPOLOGY_HOST_HWLOC_XML_H_
#define WEFT_TOPOLOGY_HOST_HWLOC_XML_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/host/machine.h"

namespace weft::topology {

// Version 2 of the format; InvalidArgument "line 12: ..." for anything else. The rate of a NIC's
// line is in no such file; nor which lanes and which rate make up a PCI link's speed, of which the
// widest pair is taken (LinkOfBandwidth).
absl::StatusOr<Machine> MachineFromHwlocXml(absl::string_view xml);

// Likewise, for who adds to it before it becomes a Machine.
absl::StatusOr<MachineParts> PartsFromHwlocXml(absl::string_view xml);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_HWLOC_XML_H_
