// `weft-plan verify`: whether the paths of a plan are still those that packets of this host take.
#ifndef WEFT_TOOLS_PLAN_VERIFY_COMMAND_H_
#define WEFT_TOOLS_PLAN_VERIFY_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/status.h"

namespace weft::plan {

class VerifyCommand {
 public:
  explicit VerifyCommand(CLI::App& app);
  bool chosen() const { return command_->parsed(); }
  static constexpr int kNotVerified = 3;  // exit status
  // Gives the exit status. FailedPrecondition: they are not.
  absl::Status Run(int& exit_status) const;

 private:
  CLI::App* command_;
  std::string folder_, host_, limit_ = "1s";
  int flows_ = 16;
  double missed_ = 0.02;
  bool allow_silent_ = false;
};

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_VERIFY_COMMAND_H_
