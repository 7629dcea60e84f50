// The memory of switches: who may put a frame into it, whom it pauses (PFC), what it marks (ECN).
//
// Counters fall when a frame's transmission is decided, and that is lazy. A counter is therefore
// never too low; where it says "too much", all ports are brought up to date and it is asked again.
#include <algorithm>
#include <cmath>

#include "topology/sim/packet/network.h"

namespace weft::topology {

Bytes HeadroomFor(Bandwidth bandwidth, absl::Duration delay, Bytes full_packet,
                  absl::Duration reaction) {
  using packet::FromDuration;
  packet::WireRate rate(bandwidth);
  packet::Picoseconds time = rate.TimeFor(full_packet.count()) + rate.TimeFor(packet::kPauseFrame) +
                             2 * FromDuration(delay) + FromDuration(reaction);
  auto flying =
      static_cast<int64_t>(std::ceil(static_cast<double>(time) * rate.bytes_per_picosecond()));
  return Bytes(flying) + full_packet * 2;  // one begun by the neighbour, one that was just too much
}

namespace packet {

void Network::BuildMemory() {
  const PfcOptions& pfc = options_.pfc;
  ecn_ = options_.ecn.enabled;
  accounted_ = pfc.enabled;
  for (Switch& at : switches_) {
    Bytes buffer =
        options_.switch_buffer > Bytes(0) ? options_.switch_buffer : fabric_.node(at.node).buffer;
    at.buffer = buffer.count();
    if (at.buffer > 0) accounted_ = true;
  }
  fetches_source_ = ecn_ || accounted_;
  Bytes full = options_.payload + options_.header;
  for (uint32_t i = 0; i < link_count_; ++i) {
    Link& link = links_[i];
    const FabricLink& from = fabric_.link(numbers_.Id(i));
    if (!(link.flags & kFromHost)) {
      Bytes limit = options_.port_buffer > Bytes(0) ? options_.port_buffer : from.buffer;
      link.queue_limit = limit.count();
      double scale =
          options_.ecn.reference > Bandwidth() ? from.bandwidth / options_.ecn.reference : 1;
      link.ecn_min = std::llround(static_cast<double>(options_.ecn.min.count()) * scale);
      link.ecn_max = std::llround(static_cast<double>(options_.ecn.max.count()) * scale);
    }
    if (link.flags & kToHost) continue;
    link.xoff_bytes = pfc.xoff.count();
    link.headroom =
        pfc.headroom > Bytes(0)
            ? pfc.headroom.count()
            : HeadroomFor(from.bandwidth, ToDuration(link.delay), full, pfc.reaction).count();
    if (pfc.enabled) switches_[link.target].headroom += link.headroom;
  }
}

void Network::SetLongestRoundTrip(Picoseconds time) {
  const EcnOptions& ecn = options_.ecn;
  for (uint32_t i = 0; i < link_count_; ++i) {
    Link& link = links_[i];
    if (link.flags & kFromHost) continue;
    double held = static_cast<double>(time) * link.rate.bytes_per_picosecond();
    if (options_.trimming && link.queue_limit == 0) link.queue_limit = std::llround(held);
    if (ecn.max_round_trips <= 0) continue;
    link.ecn_min = std::llround(held * ecn.min_round_trips);
    link.ecn_max = std::llround(held * ecn.max_round_trips);
  }
}

int64_t Network::PauseThreshold(const Switch& at, const Link& ingress) const {
  if (ingress.xoff_bytes > 0) return ingress.xoff_bytes;
  return std::max<int64_t>(0, at.buffer - at.headroom - at.used) >> options_.pfc.dynamic_shift;
}

bool Network::Fits(const Switch& at, const Link& ingress, const Link& egress, int64_t size) const {
  if (at.buffer > 0 && at.used + size > at.buffer) return false;
  if (egress.queue_limit > 0 && egress.queued_bytes + size > egress.queue_limit) return false;
  if (!options_.pfc.enabled) return true;
  return !ingress.xoff || ingress.over_bytes + size <= ingress.headroom;
}

// Whether `frame` may wait at `egress`; if so it is counted, and its neighbour paused if need be.
bool Network::Admit(uint32_t ingress_id, Link& egress, Frame& frame) {
  Link& ingress = links_[ingress_id];
  Switch& at = switches_[ingress.target];
  if (!Fits(at, ingress, egress, frame.size)) {
    if (!accounted_) return false;
    AdvanceAll(at);
    if (!Fits(at, ingress, egress, frame.size)) return false;
  }
  if (!accounted_) return true;
  frame.ingress = ingress_id;
  at.used += frame.size;
  ingress.ingress_bytes += frame.size;
  if (ingress.xoff) ingress.over_bytes += frame.size;
  if (!options_.pfc.enabled || ingress.xoff) return true;
  if (ingress.ingress_bytes <= PauseThreshold(at, ingress)) return true;
  AdvanceAll(at);
  if (ingress.ingress_bytes <= PauseThreshold(at, ingress)) return true;
  ingress.xoff = true;
  ++at.paused;
  SendPause(ingress_id, kPause);
  if (at.paused > 1) return true;
  for (uint32_t i = at.first_link; i < at.first_link + at.links; ++i) Watch(links_[i], i);
  return true;
}

// A frame has left the memory of the switch that its ingress leads to.
void Network::Release(const Frame& frame) {
  Link& ingress = links_[frame.ingress];
  Switch& at = switches_[ingress.target];
  ingress.ingress_bytes -= frame.size;
  at.used -= frame.size;
  if (!ingress.xoff) return;
  ingress.over_bytes = std::max<int64_t>(0, ingress.over_bytes - frame.size);
  int64_t resume = PauseThreshold(at, ingress) - options_.pfc.resume_offset.count();
  if (ingress.ingress_bytes > std::max<int64_t>(0, resume)) return;
  ingress.xoff = false;
  ingress.over_bytes = 0;
  --at.paused;
  SendPause(frame.ingress, kResume);
}

// On egress bytes q behind the departing frame: RED (Floyd and Jacobson, 1993) without averaging.
void Network::Mark(Link& link, Frame& frame) {
  if (link.queued_bytes <= link.ecn_max) {
    double share = static_cast<double>(link.queued_bytes - link.ecn_min) /
                   static_cast<double>(link.ecn_max - link.ecn_min);
    double draw = static_cast<double>(SplitMix64(link.draws) >> 11) * 0x1.0p-53;
    if (draw >= share * options_.ecn.probability_max) return;
  }
  frame.flags |= kMarked;
  ++link.marked;
}

void Network::AdvanceAll(const Switch& at) {
  for (uint32_t i = at.first_link; i < at.first_link + at.links; ++i) {
    Link& link = links_[i];
    if (link.free_at > now_) continue;
    bool was_empty = link.flight.empty();
    Advance(link, i);
    ScheduleFirst(link, i, was_empty);
  }
}

// Pause frames go before everything else, but after the frame that is being sent.
void Network::SendPause(uint32_t ingress, uint32_t what) {
  uint32_t id = links_[ingress].reverse;
  Link& back = links_[id];
  if (!(back.flags & kUp)) return;
  bool was_empty = back.flight.empty();
  Advance(back, id);
  back.free_at = std::max(back.free_at, now_) + back.rate.TimeFor(kPauseFrame);
  back.flight.PushBack({back.free_at + back.delay, what}, arena_);
  ScheduleFirst(back, id, was_empty);
}

// The source of `link` heeds a pause frame some time after it came, if the link is the same by
// then.
void Network::OnPauseFrame(uint32_t id, bool paused) {
  if (pause_reaction_ == 0) {
    OnPause(id, paused);
    return;
  }
  uint32_t argument = uint32_t{links_[id].failures} << 1 | (paused ? 1 : 0);
  timers_.Push({now_ + pause_reaction_, TimerKind::kPause, id, argument});
}

void Network::OnPauseHeeded(uint32_t id, uint32_t argument) {
  if (argument >> 1 == links_[id].failures) OnPause(id, (argument & 1) != 0);
}

// The end of `link` has told its source to stop sending data, or to go on.
void Network::OnPause(uint32_t id, bool paused) {
  Link& link = links_[id];
  bool is_paused = (link.flags & kPaused) != 0;
  if (paused == is_paused) return;
  SettleLink(link, id);
  if (paused) {
    link.flags |= kPaused;
    link.paused_since = now_;
    if (balance_ == LoadBalance::kAdaptive) drained_at_[id] += kPausedPenalty;
    ++paused_links_;
    if (!watchdog_armed_) timers_.Push({now_ + kWatchdogPeriod, TimerKind::kWatchdog, 0, 0});
    watchdog_armed_ = true;
    return;
  }
  link.flags &= static_cast<uint16_t>(~kPaused);
  link.paused_total += now_ - link.paused_since;
  --paused_links_;
  if (options_.observer != nullptr) {
    options_.observer->Paused(numbers_.Id(id), ToDuration(link.paused_since), ToDuration(now_));
  }
  // Without data it may have been sending control frames meanwhile.
  link.free_at = std::max(link.free_at, now_);
  SettleLink(link, id);
  if (link.flags & kFromHost) {
    Wake(link.source);
    return;
  }
  if (balance_ == LoadBalance::kAdaptive) {
    drained_at_[id] = std::max(link.free_at, now_) +
                      static_cast<Picoseconds>(link.rate.TimeForMany(link.queued_bytes));
  }
  if (switches_[link.source].paused > 0) Watch(link, id);
}

// The next departure of data from `link` will be looked at when it happens.
void Network::Watch(Link& link, uint32_t id) {
  if ((link.flags & (kWatched | kPaused)) || link.data.empty()) return;
  link.flags |= kWatched;
  wheel_.Schedule(link_count_ + id, std::max(link.free_at, now_));
}

void Network::OnWatched(uint32_t id) {
  Link& link = links_[id];
  link.flags &= static_cast<uint16_t>(~kWatched);
  bool was_empty = link.flight.empty();
  Advance(link, id);
  ScheduleFirst(link, id, was_empty);
  if (switches_[link.source].paused > 0) Watch(link, id);
}

}  // namespace packet
}  // namespace weft::topology
