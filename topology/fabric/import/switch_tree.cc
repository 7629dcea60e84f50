#include "topology/fabric/import/switch_tree.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "topology/fabric/import/tiered_nodes.h"

namespace weft::topology {

int SwitchTree::Find(const std::string& name, int line) {
  auto [found, is_new] = by_name_.try_emplace(name, static_cast<int>(nodes_.size()));
  if (is_new) nodes_.push_back({name, {}, {}, line});
  return found->second;
}

absl::Status SwitchTree::Add(const std::string& above, const std::vector<std::string>& below,
                             const TextLines& line) {
  int parent = Find(above, line.number());
  for (const std::string& name : below) {
    int child = Find(name, line.number());
    if (child == parent) return line.Error(Excerpt(name), " is below itself");
    auto [known, is_new] = pairs_.try_emplace({child, parent}, line.number());
    if (!is_new) {
      return line.Error(Excerpt(name), " is below ", Excerpt(above), " already, in line ",
                        known->second);
    }
    nodes_[static_cast<size_t>(child)].above.push_back(parent);
    nodes_[static_cast<size_t>(parent)].below.push_back(child);
  }
  if (nodes_.size() > kMaxNodes || pairs_.size() > kMaxLinks / 2) {
    return absl::ResourceExhaustedError(absl::StrCat(line.Where(), ": more than ", kMaxNodes,
                                                     " nodes or ", kMaxLinks / 2, " cables"));
  }
  return absl::OkStatus();
}

// Every node after all that are below it.
absl::StatusOr<std::vector<int>> SwitchTree::BottomUp(const std::string& file) const {
  std::vector<int> order;
  std::vector<size_t> waiting(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    waiting[i] = nodes_[i].below.size();
    if (waiting[i] == 0) order.push_back(static_cast<int>(i));
  }
  for (size_t head = 0; head < order.size(); ++head) {
    for (int above : nodes_[static_cast<size_t>(order[head])].above) {
      if (--waiting[static_cast<size_t>(above)] == 0) order.push_back(above);
    }
  }
  if (order.size() == nodes_.size()) return order;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (waiting[i] == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(file, ":", nodes_[i].line, ": ",
                                                   Excerpt(nodes_[i].name),
                                                   " is, by way of others, above itself"));
  }
  return order;
}

absl::StatusOr<Fabric> SwitchTree::Build(const ImportDefaults& defaults, const std::string& file,
                                         const absl::flat_hash_set<std::string>& switches) const {
  WEFT_ASSIGN_OR_RETURN(std::vector<int> order, BottomUp(file));
  std::vector<int> tier(nodes_.size(), 0);
  std::vector<double> down(nodes_.size(), 0);  // bytes per second that come from below
  std::vector<double> up(nodes_.size(), 0);    // of each cable up
  for (int at : order) {
    auto i = static_cast<size_t>(at);
    const Node& node = nodes_[i];
    bool is_host = node.below.empty() && !switches.contains(node.name);
    for (int below : node.below) {
      tier[i] = std::max(tier[i], tier[static_cast<size_t>(below)] + 1);
      down[i] += up[static_cast<size_t>(below)];
    }
    if (!is_host) tier[i] = std::max(tier[i], 1);
    double parents = std::max<double>(1, static_cast<double>(node.above.size()));
    up[i] = is_host || down[i] == 0 ? defaults.bandwidth.bytes_per_second()
                                    : down[i] / defaults.oversubscription / parents;
  }

  std::vector<FabricNode> nodes(nodes_.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].name = nodes_[i].name;
    nodes[i].tier = tier[i];
    nodes[i].kind = tier[i] == 0 ? NodeKind::kHost : NodeKind::kSwitch;
  }
  const auto where = [&](size_t i) { return absl::StrCat(file, ":", nodes_[i].line); };
  FabricBuilder builder;
  WEFT_ASSIGN_OR_RETURN(const std::vector<NodeId> ids, AddByTier(nodes, defaults, where, builder));
  for (const size_t i : OrderByTier(nodes)) {
    FabricBuilder::Cable cable{Bandwidth::BytesPerSecond(up[i]), defaults.delay, defaults.buffer};
    int nic = 0;
    for (int above : nodes_[i].above) {
      if (tier[i] == 0) cable.nic = nic++;
      absl::Status status =
          builder.Connect(ids[i], ids[static_cast<size_t>(above)], cable).status();
      if (!status.ok()) return Annotate(status, where(i));
    }
  }
  absl::StatusOr<Fabric> fabric = std::move(builder).Build();
  if (!fabric.ok()) return Annotate(fabric.status(), file);
  return fabric;
}

}  // namespace weft::topology
