// Below which worst link load no choice of paths can get, whatever the hashes.
//
// All that leaves a set of switches (a leaf, a pod) must share the links out of the set, all that
// enters it the links in, all that leaves a NIC its ports. Fluid: bytes over bandwidth. With
// subflows that cannot be cut, besides: of m n + 1 subflows on n links, some link carries m + 1,
// which are at least the lightest so many of the heaviest m n + 1.
#ifndef WEFT_TOPOLOGY_PATHS_LOAD_BOUND_H_
#define WEFT_TOPOLOGY_PATHS_LOAD_BOUND_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "topology/paths/subflow.h"

namespace weft::topology {

struct LoadBound {
  double seconds = 0;  // for subflows as they are
  double fluid = 0;
  std::string reason;  // of `seconds`: "8 subflows, 8 MiB in all, out of leaf2 over 4 links"
  // Links between switches on the borders of such sets: those that choices can load, in order.
  std::vector<LinkId> links;
};

LoadBound BoundLoad(const Fabric& fabric, absl::Span<const Subflow> subflows);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_PATHS_LOAD_BOUND_H_
