#include "net/tcp/socket.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {
namespace {

absl::Status SetOption(int fd, int level, int name, int value, absl::string_view text) {
  if (setsockopt(fd, level, name, &value, sizeof(value)) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("set ", text, " to ", value));
}

// The port is shared with connections to other peers, hence SO_REUSEADDR. Where `from` is only a
// port, the kernel chooses the address, by its routes.
absl::Status BindSource(int fd, int family, const SocketAddress& from) {
  WEFT_RETURN_IF_ERROR(SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  sockaddr_storage any{};
  any.ss_family = static_cast<sa_family_t>(family);
  socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  SocketAddress address(reinterpret_cast<sockaddr*>(&any), size);
  if (from.family() == family) address = from;
  address.set_port(from.port());
  if (bind(fd, address.get(), address.size()) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "bind to port ", from.port(), " (tcp.source_ports, or plan): ", std::strerror(errno)));
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) close(fd_);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

SocketAddress::SocketAddress(const sockaddr* address, socklen_t size)
    : size_(std::min<socklen_t>(size, sizeof(storage_))) {
  std::memcpy(&storage_, address, size_);
}

absl::StatusOr<SocketAddress> SocketAddress::Parse(absl::string_view text) {
  auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no tcp address: ", why,
                                                   "; right are 10.0.0.1:7000 and [fd00::1]:7000"));
  };
  size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return bad("the port is missing");
  uint32_t port = 0;
  if (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return bad("the port is not in 1..65535");
  }
  std::string host(text.substr(0, colon));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    if (size_t percent = host.find('%'); percent != std::string::npos) {
      std::string scope = host.substr(percent + 1);
      host.resize(percent);
      address.sin6_scope_id = if_nametoindex(scope.c_str());
      if (address.sin6_scope_id == 0) {
        return bad(absl::StrCat("this host has no interface \"", scope, "\""));
      }
    }
    if (inet_pton(AF_INET6, host.c_str(), &address.sin6_addr) != 1) {
      return bad("the part in brackets is not IPv6");
    }
    return SocketAddress(reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    return bad("the host part is not IPv4");
  }
  return SocketAddress(reinterpret_cast<sockaddr*>(&address), sizeof(address));
}

void SocketAddress::set_port(int port) {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = htons(static_cast<uint16_t>(port));
  }
}

int SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port
                                    : reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

bool SocketAddress::SameHost(const SocketAddress& other) const {
  if (size_ == 0 || other.size_ == 0 || family() != other.family()) return false;
  if (family() == AF_INET6) {
    return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr,
                       &reinterpret_cast<const sockaddr_in6*>(&other.storage_)->sin6_addr,
                       sizeof(in6_addr)) == 0;
  }
  return reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr ==
         reinterpret_cast<const sockaddr_in*>(&other.storage_)->sin_addr.s_addr;
}

std::string SocketAddress::Network() const {
  if (family() == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
    return {reinterpret_cast<const char*>(&address), sizeof(address) / 2};
  }
  const in_addr& address = reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr;
  return {reinterpret_cast<const char*>(&address), sizeof(address)};
}

std::string SocketAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (size_ == 0) return "?";
  if (family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage_);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(v4->sin_port));
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage_);
  inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  char name[IF_NAMESIZE] = "";
  bool scoped = v6->sin6_scope_id != 0 && if_indextoname(v6->sin6_scope_id, name) != nullptr;
  return absl::StrCat("[", text, scoped ? "%" : "", name, "]:", ntohs(v6->sin6_port));
}

SocketAddress LocalAddress(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  return getsockname(fd, address, &size) == 0 ? SocketAddress(address, size) : SocketAddress();
}

SocketAddress RemoteAddress(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  return getpeername(fd, address, &size) == 0 ? SocketAddress(address, size) : SocketAddress();
}

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

bool LooksDead(const tcp_info& info, absl::Duration dead_after) {
  bool silent = absl::Milliseconds(info.tcpi_last_ack_recv) >= dead_after;
  return silent && (info.tcpi_retransmits >= 2 || info.tcpi_probes >= 2);
}

absl::StatusOr<tcp_info> ConnectionInfo(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) return info;
  return ErrnoStatus(errno, "getsockopt TCP_INFO");
}

absl::Status DescriptorsExhausted(int error_number, absl::string_view doing) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return absl::ResourceExhaustedError(absl::StrCat(
      doing, ": ", std::strerror(error_number), " (limit of this process: ", limit.rlim_cur,
      " descriptors); raise it with ulimit -n, or lower tcp.sockets"));
}

absl::StatusOr<FileDescriptor> Listen(const SocketAddress& address, const SocketTuning& tuning) {
  std::string doing = absl::StrCat("listen at ", address.ToString());
  FileDescriptor fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    return IsDescriptorExhaustion(errno) ? DescriptorsExhausted(errno, doing)
                                         : ErrnoStatus(errno, doing);
  }
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
  WEFT_RETURN_IF_ERROR(TuneSocket(fd.get(), tuning));
  const int source_port = source.port();
  if (source_port != 0) WEFT_RETURN_IF_ERROR(BindSource(fd.get(), address.family(), source));
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
