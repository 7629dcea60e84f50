#include "net/tcp/lane_report.h"

#include <linux/tcp.h>  // glibc's tcp_info ends where this one goes on
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace weft::net {

LaneReport ReadLane(int fd, bool sends) {
  LaneReport lane;
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return lane;
  lane.bytes = sends ? info.tcpi_bytes_acked : info.tcpi_bytes_received;
  // A receiving end sends nothing but acknowledgements and clear-to-sends.
  if (!sends) return lane;
  lane.retransmissions = info.tcpi_total_retrans;
  lane.rtt = absl::Microseconds(info.tcpi_rtt);
  if (size < offsetof(tcp_info, tcpi_delivered)) return lane;  // an older kernel
  lane.busy = absl::Microseconds(info.tcpi_busy_time);
  lane.peer_limited = absl::Microseconds(info.tcpi_rwnd_limited);
  lane.buffer_limited = absl::Microseconds(info.tcpi_sndbuf_limited);
  return lane;
}

}  // namespace weft::net
