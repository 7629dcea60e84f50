// Addresses of sockets and their texts. Thread-safe as values are.
#ifndef WEFT_BASE_SOCKET_ADDRESS_H_
#define WEFT_BASE_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

// An IPv4 or IPv6 address with a port, or an abstract name of a Unix socket: of the network
// namespace and no file, it goes with the process that serves it. Text: "10.0.0.1:7000",
// "[fd00::1]:7000", "[fe80::1%eth0]:7000", "unix:NAME".
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t size);
  // "10.0.0.1:7000" or "[fd00::1]:7000"; numeric, asks no DNS; the port is not 0.
  static absl::StatusOr<SocketAddress> Parse(absl::string_view text);
  static absl::StatusOr<SocketAddress> Unix(absl::string_view name);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }
  int family() const { return storage_.ss_family; }
  bool is_unix() const { return family() == AF_UNIX; }
  bool is_loopback() const;  // of this host alone: Unix sockets too
  void set_port(int port);
  int port() const;              // 0 for a Unix socket
  std::string ToString() const;  // "?" when empty
  // What one user of a network cannot choose freely: the IPv4 address, or the first 64 bits of an
  // IPv6 address; as bytes.
  std::string Network() const;
  bool SameHost(const SocketAddress& other) const;  // whatever the ports; empty ones: false

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

SocketAddress LocalAddress(int fd);   // empty when the socket has none
SocketAddress RemoteAddress(int fd);  // empty when it is not connected

// ---- "host:port", where the host may be a name

inline constexpr absl::string_view kUnixPrefix = "unix:";
// "host:port" with brackets where the host has colons.
std::string JoinHostPort(absl::string_view host, int port);
// "[::1]:29500" -> {"::1", 29500}; the host may be empty, the port 0.
absl::StatusOr<std::pair<std::string, int>> SplitHostPort(absl::string_view text);
// All addresses of "host:port", in the resolver's order; may ask the name service. An empty host
// means every address of this host: "::" (both families), then "0.0.0.0". "unix:NAME" is one too.
absl::StatusOr<std::vector<SocketAddress>> ResolveHostPort(absl::string_view host_port);
// The same without asking anybody: kNotFound for a name.
absl::StatusOr<std::vector<SocketAddress>> ResolveNumeric(absl::string_view host_port);

}  // namespace weft

#endif  // WEFT_BASE_SOCKET_ADDRESS_H_
