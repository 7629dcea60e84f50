// The nodes of an imported fabric in the order that every format gives them: hosts first, then
// switches by tier, in natural order of their names. Internal.
#ifndef WEFT_TOPOLOGY_FABRIC_IMPORT_TIERED_NODES_H_
#define WEFT_TOPOLOGY_FABRIC_IMPORT_TIERED_NODES_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "topology/fabric/fabric.h"
#include "topology/fabric/import/import.h"

namespace weft::topology {

// Indexes of `nodes` in that order.
std::vector<size_t> OrderByTier(absl::Span<const FabricNode> nodes);

// Adds nodes in that order, switches with the defaults' latency; ids in the order of `nodes`.
// `where` is for errors: the place that node `i` comes from.
absl::StatusOr<std::vector<NodeId>> AddByTier(absl::Span<const FabricNode> nodes,
                                              const ImportDefaults& defaults,
                                              const std::function<std::string(size_t i)>& where,
                                              FabricBuilder& builder);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_IMPORT_TIERED_NODES_H_
