// Workloads by name, as programs take them on their command lines:
//
//   name[:key=value,...]      "permutation:bytes=2MB", "step:model=175b,tp=8,pp=8,dp=192"
//   a '+' between several     "full_mesh:bytes=64KiB+background:load=0.2": side by side
//
// Sizes are as in base/units.h, times as in absl ("1.5ms"), and all numbers have bounds. The same
// text, fabric and seed give the same workload. Those of this folder are always there; other levels
// hand in theirs (collectives/simulate/workloads.h).
#ifndef WEFT_TOPOLOGY_SIM_WORKLOADS_REGISTRY_H_
#define WEFT_TOPOLOGY_SIM_WORKLOADS_REGISTRY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "topology/fabric/fabric.h"
#include "topology/sim/workload.h"
#include "topology/sim/workloads/parameters.h"

namespace weft::topology {

struct WorkloadContext {
  Workload& workload;  // to append to
  const Fabric& fabric;
  uint64_t seed;
};

struct WorkloadKind {
  const char* name;
  const char* help;
  absl::Span<const Parameter> parameters;
  absl::Status (*add)(const WorkloadContext&, const Parameters&);
};

// Which endpoints take part: keys that a kind may have, and what they choose. InvalidArgument: the
// fabric has fewer than are wanted, or than `least`.
inline constexpr Parameter kRanksParameter = {
    "ranks", ParameterType::kCount, "0", 0, 1 << 20, "", "endpoints that take part; 0: all"};
inline constexpr Parameter kOrderParameter = {
    "order", ParameterType::kChoice, "linear", 0, 0, "linear|random", "which: the first, or drawn"};
absl::StatusOr<std::vector<Endpoint>> RanksOf(const WorkloadContext& context,
                                              const Parameters& parameters, size_t least);

// `more`: kinds besides those of this folder, with names of their own. InvalidArgument names the
// key or value that is wrong, and what would be right.
absl::StatusOr<Workload> MakeWorkload(absl::string_view text, const Fabric& fabric, uint64_t seed,
                                      absl::Span<const WorkloadKind> more);

// Every name with its keys, their defaults and what they mean: for --help.
std::string WorkloadHelp(absl::Span<const WorkloadKind> more);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_WORKLOADS_REGISTRY_H_
