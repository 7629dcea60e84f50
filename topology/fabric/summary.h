// What a fabric is, in numbers: counts by tier, oversubscription, bisection bandwidth.
#ifndef WEFT_TOPOLOGY_FABRIC_SUMMARY_H_
#define WEFT_TOPOLOGY_FABRIC_SUMMARY_H_

#include <string>
#include <vector>

#include "base/units.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

struct TierSummary {
  int tier = 0;
  int switches = 0;
  // Sums over its switches and the cables that are up: to lower tiers and hosts, and to higher.
  Bandwidth down, up;
  int cables_down = 0, cables_up = 0;
  // down / up; 0 where nothing is above.
  double oversubscription = 0;
};

// Cables between two tiers with one nominal bandwidth.
struct CableSummary {
  int lower = 0, upper = 0;  // tiers; equal: between peers
  Bandwidth nominal;
  int count = 0;
  int down = 0;      // that are down
  int degraded = 0;  // that are up with less than their nominal bandwidth
};

struct FabricSummary {
  int hosts = 0, nics = 0, ports = 0, pods = 0, planes = 0;
  std::vector<TierSummary> tiers;  // from leaves up
  std::vector<CableSummary> cables;
  Bandwidth injection;  // of all hosts' ports that are up
  Bandwidth bisection;  // see BisectionBandwidth
};

FabricSummary Summarise(const Fabric& fabric);

// One way, the most that the first half of the hosts (by number) can send to the second half, were
// every path used as well as can be: a maximum flow over links that are up. Hosts forward nothing.
// 0 with less than two hosts. Other halves may have less; for what generators build, none has.
Bandwidth BisectionBandwidth(const Fabric& fabric);

// A few lines for people.
std::string ToText(const FabricSummary& summary);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_SUMMARY_H_
