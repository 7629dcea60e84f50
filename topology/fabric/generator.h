// Generators by name, as fabric files and command lines write them:
//
//   file          generate = { type = "leaf-spine", leaves = 8, hosts_per_leaf = 16, spines = 8 }
//   command line  leaf-spine:leaves=8,hosts_per_leaf=16,spines=8
//
// Each fills in a ClosSpec (clos.h). Names, defaults and meanings: GeneratorHelp().
#ifndef WEFT_TOPOLOGY_FABRIC_GENERATOR_H_
#define WEFT_TOPOLOGY_FABRIC_GENERATOR_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "topology/fabric/clos.h"

namespace weft::topology {

struct GeneratorSetting {
  std::string name;
  std::string value;
  std::string where;  // "fabric.toml:3", before the message of an error
};

// What generator `type` makes of the settings. An unknown type or name is answered with the
// nearest; a value that is not allowed with what would be. `where` is that of the type.
absl::StatusOr<ClosSpec> GeneratorSpec(absl::string_view type,
                                       absl::Span<const GeneratorSetting> settings,
                                       absl::string_view where);

// Whether a text has the command line's form: a generator's name, then nothing or a colon.
bool IsGenerator(absl::string_view text);
absl::StatusOr<Fabric> GenerateFabric(absl::string_view text);

std::vector<std::string> GeneratorNames();
// Every generator with its settings, defaults and meanings, for --help.
std::string GeneratorHelp();

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_GENERATOR_H_
