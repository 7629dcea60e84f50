// What several rules say and ask.
#include "tools/observe/rules.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft::observe {

std::string Seconds(int64_t ns) {
  return absl::StrFormat("%.1f s", static_cast<double>(std::max<int64_t>(ns, 0)) * 1e-9);
}

std::vector<int> Waiting(const JobView& view, const std::vector<int>& culprits) {
  std::vector<int> victims;
  for (const auto& [number, rank] : view.ranks) {
    const bool is_culprit = std::find(culprits.begin(), culprits.end(), number) != culprits.end();
    if (rank.blocked() && !is_culprit) victims.push_back(number);
  }
  return victims;
}

std::string PhaseText(const JobView& view, const RankView& rank) {
  if (rank.process.phase.empty()) return "in no phase of a step";
  return absl::StrCat("in phase ", rank.process.phase, " for ",
                      Seconds(view.now_ns - rank.process.phase_since_ns));
}

// Whether anybody waits for `rank` in a way that only that rank can end.
bool AnyWaitsFor(const std::vector<WaitsFor>& graph, int rank) {
  std::set<const void*> seen;
  return std::any_of(graph.begin(), graph.end(), [&](const WaitsFor& waits) {
    return seen.insert(waits.ranks.get()).second && waits.IsFor(rank);
  });
}

}  // namespace weft::observe
