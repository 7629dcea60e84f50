// A client's connection to a store's server: connects, and does the handshake. Used by
// store_client.cc.
#ifndef WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_CONNECTION_H_
#define WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_CONNECTION_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "base/socket_address.h"
#include "net/handshake.h"

namespace weft::collectives {

// A host from which nothing comes for so long, not even acknowledgements, counts as gone.
inline constexpr absl::Duration kStoreSilence = absl::Seconds(20);

struct StoreConnection {
  FileDescriptor socket;  // non-blocking, after the handshake
  std::string server_id;  // kStoreIdBytes
  std::string server;     // its description
  bool local = false;     // a Unix socket: replies may come with descriptors
};

// How long to wait: until `deadline` (of SystemClock), kDeadlineExceeded, or until the descriptor
// `interrupt` is readable, kCancelled; -1: nothing interrupts.
struct StorePatience {
  StorePatience(absl::Time end, int wake = -1)  // NOLINT: a deadline is one
      : deadline(end), interrupt(wake) {}
  absl::Time deadline;
  int interrupt;
};

// `parameters`: an encoded StoreHello. One attempt at every address. kPermissionDenied and
// kFailedPrecondition will not get better by trying again; other codes may.
absl::StatusOr<StoreConnection> DialStore(const std::vector<SocketAddress>& addresses,
                                          const net::JobSecret& secret,
                                          const std::string& parameters,
                                          const StorePatience& patience, absl::Duration silence);

// A TCP socket of a store's client or server: no delay, and it notices within `silence` (seconds,
// at least 3) that the other end's host is gone, whether it sends or only waits. A listener's
// connections inherit it.
void SetStoreSocketOptions(int fd, absl::Duration silence = kStoreSilence);
// Dialling a free port of this host in the ephemeral range can meet itself.
bool MetItself(int fd);
// Whether the process at the other end of a Unix socket is this user's, or root's.
bool PeerIsOurs(int fd);
// recv() that takes descriptors as well.
ssize_t ReceiveWithFiles(int fd, char* buffer, size_t size,
                         const std::function<void(FileDescriptor)>& file);

// poll(); with fd -1 it only waits.
absl::Status AwaitReady(int fd, short events, const StorePatience& patience);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_CONNECTION_H_
