#include "net/tcp/connector.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/tcp/link_core.h"

namespace weft::net {
namespace {

constexpr absl::Duration kPauseFirst = absl::Milliseconds(10);
constexpr absl::Duration kPauseLongest = absl::Seconds(1);

}  // namespace

std::string LinkParameters::Encode() const {
  std::string out(12, '\0');
  std::memcpy(out.data(), &link_id, 8);
  std::memcpy(out.data() + 8, &index, 2);
  std::memcpy(out.data() + 10, &count, 2);
  return out;
}

absl::StatusOr<LinkParameters> LinkParameters::Decode(absl::string_view bytes) {
  LinkParameters out;
  if (bytes.size() == 12) {
    std::memcpy(&out.link_id, bytes.data(), 8);
    std::memcpy(&out.index, bytes.data() + 8, 2);
    std::memcpy(&out.count, bytes.data() + 10, 2);
    if (out.count >= 1 && out.count <= 64 && out.index < out.count) return out;
  }
  return absl::InvalidArgumentError(absl::StrCat("socket ", out.index, " of a link of ", out.count,
                                                 " (", bytes.size(), " bytes of parameters)"));
}

// One socket on its way.
class Connector::Dial final : public Handler {
 public:
  Dial(Connector& connector, const HandshakeIdentity& self, const LinkParameters& parameters)
      : Handler(connector.poller()),
        connector_(connector),
        handshake_(self, connector.peer_, parameters.Encode() + connector.context_.own_terms,
                   NewNonce()) {}
  ~Dial() override { Close(); }

  absl::Status Start(const SocketAddress& address, int source_port, const SocketTuning& tuning) {
    WEFT_ASSIGN_OR_RETURN(fd_, StartConnect(address, source_port, tuning));
    return poller().Add(fd_.get(), EPOLLOUT, this);
  }

  void Close() {
    if (fd_) poller().Remove(fd_.get());
    fd_ = FileDescriptor();
  }

  FileDescriptor TakeSocket() { return std::move(fd_); }
  std::string TakeReceived() { return std::move(received_); }
  absl::string_view phase() const {
    return connected_ ? "connected, but it does not answer the handshake" : "no answer yet";
  }

  void OnEvents(uint32_t, absl::Time now) override {
    if (!fd_ || handshake_.state() == HandshakeState::kDone) return;
    if (!connected_ && !FinishConnect(now)) return;
    ReadHandshake(now);
  }

 private:
  bool FinishConnect(absl::Time now) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      Fail(absl::StrCat("connect: ", std::strerror(error)), now);
      return false;
    }
    connected_ = true;
    poller().Change(fd_.get(), EPOLLIN, this);
    return true;
  }

  void ReadHandshake(absl::Time now) {
    std::array<char, kHandshakeBytesMax> buffer;
    ssize_t got = recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      Fail(got < 0 ? absl::StrCat("handshake: ", std::strerror(errno))
                   : "handshake: it closed the connection before its verdict",
           now);
      return;
    }
    absl::string_view bytes(buffer.data(), static_cast<size_t>(got));
    size_t used = handshake_.Feed(bytes);
    std::string output = handshake_.TakeOutput();
    // A new socket takes some hundred bytes at once, or is no good.
    if (!output.empty() &&
        send(fd_.get(), output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
            static_cast<ssize_t>(output.size())) {
      Fail(absl::StrCat("handshake: sending failed: ", std::strerror(errno)), now);
      return;
    }
    if (handshake_.state() == HandshakeState::kFailed) {
      connector_.OnDialFailed(Annotate(handshake_.status(), "handshake"), /*again=*/false, now);
    } else if (handshake_.state() == HandshakeState::kDone) {
      received_ = std::string(bytes.substr(used));
      poller().Remove(fd_.get());  // until the link has all of its sockets
      connector_.OnDialDone(now);
    }
  }

  void Fail(const std::string& why, absl::Time now) {
    connector_.OnDialFailed(absl::UnavailableError(why), /*again=*/true, now);
  }

  Connector& connector_;
  ConnectorHandshake handshake_;
  FileDescriptor fd_;
  bool connected_ = false;
  std::string received_;
};

Connector::Connector(TcpContext& context, const ConnectorIdentity& identity, Rank peer,
                     ConnectorOwner& owner)
    : Handler(*context.poller),
      context_(context),
      identity_(identity),
      peer_(peer),
      owner_(owner) {}

Connector::~Connector() = default;

void Connector::Start(absl::string_view address, absl::Time now) {
  address_text_ = std::string(address);
  give_up_ = now + context_.connect_timeout;
  pause_ = kPauseFirst;
  if (absl::StatusOr<SocketAddress> parsed = SocketAddress::Parse(address); parsed.ok()) {
    address_ = *parsed;
  } else {
    start_status_ = parsed.status();
  }
  if (peer_.value() < 0 || peer_.value() >= context_.options.world_size) {
    start_status_ = absl::InvalidArgumentError(
        absl::StrCat("rank ", peer_.value(), " is not in [0, ", context_.options.world_size, ")"));
  }
  WantTurn();
}

bool Connector::OnTurn(absl::Time now) {
  if (finished_) return false;
  if (!start_status_.ok()) {
    Fail(start_status_, now);
  } else {
    Attempt(now);
  }
  return true;
}

void Connector::Attempt(absl::Time now) {
  ++attempts_;
  HandshakeIdentity self{identity_.self, context_.options.world_size, identity_.secret,
                         context_.purpose};
  Nonce random = NewNonce();
  LinkParameters parameters;
  std::memcpy(&parameters.link_id, random.data(), sizeof(parameters.link_id));
  absl::Span<const uint16_t> planned = context_.source_ports.For(peer_);
  sockets_ = planned.empty() ? static_cast<size_t>(context_.sockets) : planned.size();
  parameters.count = static_cast<uint16_t>(sockets_);
  SetDeadline(give_up_);
  for (size_t i = 0; i < sockets_; ++i) {
    parameters.index = static_cast<uint16_t>(i);
    dials_.push_back(std::make_unique<Dial>(*this, self, parameters));
    int source_port = planned.empty() ? 0 : planned[i];
    absl::Status started = dials_.back()->Start(address_, source_port, context_.tuning);
    if (!started.ok()) return OnDialFailed(started, absl::IsUnavailable(started), now);
  }
}

void Connector::StopAttempt() {
  for (auto& dial : dials_) {
    dial->Close();
    poller().Bury(std::move(dial));
  }
  dials_.clear();
  dials_done_ = 0;
}

void Connector::OnDialDone(absl::Time now) {
  if (++dials_done_ < dials_.size() || dials_.size() < sockets_) return;
  finished_ = true;
  SetDeadline(absl::InfiniteFuture());
  std::vector<FileDescriptor> sockets;
  std::vector<std::string> received;
  for (auto& dial : dials_) {
    sockets.push_back(dial->TakeSocket());
    received.push_back(dial->TakeReceived());
  }
  StopAttempt();
  owner_.OnConnected(std::move(sockets), std::move(received), now);
}

void Connector::OnDialFailed(const absl::Status& why, bool again, absl::Time now) {
  if (finished_) return;
  StopAttempt();
  last_failure_ = why;
  if (!again) return Fail(why, now);
  if (attempts_ == 1) {
    WEFT_LOG_DEBUG("rank {} at {} is not there yet ({}); trying again", peer_.value(),
                   address_text_, std::string(why.message()));
  }
  SetDeadline(std::min(give_up_, now + pause_));
  pause_ = std::min(pause_ * 2, kPauseLongest);
}

void Connector::OnDeadline(absl::Time now) {
  if (finished_) return;
  if (now < give_up_) return Attempt(now);
  std::string last;
  for (const auto& dial : dials_) last = std::string(dial->phase());
  if (last.empty()) last = std::string(last_failure_.message());
  Fail(absl::DeadlineExceededError(
           absl::StrCat("no connection within ", absl::FormatDuration(context_.connect_timeout),
                        " (transport.connect_timeout) in ", attempts_,
                        attempts_ == 1 ? " attempt" : " attempts", "; the last: ", last,
                        "; is that rank running, and does a firewall let this port through?")),
       now);
}

void Connector::Fail(const absl::Status& why, absl::Time now) {
  finished_ = true;
  SetDeadline(absl::InfiniteFuture());
  StopAttempt();
  owner_.OnConnectFailed(why, now);
}

}  // namespace weft::net
