// Findings about a host, for its administrator: whatever makes it slower than its parts, or hides
// where they are.
#ifndef WEFT_TOPOLOGY_HOST_FINDINGS_H_
#define WEFT_TOPOLOGY_HOST_FINDINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "topology/host/binding.h"
#include "topology/host/distance.h"
#include "topology/host/machine.h"

namespace weft::topology {

enum class FindingKind : uint8_t {
  kNicFarFromGpus,     // no GPU is nearer than another NUMA node, though some NIC is near
  kGpuWithoutNic,      // the nearest NIC of a GPU is at another NUMA node
  kLinkBelowLine,      // the PCI link of a NIC carries less than its line
  kLinkBelowItself,    // a PCI link is trained below what both ends can
  kUnevenNics,         // some NIC serves more GPUs than another that is up
  kPortDown,           // a port without a link
  kNodeWithoutMemory,  // CPUs whose every access to memory leaves the node
  kNoLocality,         // devices of a host with several NUMA nodes, of which it tells no place
  kNcclChoosesOther,   // NCCL, which goes by bandwidth first, takes NICs that are farther away
};
const char* ToString(FindingKind kind);  // "nic-far-from-gpus", ...

struct Finding {
  FindingKind kind;
  std::string subject;   // "nic1 (mlx5_1)", "NUMA node 2"
  std::string sentence;  // what is so, with figures, and what to do
};

// In the order of the kinds, then of the devices.
std::vector<Finding> FindingsOf(const Machine& machine, const Distances& distances,
                                const std::vector<GpuNics>& nics);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_FINDINGS_H_
