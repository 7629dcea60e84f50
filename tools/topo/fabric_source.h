// The fabric that a subcommand works on: its name on the command line and the options that all
// share.
#ifndef WEFT_TOOLS_TOPO_FABRIC_SOURCE_H_
#define WEFT_TOOLS_TOPO_FABRIC_SOURCE_H_

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/fabric/fabric.h"

namespace weft::topo {

class FabricSource {
 public:
  // Adds the argument FABRIC, --format, --down and what formats do not state to `command`.
  explicit FabricSource(CLI::App& command);

  absl::StatusOr<topology::Fabric> Load() const;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::string format_ = "auto";
  std::string bandwidth_ = "400Gbps", delay_ = "500ns", buffer_ = "0", latency_ = "0ns";
  double oversubscription_ = 1;
  std::string hosts_, ignore_;
  std::vector<std::string> down_;
};

// For the footer of --help: formats and generators.
std::string FabricHelp();

// "-": standard output.
absl::Status WriteJsonFile(const std::string& path, const nlohmann::ordered_json& value);

}  // namespace weft::topo

#endif  // WEFT_TOOLS_TOPO_FABRIC_SOURCE_H_
