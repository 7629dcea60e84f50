// The lanes of a process's sending links over a window: what they carried, and how long round trips
// took on them.
#ifndef WEFT_TOOLS_BW_LINK_LANE_WATCH_H_
#define WEFT_TOOLS_BW_LINK_LANE_WATCH_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/bw/link/measured_links.h"

namespace weft::link_bw {

struct LaneUse {
  int from = 0, to = 0;
  std::string name;
  int source_port = 0;
  int64_t bytes = 0;
  int64_t retransmissions = -1;                 // -1: the transport cannot tell
  double rtt_p50_us = -1, rtt_p99_us = -1;      // likewise
  double busy = -1;                             // share of the window; likewise
  double peer_limited = 0, buffer_limited = 0;  // shares of that
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LaneUse, from, to, name, source_port, bytes, retransmissions,
                                   rtt_p50_us, rtt_p99_us, busy, peer_limited, buffer_limited)

class LaneWatch {
 public:
  LaneWatch(const MeasuredLinks& links, int rank) : links_(links), rank_(rank) {}
  void Start();
  // Once in a while; it asks the lanes for their round trips every 10 ms.
  void Look(int64_t now);
  std::vector<LaneUse> Stop();

 private:
  using Reports = std::map<int, std::vector<net::LaneReport>>;  // by peer
  Reports Read() const;
  void Sample(const Reports& reports);

  const MeasuredLinks& links_;
  const int rank_;
  Reports start_;
  int64_t started_ = 0, looked_ = 0;
  std::map<std::pair<int, std::string>, std::vector<double>> trips_us_;  // by peer and lane
};

// Percentile of values in any order; 0: no values.
double PercentileOf(std::vector<double> values, double percent);

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_LANE_WATCH_H_
