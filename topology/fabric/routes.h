// Equal-cost shortest paths of a fabric, as its switches would compute them: from every node
// towards every destination, the links that lie on a shortest path over links that are up.
//
// Destinations that hang on the same switches share their table, and equal sets of links are stored
// once, so that 12,288 NICs behind 384 leaves take a few megabytes.
//
// Const calls are thread-safe. Spans stay valid until the next Update().
#ifndef WEFT_TOPOLOGY_FABRIC_ROUTES_H_
#define WEFT_TOPOLOGY_FABRIC_ROUTES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

class Routes {
 public:
  // Refers to `fabric`, which must outlive it.
  explicit Routes(const Fabric& fabric);
  // ResourceExhausted: the tables of this fabric would take more than kMaxEntries, as where each of
  // 100,000 hosts hangs on a switch of its own. Ask before routing a fabric from
  // a file that somebody else has written.
  static absl::Status Feasible(const Fabric& fabric);
  static constexpr int64_t kMaxEntries = int64_t{1} << 27;  // of 4 bytes

  // Links out of switch `at` on shortest paths to `target`, in order of id: what a switch hashes
  // over. Empty: `target` cannot be reached from here, or `at` is a host, which forwards nothing.
  absl::Span<const LinkId> Next(NodeId at, Endpoint target) const;
  // The same at the source: those ports of its NIC that are nearest. Empty on one host.
  absl::Span<const LinkId> First(Endpoint source, Endpoint target) const;

  // Links from source to target; -1: unreachable; 0 on one host.
  int Hops(Endpoint source, Endpoint target) const;
  // Number of different shortest paths. May be large; saturates.
  int64_t Paths(Endpoint source, Endpoint target) const;
  // The path that `choice` takes: called with the node, the links that are equally near, and must
  // return an index into them. NotFound: unreachable.
  template <typename Choice>
  absl::StatusOr<std::vector<LinkId>> Path(Endpoint source, Endpoint target, Choice choice) const {
    std::vector<LinkId> path;
    absl::Span<const LinkId> next = First(source, target);
    NodeId at = source.host;
    while (at != target.host) {
      if (next.empty()) return Unreachable(source, target);
      LinkId link = next[choice(at, next)];
      path.push_back(link);
      at = fabric_.link(link).target;
      if (at != target.host) next = Next(at, target);
    }
    return path;
  }

  // After links changed: recomputes what they touch. Gives the same as a new Routes.
  void Update();

  const Fabric& fabric() const { return fabric_; }
  Bytes memory() const;  // that the tables take

 private:
  // Index of a set in sets_. A set is one switch's choice towards one group at one distance.
  using SetId = uint32_t;
  static constexpr SetId kAttached = 0;     // the destination hangs on this switch: see last_
  static constexpr SetId kUnreachable = 1;  // empty
  struct Set {
    uint32_t begin = 0;  // in set_links_
    uint32_t size = 0;
    int32_t distance = 0;  // links to the nearest switch that the destination hangs on; -1: no way
  };
  using SetKey = std::pair<int32_t, std::vector<LinkId>>;  // distance and links
  struct Neighbor {
    LinkId link;
    int32_t at = -1;  // index of the switch at its far end
  };
  // The destinations that hang on exactly these switches.
  struct Group {
    std::vector<NodeId> switches;
    std::vector<SetId> table;  // [switch]
  };

  void Build();
  void PlaceEndpoint(Endpoint endpoint);
  void ComputeGroup(Group& group);
  bool Patch(Group& group, absl::Span<const LinkId> changed);
  template <typename DistanceOf>
  SetId NextSet(int32_t at, int32_t distance, SetId hint, DistanceOf distance_of);
  void FindScatteredPorts();
  absl::Span<const Neighbor> NeighborsOf(int32_t at) const;
  int32_t Distance(const Group& group, NodeId at) const;
  uint64_t NearestPorts(Endpoint source, const Group& group) const;
  const Group* GroupOf(Endpoint target) const;  // null: all its ports are down
  absl::Status Unreachable(Endpoint source, Endpoint target) const;

  const Fabric& fabric_;
  uint64_t generation_ = 0;            // of the fabric when all this was computed
  std::vector<char> up_;               // [link] likewise
  std::vector<int32_t> switch_index_;  // [node]; -1: a host
  std::vector<Neighbor> neighbors_;    // switch to switch, whether up or not
  std::vector<uint32_t> neighbors_begin_;
  std::vector<Group> groups_;
  absl::flat_hash_map<std::vector<NodeId>, int32_t> group_of_;
  std::vector<int32_t> endpoint_group_;  // [endpoint]; -1: all its ports are down
  // The last hops to each NIC that are up, by switch, then id; padded with LinkId() to its ports.
  std::vector<LinkId> last_;
  std::vector<uint32_t> last_begin_;  // [endpoint + 1]
  std::vector<Set> sets_;
  std::vector<LinkId> set_links_;
  absl::flat_hash_map<SetKey, SetId> set_of_;
  // First() of NICs whose nearest ports are not neighbours: by endpoint and set of ports.
  absl::flat_hash_map<std::pair<int32_t, uint64_t>, std::vector<LinkId>> scattered_;
  SetKey key_;                     // scratch of NextSet
  std::vector<int32_t> distance_;  // scratch of ComputeGroup
  size_t size_when_built_ = 0;     // of set_links_ and groups_: grown far beyond, all is built anew
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_ROUTES_H_
