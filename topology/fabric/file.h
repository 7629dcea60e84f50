// Fabric files in TOML: docs/fabric-format.md. What is written is read back as the same fabric:
// ReadFabric(WriteFabric(f)) has the nodes, links, numbers and faults of f in the same order.
#ifndef WEFT_TOPOLOGY_FABRIC_FILE_H_
#define WEFT_TOPOLOGY_FABRIC_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

// Errors are "<name>:<line>: ...": what is wrong, and what would be right; an unknown key is
// answered with the nearest. `name` is that of the file.
absl::StatusOr<Fabric> ReadFabric(absl::string_view text, const std::string& name);

std::string WriteFabric(const Fabric& fabric);

// Whether both have the same nodes and links, bit for bit, faults included.
bool SameFabric(const Fabric& a, const Fabric& b);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_FILE_H_
