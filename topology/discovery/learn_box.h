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
  // Where a switch is not explained, so many flows are asked for between each two NICs for every
  // path between them, for its table; nothing is where there are more than `table_pairs` of NICs.
  int table_flows = 12;
  int64_t table_pairs = 1 << 16;
};

struct LearnedBox {
  // Hashes and orders of the switches that were explained, tables of others. `unknown`: the rest.
  HashFile known;
  int64_t flows = 0;  // asked, those of tables too
  int switches = 0;   // with a choice
  int linear = 0;     // of those: explained by a linear map alone
  int tables = 0;     // by a table of flows alone
};

// The hash that explains what one switch did: one of `before`, those of switch silicon, Linux's
// with a seed up to `linux_seeds`, or a linear map.
std::optional<FittedHash> ExplainSwitch(uint32_t members, absl::Span<const HashObservation> seen,
                                        absl::Span<const SwitchHash> before, uint64_t linux_seeds,
                                        double wrong_max);

// `box` answers which way each flow goes.
absl::StatusOr<LearnedBox> LearnBox(const Routes& routes, const FabricHashes& box,
                                    const LearnBoxOptions& options);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_LEARN_BOX_H_
