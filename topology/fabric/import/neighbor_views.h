// What nodes say of their neighbours, port by port: LLDP's and ibnetdiscover's. A cable is seen
// from both ends, from one, or from neither. Internal.
#ifndef WEFT_TOPOLOGY_FABRIC_IMPORT_NEIGHBOR_VIEWS_H_
#define WEFT_TOPOLOGY_FABRIC_IMPORT_NEIGHBOR_VIEWS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "topology/fabric/fabric.h"
#include "topology/fabric/import/import.h"

namespace weft::topology {

class NeighborViews {
 public:
  // The number of a node, made if new. The name is that of the fabric, once Sanitised.
  int Node(absl::string_view name);
  void SetKind(int node, NodeKind kind) { nodes_[static_cast<size_t>(node)].kind = kind; }

  struct Port {
    std::string local, remote;  // names of the ports at the reporter and at the other end
    Bandwidth bandwidth;        // 0: not said
  };
  // `where` is for errors. A second report of the same local port is ignored.
  absl::Status Report(int reporter, int other, Port port, const std::string& where);

  // Between two nodes there are as many cables as the end that saw more of them says. Hosts come
  // first, then switches by their distance from hosts, in natural order; NICs in that of ports.
  absl::StatusOr<Fabric> Build(const ImportDefaults& defaults, const std::string& file) const;

 private:
  struct NodeInfo {
    std::string name;
    NodeKind kind = NodeKind::kHost;
  };
  struct Cable {
    int a, b;
    std::string port_a, port_b;
    Bandwidth bandwidth;
  };
  std::vector<Cable> Cables() const;
  std::vector<int> Tiers(const std::vector<Cable>& cables) const;

  std::vector<NodeInfo> nodes_;
  absl::flat_hash_map<std::string, int> by_name_;
  absl::flat_hash_map<std::pair<int, int>, std::vector<Port>> views_;  // by reporter and other
  absl::flat_hash_map<std::pair<int, std::string>, int> seen_;         // (reporter, local port)
};

// With '-' for every character that a fabric's names may not have; at most 200 characters.
std::string Sanitised(absl::string_view name);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_IMPORT_NEIGHBOR_VIEWS_H_
