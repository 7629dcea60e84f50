// Abstract unix sockets of packets, and descriptors passed over them. Everything is non-blocking
// and close-on-exec, and the sockets are the process's alone (net/tcp/close_on_fork.h).
#ifndef WEFT_NET_SHM_UNIX_SOCKET_H_
#define WEFT_NET_SHM_UNIX_SOCKET_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/file_descriptor.h"

namespace weft::net::shm {

// Addresses are "shm:<name>", the name 32 hex digits, in the abstract namespace.
absl::StatusOr<FileDescriptor> ListenUnix(std::string* address);

// A socket that is connected, or one that must be tried again (the backlog is full): then nullopt
// in the sense of a descriptor of -1. kUnavailable: no process listens.
absl::StatusOr<FileDescriptor> ConnectUnix(absl::string_view address);

// The next connection of a listener; -1: none, errno says why.
FileDescriptor AcceptUnix(int listener);

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
absl::StatusOr<PeerCredentials> CredentialsOf(int socket);

// A packet with descriptors. False: not now (the socket is full, or as many descriptors of this
// user are on their way, in all sockets, as this process may have open).
absl::StatusOr<bool> SendPacket(int socket, absl::string_view bytes, absl::Span<const int> fds);

struct Packet {
  bool none = false;     // nothing there
  bool hung_up = false;  // the other side closed, or died
  std::string bytes;
  std::vector<FileDescriptor> fds;
};
// kInvalidArgument for a packet longer than `bytes_max`; kResourceExhausted where descriptors of it
// were lost: more than 4, or none is left here. Without `takes_fds`, those that come are dropped.
absl::StatusOr<Packet> ReceivePacket(int socket, size_t bytes_max, bool takes_fds = true);

// Closes a connection, which ends although a forked process may have a copy of the descriptor.
void HangUp(FileDescriptor& socket);

// Whether `count` more descriptors could be opened now.
bool CanOpen(int count);

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_UNIX_SOCKET_H_
