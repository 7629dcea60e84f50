#include "collectives/store/protocol/store_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/store/protocol/store_hello.h"
#include "collectives/store/protocol/store_protocol.h"
#include "net/tcp/close_on_fork.h"

namespace weft::collectives {
namespace {

// The kernel ends a read at each message that carries descriptors; ours carry one.
constexpr size_t kFilesMax = 4;

void SetOption(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

absl::StatusOr<FileDescriptor> ConnectTo(const SocketAddress& address,
                                         const StorePatience& patience, absl::Duration silence) {
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return ErrnoStatus(errno, "make a socket");
  net::SetCloseOnFork(socket.get());
  if (!address.is_unix()) SetStoreSocketOptions(socket.get(), silence);
  std::string doing = absl::StrCat("connect to the store at ", address.ToString());
  if (connect(socket.get(), address.get(), address.size()) != 0) {
    if (errno != EINPROGRESS) return ErrnoStatus(errno, doing);
    if (absl::Status ready = AwaitReady(socket.get(), POLLOUT, patience); !ready.ok()) {
      return Annotate(ready, doing);
    }
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return ErrnoStatus(error, doing);
  }
  if (address.is_unix()) return socket;
  if (MetItself(socket.get())) return ErrnoStatus(ECONNREFUSED, doing);
  return socket;
}

absl::Status SendAll(int fd, absl::string_view bytes, const StorePatience& patience) {
  while (!bytes.empty()) {
    ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      WEFT_RETURN_IF_ERROR(AwaitReady(fd, POLLOUT, patience));
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, "send");
    }
  }
  return absl::OkStatus();
}

// The server speaks first, and sends nothing after its verdict until it is asked: what is read here
// is all of the handshake.
absl::Status ShakeHands(int fd, net::ConnectorHandshake& handshake, const StorePatience& patience) {
  std::array<char, net::kHandshakeBytesMax> buffer;
  while (handshake.state() == net::HandshakeState::kRunning) {
    ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
    if (got == 0) {
      return absl::UnavailableError("the connection was closed during the handshake");
    }
    if (got < 0) {
      if (errno != EAGAIN && errno != EINTR) return ErrnoStatus(errno, "receive the handshake");
      WEFT_RETURN_IF_ERROR(AwaitReady(fd, POLLIN, patience));
      continue;
    }
    handshake.Feed({buffer.data(), static_cast<size_t>(got)});
    WEFT_RETURN_IF_ERROR(SendAll(fd, handshake.TakeOutput(), patience));
  }
  return handshake.status();
}

// On a Unix socket a hello frame takes the handshake's place.
absl::StatusOr<StoreConnection> GreetLocal(FileDescriptor socket, const std::string& parameters,
                                           const StorePatience& patience) {
  if (!PeerIsOurs(socket.get())) {
    return absl::PermissionDeniedError("another user's process serves it");
  }
  StoreRequest request;
  request.op = StoreOp::kHello;
  request.keys = {parameters};
  WEFT_RETURN_IF_ERROR(SendAll(socket.get(), EncodeRequest(request), patience));
  StoreFrameReader reader(net::kHandshakeBytesMax);
  std::array<char, net::kHandshakeBytesMax> buffer;
  while (true) {
    ssize_t got = recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (got == 0) return absl::UnavailableError("the connection was closed during the greeting");
    if (got < 0) {
      if (errno != EAGAIN && errno != EINTR) return ErrnoStatus(errno, "receive the greeting");
      WEFT_RETURN_IF_ERROR(AwaitReady(socket.get(), POLLIN, patience));
      continue;
    }
    size_t used = 0;
    WEFT_ASSIGN_OR_RETURN(std::optional<StoreFrame> frame,
                          reader.Feed({buffer.data(), static_cast<size_t>(got)}, &used));
    if (!frame.has_value()) continue;
    WEFT_ASSIGN_OR_RETURN(StoreResult result, DecodeReply(*frame));
    WEFT_RETURN_IF_ERROR(result.status);
    if (result.values.size() != 2) return absl::InvalidArgumentError("malformed greeting");
    return StoreConnection{std::move(socket), result.values[0], result.values[1], true};
  }
}

}  // namespace

void SetStoreSocketOptions(int fd, absl::Duration silence) {
  auto seconds = static_cast<int>(std::clamp<int64_t>(absl::ToInt64Seconds(silence), 3, 3600));
  // Half of it idle, then some five questions, one of which may be lost.
  int every = std::max(1, seconds / 10);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds / 2);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, every);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, (seconds - seconds / 2) / every);
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
}

bool MetItself(int fd) {
  const SocketAddress self = LocalAddress(fd), peer = RemoteAddress(fd);
  return self.port() == peer.port() && self.SameHost(peer);
}

bool PeerIsOurs(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

ssize_t ReceiveWithFiles(int fd, char* buffer, size_t size,
                         const std::function<void(FileDescriptor)>& file) {
  iovec part{buffer, size};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kFilesMax)> control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      file(FileDescriptor(received));
    }
  }
  return got;
}

absl::Status AwaitReady(int fd, short events, const StorePatience& patience) {
  SystemClock clock;
  while (true) {
    absl::Duration left = patience.deadline - clock.Now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no answer in time");
    left = std::min(left, absl::Hours(1)) + absl::Microseconds(999);
    std::array<pollfd, 2> waits = {pollfd{fd, events, 0}, pollfd{patience.interrupt, POLLIN, 0}};
    int ready = poll(waits.data(), waits.size(), static_cast<int>(absl::ToInt64Milliseconds(left)));
    if (ready > 0 && waits[0].revents != 0) return absl::OkStatus();
    if (ready > 0) return absl::CancelledError("interrupted");
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
  }
}

absl::StatusOr<StoreConnection> DialStore(const std::vector<SocketAddress>& addresses,
                                          const net::JobSecret& secret,
                                          const std::string& parameters,
                                          const StorePatience& patience, absl::Duration silence) {
  absl::Status status = absl::NotFoundError("the store has no address");
  for (size_t i = 0; i < addresses.size(); ++i) {
    const SocketAddress& address = addresses[i];
    // A silent address must not take the time of those after it.
    absl::Time now = SystemClock().Now();
    auto left = static_cast<int64_t>(addresses.size() - i);
    const absl::Time turn = now + (patience.deadline - now) / left;
    auto socket =
        ConnectTo(address, {std::min(patience.deadline, turn), patience.interrupt}, silence);
    if (!socket.ok()) {
      status = socket.status();
      continue;
    }
    if (address.is_unix()) {
      auto greeted = GreetLocal(*std::move(socket), parameters, patience);
      if (greeted.ok()) return greeted;
      status = Annotate(greeted.status(), absl::StrCat("greet the store at ", address.ToString()));
      continue;
    }
    net::HandshakeIdentity identity;
    identity.secret = secret;
    identity.purpose = net::HandshakePurpose::kStore;
    net::ConnectorHandshake handshake(identity, Rank(), parameters, net::NewNonce());
    status = ShakeHands(socket->get(), handshake, patience);
    if (status.ok() && handshake.parameters().size() < kStoreIdBytes) {
      status = absl::InvalidArgumentError("the server did not give its number");
    }
    if (!status.ok()) {
      status = Annotate(status, absl::StrCat("handshake with the store at ", address.ToString()));
      continue;
    }
    return StoreConnection{*std::move(socket), handshake.parameters().substr(0, kStoreIdBytes),
                           handshake.parameters().substr(kStoreIdBytes), false};
  }
  return status;
}

}  // namespace weft::collectives
