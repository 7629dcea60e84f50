// Congestion controllers: what acknowledgements say in, a window and a pacing rate out.
//
// One object serves one connection, whichever wire carries it: sockets, queue pairs and the
// simulator run the same. A controller does no I/O and reads no clock: time is passed in, and its
// timers are what Advance() applies. Not thread-safe. It never fails; what it is made from is
// checked by registry.h.
//
// The owner's part, in this order whenever something happens:
//   Advance(now);  OnSent / OnAck / OnLoss / OnTimeout;
//   a packet may leave while in_flight + packet <= window(), or nothing is in flight,
//   and not before the pacer (pacer.h), fed with rate(), lets it.
//
// Bytes are bytes on the wire, headers included, unless an owner counts payload throughout.
#ifndef WEFT_NET_CC_CONTROLLER_H_
#define WEFT_NET_CC_CONTROLLER_H_

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/units.h"

namespace weft::net {

// What is known of a connection's paths before the first packet.
struct PathFacts {
  absl::Duration base_rtt;  // of a full packet and its acknowledgement, nothing else on the way
  Bandwidth bandwidth;      // of the slowest link that is always on the way: the sender's port
  Bytes packet{4096};       // the largest
  int hops = 1;             // switches on the way
  bool trimming = false;    // full queues cut packets to headers, so that losses are told

  Bytes product() const { return bandwidth * base_rtt; }  // what the path holds
};

// State of one egress port on the way, stamped by its switch into the packet (INT).
struct HopTelemetry {
  Bandwidth bandwidth;
  Bytes queue;    // waiting when the packet left
  Bytes sent;     // by the egress, ever
  absl::Time at;  // when it was stamped, by the switch's clock
};

struct AckSample {
  absl::Time now;
  // From the packet's departure to its acknowledgement's arrival, less what the peer held it. Zero:
  // not known (sent twice, or acknowledged by an earlier one's acknowledgement).
  absl::Duration rtt;
  absl::Duration endpoint;                   // what the peer held it
  Bytes acked;                               // newly
  Bytes in_flight;                           // what remains
  bool marked = false;                       // ECN: congestion experienced
  absl::Span<const HopTelemetry> telemetry;  // empty: none
};

// Names and values of a controller's inner state, for traces and pictures.
using StateVisitor = absl::FunctionRef<void(absl::string_view name, double value)>;

class Controller {
 public:
  virtual ~Controller() = default;
  virtual absl::string_view name() const = 0;

  // The path's own round trip turns out to be another one (base_rtt.h): targets, and what a window
  // is at most, follow it in Swift, the hybrid and DCQCN; the others stay with PathFacts::base_rtt.
  virtual void SetBaseRtt(absl::Duration /*base*/) {}
  // Applies what is due by the clock alone. `now` never goes back.
  virtual void Advance(absl::Time /*now*/) {}
  virtual void OnSent(absl::Time /*now*/, Bytes /*bytes*/) {}
  virtual void OnAck(const AckSample& ack) = 0;
  // Known to be lost (a later packet arrived, or a header without its payload); `in_flight` without
  // them.
  virtual void OnLoss(absl::Time now, Bytes lost, Bytes in_flight) = 0;
  // Nothing was heard for a retransmission timeout, for the `consecutive`-th time, from 1.
  virtual void OnTimeout(absl::Time now, int consecutive) = 0;

  // Bytes that may be unacknowledged; below a packet: one, and rate() keeps them apart.
  virtual Bytes window() const = 0;
  // Zero: as fast as the wire goes.
  virtual Bandwidth rate() const { return {}; }
  // When Advance() would change window() or rate() by itself; InfiniteFuture: never.
  virtual absl::Time deadline() const { return absl::InfiniteFuture(); }

  virtual void Visit(StateVisitor visit) const = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_CC_CONTROLLER_H_
