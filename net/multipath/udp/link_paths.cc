#include "net/multipath/udp/link_paths.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

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
  WEFT_ASSIGN_OR_RETURN(SocketAddress host, SocketAddress::Parse(peer.host));
  size_t paths = std::min(peer.ports.size(), sockets_.ports().size());
  for (size_t path = 0; path < paths; ++path) {
    host.set_port(peer.ports[path]);
    peer_.push_back(host);
  }
  // Half of what the peer's sockets hold: the kernel counts more than the bytes.
  auto room = static_cast<int64_t>(std::min<uint64_t>(peer.buffer_bytes, 1 << 30) * paths / 2);
  Facts facts{static_cast<int>(paths), Bytes(room), HostMtu(peer_.front()), {}};
  if (ways_ && facts.host_mtu == 0) {
    WEFT_ASSIGN_OR_RETURN(facts.planned, PlannedPaths());
  }
  return facts;
}

// Ports are those of sockets that are there: of each way, the first path that takes it. A way that
// none takes is left out; if all are, the policy chooses as it does without a plan.
absl::StatusOr<std::vector<PathId>> UdpPaths::PlannedPaths() const {
  const topology::IpAddress own = ToIpAddress(host_), target = ToIpAddress(peer_.front());
  absl::StatusOr<std::vector<topology::PathWay>> ways =
      ends_.leads ? ways_.Take(own, target, ends_.peer, 1) : ways_.Answer(own, target, 1);
  if (!ways.ok()) return ways.status();
  std::vector<PathId> planned;
  for (const topology::PathWay& way : *ways) {
    for (size_t path = 0; path < peer_.size(); ++path) {
      SocketAddress source = host_;
      source.set_port(sockets_.ports()[path]);
      const auto id = static_cast<PathId>(path);
      if (std::find(planned.begin(), planned.end(), id) != planned.end() ||
          !ways_->Takes(way, MakeTuple(source, peer_[path], topology::kProtocolUdp))) {
        continue;
      }
      planned.push_back(id);
      break;
    }
  }
  return planned;
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
