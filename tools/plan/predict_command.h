// `weft-plan predict`: what a given order costs, its fullest cuts and links. `weft-plan compare`:
// two orders side by side, with a picture of their links' loads.
#ifndef WEFT_TOOLS_PLAN_PREDICT_COMMAND_H_
#define WEFT_TOOLS_PLAN_PREDICT_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/status.h"
#include "tools/plan/input.h"

namespace weft::plan {

class PredictCommand {
 public:
  explicit PredictCommand(CLI::App& app);
  bool chosen() const { return command_->parsed(); }
  absl::Status Run() const;

 private:
  CLI::App* command_;
  InputWords words_;
  std::string order_ = "as-allocated", svg_;
  int count_ = 5;
};

class CompareCommand {
 public:
  explicit CompareCommand(CLI::App& app);
  bool chosen() const { return command_->parsed(); }
  absl::Status Run() const;

 private:
  CLI::App* command_;
  InputWords words_;
  std::string a_, b_, svg_;
  int count_ = 5;
};

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_PREDICT_COMMAND_H_
