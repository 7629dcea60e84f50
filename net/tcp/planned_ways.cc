#include "net/tcp/planned_ways.h"

#include <netinet/in.h>

#include <cstring>

#include "base/status.h"

namespace weft::net {

topology::IpAddress ToIpAddress(const SocketAddress& address) {
  topology::IpAddress out;
  out.v6 = address.family() == AF_INET6;
  if (out.v6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address.get());
    std::memcpy(out.bytes.data(), &v6->sin6_addr, 16);
  } else {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address.get());
    std::memcpy(out.bytes.data(), &v4->sin_addr, 4);
  }
  return out;
}

topology::FiveTuple MakeTuple(const SocketAddress& source, const SocketAddress& target,
                              uint8_t protocol) {
  return {ToIpAddress(source),
          ToIpAddress(target),
          static_cast<uint16_t>(source.port()),
          static_cast<uint16_t>(target.port()),
          protocol,
          0};
}

absl::StatusOr<PlannedWays> PlannedWays::Open(const Settings& settings, Rank self, int world_size) {
  PlannedWays out;
  const std::string& folder = settings.Text("plan");
  if (folder.empty()) return out;
  WEFT_ASSIGN_OR_RETURN(out.plan_, topology::ConnectionPlan::Load(folder));
  out.watch_every_ = settings.Duration("plan.watch");
  out.self_ = self;
  out.world_size_ = world_size;
  out.has_ranks_ = world_size <= kJobRanksMost;
  return out;
}

absl::Status PlannedWays::Check(const topology::IpAddress& own) const {
  if (!has_ranks_) return plan_->CheckHost(own);
  return plan_->CheckRank(own, self_.value(), world_size_);
}

void PlannedWays::Watch(const topology::IpAddress& own) {
  if (plan_ == nullptr || watch_every_ <= absl::ZeroDuration()) return;
  if (auto watcher = topology::PathWatcher::Share(plan_, own, watch_every_)) {
    watchers_.push_back(std::move(watcher));
  }
}

absl::StatusOr<std::vector<topology::PathWay>> PlannedWays::Take(const topology::IpAddress& own,
                                                                 const topology::IpAddress& target,
                                                                 Rank peer, int count) const {
  topology::PathEnds ends{own, target};
  if (has_ranks_) {
    ends.rank = self_.value();
    ends.peer = peer.value();
  }
  return plan_->Take(ends, count);
}

absl::StatusOr<std::vector<topology::PathWay>> PlannedWays::Answer(
    const topology::IpAddress& own, const topology::IpAddress& target, int count) const {
  return plan_->Answer({own, target}, count);
}

absl::StatusOr<topology::PathWay> PlannedWays::Instead(const topology::IpAddress& own,
                                                       const topology::IpAddress& target,
                                                       const topology::PathWay& failed,
                                                       absl::Time now) const {
  return plan_->Instead({own, target}, failed, now);
}

absl::StatusOr<topology::PathWay> PlannedWays::Another(
    const topology::IpAddress& own, const topology::IpAddress& target,
    absl::Span<const topology::PathWay> left) const {
  return plan_->Another({own, target}, left);
}

void PlannedWays::Fails(const topology::IpAddress& own, const topology::IpAddress& target,
                        const topology::PathWay& way, absl::Time now) const {
  plan_->Fails({own, target}, way, now);
}

void PlannedWays::Answers(const topology::IpAddress& own, const topology::IpAddress& target,
                          const topology::PathWay& way) const {
  plan_->Answers({own, target}, way);
}

}  // namespace weft::net
