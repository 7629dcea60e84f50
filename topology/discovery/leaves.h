// Leaves of a fabric, and how many routers lie between two of them: what all pairs of hosts, LLDP
// and the first routers of flows say together, or why it cannot be true together.
//
// Pure: no I/O, no clock. A `Leaves` does not change once it is found; any thread may read it.
#ifndef WEFT_TOPOLOGY_DISCOVERY_LEAVES_H_
#define WEFT_TOPOLOGY_DISCOVERY_LEAVES_H_

#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/discovery/seen_fabric.h"

namespace weft::topology {

// Numbers of two leaves.
using LeafPair = std::pair<int, int>;

class Leaves {
 public:
  // `seen` outlives the result. FailedPrecondition: what was seen contradicts itself; names one or
  // two hosts without each of which all others agree, where there are such hosts.
  static absl::StatusOr<Leaves> Find(const SeenFabric& seen);

  int count() const { return count_; }
  const std::map<SeenNic, int>& of_nics() const { return of_nics_; }
  int Of(SeenNic nic) const { return of_nics_.at(nic); }

  // Routers between hosts under two leaves, the leaves included; 0: no such hosts heard each other.
  int Routers(int a, int b) const;
  size_t RoutersOf(const SeenFlow& flow) const;

  // The name of a host under the leaf, for people.
  std::string ExampleOf(int leaf) const;

  // Pairs of NICs of which one did not hear the other.
  int unheard() const { return unheard_; }

 private:
  explicit Leaves(const SeenFabric& seen) : seen_(&seen) {}

  // Fills in the fields. An error: what all hosts say of distances and leaves cannot be true
  // together.
  absl::Status Agree();
  absl::Status FindLeaves();
  absl::Status CheckDistances();
  absl::Status CheckFirstRouters() const;
  static absl::Status NameLiars(const SeenFabric& seen, const absl::Status& contradiction);
  std::string NeighborText(SeenNic nic) const;

  const SeenFabric* seen_;
  std::map<SeenNic, int> of_nics_;
  int count_ = 0, unheard_ = 0;
  std::map<LeafPair, int> distance_;  // routers, by leaves, the lower first
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_LEAVES_H_
