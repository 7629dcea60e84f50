#include "topology/fabric/import/import.h"
namespace weft::topology {
absl::StatusOr<Fabric> ImportLldp(absl::string_view, const std::string& name,
                                  const ImportDefaults&) {
  return absl::UnimplementedError(name);
}
}  // namespace weft::topology
