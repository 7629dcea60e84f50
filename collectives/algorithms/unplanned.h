// What it costs to leave the ring or the trees that a plan directory has flows along. For costs
// only.
#ifndef WEFT_COLLECTIVES_ALGORITHMS_UNPLANNED_H_
#define WEFT_COLLECTIVES_ALGORITHMS_UNPLANNED_H_

#include "collectives/group_place.h"

namespace weft::collectives {

// How many times its even share the fullest of a switch's cables carries under messages between
// hosts without planned flows: nobody has planned their source ports, and what is planned keeps its
// cable. 2: as many flows as cables, by chance, put 1.5 (of two cables) to 2.6 (of eight) on the
// fullest, in the mean (topology/cost/cost_model.h). 1 where neither a ring nor trees are planned,
// and all algorithms are hashed alike.
inline double UnplannedLoad(const GroupPlace* place) {
  const bool planned =
      place != nullptr && (!place->planned_ring.empty() || !place->planned_trees.empty());
  return planned ? 2 : 1;
}

// Likewise under messages round a ring of the hosts (RingOrder()), which may be planned.
inline double RingLoad(const GroupPlace* place) {
  return place == nullptr || !place->planned_ring.empty() ? 1 : UnplannedLoad(place);
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_UNPLANNED_H_
