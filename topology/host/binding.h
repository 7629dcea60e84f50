// Assignment of NICs and CPUs: the NICs nearest to each GPU, and the CPUs of processes and of the
// threads that drive a NIC.
#ifndef WEFT_TOPOLOGY_HOST_BINDING_H_
#define WEFT_TOPOLOGY_HOST_BINDING_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/host/distance.h"
#include "topology/host/machine.h"

namespace weft::topology {

// The NICs of one GPU. All are indexes of Machine::devices().
struct GpuNics {
  int gpu = 0;
  std::vector<int> by_distance;  // all NICs, nearest first
  std::vector<int> nearest;      // of equal type and bandwidth, in the order of their names
  // The NICs of `nearest` for this GPU to use, so that GPUs which share them load them evenly:
  // of n GPUs with the same m nearest NICs, each gets m / n of them, or n / m get the same one.
  std::vector<int> assigned;
  std::string reason;  // "PIX over switch0, 24.0 GB/s; shared with gpu1"
};

// Nearest is by type of path first, then by bandwidth. (NCCL goes by bandwidth first; where that
// makes a difference, findings.h says so.) In the order of Machine::gpus(). NICs whose ports are
// all down come last and are assigned to nobody, unless there is no other.
std::vector<GpuNics> NicsOfGpus(const Machine& machine, const Distances& distances);

// The usable CPUs that are nearest to a device: of its NUMA node, or, where that has none, of the
// nearest that has. All usable ones where the machine does not tell. Empty: it knows no CPU.
CpuSet CpusNear(const Machine& machine, const Distances& distances, int device);

// Where a thread that drives `nic` should run, for a process that is bound to `process`: the CPUs
// of the process that are near the NIC, or, where none is, all that are near it.
CpuSet ProgressCpus(const Machine& machine, const Distances& distances, int nic,
                    const CpuSet& process);

struct ProcessBinding {
  int process = 0;
  int gpu = -1;           // index of Machine::devices(); -1: it has none
  std::vector<int> nics;  // likewise; empty: there is none
  CpuSet cpus;
  CpuSet progress;
  std::string reason;
};

// For `count` processes of this host. With GPUs, process i drives the i * gpus / count-th, and the
// processes of GPUs at one NUMA node share its cores; without, processes share all cores
// (Host::Slice). InvalidArgument: count < 1. FailedPrecondition: no CPU is known.
absl::StatusOr<std::vector<ProcessBinding>> PlanBindings(const Machine& machine,
                                                         const Distances& distances, int count);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_BINDING_H_
