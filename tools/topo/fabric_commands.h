// The subcommands of weft-topo that are about a fabric: show, check, distance, convert.
#ifndef WEFT_TOOLS_TOPO_FABRIC_COMMANDS_H_
#define WEFT_TOOLS_TOPO_FABRIC_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "tools/topo/fabric_source.h"

namespace weft::topo {

// Each adds its subcommand to `app` when it is made, and must outlive the parse. Run() returns the
// exit status.

class ShowCommand {
 public:
  explicit ShowCommand(CLI::App& app);
  bool chosen() const { return command_->parsed(); }
  absl::StatusOr<int> Run() const;

 private:
  CLI::App* command_;
  FabricSource source_;
  std::string svg_file_, dot_file_, json_file_;
  int lines_ = 40;
  bool routes_ = false;
};

class CheckCommand {
 public:
  explicit CheckCommand(CLI::App& app);
  bool chosen() const { return command_->parsed(); }
  absl::StatusOr<int> Run() const;  // 1: a warning or an error was found

 private:
  CLI::App* command_;
  FabricSource source_;
  std::string json_file_;
};

class DistanceCommand {
 public:
  explicit DistanceCommand(CLI::App& app);
  bool chosen() const { return command_->parsed(); }
  absl::StatusOr<int> Run() const;  // 1: there is no way

 private:
  CLI::App* command_;
  FabricSource source_;
  std::string from_, to_, json_file_;
  int ranks_per_host_ = 0;
};

class ConvertCommand {
 public:
  explicit ConvertCommand(CLI::App& app);
  bool chosen() const { return command_->parsed(); }
  absl::StatusOr<int> Run() const;

 private:
  CLI::App* command_;
  FabricSource source_;
  std::string out_;
};

}  // namespace weft::topo

#endif  // WEFT_TOOLS_TOPO_FABRIC_COMMANDS_H_
