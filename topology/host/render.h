// A machine for people: as an indented tree, as the matrix that `nvidia-smi topo -m` prints, as a
// picture; and for machines, as JSON.
#ifndef WEFT_TOPOLOGY_HOST_RENDER_H_
#define WEFT_TOPOLOGY_HOST_RENDER_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "topology/host/binding.h"
#include "topology/host/distance.h"
#include "topology/host/findings.h"
#include "topology/host/machine.h"

namespace weft::topology {

// Everything that is worked out about a machine, together.
struct MachineReport {
  const Machine& machine;
  const Distances& distances;
  const std::vector<GpuNics>& nics;
  const std::vector<ProcessBinding>& bindings;  // may be empty
  const std::vector<Finding>& findings;
};

// Packages, NUMA nodes with cores, caches and memory, then the PCI tree; a line each, ends with \n.
std::string TreeText(const Machine& machine);

// A row and a column for each GPU and NIC, and for each GPU and NIC the CPUs and the NUMA node near
// it; below it what the names mean that occur. Empty without devices.
std::string MatrixText(const Machine& machine, const Distances& distances);

// Which NICs each GPU uses and why; what each process would be bound to; findings. Sections that
// have nothing to say are left out, but for the findings.
std::string NicsText(const Machine& machine, const std::vector<GpuNics>& nics);
std::string BindingsText(const Machine& machine, const std::vector<ProcessBinding>& bindings);
std::string FindingsText(const std::vector<Finding>& findings);

// docs/host-topology.md has the keys. Quantities carry their unit in their name.
nlohmann::ordered_json ReportJson(const MachineReport& report);

// A picture (SVG, no script): NUMA nodes as columns, PCI below them, findings at the devices.
std::string MachineSvg(const MachineReport& report);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_RENDER_H_
