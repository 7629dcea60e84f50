// Which routers are on the path of a port, asked by packets: UDP with a chosen source port and time
// to live, and the ICMP errors that come back. Needs no privilege. The path is that of RoCE packets
// with the same ports, because switches hash the five-tuple; TCP's may differ.
//
// Routers limit how many errors they send: `timeout` bounds the wait for them.
#ifndef WEFT_TOPOLOGY_ECMP_UDP_PROBER_H_
#define WEFT_TOPOLOGY_ECMP_UDP_PROBER_H_

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "topology/ecmp/five_tuple.h"

namespace weft::topology {

struct HopAnswer {
  enum class Kind : uint8_t { kSilent, kRouter, kTarget } kind = Kind::kSilent;
  uint64_t router = 0;  // kRouter: any number that names it
  auto operator<=>(const HopAnswer&) const = default;
};

struct UdpProberOptions {
  IpAddress source, target;  // of one family
  uint16_t target_port = kRoceTargetPort;
  absl::Duration timeout = absl::Milliseconds(200);  // for one answer
};

// One thread. Blocks up to `timeout` an answer.
class UdpProber {
 public:
  explicit UdpProber(const UdpProberOptions& options) : options_(options) {}
  ~UdpProber();
  UdpProber(const UdpProber&) = delete;
  UdpProber& operator=(const UdpProber&) = delete;

  // One packet; a lost answer is kSilent. The error of the system call that failed, with the port:
  // one that is in use.
  absl::StatusOr<HopAnswer> Ask(uint16_t source_port, int ttl);
  // The same of many ports at once, within one timeout: [port]. A port that cannot be used is
  // silent.
  std::vector<HopAnswer> AskAll(absl::Span<const uint16_t> source_ports, int ttl);

 private:
  absl::StatusOr<int> Socket(uint16_t source_port);
  absl::StatusOr<int> Send(uint16_t source_port, int ttl);  // the socket
  std::vector<HopAnswer> Await(absl::Span<const int> sockets) const;
  HopAnswer Hear(int fd) const;

  UdpProberOptions options_;
  std::map<uint16_t, int> sockets_;  // by source port
};

// The name of the router that has answered; "": none has.
std::string RouterName(const HopAnswer& answer, bool v6);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_UDP_PROBER_H_
