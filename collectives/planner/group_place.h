// What a group stands on: which of its ranks share a host. Made from what every rank knows of every
// other since start-up, so that no two ranks of a group ever disagree. Never changes; may be shared
// by threads.
#ifndef WEFT_COLLECTIVES_PLANNER_GROUP_PLACE_H_
#define WEFT_COLLECTIVES_PLANNER_GROUP_PLACE_H_

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace weft::collectives {

struct CollectiveSpec;

struct GroupPlace {
  // `host_names` by group rank; equal names: one host. Hosts are numbered in the order of their
  // lowest ranks.
  explicit GroupPlace(absl::Span<const std::string> host_names);

  std::vector<std::vector<int>> hosts;  // by host: its ranks, ascending
  std::vector<int> host;                // by rank
  std::vector<int> local;               // by rank: its index among the ranks of its host
  int ranks_min = 0, ranks_max = 0;     // of a host
};

// The spec's place; without one, all ranks on one host.
GroupPlace PlaceOf(const CollectiveSpec& spec);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_PLANNER_GROUP_PLACE_H_
