// The pairs of ranks between which the job's plan directory has flows (setting `plan`), so that
// rings and trees go where ports are planned.
//
// Every rank reads them from its own copy of the directory. They have a name, which each rank tells
// the others with its RankPlace: a group goes by them only where all its ranks have told the same,
// so that two ranks never disagree.
#ifndef WEFT_COLLECTIVES_PLANNER_PLANNED_PEERS_H_
#define WEFT_COLLECTIVES_PLANNER_PLANNED_PEERS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/settings.h"
#include "collectives/group_place.h"
#include "topology/plan/connection_plan.h"

namespace weft::collectives::planner {

class PlannedPeers {
 public:
  PlannedPeers() = default;  // nothing is planned
  explicit PlannedPeers(const topology::ConnectionPlanText& plan);
  // Errors are ConnectionPlan::Load's.
  static absl::StatusOr<PlannedPeers> Load(const Settings& settings);

  const std::string& name() const { return name_; }  // empty: no flows between ranks
  // By rank of the group `ranks`: its group ranks to which there are flows of it. Empty where
  // `places`, the members', do not all name this plan.
  std::vector<std::vector<int>> Within(absl::Span<const Rank> ranks,
                                       absl::Span<const RankPlace> places) const;

 private:
  std::string name_;
  std::map<int, std::vector<int>> peers_;  // of ranks of the job, ascending
};

}  // namespace weft::collectives::planner

#endif  // WEFT_COLLECTIVES_PLANNER_PLANNED_PEERS_H_
