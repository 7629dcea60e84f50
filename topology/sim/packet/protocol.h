// What runs at a NIC: a state machine that knows frames and the time and nothing else. The network
// asks for a frame when the wire is free, so a protocol keeps no queue of data: what it does not
// send now it decides anew later.
//
// Frames and `now` in; frames and the next deadline out. A protocol written for the wire runs here
// through an adapter that keeps its bytes aside and puts a handle into Frame::payload.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_PROTOCOL_H_
#define WEFT_TOPOLOGY_SIM_PACKET_PROTOCOL_H_

#include <cstdint>

#include "topology/sim/packet/frame.h"
#include "topology/sim/packet/time.h"

namespace weft::topology::packet {

// A transfer that both ends know of. All of one simulation lie in one array, by FlowId.
struct Transfer {
  NicId source = 0, target = 0;
  int64_t bytes = 0;       // > 0
  uint32_t packets = 0;    // that carry them
  uint16_t last_size = 0;  // of the last one on the wire, bytes
  uint16_t source_port = 0;
  uint64_t path = 0, path_back = 0;  // for Frame::path
  Picoseconds round_trip = 0;        // of a full packet and its acknowledgement in an empty fabric
};

// Told by protocols, of what the two ends of a transfer know. Only notes it: nothing is called
// back.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void Sent(FlowId flow) = 0;                           // its last packet, the first time
  virtual void Delivered(FlowId flow, Picoseconds now) = 0;     // everything has arrived
  virtual void Acknowledged(FlowId flow, Picoseconds now) = 0;  // the source knows
  virtual void Retransmitted(FlowId flow) = 0;                  // a packet was sent again
};

class Protocol {
 public:
  virtual ~Protocol() = default;
  // This NIC is the source of a transfer that begins now.
  virtual void Begin(FlowId flow, Picoseconds now) = 0;
  virtual void Receive(const Frame& frame, Picoseconds now) = 0;
  // The wire is free: writes the next frame and returns true, or returns false when there is none
  // before deadline(), another Receive() or Begin(). `data_allowed` is false while the switch
  // pauses this NIC: only what is not kData may be sent. `frame` holds arbitrary values before.
  virtual bool Transmit(Picoseconds now, bool data_allowed, Frame& frame) = 0;
  // Once Transmit() has returned false: when it is to be asked again even if nothing arrives, later
  // than its `now`; kNever.
  Picoseconds deadline() const { return deadline_; }

  // Receive() will soon get this frame, and Transmit() will be asked: a chance to fetch what it
  // will need, first (stage 0) what can be found from the frame, later (1, 2) what that points to.
  // Must change nothing.
  virtual void Prefetch(const Frame& /*frame*/, int /*stage*/) const {}
  // Transmit() will soon be asked: stage 0, then 1.
  virtual void PrefetchTransmit(int /*stage*/) const {}

 protected:
  Picoseconds deadline_ = kNever;
};

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_PROTOCOL_H_
