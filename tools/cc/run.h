// One run of a scenario in the packet simulator with a controller and a path policy, and what is
// asked of it.
#ifndef WEFT_TOOLS_CC_RUN_H_
#define WEFT_TOOLS_CC_RUN_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "net/multipath/simulated.h"
#include "topology/fabric/fabric.h"
#include "topology/sim/packet/options.h"
#include "topology/sim/workload.h"

namespace weft::cc {

struct Scenario {
  std::string name, meaning;
  std::string fabric;    // as weft-sim's --fabric
  std::string workload;  // as --workload; or
  std::optional<topology::Workload> built;
  topology::PacketOptions packet;
  bool own_transport = false;  // the simulator's, as `packet` names it
  int hops = 3;
  // A cable (topology/fabric/faults.h) that is down or slower from a time on.
  std::string broken;
  absl::Duration broken_at;
  std::optional<Bandwidth> broken_to;  // nothing: down, and switches go on hashing onto it
};

struct Outcome {
  double goodput = 0;  // payload over what the NICs that receive could have taken until the end
  double fct_mean_us = 0, fct_p50_us = 0, fct_p99_us = 0, fct_max_us = 0;
  double queue_mean_kb = 0, queue_max_kb = 0;  // of the link with the longest mean queue
  double fairness = 0;                         // Jain's index of the transfers' rates
  double paused_us = 0;                        // by PFC, of all links
  int64_t retransmissions = 0, marked = 0, dropped = 0, unfinished = 0;
  double end_us = 0;
  int64_t lost_on_broken = 0;  // packets that were sent into Scenario::broken
};

absl::StatusOr<Outcome> RunScenario(const Scenario& scenario,
                                    const net::multipath::SimulatedOptions& protocol);

nlohmann::ordered_json ToJson(const Outcome& outcome);

}  // namespace weft::cc

#endif  // WEFT_TOOLS_CC_RUN_H_
