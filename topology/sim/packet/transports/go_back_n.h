// RoCE's reliable connection as NICs have it in hardware: packets are taken in order only. One that
// comes out of order is dropped and answered with a NACK for the one that is missing, and the
// source goes back to it. (InfiniBand Architecture Specification vol. 1, 9.7; the interval of NACKs
// as in the HPCC authors' ns-3 model.)
#ifndef WEFT_TOPOLOGY_SIM_PACKET_TRANSPORTS_GO_BACK_N_H_
#define WEFT_TOPOLOGY_SIM_PACKET_TRANSPORTS_GO_BACK_N_H_

#include <memory>
#include <vector>

#include "topology/sim/packet/transports/reliable.h"

namespace weft::topology::packet {

class GoBackNTransports final : public Transports {
 public:
  GoBackNTransports(const TransportContext& context, size_t flows)
      : context_(context), senders_(flows), receivers_(flows) {}
  std::unique_ptr<Protocol> Make(NicId nic) override;

  struct Sender {
    uint32_t next = 0;          // to send
    uint32_t acknowledged = 0;  // all below it
    uint32_t highest = 0;       // never sent yet from here on
    uint32_t packets = 0;
    int64_t window = 0;         // bytes; 0: no limit
    Picoseconds progress = 0;   // when the oldest in flight was sent or acknowledged
    Picoseconds next_send = 0;  // as the rate allows
    std::unique_ptr<CongestionControl> congestion;
    bool is_active = false;
    bool has_timer = false;
  };
  struct Receiver {
    uint32_t expected = 0;
    uint32_t unacknowledged = 0;  // packets since the last acknowledgement
    uint32_t nacked = ~0u;        // the packet that the last NACK asked for
    uint8_t flags = 0;            // kMarked since the last acknowledgement
    Picoseconds nacked_at = 0;
  };

 private:
  const TransportContext& context_;
  std::vector<Sender> senders_;      // [flow]
  std::vector<Receiver> receivers_;  // [flow]
};

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_TRANSPORTS_GO_BACK_N_H_
