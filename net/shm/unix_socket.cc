#include "net/shm/unix_socket.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/tcp/close_on_fork.h"

namespace weft::net::shm {
namespace {

constexpr absl::string_view kScheme = "shm:";
constexpr absl::string_view kPrefix = "weft-";
constexpr size_t kNameBytes = 16;  // of randomness: not to be guessed
constexpr int kBacklog = 512;
constexpr size_t kFdsMax = 4;

socklen_t FillAddress(absl::string_view name, sockaddr_un* address) {
  std::memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  std::string path = absl::StrCat(kPrefix, name);
  std::memcpy(address->sun_path + 1, path.data(), path.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
}

FileDescriptor NewSocket() {
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd) SetCloseOnFork(fd.get());
  return fd;
}

bool IsName(absl::string_view name) {
  if (name.size() != 2 * kNameBytes) return false;
  for (char c : name) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<FileDescriptor> ListenUnix(std::string* address) {
  std::array<char, kNameBytes> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return ErrnoStatus(errno, "draw a socket name");
  }
  std::string name = absl::BytesToHexString(absl::string_view(random.data(), random.size()));
  FileDescriptor fd = NewSocket();
  if (fd.get() < 0) return ErrnoStatus(errno, "open a unix socket");
  sockaddr_un where;
  socklen_t length = FillAddress(name, &where);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&where), length) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listen at unix socket @", kPrefix, name));
  }
  *address = absl::StrCat(kScheme, name);
  return fd;
}

absl::StatusOr<FileDescriptor> ConnectUnix(absl::string_view address) {
  if (!absl::StartsWith(address, kScheme) || !IsName(address.substr(kScheme.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CEscape(address.substr(0, 80)),
                     "\" is no shm address; one reads shm:<32 hex digits>"));
  }
  FileDescriptor fd = NewSocket();
  if (fd.get() < 0) return ErrnoStatus(errno, "open a unix socket");
  sockaddr_un where;
  socklen_t length = FillAddress(address.substr(kScheme.size()), &where);
  int result;
  do {
    result = connect(fd.get(), reinterpret_cast<sockaddr*>(&where), length);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return fd;
  if (errno == EAGAIN) return FileDescriptor();
  if (errno == ECONNREFUSED) {
    return absl::UnavailableError(
        absl::StrCat("nobody listens at ", address,
                     ": that process has ended, or runs in another network namespace (use tcp "
                     "between those)"));
  }
  return ErrnoStatus(errno, absl::StrCat("connect to ", address));
}

FileDescriptor AcceptUnix(int listener) {
  FileDescriptor fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd) SetCloseOnFork(fd.get());
  return fd;
}

absl::StatusOr<PeerCredentials> CredentialsOf(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoStatus(errno, "ask for a peer's credentials");
  }
  return PeerCredentials{credentials.pid, credentials.uid};
}

absl::StatusOr<bool> SendPacket(int socket, absl::string_view bytes, absl::Span<const int> fds) {
  WEFT_CHECK(fds.size() <= kFdsMax, fds.size());
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsMax * sizeof(int))] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return true;
  // The kernel bounds the descriptors of a user that are on their way (unix(7), ETOOMANYREFS).
  if (errno == EAGAIN || errno == ETOOMANYREFS) return false;
  if (errno == EPIPE || errno == ECONNRESET) {
    return absl::UnavailableError("the peer hung up during the handshake");
  }
  return ErrnoStatus(errno, "send to a unix socket");
}

absl::StatusOr<Packet> ReceivePacket(int socket, size_t bytes_max, bool takes_fds) {
  Packet packet;
  packet.bytes.resize(bytes_max);
  iovec part{packet.bytes.data(), bytes_max};
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsMax * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (takes_fds) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  ssize_t got;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) {
    packet.none = true;
    return packet;
  }
  if (got == 0 || (got < 0 && errno == ECONNRESET)) packet.hung_up = true;
  if (got < 0 && errno != ECONNRESET) return ErrnoStatus(errno, "receive from a unix socket");
  packet.bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; i < (h->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof fd);
      packet.fds.emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet longer than ", bytes_max, " bytes during the handshake"));
  }
  if (takes_fds && (message.msg_flags & MSG_CTRUNC) != 0) {
    return absl::ResourceExhaustedError(
        "descriptors that a peer passed were lost: too many, or this process has none left "
        "(ulimit -n)");
  }
  return packet;
}

void HangUp(FileDescriptor& socket) {
  if (socket) shutdown(socket.get(), SHUT_RDWR);
  socket.Reset();
}

bool CanOpen(int count) {
  std::vector<FileDescriptor> probes;
  for (int i = 0; i < count; ++i) {
    probes.emplace_back(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0));
    // EBADF: no standard input here; then the answer is not known, and the attempt will tell.
    if (probes.back().get() < 0) return errno != EMFILE && errno != ENFILE;
  }
  return true;
}

}  // namespace weft::net::shm
