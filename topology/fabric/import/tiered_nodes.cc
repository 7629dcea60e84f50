#include "topology/fabric/import/tiered_nodes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/natural_less.h"
#include "base/status.h"

namespace weft::topology {

std::vector<size_t> OrderByTier(absl::Span<const FabricNode> nodes) {
  std::vector<size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t i, size_t j) {
    return nodes[i].tier != nodes[j].tier ? nodes[i].tier < nodes[j].tier
                                          : NaturalLess(nodes[i].name, nodes[j].name);
  });
  return order;
}

absl::StatusOr<std::vector<NodeId>> AddByTier(absl::Span<const FabricNode> nodes,
                                              const ImportDefaults& defaults,
                                              const std::function<std::string(size_t i)>& where,
                                              FabricBuilder& builder) {
  std::vector<NodeId> ids(nodes.size());
  for (const size_t i : OrderByTier(nodes)) {
    FabricNode node = nodes[i];
    if (node.kind == NodeKind::kSwitch) node.latency = defaults.latency;
    absl::StatusOr<NodeId> id = builder.Add(std::move(node));
    if (!id.ok()) return Annotate(id.status(), where(i));
    ids[i] = *id;
  }
  return ids;
}

}  // namespace weft::topology
