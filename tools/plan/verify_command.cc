#include "tools/plan/verify_command.h"

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "net/tcp/interface.h"
#include "net/tcp/planned_ways.h"
#include "tools/command_line.h"
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
  command_->add_option("--flows", flows_, "Flows to ask for, of each NIC and tier of switches")
      ->check(CLI::Range(1, 4096));
  command_->add_option("--limit", limit_, "How long it may take: 1s, 10s");
  command_
      ->add_option("--missed", missed_, "Chance that a tier whose paths have moved passes, at most")
      ->check(RealRange(1e-9, 1));
  command_->add_flag("--allow-silent", allow_silent_,
                     "Take switches that do not answer enough for verified, as long as no answer "
                     "differs");
  command_->footer(
      "Every tier of switches with a choice is asked about flows of every NIC of this host, which "
      "takes --limit at most.\nExit status: 0 when all take their planned paths; 1 when one does "
      "not, or the plan is of other files or hosts;\n2 for wrong usage; 3 when too few switches "
      "answered to say so, which are named.");
}

absl::Status VerifyCommand::Run(int& exit_status) const {
  topology::VerifyOptions options;
  options.flows = flows_;
  options.missed_max = missed_;
  if (!ParseFinite(limit_, &options.limit) || options.limit == absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--limit ", limit_, " is no duration; right are 1s and 10s"));
  }
  options.host = host_;
  if (host_.empty()) {
    WEFT_ASSIGN_OR_RETURN(options.host, OwnName(folder_));
  }
  absl::StatusOr<topology::Verified> verified = topology::VerifyPlan(folder_, options);
  if (absl::IsUnavailable(verified.status())) {
    absl::FPrintF(stderr, "weft-plan: not verified: %s\n", verified.status().message());
    exit_status = allow_silent_ ? EXIT_SUCCESS : kNotVerified;
    return absl::OkStatus();
  }
  if (!verified.ok()) return verified.status();
  absl::PrintF("%s: %s\n", options.host, verified->ToString());
  if (verified->HasMoved()) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder_, " is stale: paths have moved: ", verified->example,
                     "; run weft-topo learn-hash, then weft-plan paths again"));
  }
  if (verified->Unverified().empty() || allow_silent_) return absl::OkStatus();
  absl::FPrintF(stderr,
                "weft-plan: not verified: too few switches answered (--allow-silent takes them for "
                "verified; --limit %s may be too short)\n",
                limit_);
  exit_status = kNotVerified;
  return absl::OkStatus();
}

}  // namespace weft::plan
