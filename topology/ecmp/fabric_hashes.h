// Which way a flow goes through a fabric: what every switch hashes, and the addresses of all NICs.
//
// The order of the equal next hops of a switch is the order of the links' ids (Routes::Next), or
// the one that SetOrder() gives.
#ifndef WEFT_TOPOLOGY_ECMP_FABRIC_HASHES_H_
#define WEFT_TOPOLOGY_ECMP_FABRIC_HASHES_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "topology/ecmp/five_tuple.h"
#include "topology/ecmp/switch_hash.h"
#include "topology/fabric/fabric.h"
#include "topology/fabric/routes.h"

namespace weft::topology {

// A node takes member `index` of `count` equal next hops, in the order in which it hashes over
// them.
struct HashChoice {
  NodeId at;
  uint32_t index = 0, count = 1;
};

// Refers to the fabric, which must outlive it. Const calls are thread-safe.
class FabricHashes {
 public:
  // Every node (a host hashes over the ports of a dual-ToR NIC) gets PerTierHash(tier, seed + id);
  // NIC n of the i-th host the address 10.0.0.0 + 16 i + n. InvalidArgument: a host has more than
  // 16 NICs, or there are more than a million hosts.
  static absl::StatusOr<FabricHashes> Create(const Fabric& fabric, uint32_t seed = 1);

  void SetHash(NodeId node, const SwitchHash& hash);
  void SetAddress(Endpoint endpoint, const IpAddress& address) { addresses_[endpoint] = address; }
  // Equal next hops of `node` that lead to an earlier one of `neighbours` stand before those that
  // lead to a later one; those to others come last, by id. A neighbour that stands there several
  // times has its links at these places, by id, and those beyond them at the last.
  void SetOrder(NodeId node, absl::Span<const NodeId> neighbours);
  const SwitchHash& hash(NodeId node) const { return hashes_[node.index()]; }
  const IpAddress& address(Endpoint endpoint) const;  // aborts: no such NIC

  // `next`: the equally near links, not empty. Returns an index into it. With a resilient hash the
  // group is taken to have been built with all links of the switch that lead to the
  // tier, pod and plane that those of `next` lead to; members that are not in `next` count as
  // failed, and flows on the others stay.
  size_t Choose(NodeId at, const FiveTuple& tuple, absl::Span<const LinkId> next) const;

  // Whether Choose() of `count` next hops is what the switch does (SwitchHash::Knows).
  bool Knows(NodeId at, const FiveTuple& tuple, size_t count) const {
    return hashes_[at.index()].Knows(tuple, count);
  }
  bool KnowsAll() const { return learned_.empty(); }
  // Source ports with which tables of switches know flows like `tuple`, ascending; each port stands
  // in one table at least.
  std::vector<uint16_t> TablePorts(const FiveTuple& tuple) const;

  FiveTuple Tuple(Endpoint source, Endpoint target, uint16_t source_port, uint16_t target_port,
                  uint8_t protocol) const;

  // The links that the flow takes. NotFound: unreachable.
  absl::StatusOr<std::vector<LinkId>> Path(const Routes& routes, Endpoint source, Endpoint target,
                                           const FiveTuple& tuple) const;

  // The choices that make the flow take `path`, of those nodes on it that have one.
  std::vector<HashChoice> Choices(const Routes& routes, Endpoint source, Endpoint target,
                                  absl::Span<const LinkId> path) const;

 private:
  explicit FabricHashes(const Fabric& fabric) : fabric_(&fabric) {}
  // The position in `next` of the member that the hash numbers `index`.
  size_t InOrder(NodeId at, absl::Span<const LinkId> next, size_t index) const;
  const Fabric* fabric_;
  std::vector<SwitchHash> hashes_;  // by node
  std::set<NodeId> learned_;        // nodes whose hash does not know all flows
  absl::flat_hash_map<Endpoint, IpAddress> addresses_;
  std::map<NodeId, std::map<LinkId, size_t>> orders_;  // rank of each link, where it is given
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_FABRIC_HASHES_H_
