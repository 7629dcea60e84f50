#include "topology/sim/packet/wheel_shape.h"

#include <algorithm>
#include <cmath>

#include "topology/sim/packet/frame.h"
#include "topology/sim/packet/time.h"

namespace weft::topology::packet {

WheelShape WheelShapeFor(const Fabric& fabric, const PacketOptions& options) {
  double shortest = 1e18, span = 0, events_per_picosecond = 0;
  auto consider = [&](Bandwidth bandwidth) {
    shortest = std::min(shortest, kMinimumFrame / bandwidth.bytes_per_second() * 1e12);
  };
  double full = static_cast<double>((options.payload + options.header).count());
  for (int i = 0; i < fabric.links(); ++i) {
    const FabricLink& link = fabric.link(LinkId(i));
    consider(link.bandwidth);
    double frame_time = full / link.bandwidth.bytes_per_second() * 1e12;
    double delay = static_cast<double>(FromDuration(link.delay));
    span = std::max(span, delay + frame_time);
    events_per_picosecond += 1 / frame_time;
  }
  for (const LinkFault& fault : options.faults) {
    if (fault.kind == LinkFault::Kind::kBandwidth) consider(fault.bandwidth);
  }
  constexpr double kEventsPerBucket = 1024;
  double width = std::min(shortest, kEventsPerBucket / events_per_picosecond);
  WheelShape shape;
  shape.width_bits =
      std::clamp(static_cast<int>(std::floor(std::log2(std::max(width, 1.0)))), 0, 30);
  double buckets = span / std::exp2(shape.width_bits) + 2;
  shape.bucket_bits = std::clamp(static_cast<int>(std::ceil(std::log2(buckets))), 6, 20);
  return shape;
}

}  // namespace weft::topology::packet
