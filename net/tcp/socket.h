// Descriptors, addresses and socket options: the system calls that the tcp transport needs, with
// errors that say what was being done. No state, no waiting.
#ifndef WEFT_NET_TCP_SOCKET_H_
#define WEFT_NET_TCP_SOCKET_H_

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/units.h"

namespace weft::net {

// Owns a descriptor; move-only; -1: none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// An IPv4 or IPv6 address with a port. Text: "10.0.0.1:7000", "[fd00::1]:7000",
// "[fe80::1%eth0]:7000".
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t size);
  static absl::StatusOr<SocketAddress> Parse(absl::string_view text);  // numeric only: asks no DNS

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }
  int family() const { return storage_.ss_family; }
  void set_port(int port);
  int port() const;
  std::string ToString() const;
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

struct SocketTuning {
  Bytes buffer_bytes;                             // 0: the kernel's own tuning
  absl::Duration dead_after = absl::Seconds(20);  // silence that counts as death
};

// TCP_NODELAY, buffers, and keep-alive, with which the kernel notices the death of an idle peer's
// host. Not TCP_USER_TIMEOUT: it would also cut off a host that is up but does not read, such as a
// rank that computes for long or is stopped in a debugger. See LooksDead().
absl::Status TuneSocket(int fd, const SocketTuning& tuning);

// What the kernel knows of a connection that has something to send: the other host has been silent
// for `dead_after` although it was asked more than once. One that acknowledges is alive, however
// slowly it reads.
bool LooksDead(const tcp_info& info, absl::Duration dead_after);
absl::StatusOr<tcp_info> ConnectionInfo(int fd);

// Listens on `address`, port 0: any free one. Another port may be that of a listener that has just
// gone.
absl::StatusOr<FileDescriptor> Listen(const SocketAddress& address, const SocketTuning& tuning);

// A tuned socket on which connect() has begun. It is writable once it is connected or has failed.
// `source`: with port 0 any free one, empty: from any address. kUnavailable: it is in use, which
// may pass.
absl::StatusOr<FileDescriptor> StartConnect(const SocketAddress& address,
                                            const SocketAddress& source,
                                            const SocketTuning& tuning);

// "too many open files" with the limit in force and what to do about it.
absl::Status DescriptorsExhausted(int error_number, absl::string_view doing);
inline bool IsDescriptorExhaustion(int error_number) {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

}  // namespace weft::net

#endif  // WEFT_NET_TCP_SOCKET_H_
