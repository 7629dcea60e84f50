// Between NCCL's topology file (nccl_xml.h) and a Machine.
#ifndef WEFT_TOPOLOGY_HOST_NCCL_MACHINE_H_
#define WEFT_TOPOLOGY_HOST_NCCL_MACHINE_H_

#include "absl/status/statusor.h"
#include "topology/host/machine.h"
#include "topology/host/xml_tree.h"

namespace weft::topology {

// A <cpu> becomes a NUMA node; one with numaid -1 (no locality: many virtual machines) does not,
// and what is below it has none. Packages and memory are not in the file, nor which CPUs are one
// core: each counts as one. A GPU's number is its `dev`. InvalidArgument "line 12: ...": an address
// that occurs twice, a file of several hosts (multi-node NVLink: `host_hash` differs).
absl::StatusOr<Machine> MachineFromNccl(const XmlElement& system);

// What NCCL would find on the machine: switches, GPUs and NICs, and NUMA nodes that have some.
// What the machine does not know is left out, and NCCL fills it in itself. Storage is no concern of
// NCCL's, nor are NVSwitches, which it knows as targets of NVLinks.
XmlElement NcclFromMachine(const Machine& machine);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_NCCL_MACHINE_H_
