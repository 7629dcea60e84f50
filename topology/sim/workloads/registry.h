// Workloads by name, as programs take them on their command lines:
//
//   name[:key=value,...]      "permutation:bytes=2MB", "step:model=175b,tp=8,pp=8,dp=192"
//   a '+' between several     "all_to_all:bytes=64KiB+background:load=0.2": side by side
//
// Sizes are as in base/units.h, times as in absl ("1.5ms"), and all numbers have bounds. The same
// text, fabric and seed give the same workload.
#ifndef WEFT_TOPOLOGY_SIM_WORKLOADS_REGISTRY_H_
#define WEFT_TOPOLOGY_SIM_WORKLOADS_REGISTRY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/fabric/fabric.h"
#include "topology/sim/workload.h"

namespace weft::topology {

// InvalidArgument names the key or value that is wrong, and what would be right.
absl::StatusOr<Workload> MakeWorkload(absl::string_view text, const Fabric& fabric, uint64_t seed);

// Every name with its keys, their defaults and what they mean: for --help.
std::string WorkloadHelp();

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_WORKLOADS_REGISTRY_H_
