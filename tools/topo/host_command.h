// `weft-topo host`: this host's devices, how far they are apart, who should use which, and what is
// odd about it; or another's, from a file.
#ifndef WEFT_TOOLS_TOPO_HOST_COMMAND_H_
#define WEFT_TOOLS_TOPO_HOST_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace weft::topo {

class HostCommand {
 public:
  // Adds the subcommand `host` to `app`. The object must outlive the parse.
  explicit HostCommand(CLI::App& app);

  // Whether the command line named it.
  bool chosen() const { return command_->parsed(); }

  // The exit status: with --strict 1 when something odd was found, else 0.
  absl::StatusOr<int> Run() const;

 private:
  CLI::App* command_;
  std::string hwloc_file_, nccl_file_, synthetic_;    // where the machine comes from
  std::string json_file_, svg_file_, nccl_out_file_;  // "-" for JSON: standard output
  int processes_ = 0;
  bool strict_ = false;
};

}  // namespace weft::topo

#endif  // WEFT_TOOLS_TOPO_HOST_COMMAND_H_
