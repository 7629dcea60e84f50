// What a fabric makes of a collective's plans: their schedules, run by the simulator, for the
// planner's predictions to be held against.
//
// Simulated are the links of the fabric, with every message of the schedule on them. What a fabric
// does not know comes from the table of costs: a message's latency in software and its time on the
// cores at both ends, which the ranks of a host share where they outnumber them, and messages and
// copies inside a host. These take no core's time here, memory is not shared, and reductions on
// arrival are free: where ranks outnumber cores, the prediction is the better one.
//
// Not thread-safe.
#ifndef WEFT_TOOLS_PLAN_COLLECTIVE_SIMULATION_H_
#define WEFT_TOOLS_PLAN_COLLECTIVE_SIMULATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/planner/cost.h"
#include "collectives/planner/planner.h"
#include "collectives/schedule.h"
#include "collectives/simulate/simulate.h"
#include "topology/fabric/fabric.h"
#include "topology/sim/simulation.h"

namespace weft::plan {

enum class SimulationLevel : uint8_t { kFlow, kPacket };

class CollectiveSimulation {
 public:
  // `ranks`: the endpoint of each, of this fabric. `across_latency`: of a message to another host,
  // without what the fabric adds. `steps_most`: of schedules that are simulated.
  CollectiveSimulation(topology::Fabric fabric, std::vector<topology::Endpoint> ranks,
                       const collectives::planner::CostTable& costs, absl::Duration across_latency,
                       SimulationLevel level, topology::LoadBalance balance, int64_t steps_most);

  // Until the last rank has ended, all having begun at once. Nothing: the schedules have too many
  // steps. An error: a rank does not reach another, or it did not end.
  absl::StatusOr<std::optional<int64_t>> Nanoseconds(const collectives::CollectiveSpec& spec,
                                                     const collectives::planner::Plan& plan,
                                                     size_t element);

 private:
  const topology::Fabric fabric_;
  collectives::SimulationPlacement placement_;
  const int cores_;  // of a host
  const SimulationLevel level_;
  const topology::LoadBalance balance_;
  const double steps_most_;
};

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_COLLECTIVE_SIMULATION_H_
