// How far two devices of a host are apart, by NCCL's names and rules (src/include/graph.h, topo.h,
// paths.cc of 2.28 to 2.30): the host is a graph of GPUs, NICs, PCI switches, NUMA nodes and one
// NVSwitch; of the shortest paths the widest counts; its worst step names the distance.
//
//   LOC  the same device
//   NVL  NVLink                            NVB  NVLinks over another GPU
//   C2C  the CPU's own link to its GPU     PIX  one PCI switch
//   PXB  several PCI switches, no CPU      P2C  C2C to the CPU, then PCI (a GPU and a NIC)
//   PHB  through the CPU of one NUMA node  SYS  between NUMA nodes
//   DIS  no path
//
// Two departures. Two functions of one card are PIX, as nvidia-smi has it (NCCL never asks). PXN, a
// NIC reached over another GPU, is NCCL's choice of a route and no distance. Where NCCL says PHB
// for all that it knows no NUMA node of, so do we; `known` then is false.
#ifndef WEFT_TOPOLOGY_HOST_DISTANCE_H_
#define WEFT_TOPOLOGY_HOST_DISTANCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "topology/host/machine.h"

namespace weft::topology {

// In NCCL's order: nearer is less.
enum class PathType : uint8_t { kLoc, kNvl, kNvb, kC2c, kPix, kPxb, kP2c, kPhb, kSys, kDis };
const char* ToString(PathType type);  // "LOC", "NVL", ...
const char* Meaning(PathType type);   // "at most one PCI switch between"

struct Distance {
  PathType type = PathType::kDis;
  int hops = 0;         // links of the graph
  Bandwidth bandwidth;  // of the narrowest link, by NCCL's figures, which are below the line's
  bool known = true;    // false: the host does not say where one of the two is
};

// What NCCL reckons a link with: PCI at 75 % of the raw rate (width * speed / 80 GB/s), NVLinks by
// compute capability, links between CPUs by vendor and model.
Bandwidth NcclBandwidth(PciLink link);
Bandwidth NcclNvLinkBandwidth(int compute_capability, int links);
Bandwidth NcclInterCpuBandwidth(const CpuModel& cpu);

// All pairs, computed once. Immutable; refers to nothing of the machine.
class Distances {
 public:
  explicit Distances(const Machine& machine);

  // Indexes of Machine::devices(): GPUs and NICs.
  Distance Between(int a, int b) const;
  // From a GPU or NIC to the CPUs of a NUMA node, an index of Machine::numa_nodes().
  Distance ToNuma(int device, int numa) const;
  // What lies between: "switch0, switch2"; "NUMA node 0, NUMA node 1"; empty: nothing.
  std::string Route(int a, int b) const;

 private:
  size_t VertexOfNuma(int numa) const { return devices_ + static_cast<size_t>(numa); }
  size_t devices_ = 0;
  size_t vertices_ = 0;  // devices, NUMA nodes, "somewhere" (unknown locality), the NVSwitch
  std::vector<Distance> table_;     // [from][to]; rows of GPUs and NICs only are filled
  std::vector<int> previous_;       // [from][to]: the vertex before `to` on the path
  std::vector<std::string> names_;  // of vertices
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_DISTANCE_H_
