// What it costs to leave the ring that a plan directory has flows along. For costs only.
#ifndef WEFT_COLLECTIVES_ALGORITHMS_UNPLANNED_H_
#define WEFT_COLLECTIVES_ALGORITHMS_UNPLANNED_H_

#include "collectives/group_place.h"

namespace weft::collectives {

// How many times its even share the fullest of a switch's cables carries under messages between
// hosts that are no neighbours of the planned ring: nobody has planned their source ports, and what
// is planned keeps its cable. 2: as many flows as cables, by chance, put 1.5 (of two cables) to 2.6
// (of eight) on the fullest, in the mean (topology/cost/cost_model.h). 1 without such a ring, where
// all algorithms are hashed alike.
inline double UnplannedLoad(const GroupPlace* place) {
  return place == nullptr || place->planned_ring.empty() ? 1 : 2;
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_UNPLANNED_H_
