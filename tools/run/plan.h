// weft-run --plan: what a plan directory (weft-plan paths --out) says of the ranks of this host.
#ifndef WEFT_TOOLS_RUN_PLAN_H_
#define WEFT_TOOLS_RUN_PLAN_H_

#include "absl/status/statusor.h"
#include "tools/run/launcher.h"

namespace weft::run {

// The host is the one of paths.txt that has an address of this machine's; its ranks are those of
// ranks.txt. InvalidArgument: the plan is for other hosts, or for another number of ranks here or
// in all; errors name the file.
absl::StatusOr<PlannedHost> ReadPlan(const RunOptions& options);

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_PLAN_H_
