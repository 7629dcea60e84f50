// Congestion control of a transfer: what its acknowledgements say in, a window and a rate out. The
// hook for the controllers that real transports run as well; here, per transfer.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_CONGESTION_H_
#define WEFT_TOPOLOGY_SIM_PACKET_CONGESTION_H_

#include <cstdint>

#include "topology/sim/packet/time.h"

namespace weft::topology {

// Facts about a flow's path, known before its first packet.
struct FlowFacts {
  packet::Picoseconds round_trip = 0;  // of a full packet, empty fabric
  double bytes_per_picosecond = 0;     // of the source's NIC; with one path, of one port of it
  int64_t packet_bytes = 0;            // of a full packet on the wire
  bool trimming = false;
};

class CongestionControl {
 public:
  virtual ~CongestionControl() = default;
  struct Ack {
    packet::Picoseconds now;
    packet::Picoseconds round_trip;  // of the packet that this acknowledges
    int64_t bytes;                   // newly acknowledged, on the wire
    int64_t in_flight;               // bytes that remain
    bool marked;                     // ECN
  };
  virtual void OnAck(const Ack& ack) = 0;
  // Known to be lost or trimmed; `in_flight` without them.
  virtual void OnLoss(packet::Picoseconds now, int64_t bytes, int64_t in_flight) = 0;
  virtual void OnTimeout(packet::Picoseconds now) = 0;

  // Bytes on the wire that may be unacknowledged. A packet is sent while less than that is.
  virtual int64_t window() const = 0;
  // Bytes a picosecond; 0: as fast as the wire goes.
  virtual double rate() const { return 0; }
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_PACKET_CONGESTION_H_
