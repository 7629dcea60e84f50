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

// What the packet level tells as it happens.
class Recorder final : public topology::PacketObserver {
 public:
  struct Pause {
    LinkId link;
    absl::Duration from, to;
  };
  // A pause storm could have more than anyone would look at.
  static constexpr size_t kMaxPauses = 1'000'000;
  void Paused(LinkId link, absl::Duration from, absl::Duration to) override {
    if (pauses_.size() < kMaxPauses) pauses_.push_back({link, from, to});
  }
  const std::vector<Pause>& pauses() const { return pauses_; }

 private:
  std::vector<Pause> pauses_;
};

struct Run {
  const Options* options = nullptr;
  const topology::Fabric* fabric = nullptr;
  const topology::Workload* workload = nullptr;
  topology::SimulationResult result;
  std::vector<topology::LinkFault> faults;
  Recorder recorder;
  double wall_seconds = 0;
};

nlohmann::ordered_json ToJson(const Run& run);
std::string ToText(const nlohmann::ordered_json& json);

// Load of each link: its share of what it could have carried until the end. [LinkId]
std::vector<double> LinkLoads(const Run& run);

// Chrome's trace format, which Perfetto reads, in simulated time: operations by host and NIC; links
// that PFC paused, each a row; faults, as marks over all rows.
absl::Status WriteTimeline(const Run& run, const std::string& path);

}  // namespace weft::sim

#endif  // WEFT_TOOLS_SIM_REPORT_H_
