// Selective repeat: packets are taken in any order, each is acknowledged, and only what was lost is
// sent again; for sprayed packets, and for NICs that retransmit selectively (IRN, SIGCOMM'18).
//
// A packet counts as lost when
//   - a switch cut its payload off and the receiver says so (NACK), or
//   - one sent `reordering` transmissions later has been acknowledged (as QUIC does it, RFC 9002
//     6.1: every transmission has a number of its own, so that a lost retransmission shows too), or
//   - nothing was heard of it for the timeout.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_TRANSPORTS_SELECTIVE_H_
#define WEFT_TOPOLOGY_SIM_PACKET_TRANSPORTS_SELECTIVE_H_

#include <memory>
#include <vector>

#include "topology/sim/packet/transports/reliable.h"

namespace weft::topology::packet {

struct Transmission {
  Picoseconds sent;
  uint32_t sequence;
  uint32_t order;
};

struct alignas(64) SelectiveSender {
  uint32_t next = 0;          // never sent yet from here on
  uint32_t acknowledged = 0;  // all below it
  uint32_t packets = 0;
  uint32_t mask = 0;         // of the arrays below
  uint32_t order = 0;        // transmissions so far
  uint32_t order_heard = 0;  // the highest acknowledged, and one
  int64_t in_flight = 0;     // bytes
  int64_t window = 0;        // bytes
  Picoseconds next_send = 0;
  uint64_t* heard = nullptr;         // [sequence & mask] a bit: acknowledged
  uint64_t* lost = nullptr;          // likewise: waits in `again`
  uint32_t* orders = nullptr;        // [sequence & mask] of its last transmission
  Ring<Transmission> transmissions;  // in order, from the oldest of which nothing was heard
  Ring<uint32_t> again;              // to be sent again
  std::unique_ptr<CongestionControl> congestion;
  uint32_t credit = 0;  // credit.h: transmissions allowed so far
  bool is_active = false;
  bool has_timer = false;
};

static_assert(sizeof(SelectiveSender) == 128);

struct alignas(64) SelectiveReceiver {
  uint32_t expected = 0;  // all below it have arrived
  uint32_t mask = 0;
  uint64_t* arrived = nullptr;  // [sequence & mask] a bit
  // credit.h
  uint32_t arrivals = 0;  // packets and headers
  uint32_t trimmed = 0;
  uint32_t granted = 0;    // credits beyond the first window
  bool is_queued = false;  // for its turn to get one
};

struct SelectiveState {
  explicit SelectiveState(size_t flows) : senders(flows), receivers(flows) {}
  LargeVector<SelectiveSender> senders;      // [flow]
  LargeVector<SelectiveReceiver> receivers;  // [flow]
};

class Selective : public ReliableProtocol {
 public:
  Selective(const TransportContext& context, NicId nic, SelectiveState& state);
  void Begin(FlowId flow, Picoseconds now) override;
  void Receive(const Frame& frame, Picoseconds now) override;
  void Prefetch(const Frame& frame, int stage) const override;

 protected:
  void PrefetchSender(FlowId flow) const final {
    __builtin_prefetch(&state_.senders[flow], 1);
    __builtin_prefetch(&state_.senders[flow].orders, 1);
  }
  bool& IsActive(FlowId flow) final { return state_.senders[flow].is_active; }
  bool MaySend(FlowId flow) override;
  Picoseconds NextSend(FlowId flow) final { return state_.senders[flow].next_send; }
  void FillData(FlowId flow, Picoseconds now, Frame& frame) final;
  Picoseconds OnTimer(FlowId flow, Picoseconds now) final;
  // At the receiver, once the reply has been made.
  virtual void AfterData(const Frame& /*frame*/, Picoseconds /*now*/) {}
  // At the source: that many packets were given up by the timer.
  virtual void AfterTimeout(SelectiveSender& /*sender*/, uint32_t /*packets*/) {}
  // At the source: the timer has fired and nothing is in flight. Returns when it wants it again.
  virtual Picoseconds WhenIdle(FlowId /*flow*/, SelectiveSender& /*sender*/, Picoseconds /*now*/) {
    return kNever;
  }
  int64_t WindowFor(FlowId flow) const;

  SelectiveState& state_;

 private:
  uint32_t SpanFor(FlowId flow) const;
  void OnData(const Frame& frame, Picoseconds now);
  void OnAck(const Frame& frame, Picoseconds now);
  void OnNack(const Frame& frame, Picoseconds now);
  // Returns the bytes that have become known as arrived.
  int64_t Hear(FlowId flow, SelectiveSender& sender, uint32_t sequence);
  bool Lose(FlowId flow, SelectiveSender& sender, uint32_t sequence);
  void FindLost(FlowId flow, SelectiveSender& sender, Picoseconds now);
  static bool IsStale(const SelectiveSender& sender, const Transmission& transmission);
  static void SkipHeard(SelectiveSender& sender);
  void End(SelectiveSender& sender);

  const uint32_t reordering_;  // 0: never lost by order
};

// The transports of all NICs, with the state that they share; Machine: Selective, or what is built
// on it.
template <typename Machine>
class SelectiveTransports final : public Transports {
 public:
  SelectiveTransports(const TransportContext& context, size_t flows)
      : context_(context), state_(flows) {}
  std::unique_ptr<Protocol> Make(NicId nic) override {
    return std::make_unique<Machine>(context_, nic, state_);
  }

 private:
  const TransportContext& context_;
  SelectiveState state_;
};

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_TRANSPORTS_SELECTIVE_H_
