// Any fabric from a name on the command line: a file of one of the formats below, told apart by
// what is in it, or a generator with its settings (generator.h): "leaf-spine:leaves=4,spines=2".
#ifndef WEFT_TOPOLOGY_FABRIC_LOAD_H_
#define WEFT_TOPOLOGY_FABRIC_LOAD_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/fabric/fabric.h"
#include "topology/fabric/import/import.h"

namespace weft::topology {

enum class FabricFormat {
  kAuto,
  kToml,   // docs/fabric-format.md
  kHtsim,  // the rest: import/import.h
  kSlurm,
  kHosts,
  kLldp,
  kIbnetdiscover,
};

// "auto", "toml", "htsim", "slurm", "hosts", "lldp", "ibnetdiscover".
absl::StatusOr<FabricFormat> ParseFabricFormat(absl::string_view name);
absl::string_view NameOf(FabricFormat format);
std::vector<std::string> FabricFormatNames();

struct LoadOptions {
  FabricFormat format = FabricFormat::kAuto;
  ImportDefaults defaults;
};

// Which format a text has. kAuto: none that is known.
FabricFormat DetectFormat(absl::string_view text);

// `name`: the file's, or "-" for standard input. Errors name file, line and reason. A file may have
// up to 256 MiB.
absl::StatusOr<Fabric> LoadFabric(const std::string& name, const LoadOptions& options = {});
// The same of a text that is in memory.
absl::StatusOr<Fabric> ParseFabric(absl::string_view text, const std::string& name,
                                   const LoadOptions& options = {});

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_LOAD_H_
