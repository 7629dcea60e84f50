// Forwarding tables of all switches, compact enough to stay in cache: for every switch and every
// group of destinations the set of links to choose from.
//
// Links have numbers of their own here, in the order of Fabric::LinksFrom of one node after the
// other, so that those that leave a switch or a NIC lie side by side and most sets are ranges.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_FORWARDING_H_
#define WEFT_TOPOLOGY_SIM_PACKET_FORWARDING_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "topology/fabric/fabric.h"
#include "topology/fabric/routes.h"

namespace weft::topology::packet {

class LinkNumbers {
 public:
  explicit LinkNumbers(const Fabric& fabric);
  uint32_t Of(LinkId link) const { return numbers_[link.index()]; }
  LinkId Id(uint32_t number) const { return ids_[number]; }

 private:
  std::vector<uint32_t> numbers_;  // [LinkId]
  std::vector<LinkId> ids_;        // [number]
};

class Forwarding {
 public:
  // Links to choose from: `first` and those that follow it, or, if not `is_range`, the numbers in
  // members() from `first` on.
  struct Set {
    uint32_t first = 0;
    uint16_t count = 0;
    bool is_range = true;
    uint8_t distance = 0;  // links between here and the switch that the target hangs on
  };

  Forwarding(const Fabric& fabric, const LinkNumbers& numbers);
  void Compute(const Routes& routes);

  // At the `at`-th of fabric.switches(), towards an endpoint by its index.
  Set Next(uint32_t at, uint32_t target) const {
    const Place& place = places_[target];
    if (place.at == at) return place.set;
    if (place.group == kNoGroup) return Set();
    Set set = table_[static_cast<size_t>(at) * group_count_ + place.group];
    return set.distance == kAttached ? Attached(at, target) : set;
  }
  // What Next() will read, in two stages.
  void Prefetch(uint32_t at, uint32_t target, int stage) const {
    const Place& place = places_[target];
    if (stage == 0) {
      __builtin_prefetch(&place);
    } else if (place.at != at && place.group != kNoGroup) {
      __builtin_prefetch(&table_[static_cast<size_t>(at) * group_count_ + place.group]);
    }
  }
  // The number of the `i`-th link of a set, i < set.count.
  uint32_t Member(Set set, uint32_t i) const {
    return set.is_range ? set.first + i : members_[set.first + i];
  }
  uint32_t switch_index(NodeId node) const { return switch_index_[node.index()]; }

 private:
  static constexpr uint8_t kAttached = 255;  // Set::distance: it depends on the target
  static constexpr uint32_t kNoGroup = ~0u, kNoSwitch = ~0u;
  // Where an endpoint is connected.
  struct Place {
    uint32_t group = kNoGroup;
    uint32_t at = kNoSwitch;  // that it hangs on, if it is one alone
    Set set;                  // from there
  };
  Set Attached(uint32_t at, uint32_t target) const;
  Set MakeSet(absl::Span<const LinkId> links, int distance);
  std::vector<uint8_t> Distances(const Routes& routes, uint32_t group) const;
  void FindGroups(const Routes& routes);

  const Fabric& fabric_;
  const LinkNumbers& numbers_;
  std::vector<uint32_t> switch_index_;  // [node]
  std::vector<Endpoint> endpoints_;
  std::vector<Place> places_;                             // [endpoint]
  std::vector<uint32_t> representative_;                  // [group]: an endpoint
  std::vector<std::vector<uint32_t>> attached_switches_;  // [group]
  uint32_t group_count_ = 0;
  std::vector<Set> table_;  // [switch * groups + group]
  std::vector<uint32_t> members_;
  struct Port {
    uint32_t at;
    Set set;
  };
  std::vector<uint32_t> ports_begin_;  // [endpoint + 1] into ports_
  std::vector<Port> ports_;
};

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_FORWARDING_H_
