// What is done with a plugin. Each scenario runs in processes of its own, which have loaded the
// library and share nothing with other scenarios; its steps are named on the page that the parent
// reads.
//
// All return OK when they ran to their end, whether or not contracts were broken; Aborted when a
// broken contract ended them; Cancelled when the other rank ended first.
#ifndef WEFT_TOOLS_NCCL_HARNESS_SCENARIOS_H_
#define WEFT_TOOLS_NCCL_HARNESS_SCENARIOS_H_

#include "absl/status/status.h"
#include "tools/nccl_harness/rank.h"

namespace weft::harness {

enum class Scenario : uint8_t {
  kIntrospection,  // one rank: init, devices, properties, finalize
  kSteps,          // two ranks, one connection each way: contracts one by one
  kTraffic,        // two ranks, --communicators, --requests: random sizes, tags, groups
  kDeath,          // two processes, of which one dies
  kConnections,    // --connections at once
  kMeasure,        // latency and bandwidth
};
const char* ToString(Scenario scenario);
int RanksOf(Scenario scenario);

absl::Status Run(Scenario scenario, Rank& rank);

absl::Status Introspect(Rank& rank);
absl::Status RunSteps(Rank& rank);
absl::Status RunTraffic(Rank& rank);
absl::Status Die(Rank& rank);
absl::Status SetUpConnections(Rank& rank);
absl::Status MeasureSpeed(Rank& rank);

}  // namespace weft::harness

#endif  // WEFT_TOOLS_NCCL_HARNESS_SCENARIOS_H_
