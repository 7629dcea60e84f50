// Checks of a fabric: parts that cannot reach each other, single points of failure, switches and
// hosts that differ from others of their kind, speeds that do not match.
#ifndef WEFT_TOPOLOGY_FABRIC_CHECK_H_
#define WEFT_TOPOLOGY_FABRIC_CHECK_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

enum class FindingLevel {
  kNote,     // as built, and worth knowing
  kWarning,  // likely a fault or a mistake
  kError,    // hosts cannot reach each other
};

struct FabricFinding {
  FindingLevel level = FindingLevel::kNote;
  std::string kind;  // "unreachable", "single-point", "asymmetry", "speed", "down", ...
  std::string text;  // one sentence that names the nodes
};

absl::string_view NameOf(FindingLevel level);

// The worst first. Of one kind at most ten are listed, then how many more there are.
std::vector<FabricFinding> CheckFabric(const Fabric& fabric);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_CHECK_H_
