#include "topology/sim/packet/network.h"

#include <algorithm>
#include <array>
#include <bit>
#include <new>

#include "base/random.h"
#include "topology/sim/path_choice.h"

namespace weft::topology::packet {
namespace {

constexpr int64_t kHeartbeatMask = (1 << 20) - 1;

struct WheelShape {
  int width_bits, bucket_bits;
};

// Buckets no wider than the smallest frame on the fastest link, and narrow enough to hold few
// events when every link is busy with full frames; the ring spans what a frame takes from one end
// of a link to the other.
WheelShape ShapeFor(const Fabric& fabric, const PacketOptions& options) {
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
  constexpr double kEventsPerBucket = 32;
  double width = std::min(shortest, kEventsPerBucket / events_per_picosecond);
  WheelShape shape;
  shape.width_bits = std::max(0, static_cast<int>(std::floor(std::log2(std::max(width, 1.0)))));
  double buckets = span / std::exp2(shape.width_bits) + 2;
  shape.bucket_bits = std::clamp(static_cast<int>(std::ceil(std::log2(buckets))), 6, 20);
  return shape;
}

EventWheel MakeWheel(const Fabric& fabric, const PacketOptions& options) {
  WheelShape shape = ShapeFor(fabric, options);
  return EventWheel(static_cast<uint32_t>(fabric.links()) * 2, shape.width_bits, shape.bucket_bits);
}

}  // namespace

Network::Network(const Fabric& fabric, const PacketOptions& options)
    : fabric_(fabric),
      options_(options),
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
  if (balance_ == LoadBalance::kAdaptive) drained_at_.resize(link_count_);
  BuildNics();
  BuildMemory();
  BuildNoise();
}

void Network::Run(Picoseconds limit, NetworkOwner& owner) {
  stopped_ = false;
  auto run_timer = [&] {
    Timer timer = timers_.Pop();
    now_ = timer.time;
    ++events_;
    owner.OnTimer(timer);
    if (has_progress_) {
      has_progress_ = false;
      owner.OnProgress(now_);
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
      PrefetchFirst();
    }
    while (wheel_.HasNext() && !stopped_) {
      if (timers_.Earliest() <= wheel_.Peek().time) {
        if (timers_.Earliest() > limit) return;
        run_timer();
        continue;
      }
      if (wheel_.Peek().time > limit) return;
      Prefetch();
      Event event = wheel_.Take();
      now_ = event.time;
      if ((++events_ & kHeartbeatMask) == 0 && !owner.OnHeartbeat(now_)) return;
      if (event.slot < link_count_) {
        OnArrival(event.slot);
      } else {
        OnWatched(event.slot - link_count_);
      }
      if (has_progress_) {
        has_progress_ = false;
        owner.OnProgress(now_);
      }
    }
  }
}

// Where the first frame on a link will go next: an egress, or the port of the NIC that answers.
inline uint32_t Network::LookUpNext(const Link& link) {
  if (link.flight.empty() || link.flight.front().frame >= kFirstSpecial) return ~0u;
  const Frame& frame = frames_[link.flight.front().frame];
  if (link.flags & kToHost) {
    const Nic& nic = nics_[link.target];
    nic.protocol->Prefetch(frame, 0);
    return nic.first_link;
  }
  if (balance_ == LoadBalance::kAdaptive || options_.hash != nullptr) return ~0u;
  return ChooseEgress(switches_[link.target], frame);
}

// Each stage needs what the one before it has brought into cache: link, place in its pipe, frame,
// the port where the frame goes, and the places in that port's queue and pipe. `event` counts in
// the open bucket. Inlined by force: GCC takes functions that only prefetch for ones without effect
// and removes calls of them.
[[gnu::always_inline]] inline void Network::FetchLink(size_t event) {
  uint32_t slot = wheel_.InBatch(event);
  if (slot >= link_count_) return;
  __builtin_prefetch(&links_[slot].free_at, 1);
  __builtin_prefetch(&links_[slot].data, 1);
}

[[gnu::always_inline]] inline void Network::FetchFlight(size_t event) {
  uint32_t slot = wheel_.InBatch(event);
  if (slot >= link_count_) return;
  const Link& link = links_[slot];
  if (!link.flight.empty()) __builtin_prefetch(&link.flight.front(), 1);
  if (link.flags & kToHost) __builtin_prefetch(nics_[link.target].protocol.get(), 1);
}

[[gnu::always_inline]] inline void Network::FetchFrame(size_t event) {
  uint32_t slot = wheel_.InBatch(event);
  if (slot >= link_count_) return;
  const Link& link = links_[slot];
  if (!link.flight.empty() && link.flight.front().frame < kFirstSpecial) {
    __builtin_prefetch(&frames_[link.flight.front().frame], 1);
  }
  if (!link.data.empty()) __builtin_prefetch(&link.data.front(), 1);
}

[[gnu::always_inline]] inline void Network::FetchNext(size_t event) {
  uint32_t slot = wheel_.InBatch(event);
  uint32_t next = slot < link_count_ ? LookUpNext(links_[slot]) : ~0u;
  if (next != ~0u) {
    __builtin_prefetch(&links_[next].free_at, 1);
    __builtin_prefetch(&links_[next].data, 1);
  }
  next_ahead_[event % next_ahead_.size()] = next;
}

[[gnu::always_inline]] inline void Network::FetchQueue(size_t event) {
  uint32_t slot = wheel_.InBatch(event);
  uint32_t next = next_ahead_[event % next_ahead_.size()];
  if (slot >= link_count_ || next == ~0u) return;
  __builtin_prefetch(links_[next].flight.end(), 1);
  __builtin_prefetch(links_[next].data.end(), 1);
  const Link& link = links_[slot];
  if (!(link.flags & kToHost) || link.flight.empty()) return;
  uint32_t frame = link.flight.front().frame;
  if (frame < kFirstSpecial) nics_[link.target].protocol->Prefetch(frames_[frame], 1);
}

inline void Network::Prefetch() {
  size_t now = wheel_.position();
  FetchLink(now + kLinkAhead);
  FetchFlight(now + kFlightAhead);
  FetchFrame(now + kFrameAhead);
  FetchNext(now + kNextAhead);
  FetchQueue(now + kQueueAhead);
}

// The same for the first events of a bucket.
void Network::PrefetchFirst() {
  for (size_t i = 0; i < kLinkAhead; ++i) FetchLink(i);
  for (size_t i = 0; i < kFlightAhead; ++i) FetchFlight(i);
  for (size_t i = 0; i < kFrameAhead; ++i) FetchFrame(i);
  for (size_t i = 0; i < kNextAhead; ++i) FetchNext(i);
  for (size_t i = 0; i < kQueueAhead; ++i) FetchQueue(i);
}

void Network::OnArrival(uint32_t id) {
  Link& link = links_[id];
  Flight flight = link.flight.PopFront();
  if ((link.flags & (kFromHost | kManyPorts)) == kFromHost) {
    Pull(link, id);
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
    if (frame != kNoFrame) OnPause(link.reverse, frame == kPause);
  } else if (link.flags & kToHost) {
    Deliver(link, frame);
  } else {
    Forward(id, frame);
  }
}

inline void Network::Forward(uint32_t ingress, uint32_t frame) {
  Frame& header = frames_[frame];
  uint32_t id = ChooseEgress(switches_[links_[ingress].target], header);
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
  if (balance_ == LoadBalance::kAdaptive) {
    drained_at_[id] = std::max(drained_at_[id], now_) + egress.rate.TimeFor(header.size);
  }
  if (egress.free_at <= now_ && (!is_data || !(egress.flags & kPaused))) {
    Send(egress, id, frame, header.size, now_);
  } else if (!is_data) {
    QueueControl(egress, frame, header.size);
  } else {
    Enqueue(id, frame, ingress);
  }
  ScheduleFirst(egress, id, was_empty);
}

void Network::Enqueue(uint32_t id, uint32_t frame, uint32_t ingress) {
  Link& egress = links_[id];
  Frame& header = frames_[frame];
  if ((accounted_ || egress.queue_limit > 0) && !Admit(ingress, egress, header)) {
    if (!options_.trimming) {
      Drop(egress, frame);
      return;
    }
    ++egress.dropped;
    header.flags |= kTrimmed;
    header.size = static_cast<uint16_t>(options_.header.count());
    QueueControl(egress, frame, header.size);
    return;
  }
  egress.data.PushBack({now_, frame, header.size}, arena_);
  egress.queued_bytes += header.size;
  egress.queue_max = std::max(egress.queue_max, egress.queued_bytes);
  if (accounted_ && switches_[egress.source].paused > 0) Watch(egress, id);
}

void Network::SendQueuedData(Link& link, uint32_t id) {
  Queued next = link.data.PopFront();
  link.queued_bytes -= next.size;
  link.queue_integral +=
      static_cast<double>(next.size) * static_cast<double>(link.free_at - next.since);
  if (ecn_ && link.queued_bytes > link.ecn_min) Mark(link, frames_[next.frame]);
  bool account = accounted_ && !(link.flags & kFromHost);
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
  return forwarding_.Member(set,
                            static_cast<uint32_t>(options_.hash->Choose(at.node, frame, next)));
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
    link.paused_since = now_;
  }
}

}  // namespace weft::topology::packet
