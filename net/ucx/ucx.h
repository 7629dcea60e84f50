// UCX: whatever UCX can speak (tcp, shared memory, InfiniBand and RoCE verbs), through its UCP
// layer.
//
// Only data and clear-to-sends go through UCX, as active messages; what is large is fetched by its
// rendezvous straight to its place. A tcp connection beside it carries the handshake of
// net/handshake.h, the addresses of the UCX workers, notices and the end: so unauthenticated
// peers are turned away before UCX hears of them, and a peer's death shows at once, whatever UCX
// runs on.
//
// All that includes UCX is libweft-ucx.so, loaded when the first such transport is made: UCX hooks
// memory and signals of a process as soon as it is loaded.
//
// Settings: ucx.*, tcp.interface, tcp.family, transport.*. Frames: docs/wire-format.md.
#ifndef WEFT_NET_UCX_UCX_H_
#define WEFT_NET_UCX_UCX_H_

#include <memory>

#include "absl/status/statusor.h"
#include "net/transport.h"

namespace weft::net {

// kUnavailable where the library, or UCX itself, cannot be loaded.
absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const TransportOptions& options);

}  // namespace weft::net

#endif  // WEFT_NET_UCX_UCX_H_
