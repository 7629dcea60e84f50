// What a group stands on: which of its ranks share a host, which hosts share a switch, and what
// their NICs and cables carry. Made from what every rank knows of every other since start-up, so
// that no two ranks of a group ever disagree. Never changes; may be shared by threads.
#ifndef WEFT_COLLECTIVES_GROUP_PLACE_H_
#define WEFT_COLLECTIVES_GROUP_PLACE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::collectives {

struct CollectiveSpec;

// Where one rank stands, as it tells the others. What is not known is empty, -1 or 0.
struct RankPlace {
  std::string host;         // equal names: one host, whose ranks share memory
  int numa = -1;            // the node that all its CPUs belong to
  std::string switch_name;  // that the host's first NIC is connected to
  int nics = 0;             // of the host
  // Bytes a second: of the host's slowest NIC, of all its NICs, and of all cables from its switch
  // to other switches.
  double nic_rate = 0, host_rate = 0, switch_rate = 0;
  std::string plan;  // names the flows of the rank's plan directory (planner/planned_peers.h)

  bool operator==(const RankPlace&) const = default;
};

// As one word without the host's name, for the exchange between ranks.
std::string ToWord(const RankPlace& place);
// DataLoss: it is none.
absl::StatusOr<RankPlace> RankPlaceFromWord(absl::string_view word);

// One of two binary trees over hosts, by host.
struct HostTree {
  std::vector<int> parent;  // -1: the root
  std::vector<std::vector<int>> children;
};

struct GroupPlace {
  // By group rank. Hosts are numbered by switch, in the order of the switches' lowest ranks, and
  // under a switch in the order of theirs.
  // With `planned`, by group rank the group ranks to which a plan directory has flows of it: where
  // these lead through all hosts and back, hosts are numbered in the order of that ring, if it
  // visits the hosts of a switch one after the other.
  explicit GroupPlace(absl::Span<const RankPlace> places,
                      absl::Span<const std::vector<int>> planned = {});
  // Hosts alone are known, by their names.
  explicit GroupPlace(absl::Span<const std::string> host_names);

  std::vector<std::vector<int>> hosts;  // by host: its ranks, ascending
  std::vector<int> host;                // by rank
  std::vector<int> local;               // by rank: its index among the ranks of its host
  int ranks_min = 0, ranks_max = 0;     // of a host
  std::vector<int> numa;                // by rank: its node, -1 where it is not known

  // All hosts in the order of a ring of planned flows, from host 0 on; empty: there is none.
  std::vector<int> planned_ring;
  // The double tree of planned flows, both ways along each edge, between the i-th ranks of both
  // hosts for each i below `ranks_min`: the one that `weft-plan paths` plans for trees, over the
  // hosts in the order of their lowest ranks. Two trees, or none. Flows from each host to all
  // others are an all-to-all's, whose ways are even only where it runs as a whole: no tree.
  std::vector<HostTree> planned_trees;

  std::vector<std::vector<int>> switches;  // by switch: its hosts; one, where any is not known
  std::vector<int> switch_of;              // by host
  int hosts_max = 0;                       // of a switch

  // The slowest host's figures; 0 where any is not known. `switch_rate`: see RankPlace.
  int nics = 0;
  double nic_rate = 0, host_rate = 0, switch_rate = 0;

  // The place of one rank a host: its hosts are the switches.
  GroupPlace OfSwitches() const;
};

// A ring through all of 0 .. n-1 along `next`, from 0 on; empty: there is none, or a bounded search
// has found none.
std::vector<int> RingAlong(absl::Span<const std::vector<int>> next);

// The spec's place; without one, all ranks on one host.
GroupPlace PlaceOf(const CollectiveSpec& spec);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_GROUP_PLACE_H_
