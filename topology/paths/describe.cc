#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "topology/paths/path_planner.h"

namespace weft::topology {
namespace {

std::string Milliseconds(double seconds) { return absl::StrFormat("%.4g", seconds * 1e3); }

}  // namespace

std::string Describe(const PathPlan& plan, const Fabric& fabric) {
  std::string out = absl::StrFormat("%6s %7s %3s %11s %11s %11s %11s %11s  %s\n", "phase", "flows",
                                    "QPs", "before ms", "after ms", "bound ms", "mean ms",
                                    "fluid ms", "worst link; what bounds it");
  for (const PhaseReport& phase : plan.phases) {
    absl::StrAppendFormat(
        &out, "%6d %7d %3d %11s %11s %11s %11s %11s  %s; %s\n", phase.phase, phase.flows,
        phase.subflows, Milliseconds(phase.before.worst), Milliseconds(phase.after.worst),
        Milliseconds(phase.bound), Milliseconds(phase.after.mean), Milliseconds(phase.bound_fluid),
        phase.after.worst_link == LinkId() ? "none" : fabric.Name(phase.after.worst_link),
        phase.bound_reason);
  }
  absl::StrAppendFormat(&out,
                        "all phases: %s ms before, %s ms after, %s ms at the least; %d ports tried",
                        Milliseconds(plan.seconds_before), Milliseconds(plan.seconds_after),
                        Milliseconds(plan.seconds_bound), plan.probes);
  if (plan.moved > 0) absl::StrAppendFormat(&out, "; %d subflows moved", plan.moved);
  if (plan.unmet > 0) {
    absl::StrAppendFormat(&out, "; %d subflows could not be put where they should be", plan.unmet);
  }
  return out + "\n";
}

}  // namespace weft::topology
