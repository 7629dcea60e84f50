// The multipath protocol on the simulated wire: the packet level of topology/sim runs Sender and
// Receiver as they are, with their controllers and path policies, in place of its own transports
// (PacketOptions::make_transports). And its controllers alone under the simulator's transports
// (PacketOptions::make_congestion), as a NIC's firmware would run them.
//
// Here: a connection for each pair of NICs that has a transfer, standing from its first transfer on
// with its receives posted (no handshake is timed); a transfer is a message without contents; a
// path is what switches hash; credits come from one pacer a NIC. Acknowledgements have the size
// that the options give them.
#ifndef WEFT_NET_MULTIPATH_SIMULATED_H_
#define WEFT_NET_MULTIPATH_SIMULATED_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "net/cc/registry.h"
#include "net/multipath/sender.h"
#include "net/paths/policy.h"
#include "topology/sim/packet/options.h"
#include "topology/sim/packet/transports/reliable.h"

namespace weft::net::multipath {

// Called every `period` of simulated time for every connection, with its state.
struct TraceOptions {
  absl::Duration period = absl::ZeroDuration();  // zero: never
  std::function<void(absl::Duration now, int connection, const Sender& sender)> visit;
};

struct SimulatedOptions {
  ControllerSpec controller;
  PolicyKind policy = PolicyKind::kReps;
  int paths = 64;                 // that each connection may use
  int hops = 3;                   // switches on the way, for targets that grow with them
  Bytes piece{0};                 // as SenderOptions::piece
  bool leaves_dead_paths = true;  // PathSetOptions::leaves
  int ack_every = 1;
  absl::Duration timeout_min = absl::Microseconds(100);
  std::vector<PathId> planned;  // PolicyKind::kPlanned
  TraceOptions trace;
  // Called for each connection before it is made, by the number of its source NIC: may give it
  // another controller, policy or paths. Not with credits.
  std::function<void(uint32_t source, SimulatedOptions& options)> vary;
};

// For PacketOptions::make_transports.
std::function<std::unique_ptr<topology::packet::Transports>(
    const topology::packet::TransportContext& context, size_t flows)>
SimulatedTransports(const SimulatedOptions& options);

// For PacketOptions::make_congestion.
std::function<std::unique_ptr<topology::CongestionControl>(const topology::FlowFacts&)>
SimulatedControllers(const ControllerSpec& spec, int hops);

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_SIMULATED_H_
