// Deadlocks of PFC: links that are paused for bytes that wait in ports that are paused themselves,
// in a circle, so that none can ever be resumed.
//
// Exact for a moment: starting from all paused links, those are struck out one after the other that
// would be resumed if all ports sent what is not in a link still listed. What remains waits for
// itself (the greatest fixed point). Only retransmission cannot help: nothing may enter.
#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "topology/sim/packet/network.h"

namespace weft::topology::packet {
namespace {

// Bytes that came over `ingress` and wait in the port of `egress`.
struct Stuck {
  uint32_t ingress, egress;
  int64_t bytes;
};

}  // namespace

std::string Network::FindDeadlock() const {
  std::vector<char> listed(link_count_, 0);
  std::vector<Stuck> stuck;
  for (uint32_t id = 0; id < link_count_; ++id) {
    const Link& link = links_[id];
    if (!(link.flags & kPaused)) continue;
    listed[id] = 1;
    if (link.flags & kFromHost) continue;
    absl::flat_hash_map<uint32_t, int64_t> bytes;
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < link.data.size(); ++i) {
      const Queued& queued = link.data[i];
      uint32_t ingress = frames_[queued.frame].ingress;
      if (bytes.try_emplace(ingress, 0).second) order.push_back(ingress);
      bytes[ingress] += queued.size;
    }
    for (uint32_t ingress : order) stuck.push_back({ingress, id, bytes[ingress]});
  }
  std::vector<int64_t> held(link_count_);
  for (bool changed = true; changed;) {
    changed = false;
    std::fill(held.begin(), held.end(), 0);
    for (const Stuck& one : stuck) {
      if (listed[one.egress]) held[one.ingress] += one.bytes;
    }
    for (uint32_t id = 0; id < link_count_; ++id) {
      if (!listed[id]) continue;
      const Link& link = links_[id];
      int64_t resume =
          PauseThreshold(switches_[link.target], link) - options_.pfc.resume_offset.count();
      if (link.xoff && held[id] > std::max<int64_t>(0, resume)) continue;
      listed[id] = 0;
      changed = true;
    }
  }
  // Follow what waits for what until a link comes twice.
  std::vector<uint32_t> next(link_count_, ~0u);
  for (const Stuck& one : stuck) {
    if (listed[one.ingress] && listed[one.egress] && next[one.ingress] == ~0u) {
      next[one.ingress] = one.egress;
    }
  }
  auto start = std::find(listed.begin(), listed.end(), 1);
  if (start == listed.end()) return "";
  auto at = static_cast<uint32_t>(start - listed.begin());
  std::vector<char> seen(link_count_, 0);
  while (!seen[at]) {
    seen[at] = 1;
    at = next[at];
  }
  std::string cycle;
  uint32_t first = at;
  do {
    absl::StrAppend(&cycle, fabric_.Name(numbers_.Id(at)), " waits for ");
    at = next[at];
  } while (at != first);
  return cycle + fabric_.Name(numbers_.Id(first));
}

void Network::OnWatchdog() {
  watchdog_armed_ = false;
  if (paused_links_ == 0) return;
  if (deadlock_.empty()) deadlock_ = FindDeadlock();
  timers_.Push({now_ + kWatchdogPeriod, TimerKind::kWatchdog, 0, 0});
  watchdog_armed_ = true;
}

}  // namespace weft::topology::packet
