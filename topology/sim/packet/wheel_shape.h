// How wide the buckets of the event wheel are, and how many.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_WHEEL_SHAPE_H_
#define WEFT_TOPOLOGY_SIM_PACKET_WHEEL_SHAPE_H_

#include "topology/fabric/fabric.h"
#include "topology/sim/packet/options.h"

namespace weft::topology::packet {

struct WheelShape {
  int width_bits, bucket_bits;  // as EventWheel takes them
};

// Buckets no wider than the smallest frame on the fastest link, and narrow enough that one is
// sorted in the first-level cache when every link is busy with full frames; the ring spans what a
// frame takes from one end of a link to the other.
WheelShape WheelShapeFor(const Fabric& fabric, const PacketOptions& options);

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_WHEEL_SHAPE_H_
