// What the settings multipath.* say, as options of the protocol and of its sockets.
#ifndef WEFT_NET_MULTIPATH_UDP_OPTIONS_H_
#define WEFT_NET_MULTIPATH_UDP_OPTIONS_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "net/multipath/udp/sockets.h"
#include "net/multipath/udp/wire.h"
#include "net/tcp/interface.h"
#include "net/transport.h"

namespace weft::net::multipath {

// What the kernel knows of an interface. Zero: it does not say.
struct InterfaceFacts {
  int mtu = 0;          // bytes
  Bandwidth bandwidth;  // of the port
};
InterfaceFacts FactsOf(absl::string_view interface);

// The largest chunk, a multiple of 64, whose datagram fits `mtu` bytes with its IP header.
uint32_t ChunkFor(int mtu, bool is_v6);

// A parameter of Swift, MSwift and the hybrid, where the settings say nothing else; others have
// none.
void PresetSwift(ControllerSpec& controller, absl::string_view parameter, double value);

// kInvalidArgument: a controller that does not exist, ports beyond the last, an MTU too small.
absl::StatusOr<SocketOptions> MakeSocketOptions(const TransportOptions& options,
                                                const Interface& interface);
absl::StatusOr<WireOptions> MakeWireOptions(const TransportOptions& options,
                                            const Interface& interface,
                                            const InterfaceFacts& facts);

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_UDP_OPTIONS_H_
