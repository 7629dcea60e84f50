// What the simulated transports share: transfers of a NIC take turns packet by packet, as queue
// pairs do; acknowledgements go first; a timer a transfer, set anew only when it fires.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_TRANSPORTS_RELIABLE_H_
#define WEFT_TOPOLOGY_SIM_PACKET_TRANSPORTS_RELIABLE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "topology/sim/packet/arena.h"
#include "topology/sim/packet/options.h"
#include "topology/sim/packet/protocol.h"

namespace weft::topology::packet {

// One a simulation; all NICs' protocols refer to it.
struct TransportContext {
  const PacketOptions* options = nullptr;
  const Transfer* transfers = nullptr;  // [flow]
  Progress* progress = nullptr;
  Arena* arena = nullptr;
  uint16_t full_size = 0;  // of a full packet on the wire
  uint16_t ack_size = 0;
  Picoseconds timeout = 0;
  Picoseconds nack_interval = 0;  // 0: two round trips
  // [nic] bytes a picosecond: of all its ports, and of the first.
  std::vector<double> nic_rate, port_rate;

  // That a transfer may reach: of one port where all its packets have one path.
  double RateOf(FlowId flow) const {
    const NicId source = transfers[flow].source;
    return options->load_balance == LoadBalance::kEcmp ? port_rate[source] : nic_rate[source];
  }

  uint16_t SizeOf(FlowId flow, uint32_t sequence) const {
    const Transfer& transfer = transfers[flow];
    return sequence + 1 == transfer.packets ? transfer.last_size : full_size;
  }
  // Null: none is wanted.
  std::unique_ptr<CongestionControl> MakeCongestion(FlowId flow) const;
};

// Aligned so that what a turn touches are two lines of cache.
class alignas(64) ReliableProtocol : public Protocol {
 public:
  bool Transmit(Picoseconds now, bool data_allowed, Frame& frame) final;
  void PrefetchTransmit(int stage) const final {
    if (stage == 0) {
      if (!turns_.empty()) __builtin_prefetch(&turns_.front(), 1);
      if (!control_.empty()) __builtin_prefetch(&control_.front(), 1);
      return;
    }
    if (!control_.empty()) __builtin_prefetch(&context_.transfers[control_.front().flow]);
    if (!turns_.empty()) {
      __builtin_prefetch(&context_.transfers[turns_.front()]);
      PrefetchSender(turns_.front());
    }
  }

 protected:
  ReliableProtocol(const TransportContext& context, NicId nic) : context_(context), nic_(nic) {}

  // Whether `flow` has a packet that its window lets go, and when its rate does; FillData() then
  // sends it.
  virtual bool MaySend(FlowId flow) = 0;
  virtual Picoseconds NextSend(FlowId flow) = 0;
  virtual void FillData(FlowId flow, Picoseconds now, Frame& frame) = 0;
  // The retransmission timer of `flow` has fired. Returns when it wants the next; kNever: none.
  virtual Picoseconds OnTimer(FlowId flow, Picoseconds now) = 0;
  // Control frames that become due with time (credits): writes one and returns true. `due`: when
  // there will be one.
  virtual bool PacedControl(Picoseconds /*now*/, Frame& /*frame*/, Picoseconds& /*due*/) {
    return false;
  }

  virtual void PrefetchSender(FlowId /*flow*/) const {}
  // Where the answer to a frame will be written.
  void PrefetchReply() const { __builtin_prefetch(control_.end(), 1); }

  // Sends once it may. `is_active` is the flow's own, true while it is in the circle.
  void Activate(FlowId flow, bool& is_active) {
    if (is_active) return;
    is_active = true;
    turns_.PushBack(flow, *context_.arena);
  }
  virtual bool& IsActive(FlowId flow) = 0;
  void SetTimer(FlowId flow, Picoseconds time) { Push({time, flow, false}); }
  // For a flow that may not send before `time`, as its rate is limited: it takes its turn then.
  void ActivateAt(FlowId flow, Picoseconds time) { Push({time, flow, true}); }
  // A frame back to the source of `data`, about it.
  void PushReply(const Frame& data, FrameKind kind, uint32_t acknowledged, uint8_t flags);

  const TransportContext& context_;
  const NicId nic_;

 private:
  // What a control frame says; the rest follows from the transfer.
  struct Reply {
    Picoseconds sent;
    FlowId flow;
    uint32_t sequence, acknowledged, order;
    FrameKind kind;
    uint8_t flags;
  };
  void FillReply(const Reply& reply, Frame& frame) const;
  struct Due {
    Picoseconds time;
    FlowId flow;
    bool is_turn;                             // else a retransmission timer
    bool operator<(const Due& other) const {  // of a heap: the earliest on top
      return time != other.time ? time > other.time : flow > other.flow;
    }
  };
  void Push(Due due);
  void FireTimers(Picoseconds now);
  Picoseconds next_timer_ = kNever;
  Ring<FlowId> turns_;
  Ring<Reply> control_;
  std::vector<Due> timers_;
};

// One a NIC, of the kind that the options name.
class Transports {
 public:
  virtual ~Transports() = default;
  virtual std::unique_ptr<Protocol> Make(NicId nic) = 0;
};
std::unique_ptr<Transports> MakeTransports(const TransportContext& context, size_t flows);

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_TRANSPORTS_RELIABLE_H_
