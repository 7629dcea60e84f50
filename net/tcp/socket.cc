#include "net/tcp/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/open_files.h"
#include "base/status.h"
#include "net/tcp/close_on_fork.h"

namespace weft::net {
namespace {

absl::Status SetOption(int fd, int level, int name, int value, absl::string_view text) {
  if (setsockopt(fd, level, name, &value, sizeof(value)) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("set ", text, " to ", value));
}

// The port is shared with connections to other peers, hence SO_REUSEADDR. Where `from` is only a
// port, the kernel chooses the address, by its routes; where it is only an address, connect()
// chooses the port.
absl::Status BindSource(int fd, int family, const SocketAddress& from) {
  WEFT_RETURN_IF_ERROR(SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  sockaddr_storage any{};
  any.ss_family = static_cast<sa_family_t>(family);
  socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  SocketAddress address(reinterpret_cast<sockaddr*>(&any), size);
  if (from.family() == family) address = from;
  address.set_port(from.port());
  if (from.port() == 0) {
    if (from.family() != family) return absl::OkStatus();
    SetOption(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1, "IP_BIND_ADDRESS_NO_PORT").IgnoreError();
  }
  if (bind(fd, address.get(), address.size()) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      from.port() == 0
          ? absl::StrCat("bind to ", from.ToString(), " (tcp.interface): ", std::strerror(errno))
          : absl::StrCat("bind to port ", from.port(),
                         " (tcp.source_ports, or plan): ", std::strerror(errno)));
}

}  // namespace

absl::Status TuneSocket(int fd, const SocketTuning& tuning) {
  // Probes begin after half of the time and are spread over the other half.
  auto milliseconds = absl::ToInt64Milliseconds(tuning.dead_after);
  constexpr int kProbes = 3;
  int idle = static_cast<int>(std::max<int64_t>(1, milliseconds / 2000));
  int interval = static_cast<int>(std::max<int64_t>(1, milliseconds / 2000 / kProbes));
  WEFT_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  WEFT_RETURN_IF_ERROR(SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  WEFT_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle, "TCP_KEEPIDLE"));
  WEFT_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval, "TCP_KEEPINTVL"));
  WEFT_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes, "TCP_KEEPCNT"));
  if (tuning.buffer_bytes.count() > 0) {
    int bytes = static_cast<int>(tuning.buffer_bytes.count());
    WEFT_RETURN_IF_ERROR(SetOption(fd, SOL_SOCKET, SO_SNDBUF, bytes, "SO_SNDBUF"));
    WEFT_RETURN_IF_ERROR(SetOption(fd, SOL_SOCKET, SO_RCVBUF, bytes, "SO_RCVBUF"));
  }
  return absl::OkStatus();
}

// Twice what is sent in a round trip, with what a sender needs to be told by and to fill the socket
// again on a busy host. Below the least, fast retransmission has too few segments to work with;
// from the most on, the kernel's limits on buffers that programs ask for would bind.
void LimitInFlight(int fd, FlowEnd end, uint64_t rate, const SocketTuning& tuning) {
  constexpr absl::Duration kRefill = absl::Milliseconds(2);
  constexpr double kLeast = 16 << 10, kMost = 128 << 10;
  if (rate == 0 || tuning.buffer_bytes.count() > 0) return;
  const absl::StatusOr<tcp_info> info = ConnectionInfo(fd);
  if (!info.ok()) return;
  const absl::Duration turn = absl::Microseconds(info->tcpi_rtt) + kRefill;
  const double bytes =
      std::max(2.0 * static_cast<double>(rate) * absl::ToDoubleSeconds(turn), kLeast);
  if (bytes >= kMost) return;
  // The kernel doubles what it is asked for, to have room for its own records, which large segments
  // hardly need. A window is half of what there is for it then.
  if (end == FlowEnd::kSends) {
    SetOption(fd, SOL_SOCKET, SO_SNDBUF, static_cast<int>(bytes / 2), "SO_SNDBUF").IgnoreError();
  } else {
    SetOption(fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(bytes), "SO_RCVBUF").IgnoreError();
  }
}

bool LooksDead(const tcp_info& info, absl::Duration dead_after) {
  bool silent = absl::Milliseconds(info.tcpi_last_ack_recv) >= dead_after;
  return silent && (info.tcpi_retransmits >= 2 || info.tcpi_probes >= 2);
}

bool LooksStalled(const tcp_info& info) {
  constexpr absl::Duration kLeast = absl::Milliseconds(300);
  const absl::Duration usual = absl::Microseconds(info.tcpi_rtt + 4.0 * info.tcpi_rttvar);
  return info.tcpi_retransmits >= 1 &&
         absl::Milliseconds(info.tcpi_last_ack_recv) >= std::max(kLeast, 2 * usual);
}

absl::StatusOr<tcp_info> ConnectionInfo(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) return info;
  return ErrnoStatus(errno, "getsockopt TCP_INFO");
}

absl::StatusOr<FileDescriptor> Listen(const SocketAddress& address, const SocketTuning& tuning) {
  std::string doing = absl::StrCat("listen at ", address.ToString());
  FileDescriptor fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    return IsDescriptorExhaustion(errno) ? DescriptorsExhausted(errno, doing)
                                         : ErrnoStatus(errno, doing);
  }
  SetCloseOnFork(fd.get());
  if (tuning.buffer_bytes.count() > 0) {  // accepted sockets inherit it; later is too late
    WEFT_RETURN_IF_ERROR(TuneSocket(fd.get(), tuning));
  }
  if (address.port() != 0) {
    WEFT_RETURN_IF_ERROR(SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  }
  if (bind(fd.get(), address.get(), address.size()) != 0) return ErrnoStatus(errno, doing);
  if (listen(fd.get(), SOMAXCONN) != 0) return ErrnoStatus(errno, doing);
  return fd;
}

absl::StatusOr<FileDescriptor> StartConnect(const SocketAddress& address,
                                            const SocketAddress& source,
                                            const SocketTuning& tuning) {
  FileDescriptor fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    return IsDescriptorExhaustion(errno) ? DescriptorsExhausted(errno, "socket")
                                         : ErrnoStatus(errno, "socket");
  }
  SetCloseOnFork(fd.get());
  WEFT_RETURN_IF_ERROR(TuneSocket(fd.get(), tuning));
  const int source_port = source.port();
  if (source_port != 0 && address.family() == AF_INET6) {
    // The port is to choose the path alone; Linux would draw a flow label, which switches may hash.
    // A kernel that draws none refuses this, which does no harm.
    SetOption(fd.get(), IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0, "IPV6_AUTOFLOWLABEL").IgnoreError();
  }
  WEFT_RETURN_IF_ERROR(BindSource(fd.get(), address.family(), source));
  if (connect(fd.get(), address.get(), address.size()) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    return absl::UnavailableError(
        source_port == 0 ? absl::StrCat("connect: ", std::strerror(errno))
                         : absl::StrCat("connect from port ", source_port,
                                        " (tcp.source_ports, or plan): ", std::strerror(errno)));
  }
  return fd;
}

}  // namespace weft::net
