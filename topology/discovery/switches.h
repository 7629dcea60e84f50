// The switches between leaves, from the names that flows give to the routers that they passed.
//
// How it is told which routers are one: every probe names the routers that it passed, each by some
// address of it. Recorded ones are of the interface by which the probe left, answers to a time to
// live that ran out mostly of the one by which the answer leaves. So one router has many names:
//   1. names that one probe gives at one position are of one router;
//   2. an interface between two switches leads to one router: whatever follows it is one. Believed
//      only where, between two leaves, such interfaces and what follows them are as many, so that
//      names that a switch has for all its interfaces do not make all its neighbours one.
//
// Pure: no I/O, no clock. `Switches` do not change once they are found; any thread may read them.
#ifndef WEFT_TOPOLOGY_DISCOVERY_SWITCHES_H_
#define WEFT_TOPOLOGY_DISCOVERY_SWITCHES_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/discovery/leaves.h"
#include "topology/discovery/seen_fabric.h"

namespace weft::topology {

// Switches go by numbers, which mean nothing else.
class Switches {
 public:
  struct Switch {
    int tier = 0;                    // 2: spines, above the leaves; 3: cores
    std::string name;                // "spine0", "core3": in the order of the routers' own names
    std::vector<std::string> names;  // that flows and loads have for it, sorted
  };

  // FailedPrecondition: a router is in two tiers.
  static absl::StatusOr<Switches> Find(const SeenFabric& seen, const Leaves& leaves);

  // Spines first, then in the order of their names.
  const std::vector<int>& numbers() const { return numbers_; }
  const Switch& at(int number) const { return switches_.at(number); }

  // The switch at a position of the flow between the two leaves (0 is the source's leaf); -1: the
  // flow does not tell.
  int SwitchAt(const SeenFlow& flow, size_t position) const;

  // Whether flows or loads have this name for the switch.
  bool Has(int number, const std::string& name) const;

 private:
  // Names and orders those whose tiers are known.
  void Name(const SeenFabric& seen);

  std::map<std::string, int> number_of_;  // by the names of routers
  std::map<int, Switch> switches_;
  std::vector<int> numbers_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_SWITCHES_H_
