#include "tests/bench/init/stream_client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/store/protocol/store_connection.h"

namespace weft::init {

StreamClient::~StreamClient() {
  if (socket_) poller().Remove(socket_.get());
}

void StreamClient::Exchange(const std::string& key, int /*rank*/, int /*size*/,
                            const collectives::RankSet& /*wanted*/, Done done) {
  done(absl::UnimplementedError(absl::StrCat("no exchange '", key, "': our own store has them")),
       0);
}

void StreamClient::Start(std::function<void(const absl::Status&)> connected) {
  connected_ = std::move(connected);
  if (absl::Status status = Open(); !status.ok()) Drop(status);
}

absl::Status StreamClient::Open() {
  socket_ = FileDescriptor(
      ::socket(setup_.server.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_) return ErrnoStatus(errno, "make a socket");
  collectives::SetStoreSocketOptions(socket_.get());
  if (setup_.source.has_value()) {
    int one = 1;
    setsockopt(socket_.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
    if (bind(socket_.get(), setup_.source->get(), setup_.source->size()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("bind to ", setup_.source->ToString()));
    }
  }
  int result = connect(socket_.get(), setup_.server.get(), setup_.server.size());
  if (result != 0 && errno != EINPROGRESS) {
    return ErrnoStatus(errno, absl::StrCat("connect to ", setup_.server.ToString()));
  }
  connecting_ = true;
  watched_ = EPOLLOUT;
  return poller().Add(socket_.get(), watched_, this);
}

absl::Status StreamClient::FinishConnect() {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    return ErrnoStatus(error, absl::StrCat("connect to ", setup_.server.ToString()));
  }
  connecting_ = false;
  Greet();
  return absl::OkStatus();
}

void StreamClient::OnEvents(uint32_t events, absl::Time /*now*/) {
  if (!socket_) return;
  busy_ = true;
  absl::Status status;
  if (connecting_) status = FinishConnect();
  if (status.ok() && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) status = Read();
  busy_ = false;
  if (status.ok()) status = Flush();
  if (!status.ok()) Drop(status);
}

absl::Status StreamClient::Read() {
  auto* const buffer = reinterpret_cast<char*>(poller().read_buffer());
  ssize_t got = recv(socket_.get(), buffer, Poller::kReadBufferBytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return absl::OkStatus();
  if (got < 0) return ErrnoStatus(errno, "receive");
  if (got == 0) return absl::UnavailableError("the server closed the connection");
  return Consume({buffer, static_cast<size_t>(got)});
}

void StreamClient::Write(absl::string_view bytes) {
  out_.append(bytes.data(), bytes.size());
  if (busy_ || connecting_ || !socket_) return;
  if (absl::Status status = Flush(); !status.ok()) Drop(status);
}

absl::Status StreamClient::Flush() {
  if (!socket_ || connecting_) return absl::OkStatus();
  while (written_ < out_.size()) {
    ssize_t sent =
        send(socket_.get(), out_.data() + written_, out_.size() - written_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) break;
    if (sent < 0) return ErrnoStatus(errno, "send");
    written_ += static_cast<size_t>(sent);
  }
  uint32_t wanted = EPOLLIN;
  if (written_ == out_.size()) {
    out_.clear();
    written_ = 0;
  } else {
    wanted |= EPOLLOUT;
  }
  if (wanted != watched_) {
    watched_ = wanted;
    poller().Change(socket_.get(), wanted, this);
  }
  return absl::OkStatus();
}

void StreamClient::Connected() {
  if (auto connected = std::exchange(connected_, nullptr)) connected(absl::OkStatus());
}

void StreamClient::Drop(const absl::Status& why) {
  if (socket_) poller().Remove(socket_.get());
  socket_.Reset();
  connecting_ = false;
  if (auto connected = std::exchange(connected_, nullptr)) connected(why);
  Abandon(why);
}

}  // namespace weft::init
