// Which switches each subflow should visit, so that links are evenly loaded: stage by stage, first
// the switch behind the leaf, then the one behind that, by balanced colouring of leaves and of
// pods. Colours are switches that are interchangeable: they have the same neighbours above them.
//
// Sets Subflow::wanted; leaves it empty where the structure gives no colours (NICs with several
// ports), or where the colour's switch cannot be reached (a failed link).
#ifndef WEFT_TOPOLOGY_PATHS_TARGET_PATHS_H_
#define WEFT_TOPOLOGY_PATHS_TARGET_PATHS_H_

#include <vector>

#include "topology/paths/subflow.h"

namespace weft::topology {

void ChooseTargetPaths(const Routes& routes, std::vector<Subflow>& subflows);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_PATHS_TARGET_PATHS_H_
