// Load between two hosts: UDP from a chosen source port at a chosen rate, which an EchoServer takes
// and counts. It fills the path of that flow, and raises the round trips of flows that share it.
#ifndef WEFT_TOPOLOGY_ECMP_UDP_LOAD_H_
#define WEFT_TOPOLOGY_ECMP_UDP_LOAD_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "topology/ecmp/five_tuple.h"

namespace weft::topology {

inline constexpr uint32_t kUdpLoadMagic = 0x4C505750;  // "PWPL", the first four bytes

constexpr int UdpHeaderBytes(bool v6) { return (v6 ? 40 : 20) + 8; }

struct UdpLoad {
  IpAddress source, target;  // of one family
  uint16_t source_port = 0, target_port = kRoceTargetPort;
  Bandwidth rate;  // of datagrams with their IP and UDP headers
  absl::Duration duration;
};

// Sends for `duration` from this thread; what a full queue of the host's own delays is not made up
// for. The bytes that were sent, with their headers. The error of the system call that failed, with
// the port: one that is in use.
absl::StatusOr<Bytes> SendUdpLoad(const UdpLoad& load);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_UDP_LOAD_H_
