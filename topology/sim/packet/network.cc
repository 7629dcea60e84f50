#include "topology/sim/packet/network.h"

#include <algorithm>
#include <array>
#include <bit>
#include <new>

#include "base/random.h"
#include "topology/sim/packet/wheel_shape.h"
#include "topology/sim/path_choice.h"

namespace weft::topology::packet {
namespace {

constexpr int64_t kHeartbeatMask = (1 << 20) - 1;

EventWheel MakeWheel(const Fabric& fabric, const PacketOptions& options) {
  WheelShape shape = WheelShapeFor(fabric, options);
  return EventWheel(shape.width_bits, shape.bucket_bits);
}

}  // namespace

Network::Network(const Fabric& fabric, const PacketOptions& options, NetworkOwner& owner)
    : fabric_(fabric),
      options_(options),
      owner_(owner),
      numbers_(fabric),
      forwarding_(fabric, numbers_),
      links_(AllocateLarge<Link>(static_cast<size_t>(fabric.links()))),
      link_count_(static_cast<uint32_t>(fabric.links())),
      wheel_(MakeWheel(fabric, options)),
      pause_reaction_(FromDuration(options.pfc.reaction)),
      balance_(options.load_balance) {
  for (NodeId node : fabric.switches()) {
    Switch& added = switches_.emplace_back();
    added.node = node;
    added.hash = static_cast<uint64_t>(node.value()) * 0x9E3779B97F4A7C15ULL;
  }
  for (uint32_t i = 0; i < link_count_; ++i) {
    const FabricLink& from = fabric.link(numbers_.Id(i));
    Link& link = *new (&links_[i]) Link;
    link.delay = FromDuration(from.delay);
    link.rate = WireRate(from.bandwidth);
    link.reverse = numbers_.Of(from.reverse);
    link.flags = from.up ? kUp : 0;
    uint64_t seed = options.seed + i;
    link.draws = SplitMix64(seed);
    const FabricNode& target = fabric.node(from.target);
    if (target.kind == NodeKind::kHost) {
      link.flags |= kToHost;
      link.target = static_cast<uint32_t>(fabric.IndexOf({from.target, from.nic}));
    } else {
      link.target = forwarding_.switch_index(from.target);
      link.delay += FromDuration(target.latency);
    }
    if (fabric.node(from.source).kind == NodeKind::kHost) {
      link.flags |= kFromHost;
      link.source = static_cast<uint32_t>(fabric.IndexOf({from.source, from.nic}));
      continue;
    }
    link.source = forwarding_.switch_index(from.source);
    Switch& source = switches_[link.source];
    if (source.links++ == 0) source.first_link = i;
  }
  if (options.hash != nullptr) endpoints_ = fabric.Endpoints();
  if (balance_ == LoadBalance::kAdaptive) drained_at_.resize(link_count_);
  BuildNics();
  BuildMemory();
  BuildNoise();
}

void Network::Run(Picoseconds limit) {
  stopped_ = false;
  const bool prefetches = link_count_ >= kLinksWorthPrefetching;
  auto run_timer = [&] {
    Timer timer = timers_.Pop();
    now_ = timer.time;
    ++events_;
    owner_.OnTimer(timer);
    if (has_progress_) {
      has_progress_ = false;
      owner_.OnProgress(now_);
    }
  };
  while (!stopped_) {
    Picoseconds next = wheel_.Earliest(), timer = timers_.Earliest();
    if (std::min(next, timer) == kNever || std::min(next, timer) > limit) return;
    if (!wheel_.HasNext() && timer < next) {
      wheel_.AdvanceTo(timer);
      run_timer();
      continue;
    }
    if (!wheel_.HasNext()) {
      if (!wheel_.Open()) return;
      if (prefetches) PrefetchFirst();
    }
    while (wheel_.HasNext() && !stopped_) {
      if (timers_.Earliest() <= wheel_.NextTime()) {
        if (timers_.Earliest() > limit) return;
        run_timer();
        continue;
      }
      if (wheel_.NextTime() > limit) return;
      if (prefetches) Prefetch();
      Event event = wheel_.Take();
      now_ = event.time;
      if ((++events_ & kHeartbeatMask) == 0 && !owner_.OnHeartbeat(now_)) return;
      if (event.slot < link_count_) {
        OnArrival(event.slot);
      } else {
        OnWatched(event.slot - link_count_);
      }
      if (has_progress_) {
        has_progress_ = false;
        owner_.OnProgress(now_);
      }
    }
  }
}

namespace {

template <typename T>
[[gnu::always_inline]] inline void FetchFirstTwo(const Ring<T>& queue) {
  const T& first = queue.front();
  __builtin_prefetch(&first, 1);
  if (reinterpret_cast<uintptr_t>(&first) % 64 == 64 - sizeof(T)) __builtin_prefetch(&queue[1], 1);
}

[[gnu::always_inline]] inline void FetchProtocol(const Nic& nic) {
  const auto* lines = reinterpret_cast<const char*>(nic.protocol.get());
  __builtin_prefetch(lines, 1);
  __builtin_prefetch(lines + 64, 1);
}

}  // namespace

// Each stage needs what the one before it has brought into cache. `event` counts in the open
// bucket. Inlined by force: GCC takes functions that only prefetch for ones without effect and
// removes calls of them.
//   FetchLink    the link
//   FetchFlight  the first places of its pipe; of a host's link, which NIC that is
//   FetchFrame   the frame, and who takes it: port or NIC
//   FetchRoute   in two stages: the switch's entry for the target
//   FetchNext    the port where the frame goes, or the protocol
//   FetchQueue   the places in that port's queues and pipe, or what the protocol finds by the frame
//   FetchState   what that points to
[[gnu::always_inline]] inline void Network::FetchLink(size_t event) {
  uint32_t slot = wheel_.InBatch(event);
  if (slot < link_count_) __builtin_prefetch(&links_[slot].free_at, 1);
}

[[gnu::always_inline]] inline void Network::FetchFlight(size_t event) {
  uint32_t slot = wheel_.InBatch(event);
  if (slot >= link_count_) return;
  const Link& link = links_[slot];
  if (link.flight.empty()) return;
  FetchFirstTwo(link.flight);
  if (link.flags & (kData | kControl)) __builtin_prefetch(&link.data, 1);
  if (fetches_source_ || (link.flags & kFromHost)) __builtin_prefetch(&link.source, 1);
  if (link.flags & kToHost) __builtin_prefetch(&nics_[link.target], 1);
}

[[gnu::always_inline]] inline void Network::FetchFrame(size_t event) {
  uint32_t slot = wheel_.InBatch(event);
  if (slot >= link_count_) return;
  const Link& link = links_[slot];
  if (!link.flight.empty() && link.flight.front().frame < kFirstSpecial) {
    __builtin_prefetch(&frames_[link.flight.front().frame], 1);
  }
  if (link.flags & kData) FetchFirstTwo(link.data);
  if (link.flags & kControl) __builtin_prefetch(&link.control.front(), 1);
  if (link.flags & kToHost) {
    FetchProtocol(nics_[link.target]);
  } else if ((link.flags & (kFromHost | kIdle)) == kFromHost) {
    __builtin_prefetch(&nics_[link.source]);
  }
}

[[gnu::always_inline]] inline void Network::FetchRoute(size_t event, int stage) {
  uint32_t slot = wheel_.InBatch(event);
  if (slot >= link_count_) return;
  const Link& link = links_[slot];
  if ((link.flags & kToHost) || link.flight.empty()) return;
  uint32_t frame = link.flight.front().frame;
  if (frame < kFirstSpecial) forwarding_.Prefetch(link.target, frames_[frame].target, stage);
}

[[gnu::always_inline]] inline void Network::FetchNext(size_t event) {
  Ahead& ahead = ahead_[event % ahead_.size()];
  ahead.frame = kNoFrame;
  uint32_t slot = wheel_.InBatch(event);
  if (slot >= link_count_) return;
  const Link& link = links_[slot];
  if (link.flight.empty() || link.flight.front().frame >= kFirstSpecial) return;
  const Frame& frame = frames_[link.flight.front().frame];
  uint32_t next;
  if (link.flags & kToHost) {
    const Nic& nic = nics_[link.target];
    nic.protocol->Prefetch(frame, 0);
    next = nic.first_link;
  } else {
    if ((link.flags & (kFromHost | kIdle)) == kFromHost) FetchProtocol(nics_[link.source]);
    if (balance_ == LoadBalance::kAdaptive) return;
    next = ChooseEgress(switches_[link.target], frame);
    if (next == ~0u) return;
    __builtin_prefetch(&links_[next].data, 1);
    if (fetches_source_) __builtin_prefetch(&links_[next].source, 1);
  }
  ahead = {link.flight.front().frame, next};
  __builtin_prefetch(&links_[next].free_at, 1);
}

[[gnu::always_inline]] inline void Network::FetchQueue(size_t event) {
  uint32_t slot = wheel_.InBatch(event);
  if (slot >= link_count_) return;
  const Link& link = links_[slot];
  if ((link.flags & (kFromHost | kIdle)) == kFromHost) {
    nics_[link.source].protocol->PrefetchTransmit(0);
  }
  const Ahead& ahead = ahead_[event % ahead_.size()];
  if (ahead.frame == kNoFrame) return;
  const Link& next = links_[ahead.egress];
  if (link.flags & kToHost) {
    __builtin_prefetch(next.flight.end(), 1);
    nics_[link.target].protocol->Prefetch(frames_[ahead.frame], 1);
    if (!(next.flags & kIdle)) nics_[link.target].protocol->PrefetchTransmit(0);
    return;
  }
  const Frame& frame = frames_[ahead.frame];
  bool is_data = IsData(frame.kind) && !(frame.flags & kTrimmed);
  bool is_free = next.free_at <= link.flight.front().arrival;
  if (!is_free || (next.flags & (kData | kControl))) {
    __builtin_prefetch(is_data ? next.data.end() : next.control.end(), 1);
  }
  if (!is_free) return;  // nothing leaves it now
  __builtin_prefetch(next.flight.end(), 1);
  if (next.flags & kData) FetchFirstTwo(next.data);
  if (next.flags & kControl) __builtin_prefetch(&next.control.front(), 1);
}

[[gnu::always_inline]] inline void Network::FetchState(size_t event) {
  uint32_t slot = wheel_.InBatch(event);
  if (slot >= link_count_) return;
  const Link& link = links_[slot];
  if ((link.flags & (kFromHost | kIdle)) == kFromHost) {
    nics_[link.source].protocol->PrefetchTransmit(1);
  }
  const Ahead& ahead = ahead_[event % ahead_.size()];
  if (ahead.frame == kNoFrame || !(link.flags & kToHost)) return;
  nics_[link.target].protocol->Prefetch(frames_[ahead.frame], 2);
  if (!(links_[ahead.egress].flags & kIdle)) nics_[link.target].protocol->PrefetchTransmit(1);
}

inline void Network::Prefetch() {
  size_t now = wheel_.position();
  FetchLink(now + kLinkAhead);
  FetchFlight(now + kFlightAhead);
  FetchFrame(now + kFrameAhead);
  FetchRoute(now + kPlaceAhead, 0);
  FetchRoute(now + kRouteAhead, 1);
  FetchNext(now + kNextAhead);
  FetchQueue(now + kQueueAhead);
  FetchState(now + kStateAhead);
}

// The same for the first events of a bucket.
void Network::PrefetchFirst() {
  for (size_t i = 0; i < kLinkAhead; ++i) FetchLink(i);
  for (size_t i = 0; i < kFlightAhead; ++i) FetchFlight(i);
  for (size_t i = 0; i < kFrameAhead; ++i) FetchFrame(i);
  for (size_t i = 0; i < kPlaceAhead; ++i) FetchRoute(i, 0);
  for (size_t i = 0; i < kRouteAhead; ++i) FetchRoute(i, 1);
  for (size_t i = 0; i < kNextAhead; ++i) FetchNext(i);
  for (size_t i = 0; i < kQueueAhead; ++i) FetchQueue(i);
  for (size_t i = 0; i < kStateAhead; ++i) FetchState(i);
}

void Network::OnArrival(uint32_t id) {
  Link& link = links_[id];
  Flight flight = link.flight.PopFront();
  if ((link.flags & (kFromHost | kManyPorts)) == kFromHost) {
    Pull(link, id, link.source);
  } else {
    Advance(link, id);
  }
  if (!link.flight.empty()) wheel_.Schedule(id, link.flight.front().arrival);
  if (link.flags & kManyPorts) PullPorts(nics_[link.source]);
  Arrive(id, flight.frame);
}

inline void Network::Arrive(uint32_t id, uint32_t frame) {
  Link& link = links_[id];
  if (frame >= kFirstSpecial) [[unlikely]] {
    if (frame != kNoFrame) OnPauseFrame(link.reverse, frame == kPause);
  } else if (link.flags & kToHost) {
    Deliver(link, frame);
  } else {
    Forward(id, frame);
  }
}

inline void Network::Forward(uint32_t ingress, uint32_t frame) {
  Frame& header = frames_[frame];
  // Looked up ahead: the way of a frame does not change while it flies (SetRoutes).
  const Ahead& ahead = ahead_[(wheel_.position() - 1) % ahead_.size()];
  uint32_t id =
      ahead.frame == frame ? ahead.egress : ChooseEgress(switches_[links_[ingress].target], header);
  if (id == ~0u) [[unlikely]] {
    Drop(links_[ingress], frame);
    return;
  }
  Link& egress = links_[id];
  if (!(egress.flags & kUp)) [[unlikely]] {
    Drop(egress, frame);
    return;
  }
  bool is_data = IsData(header.kind) && !(header.flags & kTrimmed);
  bool was_empty = egress.flight.empty();
  Advance(egress, id);
  uint32_t leaving = header.size;
  if (egress.free_at <= now_ && (!is_data || !(egress.flags & kPaused))) {
    Send(egress, id, frame, header.size, now_);
  } else if (!is_data) {
    QueueControl(egress, frame, header.size);
  } else {
    leaving = Enqueue(id, frame, ingress);
  }
  if (balance_ == LoadBalance::kAdaptive) {
    drained_at_[id] = std::max(drained_at_[id], now_) + egress.rate.TimeFor(leaving);
  }
  ScheduleFirst(egress, id, was_empty);
}

uint32_t Network::Enqueue(uint32_t id, uint32_t frame, uint32_t ingress) {
  Link& egress = links_[id];
  Frame& header = frames_[frame];
  if ((accounted_ || egress.queue_limit > 0) && !Admit(ingress, egress, header)) {
    if (!options_.trimming) {
      Drop(egress, frame);
      return 0;
    }
    ++egress.dropped;
    header.flags |= kTrimmed;
    header.size = static_cast<uint16_t>(std::max<int64_t>(kMinimumFrame, options_.header.count()));
    QueueControl(egress, frame, header.size);
    return header.size;
  }
  QueueData(egress, frame, header.size, now_);
  if (accounted_ && switches_[egress.source].paused > 0) Watch(egress, id);
  return header.size;
}

void Network::SendQueuedData(Link& link, uint32_t id) {
  Queued next = link.data.PopFront();
  if (link.data.empty()) link.flags &= static_cast<uint16_t>(~kData);
  link.queued_bytes -= next.size;
  link.queue_integral +=
      static_cast<double>(next.size) * static_cast<double>(link.free_at - next.since);
  bool is_egress = !(link.flags & kFromHost);
  if (ecn_ && is_egress && link.queued_bytes > link.ecn_min) Mark(link, frames_[next.frame]);
  bool account = accounted_ && is_egress;
  Frame header;
  if (account) header = frames_[next.frame];  // lost frames may be gone once they are sent
  Send(link, id, next.frame, next.size, link.free_at);
  if (account) Release(header);
}

void Network::Drop(Link& egress, uint32_t frame) {
  ++egress.dropped;
  frames_.Free(frame);
}

inline uint32_t Network::ChooseEgress(const Switch& at, const Frame& frame) const {
  Forwarding::Set set =
      forwarding_.Next(static_cast<uint32_t>(&at - switches_.data()), frame.target);
  if (set.count <= 1) return set.count == 0 ? ~0u : forwarding_.Member(set, 0);
  switch (balance_) {
    case LoadBalance::kEcmp:
      break;
    case LoadBalance::kSpray: {
      // A function of the packet and of the switch, so that it can be looked up ahead.
      uint64_t state = frame.path ^ at.hash ^ (static_cast<uint64_t>(frame.sent) << 20) ^
                       (static_cast<uint64_t>(frame.kind) << 60) ^ frame.sequence;
      auto choice = static_cast<uint32_t>((SplitMix64(state) >> 32) * set.count >> 32);
      return forwarding_.Member(set, choice);
    }
    case LoadBalance::kAdaptive:
      return ChooseEmptiest(at, frame, set);
  }
  if (options_.hash != nullptr) return ChooseByHash(at, frame, set);
  return forwarding_.Member(set, static_cast<uint32_t>(ChooseLink(frame.path, at.node, set.count)));
}

uint32_t Network::ChooseByHash(const Switch& at, const Frame& frame, Forwarding::Set set) const {
  std::vector<LinkId> next;
  next.reserve(set.count);
  for (uint32_t i = 0; i < set.count; ++i) {
    next.push_back(numbers_.Id(forwarding_.Member(set, i)));
  }
  return forwarding_.Member(
      set, static_cast<uint32_t>(options_.hash->Choose(at.node, FlowOf(frame), next)));
}

// The first of the emptiest in a circle from a random place: ties are as good as random.
uint32_t Network::ChooseEmptiest(const Switch& at, const Frame& frame, Forwarding::Set set) const {
  uint64_t state =
      frame.path ^ at.hash ^ (static_cast<uint64_t>(frame.sent) << 20) ^ frame.sequence;
  auto start = static_cast<uint32_t>((SplitMix64(state) >> 32) * set.count >> 32);
  uint32_t best = forwarding_.Member(set, start);
  Picoseconds best_time = std::max(drained_at_[best], now_);
  for (uint32_t i = 1; i < set.count && best_time > now_; ++i) {
    uint32_t candidate = start + i < set.count ? start + i : start + i - set.count;
    candidate = forwarding_.Member(set, candidate);
    Picoseconds time = std::max(drained_at_[candidate], now_);
    if (time < best_time) {
      best = candidate;
      best_time = time;
    }
  }
  return best;
}

void Network::OnLate(uint32_t link, uint32_t frame) {
  // No event brings it: what was looked up ahead is another frame's, maybe once of its index.
  ahead_[(wheel_.position() - 1) % ahead_.size()] = Ahead();
  if (links_[link].flags & kUp) {
    Arrive(link, frame);
  } else {
    Drop(links_[link], frame);
  }
}

int64_t Network::traversals() const {
  int64_t sum = 0;
  for (uint32_t i = 0; i < link_count_; ++i) sum += links_[i].frames;
  return sum;
}

void Network::Finish() {
  for (uint32_t i = 0; i < link_count_; ++i) {
    Link& link = links_[i];
    if (!(link.flags & kPaused)) continue;
    link.paused_total += now_ - link.paused_since;
    if (options_.observer != nullptr) {
      options_.observer->Paused(numbers_.Id(i), ToDuration(link.paused_since), ToDuration(now_));
    }
    link.paused_since = now_;
  }
}

}  // namespace weft::topology::packet
