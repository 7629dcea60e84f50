// Which of the host's interfaces to listen on. The words are those of NCCL_SOCKET_IFNAME:
//
//   eth,ib      interfaces whose names begin with eth or with ib; earlier words are preferred
//   =eth0,=ib1  exactly these
//   ^docker,lo  all but those that begin with docker or with lo
//   ^=eth1      all but exactly this
#ifndef WEFT_NET_TCP_INTERFACE_H_
#define WEFT_NET_TCP_INTERFACE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/settings.h"
#include "net/tcp/socket.h"

namespace weft::net {

struct Interface {
  std::string name;
  SocketAddress address;
  bool loopback = false;
  bool link_local = false;  // IPv6 fe80::/10: good only on the same wire
};

// The addresses of the interfaces that are up, in the kernel's order.
absl::StatusOr<std::vector<Interface>> ListInterfaces();

// The best of `interfaces` for a filter as above ("" admits all) and a family ("any", "ipv4",
// "ipv6"). Preferred: a word that stands earlier; no loopback; no bridge of containers or virtual
// machines, unless a word names it; IPv4; no link-local. `origin` says where the filter came from.
absl::StatusOr<Interface> ChooseInterface(const std::vector<Interface>& interfaces,
                                          absl::string_view filter, absl::string_view family,
                                          absl::string_view origin);

// With the filter of tcp.interface, or where that is empty of NCCL_SOCKET_IFNAME, or of
// GLOO_SOCKET_IFNAME (which is exact, as Gloo has it).
absl::StatusOr<Interface> ChooseInterface(const Settings& settings);

// SocketAddress::Parse for what a peer said of itself to the end at `own`. The zone of a link-local
// address ("%eth0") is a name within the host that wrote it: it stands where the address is one of
// this host's; otherwise, and where there is none, it is `own`'s, if that is link-local too.
absl::StatusOr<SocketAddress> ParsePeer(absl::string_view text, const SocketAddress& own);

}  // namespace weft::net

#endif  // WEFT_NET_TCP_INTERFACE_H_
