// Learning switches that are black boxes: what they do can be asked flow by flow, what they hash
// cannot be read. The simulator's switches stand for a fabric's here.
#ifndef WEFT_TOPOLOGY_DISCOVERY_LEARN_BOX_H_
#define WEFT_TOPOLOGY_DISCOVERY_LEARN_BOX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/discovery/fit_hash.h"
#include "topology/ecmp/hash_file.h"
#include "topology/fabric/routes.h"

namespace weft::topology {

struct LearnBoxOptions {
  int flows = 256;                           // asked of each switch that has a choice
  uint64_t linux_seeds = uint64_t{1} << 22;  // tried, from 1 on, of switches that no other explains
  double wrong_max = 0.02;                   // share of flows that a hash may fail to explain
  uint64_t seed = 1;                         // of the flows
};

struct LearnedBox {
  HashFile known;  // hashes and orders of the switches that were explained; `unknown`: the others
  int64_t flows = 0;
  int switches = 0;  // with a choice
};

// The hash that explains what one switch did: one of `before`, those of switch silicon, or Linux's
// with a seed up to `linux_seeds`.
std::optional<FittedHash> ExplainSwitch(uint32_t members, absl::Span<const HashObservation> seen,
                                        absl::Span<const SwitchHash> before, uint64_t linux_seeds,
                                        double wrong_max);

// `box` answers which way each flow goes.
absl::StatusOr<LearnedBox> LearnBox(const Routes& routes, const FabricHashes& box,
                                    const LearnBoxOptions& options);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_LEARN_BOX_H_
