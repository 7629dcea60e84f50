// What held the bandwidth down, and where: a sentence with the measurement that says so. Several
// things may hold at once; they are asked for in this order, as what comes first explains the rest:
//
//   link      what leaves or enters a host is 90 % of what its interface can carry, or more
//   core      a thread is busy 85 % of the time or more, but got less of a core
//   copy      such a thread had its core, and moves at least half of what one core there can copy
//   thread    as copy, with less: system calls, the protocol
//   peer,     the kernel had data on its way for most of the time (tcp), and mostly waited for the
//   buffer,   peer's window; or for this side's socket buffer; or for neither, but for the
//   network   network's acknowledgements
//   window    none of all that: the messages under way do not cover the round trip
#ifndef WEFT_TOOLS_BW_LINK_LIMIT_H_
#define WEFT_TOOLS_BW_LINK_LIMIT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/bw/link/lane_watch.h"

namespace weft::link_bw {

// What one rank used, over the window. Bandwidths in bytes a second.
struct RankUse {
  int rank = 0;
  std::string host, device;                            // the device may be unknown: empty
  double busy = 0, core = 0, kernel = 0, process = 0;  // as Usage
  int64_t preempted = 0;
  bool sleeps = false;
  double sent = 0, received = 0;
  double link = 0;  // what the device can carry each way; 0: unknown
  double copy = 0;  // what one core copies
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankUse, rank, host, device, busy, core, kernel, process,
                                   preempted, sleeps, sent, received, link, copy)

struct Limit {
  std::string what;      // one of the words above
  std::string sentence;  // "limited by ... at ...: ..."
};

// `depth`: messages of a flow that were under way.
Limit FindLimit(const std::vector<RankUse>& ranks, const std::vector<LaneUse>& lanes, int depth);

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_LIMIT_H_
