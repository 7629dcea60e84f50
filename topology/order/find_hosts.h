// The hosts of a fabric by their names (topology/job/hostlist.h).
#ifndef WEFT_TOPOLOGY_ORDER_FIND_HOSTS_H_
#define WEFT_TOPOLOGY_ORDER_FIND_HOSTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

// NotFound: a name that the fabric does not have, with the nearest; InvalidArgument: a switch, or a
// host that is named twice.
absl::StatusOr<std::vector<NodeId>> FindHosts(const Fabric& fabric,
                                              absl::Span<const std::string> names);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ORDER_FIND_HOSTS_H_
