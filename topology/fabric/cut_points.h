// Single points of failure of the network of switches: what leaves hosts without a way to others.
#ifndef WEFT_TOPOLOGY_FABRIC_CUT_POINTS_H_
#define WEFT_TOPOLOGY_FABRIC_CUT_POINTS_H_

#include <cstdint>
#include <vector>

#include "topology/fabric/fabric.h"

namespace weft::topology {

// A switch or a cable between switches whose loss splits the hosts' ports that are left into parts.
// Host ports are those that are up; a switch's own ones are lost with it and do not count.
struct CutPoint {
  NodeId node;   // of a switch; else
  LinkId cable;  // one direction of a cable
  int parts = 2;
  int64_t total = 0;    // host ports of the network that it holds together
  int64_t cut_off = 0;  // of a cable: those on its far side
};

// Articulation points and bridges (Hopcroft and Tarjan, "Algorithm 447", 1973) over links that are
// up: first switches, then cables.
std::vector<CutPoint> FindCutPoints(const Fabric& fabric);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_CUT_POINTS_H_
