#include "tools/plan/verify_command.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "net/tcp/interface.h"
#include "net/tcp/planned_ways.h"
#include "topology/discovery/verify.h"

namespace weft::plan {
namespace {

// The host of the plan that has an address of this machine's.
absl::StatusOr<std::string> OwnName(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(auto plan, topology::ConnectionPlan::Load(folder));
  WEFT_ASSIGN_OR_RETURN(std::vector<net::Interface> interfaces, net::ListInterfaces());
  for (const net::Interface& interface : interfaces) {
    if (auto host = plan->HostOf(net::ToIpAddress(interface.address)); host.ok()) return *host;
  }
  return absl::FailedPreconditionError(
      absl::StrCat(plan->origin(), " is a plan for other hosts: it names no address of this one"));
}

}  // namespace

VerifyCommand::VerifyCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "verify", "Whether packets of this host still take the paths of a plan directory")) {
  command_->option_defaults()->always_capture_default();
  command_->add_option("FOLDER", folder_, "The plan directory")->required();
  command_->add_option("--host", host_, "This host's name there; empty: by its addresses");
  command_->add_option("--flows", flows_, "Flows to ask for")->check(CLI::Range(1, 4096));
  command_->add_option("--limit", limit_, "How long it may take: 1s, 10s");
  command_->footer(
      "Exit status: 0 when all flows that were answered take their planned paths; 1 "
      "when one does not.");
}

absl::Status VerifyCommand::Run() const {
  topology::VerifyOptions options;
  options.flows = flows_;
  if (!absl::ParseDuration(limit_, &options.limit) || options.limit <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--limit ", limit_, " is no duration; right are 1s and 10s"));
  }
  options.host = host_;
  if (host_.empty()) {
    WEFT_ASSIGN_OR_RETURN(options.host, OwnName(folder_));
  }
  WEFT_ASSIGN_OR_RETURN(topology::Verified verified, topology::VerifyPlan(folder_, options));
  absl::PrintF("%s: %s\n", options.host, verified.ToString());
  if (!verified.HasMoved()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      folder_,
      " is stale: paths have moved; run weft-topo learn-hash, then weft-plan paths again"));
}

}  // namespace weft::plan
