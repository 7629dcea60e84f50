// What the packet level can be told besides SimulationOptions. Constants of switches are those of
// the HPCC authors' ns-3 model (github.com/alibaba-edu/High-Precision-Congestion-Control), which
// SimAI uses as well, unless another source stands beside them.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_OPTIONS_H_
#define WEFT_TOPOLOGY_SIM_PACKET_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/units.h"
#include "topology/sim/packet/congestion.h"
#include "topology/sim/packet/frame.h"
#include "topology/sim/simulation.h"

namespace weft::topology {

namespace packet {
class Transports;
struct TransportContext;
}  // namespace packet

enum class TransportKind : uint8_t {
  kGoBackN,    // RoCE RC: in order, NACK, go back
  kSelective,  // one packet lost is one packet sent again; takes packets in any order
  kCredit,     // receiver-driven: a first window, then a packet a credit (NDP, EQDS)
};

// RED on the bytes that wait in an egress queue, when a packet leaves it: never up to `min`, always
// above `max`, with a probability growing linearly to `probability_max` between them.
struct EcnOptions {
  bool enabled = false;
  Bytes min{100'000}, max{400'000};
  double probability_max = 0.2;
  // The thresholds above are for this speed; a port's own are in proportion. 0: for every speed.
  Bandwidth reference = Bandwidth::GigabitsPerSecond(25);
  // Above 0: the thresholds are these shares of what a port sends in the longest round trip of any
  // transfer, as Ultra Ethernet recommends; the above are not used.
  double min_round_trips = 0, max_round_trips = 0;
};

// IEEE 802.1Qbb, one lossless priority. A switch counts the bytes that came over each ingress and
// are still held; above the threshold it pauses that neighbour.
struct PfcOptions {
  bool enabled = false;
  // Above 0: the threshold. 0: a share of the free memory that grows with it (below).
  Bytes xoff;
  // What is free of the switch's memory, divided by 2^shift, is the threshold of every ingress.
  int dynamic_shift = 3;
  // Resumes when this much below the threshold, or empty.
  Bytes resume_offset{3'072};
  // Room above the threshold for what arrives until the pause works. 0: as much as the link can
  // send in that time, exactly (see HeadroomFor).
  Bytes headroom;
  // What a paused neighbour takes to obey, beyond the frame that it is sending.
  absl::Duration reaction;
};

// Random misbehaviour of links, from the seed. Probabilities are of each packet.
struct LinkNoise {
  LinkId link;             // -1: all links between switches and to hosts
  double loss = 0;         // vanishes on the way
  double corruption = 0;   // arrives with a wrong checksum: the receiver drops it
  double duplication = 0;  // arrives twice
  double reordering = 0;   // arrives late, by up to `reordering_delay`
  absl::Duration reordering_delay = absl::Microseconds(10);
};

// Sees what happens, for a timeline. None of it is called per packet.
class PacketObserver {
 public:
  virtual ~PacketObserver() = default;
  virtual void Paused(LinkId, absl::Duration /*from*/, absl::Duration /*to*/) {}
  virtual void Fault(const LinkFault&) {}
};

struct PacketOptions : SimulationOptions {
  TransportKind transport = TransportKind::kGoBackN;
  // Called once a transfer; null: the fixed `window` alone. net/multipath/simulated.h makes the
  // controllers that run on the wire.
  std::function<std::unique_ptr<CongestionControl>(const FlowFacts&)> make_congestion;
  // Replaces `transport`: protocols written for the wire (transports/reliable.h has the interface).
  std::function<std::unique_ptr<packet::Transports>(const packet::TransportContext&, size_t flows)>
      make_transports;
  // Bytes that a transfer may have unacknowledged; 0: no limit for kGoBackN, else 1.5 times what
  // the path holds in a round trip.
  Bytes window;
  Bytes ack_size{64};
  int ack_every = 1;  // packets, kGoBackN
  // Retransmission; 0: 1 ms with kGoBackN, else 200 us, but no less than three round trips of the
  // transfer that has the longest.
  absl::Duration timeout;
  absl::Duration nack_interval;  // at most one NACK for the same packet in it; 0: 2 round trips
  // kSelective: a packet is lost when one sent this many later has been acknowledged. 0: 3 where
  // a flow keeps to one path, else never: trimming and the timeout tell.
  int reordering = 0;

  // Memory of each switch; 0: as in the fabric, and where that says nothing, no limit.
  Bytes switch_buffer;
  // Bytes of data in each egress queue; 0: as in the fabric, and where that sets none, no limit, or
  // with trimming what the port sends in the longest round trip of any transfer.
  Bytes port_buffer;
  // A queue that is full cuts a packet down to its header, which goes ahead of data.
  bool trimming = false;
  EcnOptions ecn;
  PfcOptions pfc;
  std::vector<LinkNoise> noise;

  PacketObserver* observer = nullptr;  // must outlive the run; null: nobody
};

// Headroom that loses nothing: what arrives from the moment a switch finds an ingress above its
// threshold. A frame that just began goes out before the pause frame; then both ways of the cable;
// and the neighbour, too, finishes a frame that it has begun.
Bytes HeadroomFor(Bandwidth bandwidth, absl::Duration delay, Bytes full_packet,
                  absl::Duration reaction);

// Runs `workload` over `fabric`. InvalidArgument, NotFound: a transfer names an endpoint that is
// not there, or cannot reach its target though no fault is to come; an option is out of its range.
absl::StatusOr<SimulationResult> SimulatePackets(const Fabric& fabric, const Workload& workload,
                                                 const PacketOptions& options);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_PACKET_OPTIONS_H_
