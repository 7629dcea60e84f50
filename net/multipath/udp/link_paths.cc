#include "net/multipath/udp/link_paths.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/tcp/interface.h"

namespace weft::net::multipath {
namespace {

// The kernel sends from the very address that it sends to where that is one of its own.
int HostMtu(const SocketAddress& peer) {
  FileDescriptor fd(socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), peer.get(), peer.size()) != 0) return 0;
  SocketAddress self = LocalAddress(fd.get());
  self.set_port(peer.port());
  if (self.ToString() != peer.ToString()) return 0;
  bool is_v6 = peer.family() == AF_INET6;
  int mtu = 0;
  socklen_t size = sizeof(mtu);
  getsockopt(fd.get(), is_v6 ? IPPROTO_IPV6 : IPPROTO_IP, is_v6 ? IPV6_MTU : IP_MTU, &mtu, &size);
  return mtu;
}

}  // namespace

absl::Status UdpPaths::Describe(Address& own) {
  own.link = link_;
  own.buffer_bytes = static_cast<uint64_t>(sockets_.buffer_bytes().count());
  own.host = host_.ToString();
  own.ports = sockets_.ports();
  return absl::OkStatus();
}

absl::StatusOr<LinkPaths::Facts> UdpPaths::Connect(const Address& peer) {
  WEFT_ASSIGN_OR_RETURN(SocketAddress host, ParsePeer(peer.host, host_));
  size_t paths = std::min(peer.ports.size(), sockets_.ports().size());
  for (size_t path = 0; path < paths; ++path) {
    host.set_port(peer.ports[path]);
    peer_.push_back(host);
  }
  // Half of what the peer's sockets hold: the kernel counts more than the bytes.
  auto room = static_cast<int64_t>(std::min<uint64_t>(peer.buffer_bytes, 1 << 30) * paths / 2);
  Facts facts{static_cast<int>(paths), Bytes(room), HostMtu(peer_.front()), {}, {}};
  if (ways_ && facts.host_mtu == 0) {
    WEFT_RETURN_IF_ERROR(FindPlannedPaths(facts));
  }
  return facts;
}

std::vector<PathId> UdpPaths::PathsOf(absl::Span<const topology::PathWay> ways,
                                      absl::Span<const PathId> but) const {
  std::vector<PathId> out;
  for (const topology::PathWay& way : ways) {
    for (size_t path = 0; path < peer_.size(); ++path) {
      SocketAddress source = host_;
      source.set_port(sockets_.ports()[path]);
      const auto id = static_cast<PathId>(path);
      if (std::find(out.begin(), out.end(), id) != out.end() ||
          std::find(but.begin(), but.end(), id) != but.end() ||
          !ways_->Takes(way, MakeTuple(source, peer_[path], topology::kProtocolUdp))) {
        continue;
      }
      out.push_back(id);
      break;
    }
  }
  return out;
}

// Ports are those of sockets that are there. A way that none takes is left out; if all are, the
// policy chooses as it does without a plan.
absl::Status UdpPaths::FindPlannedPaths(Facts& facts) {
  const topology::IpAddress own = ToIpAddress(host_), target = ToIpAddress(peer_.front());
  if (planned_.empty()) {
    WEFT_ASSIGN_OR_RETURN(planned_, ends_.leads ? ways_.Take(own, target, ends_.peer, 1)
                                                : ways_.Answer(own, target, 1));
  }
  std::vector<topology::PathWay> ways;
  for (const topology::PathWay& way : planned_) ways.push_back(ways_->Now(way));
  facts.planned = PathsOf(ways, {});
  WEFT_ASSIGN_OR_RETURN(std::vector<topology::PathWay> spares, ways_->Spares({own, target}));
  const auto is_planned = [&](const topology::PathWay& spare) {
    return std::any_of(ways.begin(), ways.end(),
                       [&](const auto& way) { return way.choices == spare.choices; });
  };
  spares.erase(std::remove_if(spares.begin(), spares.end(), is_planned), spares.end());
  facts.spare = PathsOf(spares, facts.planned);
  return absl::OkStatus();
}

std::string UdpPaths::Repair(const PathSet& /*known*/) {
  if (!ways_ || ways_->reports_version() == told_) return "";
  told_ = ways_->reports_version();
  return ways_->Reports();
}

absl::Status UdpPaths::OnRepair(absl::string_view words) {
  return ways_ ? ways_->Hear(words) : absl::OkStatus();  // a plan on the other side alone
}

bool UdpPaths::FollowPlan(Facts& facts) {
  if (planned_.empty() || ways_->reports_version() == followed_) return false;
  followed_ = ways_->reports_version();
  Facts now = facts;
  if (!FindPlannedPaths(now).ok() || now.planned.empty() ||
      (now.planned == facts.planned && now.spare == facts.spare)) {
    return false;
  }
  facts = std::move(now);
  return true;
}

std::pair<std::string, int> UdpPaths::WayOf(PathId path) const {
  SocketAddress from = host_;
  from.set_port(sockets_.ports()[path]);
  return {absl::StrCat(from.ToString(), " -> ", peer_[path].ToString()), from.port()};
}

std::string UdpPaths::Suspicion() const {
  return absl::StrCat("does a firewall let UDP through, from ", peer_.front().ToString(), " on?");
}

}  // namespace weft::net::multipath
