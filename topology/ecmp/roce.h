// RoCEv2's UDP source port, which is all that tells the flows of two hosts apart for a switch. It
// follows from the flow label of the address handle; with label 0, from the numbers of the two
// queue pairs. So plain verbs choose a path: ah_attr.grh.flow_label at INIT -> RTR.
//
// Source: rdma_flow_label_to_udp_sport() and rdma_calc_flow_label() of Linux'
// include/rdma/ib_verbs.h, which mlx5 (RC, UC), irdma, hns, mana, ionic and rxe all use; checked on
// the wire of rxe.
#ifndef WEFT_TOPOLOGY_ECMP_ROCE_H_
#define WEFT_TOPOLOGY_ECMP_ROCE_H_

#include <cstdint>

namespace weft::topology {

inline constexpr uint16_t kRocePortFirst = 0xC000;  // all that the rule can give
inline constexpr uint16_t kRocePortLast = 0xFFFF;
inline constexpr uint32_t kFlowLabelMax = (1 << 20) - 1;

// `label`: 20 bits, not 0.
constexpr uint16_t RoceSourcePort(uint32_t label) {
  uint32_t low = label & 0x3FFF, high = (label & 0xFC000) >> 14;
  return static_cast<uint16_t>((low ^ high) | 0xC000);
}

// What stands in for label 0: made of local and remote queue pair numbers (24 bits each), the same
// from both sides.
constexpr uint32_t RoceLabelOfQueuePairs(uint32_t local, uint32_t remote) {
  uint64_t v = static_cast<uint64_t>(local) * remote;
  v ^= v >> 20;
  v ^= v >> 40;
  return static_cast<uint32_t>(v & kFlowLabelMax);
}

// A label that gives `port`; 64 do, `variant` in [0, 64) says which. Never 0, which would mean
// "from the queue pairs". `port` >= kRocePortFirst.
constexpr uint32_t RoceFlowLabel(uint16_t port, uint32_t variant = 1) {
  uint32_t high = variant & 0x3F;
  uint32_t label = high << 14 | ((port & 0x3FFFu) ^ high);
  return label != 0 ? label : RoceFlowLabel(port, variant + 1);
}

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_ROCE_H_
