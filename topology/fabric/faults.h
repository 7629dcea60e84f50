// Cables by name, as fault lists of files and command lines write them.
//
//   leaf0>spine1          every cable between the two, whichever is named first
//   leaf0>spine1#0        the first of several
//   leaf[0-3]>spine[0-1]  each with each (name_list.h)
//   spine3                every cable of a switch or host; also a list
#ifndef WEFT_TOPOLOGY_FABRIC_FAULTS_H_
#define WEFT_TOPOLOGY_FABRIC_FAULTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

// One link of each cable, in no particular direction, each once. NotFound: no such node, or no
// cable between the two; InvalidArgument: not of the forms above.
absl::StatusOr<std::vector<LinkId>> CablesNamed(absl::string_view text, const Fabric& fabric);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_FAULTS_H_
