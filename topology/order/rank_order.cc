#include "topology/order/rank_order.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"

namespace weft::topology {
namespace {

// `hosts` split by their class at `level`, classes in order of their first host.
std::vector<std::vector<int32_t>> SplitByClass(const std::vector<int32_t>& class_of,
                                               const std::vector<int32_t>& hosts) {
  std::vector<std::vector<int32_t>> parts;
  absl::flat_hash_map<int32_t, size_t> part_of;
  for (int32_t host : hosts) {
    auto [at, is_new] = part_of.try_emplace(class_of[static_cast<size_t>(host)], parts.size());
    if (is_new) parts.emplace_back();
    parts[at->second].push_back(host);
  }
  return parts;
}

struct Packed {
  std::vector<int32_t> aligned;  // whole tiles
  std::vector<int32_t> rest;     // less than one
};

Packed PackLevel(const std::vector<std::vector<int32_t>>& classes, size_t level,
                 const std::vector<int32_t>& hosts, size_t tile) {
  Packed packed;
  std::vector<std::vector<int32_t>> left;
  if (level == 0) {
    left.push_back(hosts);
  } else {
    for (const std::vector<int32_t>& part : SplitByClass(classes[level - 1], hosts)) {
      Packed below = PackLevel(classes, level - 1, part, tile);
      packed.aligned.insert(packed.aligned.end(), below.aligned.begin(), below.aligned.end());
      left.push_back(std::move(below.rest));
    }
    // Tiles of leftovers should touch few switches: the largest leftovers go together.
    if (tile > 1) {
      std::stable_sort(left.begin(), left.end(),
                       [](const auto& a, const auto& b) { return a.size() > b.size(); });
    }
  }
  std::vector<int32_t> pool;
  for (const std::vector<int32_t>& part : left) pool.insert(pool.end(), part.begin(), part.end());
  auto whole = static_cast<ptrdiff_t>(pool.size() / tile * tile);
  packed.aligned.insert(packed.aligned.end(), pool.begin(), pool.begin() + whole);
  packed.rest.assign(pool.begin() + whole, pool.end());
  return packed;
}

}  // namespace

Placement AsAllocated(size_t hosts) {
  Placement placement(hosts);
  std::iota(placement.begin(), placement.end(), 0);
  return placement;
}

Placement RandomPlacement(size_t hosts, uint64_t seed) {
  Placement placement = AsAllocated(hosts);
  Random random(seed);
  random.Shuffle(placement);
  return placement;
}

Placement BlockPlacement(const CutTree& tree, absl::Span<const NodeId> hosts) {
  absl::flat_hash_map<NodeId, int32_t> index;
  for (size_t i = 0; i < hosts.size(); ++i) index[hosts[i]] = static_cast<int32_t>(i);
  Placement placement;
  for (NodeId host : tree.InTreeOrder({hosts.begin(), hosts.end()})) {
    placement.push_back(index[host]);
  }
  return placement;
}

RankOrder OrderOf(const CostModel& model, const Placement& placement) {
  RankOrder order{model.blocks(), {}};
  for (int slot = 0; slot < model.blocks().slots; ++slot) {
    order.host_of_slot.push_back(
        model.hosts()[static_cast<size_t>(placement[static_cast<size_t>(slot)])]);
  }
  return order;
}

absl::StatusOr<Placement> PlacementOf(const CostModel& model, const RankOrder& order) {
  if (order.blocks.slot_of != model.blocks().slot_of ||
      order.blocks.gpu_of != model.blocks().gpu_of) {
    return absl::InvalidArgumentError("the order groups ranks on hosts otherwise than the job");
  }
  absl::flat_hash_map<NodeId, int32_t> index;
  for (size_t i = 0; i < model.hosts().size(); ++i) {
    index[model.hosts()[i]] = static_cast<int32_t>(i);
  }
  Placement placement;
  for (NodeId host : order.host_of_slot) {
    auto at = index.find(host);
    if (at == index.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("host ", model.tree().fabric().node(host).name,
                       " of the order is not in the allocation, or twice in the order"));
    }
    placement.push_back(at->second);
    index.erase(at);
  }
  std::vector<int32_t> spare;
  for (const auto& [host, i] : index) spare.push_back(i);
  std::sort(spare.begin(), spare.end());
  placement.insert(placement.end(), spare.begin(), spare.end());
  return placement;
}

std::vector<std::vector<int32_t>> HostClasses(const CutTree& tree, absl::Span<const NodeId> hosts) {
  auto levels = static_cast<size_t>(tree.levels());
  std::vector<std::vector<int32_t>> classes(levels, std::vector<int32_t>(hosts.size()));
  std::vector<std::vector<double>> keys(hosts.size());
  for (size_t level = levels; level-- > 0;) {
    std::map<std::vector<double>, int32_t> number;
    for (size_t i = 0; i < hosts.size(); ++i) {
      if (level > 0) {
        for (int32_t group : tree.Signature(hosts[i], static_cast<int>(level))) {
          keys[i].push_back(group);
        }
      } else {
        for (int32_t nic : tree.Signature(hosts[i], 0)) {
          const CutTree::Cut& cut = tree.cut(nic);
          keys[i].insert(keys[i].end(), {1.0 * cut.links, cut.capacity, cut.slowest});
        }
      }
      auto next = static_cast<int32_t>(number.size());
      classes[level][i] = number.try_emplace(keys[i], next).first->second;
    }
  }
  return classes;
}

std::vector<int32_t> PackHosts(const std::vector<std::vector<int32_t>>& classes,
                               const std::vector<int32_t>& in_tree_order, int tile) {
  Packed packed =
      PackLevel(classes, classes.size(), in_tree_order, static_cast<size_t>(std::max(tile, 1)));
  packed.aligned.insert(packed.aligned.end(), packed.rest.begin(), packed.rest.end());
  return packed.aligned;
}

}  // namespace weft::topology
