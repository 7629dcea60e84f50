// Listening, connecting and socket options: the system calls that the tcp transport needs, with
// errors that say what was being done. No state, no waiting.
#ifndef WEFT_NET_TCP_SOCKET_H_
#define WEFT_NET_TCP_SOCKET_H_

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "base/socket_address.h"
#include "base/units.h"

namespace weft::net {

struct SocketTuning {
  Bytes buffer_bytes;                             // 0: the kernel's own tuning
  absl::Duration dead_after = absl::Seconds(20);  // silence that counts as death
};

// TCP_NODELAY, buffers, and keep-alive, with which the kernel notices the death of an idle peer's
// host. Not TCP_USER_TIMEOUT: it would also cut off a host that is up but does not read, such as a
// rank that computes for long or is stopped in a debugger. See LooksDead().
absl::Status TuneSocket(int fd, const SocketTuning& tuning);

enum class FlowEnd { kSends, kReceives };

// Limits what a flow has in flight to what `rate` (bytes a second, as planned) needs, at one end of
// its socket: by what the kernel holds for the peer, or by the window that the peer may fill. For
// flows that need much, where `rate` is 0, and where `tuning` has buffers of its own, what there is
// stays. More than that does not go faster: it waits in the switches, where the windows of flows
// that share one link keep those of others from the next.
void LimitInFlight(int fd, FlowEnd end, uint64_t rate, const SocketTuning& tuning);

// What the kernel knows of a connection that has something to send: the other host has been silent
// for `dead_after` although it was asked more than once. One that acknowledges is alive, however
// slowly it reads.
bool LooksDead(const tcp_info& info, absl::Duration dead_after);
// What was sent last is unacknowledged for 300 ms, or twice as long as usual, though it was sent
// again: the path may have died.
bool LooksStalled(const tcp_info& info);
absl::StatusOr<tcp_info> ConnectionInfo(int fd);

// Listens on `address`, port 0: any free one. Another port may be that of a listener that has just
// gone. This socket and the next are the process's alone (close_on_fork.h).
absl::StatusOr<FileDescriptor> Listen(const SocketAddress& address, const SocketTuning& tuning);

// A tuned socket on which connect() has begun. It is writable once it is connected or has failed.
// `source`: with port 0 any free one, empty: from any address. kUnavailable: it is in use, which
// may pass.
absl::StatusOr<FileDescriptor> StartConnect(const SocketAddress& address,
                                            const SocketAddress& source,
                                            const SocketTuning& tuning);

}  // namespace weft::net

#endif  // WEFT_NET_TCP_SOCKET_H_
