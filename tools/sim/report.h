// What weft-sim says of a run: tables for people, one JSON object for machines. But for
// wall_seconds and max_rss_mb the JSON is the same to the byte for the same arguments.
#ifndef WEFT_TOOLS_SIM_REPORT_H_
#define WEFT_TOOLS_SIM_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "tools/sim/options.h"
#include "topology/fabric/fabric.h"
#include "topology/sim/simulation.h"
#include "topology/sim/workload.h"

namespace weft::sim {

struct Run {
  const Options* options = nullptr;
  const topology::Fabric* fabric = nullptr;
  const topology::Workload* workload = nullptr;
  topology::SimulationResult result;
  double wall_seconds = 0;
};

nlohmann::ordered_json ToJson(const Run& run);
std::string ToText(const nlohmann::ordered_json& json);

// Load of each link: its share of what it could have carried until the end. [LinkId]
std::vector<double> LinkLoads(const Run& run);

// Chrome's trace format, which Perfetto reads: operations by host and NIC, in simulated time.
absl::Status WriteTimeline(const Run& run, const std::string& path);

}  // namespace weft::sim

#endif  // WEFT_TOOLS_SIM_REPORT_H_
