// Which CPUs this process may use, and binding to some of them. Linux system calls only: cheap
// enough for every start-up. What the CPUs are, and which belong together, is topology/host/host.h.
#ifndef WEFT_TOPOLOGY_HOST_AFFINITY_H_
#define WEFT_TOPOLOGY_HOST_AFFINITY_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

// The kernel's numbers of logical processors (a hyperthread is one), ascending, each once.
using CpuSet = std::vector<int>;

// "0-3,8,10-11", the form of taskset and of /sys.
std::string ToString(const CpuSet& cpus);

// The affinity mask of the calling thread.
absl::StatusOr<CpuSet> AllowedCpus();

// How many threads can really run at once: the affinity mask, cut by the CPU quota of the control
// group (a container with two CPUs' worth of time on a host of 64 has 2). At least 1. A process
// that was bound to its share of the host gets that share. Reads a few small files: ask once and
// keep it.
int AllowedCores();

// How many threads of all this job's ranks on this host can run at once: what the launcher said,
// since a rank that it bound sees its own share alone: WEFT_JOB_CORES, else Slurm's
// SLURM_CPUS_ON_NODE, up to the CPUs that the host has, where that is more than AllowedCores();
// else AllowedCores().
int JobCores();

// Binds the calling thread, and the threads and processes that it will start. Allocates nothing
// when it succeeds, so it may stand between fork and exec.
absl::Status BindThread(const CpuSet& cpus);
// Binds a thread of this process, by the kernel's number of it.
absl::Status BindThread(int thread, const CpuSet& cpus);

namespace internal {
// The quota in a control group's cpu.max ("150000 100000" is 1.5 CPUs); nothing for "max ...".
std::optional<double> ParseCpuMax(absl::string_view text);
// The tightest quota, in CPUs, between the groups that `groups` names, in the form of
// /proc/self/cgroup, and the root. `mount`: where control groups of either version are mounted.
std::optional<double> ControlGroupQuota(absl::string_view groups, const std::string& mount);
}  // namespace internal

}  // namespace weft

#endif  // WEFT_TOPOLOGY_HOST_AFFINITY_H_
