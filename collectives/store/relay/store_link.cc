#include "collectives/store/relay/store_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/store/protocol/store_connection.h"
#include "net/tcp/close_on_fork.h"

namespace weft::collectives {
namespace {

// A client that comes before its server tries again after milliseconds.
constexpr absl::Duration kRetryFirst = absl::Milliseconds(5);
constexpr absl::Duration kRetryLast = absl::Milliseconds(250);
constexpr absl::Duration kLookUpEvery = absl::Milliseconds(10);
// For one of several addresses.
constexpr absl::Duration kAttempt = absl::Seconds(2);
constexpr size_t kParts = 64;

}  // namespace

StoreLink::StoreLink(Poller& poller, StoreClientCore& core, StoreLinkOptions options,
                     std::function<void()> changed)
    : PollHandler(poller),
      core_(core),
      options_(std::move(options)),
      changed_(std::move(changed)),
      addresses_(options_.find ? StoreAddresses(options_.address, options_.find)
                               : StoreAddresses(options_.address)),
      pause_(kRetryFirst) {}

StoreLink::~StoreLink() {
  if (socket_) poller().Remove(socket_.get());
}

// Sets this attempt's address. False: not yet, or the attempt is over.
bool StoreLink::FindAddress() {
  auto known = addresses_.Poll();
  if (!known.has_value()) {
    if (poller().now() < give_up_) {
      next_dial_ = poller().now() + kLookUpEvery;
    } else {
      Drop(absl::DeadlineExceededError(
          absl::StrCat(options_.find ? "the store" : "the name service", " does not say where ",
                       addresses_.name(), " is")));
    }
    return false;
  }
  if (!known->ok()) {
    Drop(known->status());
    return false;
  }
  address_ = (**known)[attempt_++ % (*known)->size()];
  // A silent address must not take the time of the others.
  absl::Time patience = poller().now() + kAttempt;
  next_dial_ = (*known)->size() > 1 ? std::min(give_up_, patience) : give_up_;
  return true;
}

void StoreLink::Dial() {
  absl::Time now = poller().now();
  next_dial_ = absl::InfiniteFuture();
  if (give_up_ == absl::InfiniteFuture()) {
    give_up_ = now + (core_.server_id().empty() ? options_.connect_timeout : options_.reconnect);
  }
  if (!FindAddress()) return;
  socket_ =
      FileDescriptor(::socket(address_.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_) return Drop(ErrnoStatus(errno, "make a socket"));
  net::SetCloseOnFork(socket_.get());
  if (!address_.is_unix()) SetStoreSocketOptions(socket_.get());
  if (options_.source.has_value()) {
    // The port is chosen at connect(), where it needs to be free for this destination only.
    int one = 1;
    setsockopt(socket_.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
    if (bind(socket_.get(), options_.source->get(), options_.source->size()) != 0) {
      return Drop(ErrnoStatus(errno, absl::StrCat("bind to ", options_.source->ToString())));
    }
  }
  connecting_ = true;
  int result = connect(socket_.get(), address_.get(), address_.size());
  if (result != 0 && errno != EINPROGRESS) {
    return Drop(ErrnoStatus(errno, absl::StrCat("connect to ", address_.ToString())));
  }
  // Over TCP the server speaks first: until then there is nothing to do, and nothing to be woken
  // for. A socket that met itself, at once, would never speak.
  watched_ = EPOLLIN;
  if (absl::Status added = poller().Add(socket_.get(), watched_, this); !added.ok()) {
    return Drop(added);
  }
  if (address_.is_unix()) {
    if (FinishConnect(0)) Flush();
  } else if (MetItself(socket_.get())) {
    Drop(ErrnoStatus(ECONNREFUSED, absl::StrCat("connect to ", address_.ToString())));
  }
}

// `events`: of its first wake-up.
bool StoreLink::FinishConnect(uint32_t events) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (!address_.is_unix()) {
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
      getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
  } else if (!PeerIsOurs(socket_.get())) {
    core_.GiveUp(absl::PermissionDeniedError(
        absl::StrCat("another user's process serves ", address_.ToString())));
    error = EPERM;
  }
  if (error != 0) {
    Drop(ErrnoStatus(error, absl::StrCat("connect to the store at ", address_.ToString())));
    return false;
  }
  connecting_ = false;
  next_dial_ = give_up_;
  core_.Connected(address_.is_unix());
  return true;
}

void StoreLink::OnEvents(uint32_t events, absl::Time /*now*/) {
  if (!socket_) return;
  if (connecting_ && !FinishConnect(events)) return;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !Read()) return;
  Flush();
}

// False: the connection is lost.
bool StoreLink::Read() {
  auto* const buffer = reinterpret_cast<char*>(poller().read_buffer());
  StoreClientCore::State before = core_.state();
  ssize_t got = -1;
  if (address_.is_unix()) {
    got = ReceiveWithFiles(socket_.get(), buffer, Poller::kReadBufferBytes,
                           [this](FileDescriptor file) { core_.ReceiveFile(std::move(file)); });
  } else {
    got = recv(socket_.get(), buffer, Poller::kReadBufferBytes, 0);
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  absl::Status status;
  if (got == 0) status = absl::UnavailableError("the server closed the connection");
  if (got < 0) status = ErrnoStatus(errno, "receive");
  if (got > 0) status = core_.Receive({buffer, static_cast<size_t>(got)});
  if (!status.ok()) {
    Drop(status);
    return false;
  }
  if (core_.state() == StoreClientCore::State::kReady && before != core_.state()) {
    give_up_ = absl::InfiniteFuture();
    next_dial_ = absl::InfiniteFuture();
    pause_ = kRetryFirst;
  }
  if (changed_) changed_();
  return true;
}

absl::StatusOr<SocketAddress> StoreLink::LocalAddress() const {
  const SocketAddress own = socket_ ? weft::LocalAddress(socket_.get()) : SocketAddress();
  if (own.size() == 0) {
    return absl::UnavailableError(absl::StrCat("no connection to ", options_.address));
  }
  return own;
}

void StoreLink::Flush() {
  if (!socket_ || connecting_) return;
  while (core_.HasOutput()) {
    std::array<iovec, kParts> parts;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = core_.Gather(parts.data(), parts.size());
    ssize_t sent = message.msg_iovlen == 1
                       ? send(socket_.get(), parts[0].iov_base, parts[0].iov_len, MSG_NOSIGNAL)
                       : sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) break;
    if (sent < 0) return Drop(ErrnoStatus(errno, "send"));
    core_.Wrote(static_cast<size_t>(sent));
  }
  Watch();
}

void StoreLink::Watch() {
  uint32_t wanted = EPOLLIN;
  if (core_.HasOutput()) wanted |= EPOLLOUT;
  if (wanted == watched_) return;
  watched_ = wanted;
  poller().Change(socket_.get(), wanted, this);
}

void StoreLink::Drop(const absl::Status& why) {
  if (socket_) poller().Remove(socket_.get());
  socket_.Reset();
  connecting_ = false;
  last_error_ = why;
  core_.Lost();
  addresses_.Refresh();
  next_dial_ = absl::InfiniteFuture();
  absl::Time now = poller().now();
  if (core_.state() != StoreClientCore::State::kGone) {
    if (give_up_ == absl::InfiniteFuture()) give_up_ = now + options_.reconnect;
    if (now + pause_ >= give_up_) {
      core_.GiveUp(absl::UnavailableError(absl::StrCat(
          "the store at ", options_.address, " is gone",
          core_.server().empty() ? "" : absl::StrCat("; it was served by ", core_.server()), " (",
          why.message(), ")")));
    } else {
      next_dial_ = now + pause_;
      pause_ = std::min(pause_ * 2, kRetryLast);
    }
  }
  if (changed_) changed_();
}

void StoreLink::Advance(absl::Time now) {
  if (now < next_dial_) return;
  if (!socket_) return Dial();
  bool stands = connecting_ && RemoteAddress(socket_.get()).size() > 0;
  if (stands && now < give_up_) {  // no silent address, but a server with much to do
    next_dial_ = give_up_;
    return;
  }
  Drop(absl::DeadlineExceededError(
      absl::StrCat("the store at ", address_.ToString(), " does not answer")));
}

}  // namespace weft::collectives
