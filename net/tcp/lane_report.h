// What the kernel tells of one connection (TCP_INFO), as a lane of a link.
#ifndef WEFT_NET_TCP_LANE_REPORT_H_
#define WEFT_NET_TCP_LANE_REPORT_H_

#include "net/transport.h"

namespace weft::net {

// Without name and port. `sends`: it is this side that sends data on `fd`.
LaneReport ReadLane(int fd, bool sends);

}  // namespace weft::net

#endif  // WEFT_NET_TCP_LANE_REPORT_H_
