// Receiver-driven: a first window goes out at once, and then a packet for each credit, which the
// receiver hands out at the speed of its own link, to its transfers in turn. So the last hop never
// fills, however many send to it. After NDP (SIGCOMM'17, section 3.2) and EQDS (NSDI'22); with
// trimming as they have it, else with selective repeat's timeout.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_TRANSPORTS_CREDIT_H_
#define WEFT_TOPOLOGY_SIM_PACKET_TRANSPORTS_CREDIT_H_

#include <memory>

#include "topology/sim/packet/transports/selective.h"

namespace weft::topology::packet {

class Credit final : public Selective {
 public:
  using Selective::Selective;
  void Begin(FlowId flow, Picoseconds now) override;
  void Receive(const Frame& frame, Picoseconds now) override;

 private:
  bool MaySend(FlowId flow) override;
  void AfterData(const Frame& frame, Picoseconds now) override;
  void AfterTimeout(SelectiveSender& sender, uint32_t packets) override;
  Picoseconds WhenIdle(FlowId flow, SelectiveSender& sender, Picoseconds now) override;
  bool PacedControl(Picoseconds now, Frame& frame, Picoseconds& due) override;
  uint32_t FirstWindow(FlowId flow) const;
  // Credits that a transfer is still to get for what has arrived of it.
  uint32_t Owed(FlowId flow) const;

  Ring<FlowId> owed_;
  Picoseconds next_credit_ = 0;
};

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_TRANSPORTS_CREDIT_H_
