// `weft-plan order`: plans the order of a job's ranks, says why, and writes it for launchers.
#ifndef WEFT_TOOLS_PLAN_ORDER_COMMAND_H_
#define WEFT_TOOLS_PLAN_ORDER_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/plan/input.h"

namespace weft::plan {

class OrderCommand {
 public:
  // Adds the subcommand to `app`. The object must outlive the parse.
  explicit OrderCommand(CLI::App& app);
  bool chosen() const { return command_->parsed(); }
  absl::Status Run() const;

 private:
  CLI::App* command_;
  InputWords words_;
  std::vector<std::string> against_ = {"as-allocated", "random", "block"};
  std::string out_;
  int cores_per_rank_ = 1;
  std::string nic_prefix_ = "mlx5_";
};

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_ORDER_COMMAND_H_
