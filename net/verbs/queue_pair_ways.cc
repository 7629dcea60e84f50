#include "net/verbs/queue_pair_ways.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "base/status.h"
#include "net/verbs/rails.h"
#include "topology/ecmp/roce.h"

namespace weft::net {
namespace {

constexpr size_t kLeftMost = 64;     // ways that are remembered as left
constexpr size_t kMappedBytes = 12;  // of ::ffff:a.b.c.d, before the IPv4 address

}  // namespace

topology::IpAddress ToIpAddress(const Gid& gid) {
  const bool is_v4 = std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t b) { return b == 0; }) &&
                     gid[10] == 0xFF && gid[11] == 0xFF;
  topology::IpAddress out;
  out.v6 = !is_v4;
  std::copy(gid.begin() + (is_v4 ? kMappedBytes : 0), gid.end(), out.bytes.begin());
  return out;
}

absl::Status CheckRails(const PlannedWays& ways, Rails& rails) {
  for (int rail = 0; ways && rail < rails.size(); ++rail) {
    if (!rails[rail].port.ethernet) continue;
    WEFT_RETURN_IF_ERROR(ways.Check(ToIpAddress(rails[rail].gid.gid.gid)));
  }
  return absl::OkStatus();
}

void WatchRails(PlannedWays& ways, Rails& rails) {
  for (int rail = 0; rail < rails.size(); ++rail) {
    if (rails[rail].port.ethernet) ways.Watch(ToIpAddress(rails[rail].gid.gid.gid));
  }
}

bool QueuePairWays::IsOffItsWay(size_t index, const Gid& own, const Gid& remote) const {
  const auto pair = pairs_.find({own, remote});
  if (!ways_ || pair == pairs_.end()) return false;
  const auto taken = pair->second.taken.find(index);
  if (taken == pair->second.taken.end()) return false;
  return !(ways_->Now(taken->second).choices == taken->second.choices);
}

void QueuePairWays::Follow(size_t index, const Gid& own, const Gid& remote) {
  const auto pair = pairs_.find({own, remote});
  if (pair != pairs_.end()) pair->second.follows.insert(index);
}

// By the reports, where they move the flow and no queue pair has left that way for itself; else any
// that none has left.
absl::Status QueuePairWays::TakeAnother(Pair& pair, size_t index, const topology::PathEnds& ends) {
  topology::PathWay& taken = pair.taken.at(index);
  const auto forget = [&](const topology::PathWay& way) {
    pair.left.erase(std::remove_if(pair.left.begin(), pair.left.end(),
                                   [&](const auto& one) { return one.choices == way.choices; }),
                    pair.left.end());
  };
  const topology::PathWay now = ways_->Now(taken);
  const bool follows = pair.follows.erase(index) > 0;
  const bool was_left = std::any_of(pair.left.begin(), pair.left.end(),
                                    [&](const auto& one) { return one.choices == now.choices; });
  if (follows && now.choices == taken.choices) return absl::OkStatus();  // it was taken back
  if (!(now.choices == taken.choices) && (follows || !was_left)) {
    forget(now);
    taken = now;
    return absl::OkStatus();
  }
  forget(taken);
  if (pair.left.size() >= kLeftMost) pair.left.erase(pair.left.begin());
  pair.left.push_back(taken);
  WEFT_ASSIGN_OR_RETURN(taken, ways_.Another(ends.source, ends.target, pair.left));
  return absl::OkStatus();
}

absl::StatusOr<uint16_t> QueuePairWays::Port(size_t index, int count, bool again, const Gid& own,
                                             const Gid& remote) {
  const topology::IpAddress source = ToIpAddress(own), target = ToIpAddress(remote);
  auto [found, is_new] = pairs_.try_emplace({own, remote});
  Pair& pair = found->second;
  if (is_new) {
    absl::StatusOr<std::vector<topology::PathWay>> ways =
        leads_ ? ways_.Take(source, target, peer_, count) : ways_.Answer(source, target, count);
    if (!ways.ok()) return ways.status();
    pair.ways = *std::move(ways);
  }
  if (pair.ways.empty()) return 0;
  const auto taken = pair.taken.try_emplace(index, pair.ways[index % pair.ways.size()]).first;
  if (again) WEFT_RETURN_IF_ERROR(TakeAnother(pair, index, {source, target}));
  const topology::FiveTuple tuple{
      source, target, 0, topology::kRoceTargetPort, topology::kProtocolUdp, 0};
  const std::optional<uint16_t> port =
      ways_->Port(taken->second, tuple, (static_cast<uint64_t>(getpid()) << 16) + ++ports_ * 257, 0,
                  topology::kRocePortFirst, topology::kRocePortLast);
  if (port.has_value()) return *port;
  const int64_t count_now = ways_->CountKernelPort();
  WEFT_LOG_WARN("verbs: no UDP source port of a queue pair from ", source.ToString(), " to ",
                target.ToString(), " takes the way ", taken->second.ToString(),
                "; its port is drawn (", count_now, " connections are not on a planned way)");
  return 0;
}

}  // namespace weft::net
