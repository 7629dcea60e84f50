// Links that misbehave at random, and links that go down, come up or change their speed.
#include <algorithm>

#include "topology/sim/packet/network.h"

namespace weft::topology::packet {

void Network::BuildNoise() {
  if (options_.noise.empty()) return;
  noise_.resize(link_count_);
  for (const LinkNoise& noise : options_.noise) {
    for (uint32_t i = 0; i < link_count_; ++i) {
      if (noise.link.value() >= 0 && numbers_.Of(noise.link) != i) continue;
      noise_[i].what = noise;
      noise_[i].random = Random(options_.seed, uint64_t{1} << 32 | i);
      links_[i].flags |= kNoisy;
    }
  }
}

// A frame that does not arrive keeps its place in the pipe: its arrival is then nothing.
void Network::SendNoisy(Link& link, uint32_t id, uint32_t frame, uint32_t size) {
  auto& [what, random] = noise_[id];
  Picoseconds arrival = link.free_at + link.delay;
  if (random.Uniform() < what.loss + what.corruption) {
    ++link.dropped;
    frames_.Free(frame);
    link.flight.PushBack({arrival, kNoFrame}, arena_);
    return;
  }
  if (what.duplication > 0 && random.Uniform() < what.duplication) {
    uint32_t copy = frames_.Allocate();
    frames_[copy] = frames_[frame];
    link.bytes += size;
    ++link.frames;
    link.flight.PushBack({arrival, copy}, arena_);
  }
  if (what.reordering > 0 && random.Uniform() < what.reordering) {
    auto bound =
        static_cast<uint64_t>(std::max<Picoseconds>(1, FromDuration(what.reordering_delay)));
    auto late = static_cast<Picoseconds>(random.Below(bound)) + 1;
    timers_.Push({arrival + late, TimerKind::kLate, frame, id});
    link.flight.PushBack({arrival, kNoFrame}, arena_);
    return;
  }
  link.flight.PushBack({arrival, frame}, arena_);
}

// What is on a link or waits for it when it goes down is lost.
void Network::SetOneLinkUp(uint32_t id, bool up) {
  Link& link = links_[id];
  bool is_up = (link.flags & kUp) != 0;
  if (is_up == up) return;
  SettleLink(link, id);
  if (up) {
    link.flags |= kUp;
    if (link.flags & kFromHost) Wake(link.source);
    return;
  }
  link.flags &= static_cast<uint16_t>(~kUp);
  ++link.failures;
  for (uint32_t i = 0; i < link.flight.size(); ++i) {
    Flight& flight = link.flight[i];
    if (flight.frame < kFirstSpecial) Drop(link, flight.frame);
    flight.frame = kNoFrame;
  }
  while (!link.control.empty()) Drop(link, link.control.PopFront().frame);
  link.flags &= static_cast<uint16_t>(~(kControl | kData));
  while (!link.data.empty()) {
    Queued lost = link.data.PopFront();
    link.queued_bytes -= lost.size;
    Frame header = frames_[lost.frame];
    Drop(link, lost.frame);
    if (accounted_ && !(link.flags & kFromHost)) Release(header);
  }
  // A pause ends with the link: whoever comes up starts afresh.
  OnPause(id, false);
  if (!link.xoff) return;
  link.xoff = false;
  link.over_bytes = 0;
  --switches_[link.target].paused;
}

void Network::SetLinkUp(LinkId id, bool up) {
  uint32_t link = numbers_.Of(id);
  SetOneLinkUp(link, up);
  SetOneLinkUp(links_[link].reverse, up);
}

// From the next frame on.
void Network::SetLinkBandwidth(LinkId id, Bandwidth bandwidth) {
  for (uint32_t number : {numbers_.Of(id), links_[numbers_.Of(id)].reverse}) {
    SettleLink(links_[number], number);
    links_[number].rate = WireRate(bandwidth);
  }
}

}  // namespace weft::topology::packet
