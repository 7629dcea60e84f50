// A fabric as a tree of switch groups, which is how rank order and the cost model see it.
//
//   level 0   a NIC, with its ports
//   level 1   the leaves that NICs share (one leaf, or the two of a dual-ToR)
//   level k   what switches of tiers up to k join: a pod, a plane, at last everything
//
// What leaves a group does so over its cut: the cables to the tier above, among which switches hash
// flows. Two NICs talk through the up cuts of the source's groups and the down cuts of the
// target's, up to the level at which they meet. In a Clos fabric that is exactly the set of
// equal-cost paths, with all cables of a cut alike; where it is not (cables lost here or there,
// irregular fabrics), link_loads.h gives the exact loads.
//
// Tiers are counted from the hosts (a switch's distance to the nearest host), not taken from the
// file. Cables that are down do not exist. Immutable; thread-safe.
#ifndef WEFT_TOPOLOGY_COST_CUT_TREE_H_
#define WEFT_TOPOLOGY_COST_CUT_TREE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

class CutTree {
 public:
  // Refers to `fabric`, which must outlive it.
  explicit CutTree(const Fabric& fabric);

  // What crosses the border of a group, in one direction (both have the same cables).
  struct Cut {
    int level = 0;
    int links = 0;        // cables, 0: nothing is above
    double capacity = 0;  // bytes a second, of all together
    double slowest = 0;   // of the slowest cable
    double fastest = 0;
  };

  int levels() const { return levels_; }  // of a path: level 0 to levels() - 1
  int groups() const { return static_cast<int>(cuts_.size()); }
  const Cut& cut(int group) const { return cuts_[static_cast<size_t>(group)]; }

  // The groups of a NIC by level, [levels()]. A NIC whose ports are all down has -1 above level 0.
  absl::Span<const int32_t> Path(Endpoint endpoint) const {
    return {
        path_.data() + (host_begin_[endpoint.host.index()] + static_cast<size_t>(endpoint.nic)) *
                           static_cast<size_t>(levels_),
        static_cast<size_t>(levels_)};
  }
  // The level at which two NICs meet; 0: the same NIC; -1: never.
  int MeetingLevel(Endpoint a, Endpoint b) const;

  // One way from NIC to NIC that meet at `level`: cables and switches, without queues.
  absl::Duration Latency(int level) const { return latency_[static_cast<size_t>(level)]; }

  // "leaf3", "leaf0 and 1 more"; higher up "pod 2", or "under spine0" where the fabric names no
  // pod; of level 0, "h12 nic 3".
  std::string Name(int group) const;
  // The cables of the cut, links upwards.
  std::vector<LinkId> UpLinks(int group) const;
  // Sorts hosts so that those behind the same switches stand together, by their groups from the top
  // down, then by number.
  std::vector<NodeId> InTreeOrder(std::vector<NodeId> hosts) const;
  // Hosts with equal group numbers at `level` on all their NICs are of one class.
  std::vector<int32_t> Signature(NodeId host, int level) const;

  const Fabric& fabric() const { return fabric_; }

 private:
  void FindTiers();
  void FindGroups();
  void FindCuts();
  void FindLatencies();

  const Fabric& fabric_;
  int levels_ = 0;
  std::vector<int> tier_;            // [node]; hosts 0; -1: a switch without a host
  std::vector<size_t> host_begin_;   // [node] into endpoints_; only hosts' entries mean something
  std::vector<Endpoint> endpoints_;  // level-0 groups, by number
  std::vector<int32_t> path_;        // [endpoint * levels_ + level]
  std::vector<std::vector<int32_t>> group_of_switch_;  // [level][node], -1: none
  std::vector<Cut> cuts_;
  std::vector<absl::Duration> latency_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_COST_CUT_TREE_H_
