// Measures one size: every rank its part, then all ranks know all parts.
#ifndef WEFT_TOOLS_BW_LINK_MEASURE_H_
#define WEFT_TOOLS_BW_LINK_MEASURE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bw/link/bootstrap.h"
#include "tools/bw/link/flows.h"
#include "tools/bw/link/lane_watch.h"
#include "tools/bw/link/limit.h"
#include "tools/bw/link/measured_links.h"
#include "tools/bw/link/options.h"

namespace weft::link_bw {

// A flow as its receiver saw it; of a latency test, as who asked did.
struct FlowResult {
  int from = 0, to = 0;
  int64_t messages = 0;
  double bytes_per_second = 0, peak = 0, messages_per_second = 0;
  int64_t wrong = 0;
  // Half round trips in microseconds; of the steps: slices, from posting to completion.
  double min_us = 0, max_us = 0, typical_us = 0, mean_us = 0, deviation_us = 0;
  double p99_us = 0, p999_us = 0, percentile_us = 0;  // the last: Load::percentile
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FlowResult, from, to, messages, bytes_per_second, peak,
                                   messages_per_second, wrong, min_us, max_us, typical_us, mean_us,
                                   deviation_us, p99_us, p999_us, percentile_us)

struct Row {
  Bytes size;
  int depth = 0;
  std::vector<FlowResult> flows;
  std::vector<RankUse> ranks;
  std::vector<LaneUse> lanes;
  Limit limit;
  // Results of steps:
  double operation_us = 0;
  int64_t operations = 0;

  double bytes_per_second() const;          // of all flows
  double messages_per_second() const;       // likewise
  double peak() const;                      // likewise
  double cpu_seconds_per_gigabyte() const;  // of all processes
  const FlowResult& slowest() const;        // the flow with the highest latency
};

// `flows` at the same time. Every rank calls it. `host`: LearnHost()'s.
absl::StatusOr<Row> MeasureSize(Bootstrap& bootstrap, MeasuredLinks& links, const Load& load,
                                const std::vector<Flow>& flows, Bytes size, const RankUse& host);

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_MEASURE_H_
