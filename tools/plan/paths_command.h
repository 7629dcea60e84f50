// `weft-plan paths`: source ports for the flows of an order, such that they share cables evenly,
// with the loads before and after and the bound (topology/paths).
#ifndef WEFT_TOOLS_PLAN_PATHS_COMMAND_H_
#define WEFT_TOOLS_PLAN_PATHS_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/plan/input.h"

namespace weft::plan {

class PathsCommand {
 public:
  explicit PathsCommand(CLI::App& app);
  bool chosen() const { return command_->parsed(); }
  absl::Status Run() const;

 private:
  CLI::App* command_;
  InputWords words_;
  absl::Status WriteDirectory(const Input& input, const Candidate& candidate,
                              const std::string& text, const std::string& fabric,
                              const std::string& hashes, const std::string& traffic) const;

  std::string order_ = "planned", ports_, hash_, addresses_, out_, transport_ = "verbs", svg_;
  bool black_box_ = false, at_once_ = false;
  std::vector<std::string> only_;
  uint32_t hash_seed_ = 1;
  int subflows_ = 1;
};

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_PATHS_COMMAND_H_
