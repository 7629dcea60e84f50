#include "topology/fabric/import/neighbor_views.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/natural_less.h"
#include "base/status.h"
#include "topology/fabric/import/tiered_nodes.h"

namespace weft::topology {

std::string Sanitised(absl::string_view name) {
  constexpr absl::string_view kOthers = "_.:-";
  std::string clean;
  for (char c : absl::StripAsciiWhitespace(name).substr(0, 200)) {
    bool is_allowed = absl::ascii_isalnum(c) || kOthers.find(c) != absl::string_view::npos;
    clean += is_allowed ? c : '-';
  }
  return clean.empty() ? "-" : clean;
}

int NeighborViews::Node(absl::string_view name) {
  std::string clean = Sanitised(name);
  auto [found, is_new] = by_name_.try_emplace(clean, static_cast<int>(nodes_.size()));
  if (is_new) nodes_.push_back({std::move(clean)});
  return found->second;
}

absl::Status NeighborViews::Report(int reporter, int other, Port port, const std::string& where) {
  if (reporter == other) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": ", nodes_[static_cast<size_t>(reporter)].name, " is its own neighbour"));
  }
  if (nodes_.size() > kMaxNodes || seen_.size() > kMaxLinks) {
    return absl::ResourceExhaustedError(
        absl::StrCat(where, ": more than ", kMaxNodes, " nodes or ", kMaxLinks, " ports"));
  }
  if (!seen_.try_emplace({reporter, port.local}, other).second) return absl::OkStatus();
  views_[{reporter, other}].push_back(std::move(port));
  return absl::OkStatus();
}

std::vector<NeighborViews::Cable> NeighborViews::Cables() const {
  auto is_host = [&](int node) {
    return nodes_[static_cast<size_t>(node)].kind == NodeKind::kHost;
  };
  std::vector<Cable> cables;
  for (const auto& [ends, ports] : views_) {
    auto [reporter, other] = ends;
    auto back = views_.find({other, reporter});
    if (back != views_.end()) {
      // The larger view counts; of equal ones the host's, or the first node's.
      size_t theirs = back->second.size();
      bool is_first = is_host(reporter) != is_host(other)
                          ? is_host(reporter)
                          : nodes_[static_cast<size_t>(reporter)].name <
                                nodes_[static_cast<size_t>(other)].name;
      if (theirs > ports.size() || (theirs == ports.size() && !is_first)) continue;
    }
    for (const Port& port : ports) {
      bool is_turned = is_host(other) && !is_host(reporter);
      if (is_turned) {
        cables.push_back({other, reporter, port.remote, port.local, port.bandwidth});
      } else {
        cables.push_back({reporter, other, port.local, port.remote, port.bandwidth});
      }
    }
  }
  return cables;
}

// Links to the nearest host; what reaches none is a leaf.
std::vector<int> NeighborViews::Tiers(const std::vector<Cable>& cables) const {
  std::vector<std::vector<int>> neighbors(nodes_.size());
  for (const Cable& cable : cables) {
    neighbors[static_cast<size_t>(cable.a)].push_back(cable.b);
    neighbors[static_cast<size_t>(cable.b)].push_back(cable.a);
  }
  std::vector<int> tiers(nodes_.size(), -1);
  std::vector<int> queue;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].kind != NodeKind::kHost) continue;
    tiers[i] = 0;
    queue.push_back(static_cast<int>(i));
  }
  for (size_t head = 0; head < queue.size(); ++head) {
    for (int other : neighbors[static_cast<size_t>(queue[head])]) {
      int& tier = tiers[static_cast<size_t>(other)];
      if (tier >= 0) continue;
      tier = tiers[static_cast<size_t>(queue[head])] + 1;
      queue.push_back(other);
    }
  }
  for (int& tier : tiers) {
    if (tier < 0) tier = 1;
  }
  return tiers;
}

absl::StatusOr<Fabric> NeighborViews::Build(const ImportDefaults& defaults,
                                            const std::string& file) const {
  std::vector<Cable> cables = Cables();
  std::vector<int> tiers = Tiers(cables);
  std::vector<FabricNode> nodes(nodes_.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].name = nodes_[i].name;
    nodes[i].kind = nodes_[i].kind;
    nodes[i].tier = tiers[i];
  }
  FabricBuilder builder;
  WEFT_ASSIGN_OR_RETURN(const std::vector<NodeId> ids,
                        AddByTier(
                            nodes, defaults, [&](size_t) { return file; }, builder));

  std::sort(cables.begin(), cables.end(), [&](const Cable& x, const Cable& y) {
    NodeId a = ids[static_cast<size_t>(x.a)];
    NodeId b = ids[static_cast<size_t>(y.a)];
    if (a != b) return a < b;
    if (x.port_a != y.port_a) return NaturalLess(x.port_a, y.port_a);
    return std::tuple(ids[static_cast<size_t>(x.b)], x.port_b) <
           std::tuple(ids[static_cast<size_t>(y.b)], y.port_b);
  });
  std::vector<int> next_nic(nodes_.size(), 0);
  for (const Cable& cable : cables) {
    FabricBuilder::Cable made{defaults.bandwidth, defaults.delay, defaults.buffer};
    if (cable.bandwidth > Bandwidth()) made.bandwidth = cable.bandwidth;
    auto a = static_cast<size_t>(cable.a);
    if (nodes_[a].kind == NodeKind::kHost) {
      if (nodes_[static_cast<size_t>(cable.b)].kind == NodeKind::kHost) {
        return absl::InvalidArgumentError(absl::StrCat(
            file, ": ", nodes_[a].name, " and ", nodes_[static_cast<size_t>(cable.b)].name,
            " are neighbours, and both are taken for hosts; say with --hosts which nodes are"));
      }
      made.nic = next_nic[a]++;
    }
    absl::Status status = builder.Connect(ids[a], ids[static_cast<size_t>(cable.b)], made).status();
    if (!status.ok()) return Annotate(status, file);
  }
  absl::StatusOr<Fabric> fabric = std::move(builder).Build();
  if (!fabric.ok()) return Annotate(fabric.status(), file);
  return fabric;
}

}  // namespace weft::topology
