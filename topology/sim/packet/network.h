// The simulated wire: links, switches and NICs, and the loop that moves time.
//
// Switches store and forward and queue at the output: control frames before data, each class in
// order. A link sends one frame after the other and is a pipe after that, so that of all frames on
// it only the first to arrive is an event: at most one event a traversal. What a port sends next is
// decided lazily, when something arrives from it or for it, but with the time and the queues of
// the moment at which it was due; the outcome is the same as that of an event for every departure.
// The one case in which nobody would look in time is a switch that pauses a neighbour and must
// resume it when enough has left; while that lasts its ports do have such events (`Watch`).
//
// Not thread-safe; runs in one thread.
#ifndef WEFT_TOPOLOGY_SIM_PACKET_NETWORK_H_
#define WEFT_TOPOLOGY_SIM_PACKET_NETWORK_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "topology/fabric/fabric.h"
#include "topology/fabric/routes.h"
#include "topology/sim/packet/arena.h"
#include "topology/sim/packet/event_wheel.h"
#include "topology/sim/packet/forwarding.h"
#include "topology/sim/packet/frame.h"
#include "topology/sim/packet/options.h"
#include "topology/sim/packet/protocol.h"
#include "topology/sim/packet/timers.h"

namespace weft::topology::packet {

constexpr uint32_t kNoFrame = ~0u;    // lost on the way
constexpr uint32_t kPause = ~0u - 1;  // of the link back
constexpr uint32_t kResume = ~0u - 2;
constexpr uint32_t kFirstSpecial = kResume;

// How often the links that are paused are looked at.
constexpr Picoseconds kWatchdogPeriod = 100 * kMicrosecond;
// A paused port is last among those to choose from.
constexpr Picoseconds kPausedPenalty = kLastTime;

// A frame between the beginning of its transmission and its arrival.
struct Flight {
  Picoseconds arrival;
  uint32_t frame;
};

struct Queued {
  Picoseconds since;
  uint32_t frame;
  uint32_t size;  // bytes
};

enum LinkFlags : uint16_t {
  kUp = 1,
  kPaused = 2,    // its source may not send data
  kToHost = 4,    // `target` is a NIC, else the index of a switch
  kFromHost = 8,  // `source` is one
  kIdle = 16,     // from a host: the protocol has nothing to send
  kNoisy = 32,
  kManyPorts = 64,  // from a host: its NIC has others
  kWatched = 128,   // an event is scheduled for its next departure
  kControl = 256,   // `control` is not empty
  kData = 512,      // `data` is not empty
};

// Lines of cache: what every traversal touches; what queueing adds; what PFC, ECN and the protocol
// of a host add; the rest.
struct alignas(64) Link {
  Picoseconds free_at = 0;  // end of the last transmission begun
  Picoseconds delay = 0;    // of the cable, and of the switch at its end
  WireRate rate;
  Ring<Flight> flight;
  uint32_t target = 0;
  uint16_t flags = 0;
  bool xoff = false;     // the switch at its end has asked its source to pause
  uint8_t failures = 0;  // modulo 256
  int64_t bytes = 0;     // carried
  int64_t frames = 0;    // carried

  Ring<Queued> data;
  Ring<Queued> control;
  int64_t queued_bytes = 0;   // of `data`
  int64_t queue_limit = 0;    // for these; 0: none
  int64_t queue_max = 0;      // they have been
  double queue_integral = 0;  // byte picoseconds

  uint32_t source = 0;
  uint32_t reverse = 0;
  // State of its ingress port at the switch at its end.
  int64_t ingress_bytes = 0;  // data that came over it and that the switch still holds
  int64_t xoff_bytes = 0;     // threshold, if static
  int64_t headroom = 0;
  int64_t over_bytes = 0;  // of ingress_bytes: came while `xoff`, into the headroom
  int64_t ecn_min = 0, ecn_max = 0;
  uint64_t draws = 0;  // of ECN: state of SplitMix64

  int64_t marked = 0, dropped = 0;
  Picoseconds paused_since = 0, paused_total = 0;
};
static_assert(offsetof(Link, data) == 64 && offsetof(Link, source) == 128);
static_assert(sizeof(Link) == 256, "four lines of cache");

struct Switch {
  NodeId node;
  uint32_t first_link = 0, links = 0;  // that leave it
  uint64_t hash = 0;
  int64_t buffer = 0;    // 0: no limit
  int64_t headroom = 0;  // of all its ingresses
  int64_t used = 0;      // data bytes held
  int paused = 0;        // neighbours that it has paused
};

struct Nic {
  std::unique_ptr<Protocol> protocol;
  uint32_t first_link = 0, links = 0;
  Picoseconds armed = kNever;  // the earliest timer that stands for its deadline
};

// What the loop does not do by itself.
class NetworkOwner {
 public:
  virtual ~NetworkOwner() = default;
  virtual void OnTimer(const Timer& timer) = 0;
  // The packet whose transmission began at `now`, which may be earlier than now(), was the last of
  // a transfer: NoteSent() was called when it was asked for.
  virtual void OnSent(Picoseconds now) = 0;
  // Protocols have noted progress of transfers. Called between events.
  virtual void OnProgress(Picoseconds now) = 0;
  // Every million events or so. False: stop.
  virtual bool OnHeartbeat(Picoseconds now) = 0;
};

class Network {
 public:
  // `fabric` must outlive it; `options` and `owner` too.
  Network(const Fabric& fabric, const PacketOptions& options, NetworkOwner& owner);

  void SetProtocol(NicId nic, std::unique_ptr<Protocol> protocol) {
    nics_[nic].protocol = std::move(protocol);
  }
  void SetRoutes(const Routes& routes) {
    forwarding_.Compute(routes);
    ahead_.fill(Ahead());
  }
  // For limits that are shares of what a port sends in it.
  void SetLongestRoundTrip(Picoseconds time);

  // Until nothing is left to happen, `limit` is reached or Stop() was called.
  void Run(Picoseconds limit);
  void Stop() { stopped_ = true; }
  Picoseconds now() const { return now_; }
  Timers& timers() { return timers_; }
  // Protocols: OnProgress is to be called.
  void NoteProgress() { has_progress_ = true; }
  // The same in Transmit(): OnSent.
  void NoteSent() { has_sent_ = true; }

  void Begin(NicId nic, FlowId flow);
  // In OnSent(): the transfer begins behind what `nic` has just sent, at `time`.
  void Follow(NicId nic, FlowId flow, Picoseconds time) { nics_[nic].protocol->Begin(flow, time); }
  // What was due at `nic` up to now is decided with what its protocol knew then.
  void Settle(NicId nic);
  void OnNicDeadline(NicId nic);
  void OnLate(uint32_t link, uint32_t frame);
  void OnPauseHeeded(uint32_t link, uint32_t argument);
  void SetLinkUp(LinkId link, bool up);
  void SetLinkBandwidth(LinkId link, Bandwidth bandwidth);
  // The watchdog of PFC: looks for links that wait for each other in a circle.
  void OnWatchdog();
  const std::string& deadlock() const { return deadlock_; }  // the circle; empty: none

  const LinkNumbers& numbers() const { return numbers_; }
  const Forwarding& forwarding() const { return forwarding_; }
  const Link& link(LinkId id) const { return links_[numbers_.Of(id)]; }
  const Link& link_by_number(uint32_t number) const { return links_[number]; }
  const Nic& nic(NicId id) const { return nics_[id]; }
  // The counters of links up to now: pauses that last still count.
  void Finish();
  int64_t events() const { return events_; }
  int64_t traversals() const;

 private:
  // network.cc: the loop, and what every traversal goes through.
  void Prefetch();
  void PrefetchFirst();
  void FetchLink(size_t event);
  void FetchFlight(size_t event);
  void FetchFrame(size_t event);
  void FetchRoute(size_t event, int stage);
  void FetchNext(size_t event);
  void FetchQueue(size_t event);
  void FetchState(size_t event);

  void OnArrival(uint32_t link);
  void OnWatched(uint32_t link);
  void Arrive(uint32_t link, uint32_t frame);
  void Forward(uint32_t ingress, uint32_t frame);
  uint32_t ChooseEgress(const Switch& at, const Frame& frame) const;
  PathHash::Flow FlowOf(const Frame& frame) const {
    return {endpoints_[frame.source], endpoints_[frame.target], frame.source_port};
  }
  uint32_t ChooseByHash(const Switch& at, const Frame& frame, Forwarding::Set set) const;
  uint32_t ChooseEmptiest(const Switch& at, const Frame& frame, Forwarding::Set set) const;
  // Returns the bytes that `egress` will send for it: fewer if trimmed, 0 if dropped.
  uint32_t Enqueue(uint32_t egress, uint32_t frame, uint32_t ingress);
  // Decides all that a port has begun to send up to now.
  void Advance(Link& link, uint32_t id);
  void SendQueuedData(Link& link, uint32_t id);
  void Send(Link& link, uint32_t id, uint32_t frame, uint32_t size, Picoseconds start);
  void QueueControl(Link& link, uint32_t frame, uint32_t size) {
    link.control.PushBack({now_, frame, size}, arena_);
    link.flags |= kControl;
  }
  void QueueData(Link& link, uint32_t frame, uint32_t size, Picoseconds since) {
    link.data.PushBack({since, frame, size}, arena_);
    link.flags |= kData;
    link.queued_bytes += size;
    link.queue_max = std::max(link.queue_max, link.queued_bytes);
  }
  void ScheduleFirst(Link& link, uint32_t id, bool was_empty) {
    if (was_empty && !link.flight.empty()) wheel_.Schedule(id, link.flight.front().arrival);
  }
  void Drop(Link& egress, uint32_t frame);

  // nic.cc
  void BuildNics();
  void Pull(Link& link, uint32_t id, NicId nic);
  void PullPorts(Nic& nic);
  void AfterTransmit(Picoseconds time) {
    if (!has_sent_) return;
    has_sent_ = false;
    owner_.OnSent(time);
  }
  void SendThroughPort(const Nic& nic, Link& asking, uint32_t frame, Picoseconds start);
  size_t ChoosePort(NodeId host, const Frame& frame, absl::Span<const uint32_t> ports) const;
  // Decides all that `link` has begun to send up to now: Settle() where it leaves a NIC.
  void SettleLink(Link& link, uint32_t id);
  void Wake(NicId nic);
  void ArmDeadline(NicId nic);
  void Deliver(Link& link, uint32_t frame);

  // switch_memory.cc: admission, PFC, ECN.
  void BuildMemory();
  bool Admit(uint32_t ingress, Link& egress, Frame& frame);
  int64_t PauseThreshold(const Switch& at, const Link& ingress) const;
  bool Fits(const Switch& at, const Link& ingress, const Link& egress, int64_t size) const;
  void Release(const Frame& frame);
  void Mark(Link& link, Frame& frame);
  void AdvanceAll(const Switch& at);
  void SendPause(uint32_t ingress, uint32_t what);
  void OnPauseFrame(uint32_t link, bool paused);
  void OnPause(uint32_t link, bool paused);
  void Watch(Link& link, uint32_t id);

  // deadlock.cc
  std::string FindDeadlock() const;

  // faults.cc
  void SetOneLinkUp(uint32_t id, bool up);
  void SendNoisy(Link& link, uint32_t id, uint32_t frame, uint32_t size);
  void BuildNoise();
  struct Noise {
    LinkNoise what;
    Random random{0};
  };

  const Fabric& fabric_;
  const PacketOptions& options_;
  NetworkOwner& owner_;
  const LinkNumbers numbers_;
  Forwarding forwarding_;
  Arena arena_;
  FramePool frames_;
  LargeArray<Link> links_;
  uint32_t link_count_ = 0;
  std::vector<Switch> switches_;
  std::vector<Nic> nics_;
  std::vector<Endpoint> endpoints_;  // [NicId], if there is a hash that asks for them
  std::vector<Noise> noise_;         // [link], if any link is noisy
  // When a port will have sent what it holds, for kAdaptive: [link].
  std::vector<Picoseconds> drained_at_;
  EventWheel wheel_;
  Timers timers_;
  // How many events ahead each stage of prefetching is.
  static constexpr size_t kLinkAhead = EventWheel::kAhead - 4, kFlightAhead = 16, kFrameAhead = 13,
                          kPlaceAhead = 10, kRouteAhead = 8, kNextAhead = 6, kQueueAhead = 4,
                          kStateAhead = 2;
  // Where the frame of an event will go: an egress, or the port of the NIC that will answer.
  struct Ahead {
    uint32_t frame = kNoFrame;  // kNoFrame: not known
    uint32_t egress = 0;
  };
  std::array<Ahead, 16> ahead_;  // [event % 16]
  bool fetches_source_ = false;  // ECN and PFC use it at every port
  // A fabric that fits into the second-level cache is faster without.
  static constexpr uint32_t kLinksWorthPrefetching = 1024;
  Picoseconds now_ = 0;
  int64_t events_ = 0;
  int paused_links_ = 0;
  bool watchdog_armed_ = false;
  const Picoseconds pause_reaction_;
  const LoadBalance balance_;
  bool accounted_ = false;  // memory of switches is limited, or PFC is on
  bool ecn_ = false;
  bool has_progress_ = false;
  bool has_sent_ = false;
  bool stopped_ = false;
  std::string deadlock_;
};

// Called at every traversal, from several files.

inline void Network::Advance(Link& link, uint32_t id) {
  while (link.free_at <= now_) {
    if (link.flags & kControl) {
      Queued next = link.control.PopFront();
      if (link.control.empty()) link.flags &= static_cast<uint16_t>(~kControl);
      Send(link, id, next.frame, next.size, link.free_at);
    } else if ((link.flags & (kData | kPaused)) == kData) {
      SendQueuedData(link, id);
    } else {
      return;
    }
  }
}

inline void Network::Send(Link& link, uint32_t id, uint32_t frame, uint32_t size,
                          Picoseconds start) {
  link.free_at = start + link.rate.TimeFor(size);
  link.bytes += size;
  ++link.frames;
  if (link.flags & kNoisy) [[unlikely]] {
    SendNoisy(link, id, frame, size);
  } else {
    link.flight.PushBack({link.free_at + link.delay, frame}, arena_);
  }
}

}  // namespace weft::topology::packet

#endif  // WEFT_TOPOLOGY_SIM_PACKET_NETWORK_H_
