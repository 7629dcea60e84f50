// weft-run --plan: what a plan directory (weft-plan paths --out) says of the ranks of this host.
#ifndef WEFT_TOOLS_RUN_PLAN_H_
#define WEFT_TOOLS_RUN_PLAN_H_

#include "absl/status/statusor.h"
#include "tools/run/launcher.h"

namespace weft::run {

// The host is the one of paths.txt that has an address of this machine's; its ranks are those of
// ranks.txt. FailedPrecondition: the plan is refused, as it is for other hosts, for another number
// of ranks here or in all, or stale; or, where that is to be known (plan_unverified is "refuse"),
// too few switches answered to tell. InvalidArgument: a file of it says what it cannot. Errors name
// the file. Others: of the system, or DeadlineExceeded, for it was not verified in time.
absl::StatusOr<PlannedHost> ReadPlan(const RunOptions& options);

// The exit status of a launcher whose plan was refused.
inline constexpr int kPlanRefused = 3;

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_PLAN_H_
