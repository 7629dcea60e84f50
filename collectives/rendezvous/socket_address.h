// "host:port" and "unix:NAME" to socket addresses and back, for the store's server and clients.
// NAME is an abstract one, of the network name space and no file: it goes with the process that
// serves it.
#ifndef WEFT_COLLECTIVES_RENDEZVOUS_SOCKET_ADDRESS_H_
#define WEFT_COLLECTIVES_RENDEZVOUS_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::collectives {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  int port() const;
  bool loopback() const;
  bool local() const { return family() == AF_UNIX; }
};

// "127.0.0.1:29500", "[::1]:29500": numbers only, no look-up.
std::string ToString(const SocketAddress& address);
// "host:port" with brackets where the host has colons.
std::string JoinHostPort(absl::string_view host, int port);
inline constexpr absl::string_view kUnixPrefix = "unix:";
// Whether a store's address makes sense: host:port, or unix:NAME.
absl::Status CheckStoreAddress(absl::string_view address);
// "[::1]:29500" -> {"::1", 29500}; the host may be empty.
absl::StatusOr<std::pair<std::string, int>> SplitHostPort(absl::string_view text);
// All addresses of "host:port", in the resolver's order; may ask the name service. An empty host
// means every address of this host: "::" (both families), then "0.0.0.0". "unix:NAME" is one too.
absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view host_port);
// The same without asking anybody: kNotFound for a name.
absl::StatusOr<std::vector<SocketAddress>> ResolveNumeric(absl::string_view host_port);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RENDEZVOUS_SOCKET_ADDRESS_H_
