// What travels over a simulated link. One cache line, kept in a pool and named by its index.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_FRAME_H_
#define WEFT_TOPOLOGY_SIM_PACKET_FRAME_H_

#include <cstdint>

#include "topology/sim/packet/time.h"

namespace weft::topology::packet {

using NicId = uint32_t;   // index into Fabric::Endpoints()
using FlowId = uint32_t;  // number of a transfer: its OperationId

enum class FrameKind : uint8_t {
  kData,
  kAck,
  kNack,    // go-back-N: resend from `acknowledged`; selective: `sequence` was lost or trimmed
  kCredit,  // receiver-driven: data up to `credit` packets may be sent
  kOther,   // of a protocol that keeps what it says in `payload`
};

// Data waits in the lossless or droppable class; all else goes before it and is never paused.
constexpr bool IsData(FrameKind kind) { return kind == FrameKind::kData; }

enum FrameFlags : uint8_t {
  kMarked = 1,      // data: congestion experienced (ECN CE); acknowledgement: its data frame was
  kTrimmed = 2,     // the payload was cut off by a full queue
  kRetransmit = 4,  // not for the first time
};

struct alignas(64) Frame {
  // Written by protocols.
  uint64_t path = 0;     // what switches hash (path_choice.h); another value, maybe another path
  Picoseconds sent = 0;  // data: when its transmission began; acknowledgement: the data frame's
  NicId source = 0, target = 0;
  FlowId flow = 0;
  uint32_t sequence = 0;      // packet number within its flow, from 0
  uint32_t acknowledged = 0;  // all packets below it have arrived
  uint32_t order = 0;         // counts transmissions of the flow; echoed
  uint32_t credit = 0;
  uint32_t payload = 0;  // of kOther: the protocol's own handle
  uint16_t size = 0;     // bytes on the wire
  uint16_t source_port = 0;
  FrameKind kind = FrameKind::kData;
  uint8_t flags = 0;

  // The network's own.
  uint32_t ingress = 0;  // the link over which it came into the switch that holds it
};
static_assert(sizeof(Frame) == 64, "a frame is a cache line");

// Ethernet's smallest frame. Bounds how many events a link can have in a given time.
constexpr uint16_t kMinimumFrame = 64;
// What a pause frame takes (IEEE 802.1Qbb): a smallest frame.
constexpr uint16_t kPauseFrame = 64;

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_FRAME_H_
