#include "topology/order/find_hosts.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::topology {

absl::StatusOr<std::vector<NodeId>> FindHosts(const Fabric& fabric,
                                              absl::Span<const std::string> names) {
  std::vector<NodeId> hosts;
  absl::flat_hash_set<int> seen;
  for (const std::string& name : names) {
    WEFT_ASSIGN_OR_RETURN(NodeId host, fabric.Find(name));
    if (fabric.node(host).kind != NodeKind::kHost) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is a switch, not a host"));
    }
    if (!seen.insert(host.value()).second) {
      return absl::InvalidArgumentError(absl::StrCat("host ", name, " is named twice"));
    }
    hosts.push_back(host);
  }
  return hosts;
}

}  // namespace weft::topology
