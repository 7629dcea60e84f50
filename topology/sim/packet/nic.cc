// NICs: the wire asks the protocol for frames.
#include <algorithm>
#include <utility>

#include "base/status.h"
#include "topology/sim/packet/network.h"
#include "topology/sim/path_choice.h"

namespace weft::topology::packet {

void Network::BuildNics() {
  nics_.resize(static_cast<size_t>(fabric_.endpoints()));
  for (uint32_t i = 0; i < link_count_; ++i) {
    Link& link = links_[i];
    if (!(link.flags & kFromHost)) continue;
    Nic& nic = nics_[link.source];
    if (nic.links++ == 0) nic.first_link = i;
    link.flags |= kIdle;
  }
  for (Nic& nic : nics_) {
    if (nic.links == 1) continue;
    for (uint32_t i = 0; i < nic.links; ++i) links_[nic.first_link + i].flags |= kManyPorts;
  }
}

// Decides all that a NIC with one port has begun to send up to now.
void Network::Pull(Link& link, uint32_t id, NicId nic_id) {
  Nic& nic = nics_[nic_id];
  while (link.free_at <= now_ && (link.flags & (kIdle | kUp)) == kUp) {
    uint32_t frame = frames_.Allocate();
    Frame& header = frames_[frame];
    header.flags = 0;
    if (!nic.protocol->Transmit(link.free_at, !(link.flags & kPaused), header)) {
      frames_.Free(frame);
      // Its deadline has passed by the time at which this is decided: asked again as of then.
      if (Picoseconds due = nic.protocol->deadline(); due > link.free_at && due <= now_) {
        link.free_at = due;
        continue;
      }
      link.flags |= kIdle;
      ArmDeadline(nic_id);
      return;
    }
    Picoseconds start = link.free_at;
    Send(link, id, frame, header.size, start);
    AfterTransmit(start);
  }
}

// The same with several ports. The port with the longest free wire asks, one that is paused only
// if no other is free; the path decides through which port the frame goes, where it may wait. A few
// waiting frames keep the protocol from being asked, as they would fill the NIC's memory.
void Network::PullPorts(Nic& nic) {
  constexpr uint32_t kMaxWaiting = 4;
  Link& first = links_[nic.first_link];
  auto turn = [](const Link& port) { return std::pair((port.flags & kPaused) != 0, port.free_at); };
  while (!(first.flags & kIdle)) {
    Link* asking = nullptr;
    bool is_data_port_busy = false;  // a port that is not paused
    for (uint32_t i = 0; i < nic.links; ++i) {
      Link& port = links_[nic.first_link + i];
      if (port.data.size() >= kMaxWaiting || port.control.size() >= kMaxWaiting) return;
      if (!(port.flags & kUp)) continue;
      if (port.free_at > now_ || !port.data.empty() || !port.control.empty()) {
        is_data_port_busy |= !(port.flags & kPaused);
        continue;
      }
      if (asking == nullptr || turn(port) < turn(*asking)) asking = &port;
    }
    if (asking == nullptr) return;
    uint32_t frame = frames_.Allocate();
    Frame& header = frames_[frame];
    header.flags = 0;
    Picoseconds start = asking->free_at;
    if (!nic.protocol->Transmit(start, !(asking->flags & kPaused), header)) {
      frames_.Free(frame);
      if (Picoseconds due = nic.protocol->deadline(); due > start && due <= now_) {
        asking->free_at = due;
        continue;
      }
      ArmDeadline(first.source);
      // A paused port has asked for control frames alone. The busy one asks when its frame arrives.
      if (!(asking->flags & kPaused) || !is_data_port_busy) first.flags |= kIdle;
      return;
    }
    SendThroughPort(nic, *asking, frame, start);
    AfterTransmit(start);
  }
}

void Network::SendThroughPort(const Nic& nic, Link& asking, uint32_t frame, Picoseconds start) {
  const Frame& header = frames_[frame];
  constexpr uint32_t kMaxCandidates = 64;  // as many ports as a NIC may have
  uint32_t candidates[kMaxCandidates], count = 0;
  int best = 1 << 30;
  for (uint32_t i = 0; i < nic.links; ++i) {
    const Link& port = links_[nic.first_link + i];
    if (!(port.flags & kUp) || count == kMaxCandidates) continue;
    Forwarding::Set set = forwarding_.Next(port.target, header.target);
    if (set.count == 0 || set.distance > best) continue;
    if (set.distance < best) count = 0;
    best = set.distance;
    candidates[count++] = nic.first_link + i;
  }
  auto asking_id = static_cast<uint32_t>(&asking - links_.get());
  if (count == 0) {  // an arrival of nothing, so that the port asks again
    bool was_empty = asking.flight.empty();
    asking.free_at = start + asking.rate.TimeFor(header.size);
    asking.flight.PushBack({asking.free_at + asking.delay, kNoFrame}, arena_);
    ScheduleFirst(asking, asking_id, was_empty);
    Drop(asking, frame);
    return;
  }
  uint32_t id = candidates[0];
  bool is_listed = std::find(candidates, candidates + count, asking_id) != candidates + count;
  if (balance_ != LoadBalance::kEcmp && is_listed) {
    id = asking_id;
  } else if (count > 1) {
    NodeId host = fabric_.link(numbers_.Id(nic.first_link)).source;
    id = candidates[options_.hash != nullptr ? ChoosePort(host, header, {candidates, count})
                                             : ChooseLink(header.path, host, count)];
  }
  Link& port = links_[id];
  bool is_data = IsData(header.kind), was_empty = port.flight.empty();
  if (port.free_at <= start && !(is_data && (port.flags & kPaused)) && port.data.empty() &&
      port.control.empty()) {
    Send(port, id, frame, header.size, start);
    ScheduleFirst(port, id, was_empty);
  } else if (is_data) {
    QueueData(port, frame, header.size, start);
  } else {
    QueueControl(port, frame, header.size);
  }
}

size_t Network::ChoosePort(NodeId host, const Frame& frame,
                           absl::Span<const uint32_t> ports) const {
  std::vector<LinkId> next;
  next.reserve(ports.size());
  for (uint32_t port : ports) next.push_back(numbers_.Id(port));
  return options_.hash->Choose(host, FlowOf(frame), next);
}

// Something has changed for the protocol of `nic`: what it could not send before, it may now.
void Network::Wake(NicId id) {
  Nic& nic = nics_[id];
  Link& first = links_[nic.first_link];
  if (!(first.flags & kManyPorts)) {
    bool was_empty = first.flight.empty();
    first.flags &= static_cast<uint16_t>(~kIdle);
    first.free_at = std::max(first.free_at, now_);
    Pull(first, nic.first_link, id);
    ScheduleFirst(first, nic.first_link, was_empty);
    return;
  }
  first.flags &= static_cast<uint16_t>(~kIdle);
  for (uint32_t i = 0; i < nic.links; ++i) {
    Link& port = links_[nic.first_link + i];
    bool was_empty = port.flight.empty();
    Advance(port, nic.first_link + i);
    if (port.data.empty() && port.control.empty()) port.free_at = std::max(port.free_at, now_);
    ScheduleFirst(port, nic.first_link + i, was_empty);
  }
  PullPorts(nic);
}

void Network::ArmDeadline(NicId id) {
  Nic& nic = nics_[id];
  Picoseconds deadline = nic.protocol->deadline();
  if (deadline >= nic.armed) return;
  // Data that is due but paused: the end of the pause wakes the NIC.
  if (deadline <= now_) return;
  nic.armed = deadline;
  timers_.Push({deadline, TimerKind::kNic, id, 0});
}

void Network::OnNicDeadline(NicId id) {
  Nic& nic = nics_[id];
  if (nic.armed != now_) return;  // an earlier one was armed meanwhile
  nic.armed = kNever;
  Settle(id);
  Wake(id);
}

void Network::Settle(NicId id) {
  Nic& nic = nics_[id];
  Link& first = links_[nic.first_link];
  if (first.flags & kManyPorts) {
    for (uint32_t i = nic.first_link; i < nic.first_link + nic.links; ++i) {
      bool was_empty = links_[i].flight.empty();
      Advance(links_[i], i);
      ScheduleFirst(links_[i], i, was_empty);
    }
    PullPorts(nic);
    return;
  }
  bool was_empty = first.flight.empty();
  Pull(first, nic.first_link, id);
  ScheduleFirst(first, nic.first_link, was_empty);
}

void Network::SettleLink(Link& link, uint32_t id) {
  if (link.flags & kFromHost) {
    Settle(link.source);
    return;
  }
  bool was_empty = link.flight.empty();
  Advance(link, id);
  ScheduleFirst(link, id, was_empty);
}

void Network::Begin(NicId id, FlowId flow) {
  Settle(id);
  nics_[id].protocol->Begin(flow, now_);
  Wake(id);
}

void Network::Deliver(Link& link, uint32_t frame) {
  Settle(link.target);
  nics_[link.target].protocol->Receive(frames_[frame], now_);
  frames_.Free(frame);
  Wake(link.target);
}

}  // namespace weft::topology::packet
