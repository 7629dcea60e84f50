// Where an endpoint's progress thread runs: on those of the process's CPUs that are near the NIC
// that it drives. A launcher's binding always holds: no thread leaves the CPUs that its process was
// given.
#ifndef WEFT_COLLECTIVES_PROGRESS_CPUS_H_
#define WEFT_COLLECTIVES_PROGRESS_CPUS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/settings.h"
#include "topology/host/affinity.h"

namespace weft::collectives {

// By the setting progress.cpus: `free` gives all of `process`; a list, as "0-3,8", those of it;
// `near` the CPUs of `process` at the NUMA nodes of the NICs that the setting `transport` uses: the
// interface of TCP, UDP and UCX, the RDMA devices of verbs. All of `process` where the kernel does
// not tell a NIC's node, or the process has no CPU there. InvalidArgument: the setting is no list,
// or names no CPU that the process may use. `sys` is the folder that is /sys.
absl::StatusOr<CpuSet> ProgressCpus(const Settings& settings, const CpuSet& process,
                                    const std::string& sys = "/sys");

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_PROGRESS_CPUS_H_
