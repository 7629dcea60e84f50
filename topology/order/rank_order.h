// An order of ranks: which rank runs on which host's GPU, and the orders that a job has by default,
// to compare with.
//
// Neighbours in rings and trees follow from it: a group's members are in order of rank, and that
// order is what communicators make rings and trees of.
#ifndef WEFT_TOPOLOGY_ORDER_RANK_ORDER_H_
#define WEFT_TOPOLOGY_ORDER_RANK_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "topology/cost/cost_model.h"

namespace weft::topology {

struct RankOrder {
  RankBlocks blocks;
  std::vector<NodeId> host_of_slot;  // [slot]

  NodeId HostOf(int rank) const {
    return host_of_slot[static_cast<size_t>(blocks.slot_of[static_cast<size_t>(rank)])];
  }
  int GpuOf(int rank) const { return blocks.gpu_of[static_cast<size_t>(rank)]; }
  int world() const { return static_cast<int>(blocks.slot_of.size()); }
};

// Slot i on the i-th host: ranks as allocated.
Placement AsAllocated(size_t hosts);
Placement RandomPlacement(size_t hosts, uint64_t seed);
// Slurm's block distribution with topology/tree: switch by switch, by name within.
Placement BlockPlacement(const CutTree& tree, absl::Span<const NodeId> hosts);

RankOrder OrderOf(const CostModel& model, const Placement& placement);
// The placement that gives `order`, of the model's hosts, spare ones at the end. InvalidArgument: a
// host of it is not the model's, or their blocks differ.
absl::StatusOr<Placement> PlacementOf(const CostModel& model, const RankOrder& order);

// Hosts behind the same switches, level by level: [level][host] numbers the classes of hosts whose
// NICs have the same groups at that level and above. At level 0 hosts of a class are
// interchangeable.
std::vector<std::vector<int32_t>> HostClasses(const CutTree& tree, absl::Span<const NodeId> hosts);

// Hosts, given in the order of the switch tree (BlockPlacement), such that runs of `tile` hosts lie
// under one leaf where that is possible, else under one pod: leaves give what fills whole tiles,
// pods make tiles of what is left, and so on up. A tile of 1 changes nothing.
std::vector<int32_t> PackHosts(const std::vector<std::vector<int32_t>>& classes,
                               const std::vector<int32_t>& in_tree_order, int tile);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ORDER_RANK_ORDER_H_
