#include "net/tcp/connector.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/tcp/interface.h"
#include "net/tcp/link_session.h"

namespace weft::net {
namespace {

constexpr absl::Duration kPauseFirst = absl::Milliseconds(10);
constexpr absl::Duration kPauseLongest = absl::Seconds(1);
// Many round trips of any fabric. The kernel would go on asking on the same path, and one in two
// may be dead each way: each attempt has another source port, and there is time for many.
constexpr absl::Duration kResumeAttempt = absl::Milliseconds(200);
// The first of a new link, whose peer may be busy; each further has twice as long.
constexpr absl::Duration kFirstAttempt = absl::Milliseconds(500);
constexpr absl::Duration kLongestAttempt = absl::Seconds(4);

}  // namespace

std::string LinkParameters::Encode() const {
  std::string out(kBytes, '\0');
  std::memcpy(out.data(), &link_id, 8);
  std::memcpy(out.data() + 8, &index, 2);
  std::memcpy(out.data() + 10, &count, 2);
  std::memcpy(out.data() + 12, &epoch, 4);
  std::memcpy(out.data() + 16, &life_port, 2);
  std::memcpy(out.data() + 20, &rate, 8);
  return out;
}

absl::StatusOr<LinkParameters> LinkParameters::Decode(absl::string_view bytes) {
  LinkParameters out;
  if (bytes.size() == kBytes) {
    std::memcpy(&out.link_id, bytes.data(), 8);
    std::memcpy(&out.index, bytes.data() + 8, 2);
    std::memcpy(&out.count, bytes.data() + 10, 2);
    std::memcpy(&out.epoch, bytes.data() + 12, 4);
    std::memcpy(&out.life_port, bytes.data() + 16, 2);
    std::memcpy(&out.rate, bytes.data() + 20, 8);
    if (out.count >= 1 && out.count <= kLinkSocketsMax && out.index < out.count) return out;
  }
  return absl::InvalidArgumentError(absl::StrCat("socket ", out.index, " of a link of ", out.count,
                                                 " (", bytes.size(), " bytes of parameters)"));
}

// One socket on its way.
class Connector::Dial final : public PollHandler {
 public:
  Dial(Connector& connector, const HandshakeIdentity& self, const LinkParameters& parameters)
      : PollHandler(connector.poller()),
        connector_(connector),
        self_(self),
        parameters_(parameters) {}
  ~Dial() override { Close(); }

  absl::Status Start(const SocketAddress& address, const SocketAddress& source,
                     const SocketTuning& tuning) {
    WEFT_ASSIGN_OR_RETURN(fd_, StartConnect(address, source, tuning));
    return poller().Add(fd_.get(), EPOLLOUT, this);
  }

  void Close() {
    if (fd_) poller().Remove(fd_.get());
    fd_ = FileDescriptor();
  }

  // Its attempt is given up. In order where the other side may have taken the link already: after a
  // reset, to which closing with something unread leads, it would look for this side.
  void Leave() {
    if (!fd_ || !connected() || connector_.resumes_) return Close();
    poller().Remove(fd_.get());
    shutdown(fd_.get(), SHUT_WR);
    connector_.context_.lingering.Add(poller(), std::move(fd_), /*whole=*/false);
  }

  int fd() const { return fd_.get(); }
  uint64_t rate() const { return parameters_.rate; }
  FileDescriptor TakeSocket() { return std::move(fd_); }
  std::string TakeReceived() { return std::move(received_); }
  bool connected() const { return handshake_.has_value(); }
  absl::string_view phase() const {
    return connected() ? "connected, but it does not answer the handshake" : "no answer yet";
  }

  void OnEvents(uint32_t, absl::Time now) override {
    if (!fd_ || (connected() && handshake_->state() == HandshakeState::kDone)) return;
    if (!connected() && !FinishConnect(now)) return;
    ReadHandshake(now);
  }

 private:
  bool FinishConnect(absl::Time now) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      absl::Status why = absl::UnavailableError(absl::StrCat("connect: ", std::strerror(error)));
      const bool listened = connector_.resumes_ || connector_.context_.options.peers_listen;
      const bool died = listened && error == ECONNREFUSED;
      connector_.OnDialFailed(why, /*again=*/!died, now);
      return false;
    }
    // Who asks there asks the address that we come from, which is not always the one listened at.
    const TcpContext& context = connector_.context_;
    parameters_.life_port = context.listens_at.SameHost(LocalAddress(fd_.get()))
                                ? static_cast<uint16_t>(context.listens_at.port())
                                : 0;
    handshake_.emplace(self_, connector_.peer_, parameters_.Encode() + context.own_terms,
                       NewNonce());
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
    size_t used = handshake_->Feed(bytes);
    std::string output = handshake_->TakeOutput();
    // A new socket takes some hundred bytes at once, or is no good.
    if (!output.empty() &&
        send(fd_.get(), output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
            static_cast<ssize_t>(output.size())) {
      Fail(absl::StrCat("handshake: sending failed: ", std::strerror(errno)), now);
      return;
    }
    if (handshake_->state() == HandshakeState::kFailed) {
      connector_.OnDialFailed(Annotate(handshake_->status(), "handshake"), /*again=*/false, now);
    } else if (handshake_->state() == HandshakeState::kDone) {
      received_ = std::string(bytes.substr(used));
      poller().Remove(fd_.get());  // until the link has all of its sockets
      connector_.OnDialDone(now);
    }
  }

  void Fail(const std::string& why, absl::Time now) {
    connector_.OnDialFailed(absl::UnavailableError(why), /*again=*/true, now);
  }

  Connector& connector_;
  const HandshakeIdentity self_;
  LinkParameters parameters_;
  std::optional<ConnectorHandshake> handshake_;  // once connected
  FileDescriptor fd_;
  std::string received_;
};

Connector::Connector(TcpContext& context, const ConnectorIdentity& identity, Rank peer,
                     ConnectorOwner& owner)
    : PollHandler(*context.poller),
      context_(context),
      identity_(identity),
      peer_(peer),
      owner_(owner) {}

Connector::~Connector() = default;

void Connector::Start(absl::string_view address, absl::Time now) {
  address_text_ = std::string(address);
  give_up_ = now + context_.connect_timeout;
  pause_ = kPauseFirst;
  patience_of_dials_ = kFirstAttempt;
  if (absl::StatusOr<SocketAddress> parsed = ParsePeer(address, context_.listens_at); parsed.ok()) {
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

void Connector::Resume(absl::string_view address, const LinkParameters& parameters,
                       absl::Time give_up, absl::Time patience, absl::Time now,
                       const topology::PathWay* way) {
  Start(address, now);
  resumes_ = true;
  if (way != nullptr) ways_.push_back(*way);
  parameters_ = parameters;
  give_up_ = give_up;
  patience_ = patience;
}

void Connector::Cancel() {
  finished_ = true;
  SetDeadline(absl::InfiniteFuture());
  StopAttempt();
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

// Once for a new link.
absl::Status Connector::PlanWays() {
  if (resumes_ || attempts_ > 1 || !context_.ways) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(ways_, context_.ways.Take(ToIpAddress(context_.own_address),
                                                  ToIpAddress(address_), peer_, context_.sockets));
  if (ways_.size() > kLinkSocketsMax) ways_.resize(kLinkSocketsMax);
  planned_ways_ = ways_;
  left_.resize(ways_.size());
  return absl::OkStatus();
}

void Connector::LeaveSilentWays() {
  for (size_t i = 0; i < std::min(dials_.size(), ways_.size()); ++i) {
    if (dials_[i]->connected()) continue;
    left_[i].push_back(ways_[i]);
    absl::StatusOr<topology::PathWay> other =
        context_.ways.Another(ToIpAddress(context_.own_address), ToIpAddress(address_), left_[i]);
    if (!other.ok() || other->choices == ways_[i].choices) continue;
    WEFT_LOG_INFO(context_.name, ": nothing answers from ", address_text_, " on the way ",
                  ways_[i].ToString(), "; socket ", i, " tries ", other->ToString());
    ways_[i] = *std::move(other);
  }
}

// Another way was answered: those before it are dead, for all.
void Connector::NoteFailedWays(absl::Time now) const {
  for (size_t i = 0; i < ways_.size(); ++i) {
    for (const topology::PathWay& way : left_[i]) {
      if (way.choices == ways_[i].choices) continue;
      context_.ways.Fails(ToIpAddress(context_.own_address), ToIpAddress(address_), way, now);
    }
  }
}

// Where socket `index` connects from: planned, by rank or by way. Each attempt takes another port,
// as that of the one before may be in use; and what answers it may come back over a dead switch,
// which the port decides as well. For a link that stands, attempts are counted by its epochs.
SocketAddress Connector::SourceOf(size_t index) const {
  SocketAddress source;
  if (!ways_.empty()) {
    const topology::PathWay& way = ways_[index % ways_.size()];
    source = context_.own_address;
    source.set_port(0);
    const auto salt = (static_cast<uint64_t>(getpid()) << 16) + index * 257;
    const auto [first, last] = topology::kTcpPlanPorts;
    constexpr uint32_t kPortsOfALink = 64;
    const int nth = resumes_ ? static_cast<int>(parameters_.epoch % kPortsOfALink) : attempts_ - 1;
    const std::optional<uint16_t> port = context_.ways->Port(
        way, MakeTuple(source, address_, topology::kProtocolTcp), salt, nth, first, last);
    if (port.has_value()) {
      source.set_port(*port);
    } else {
      const int64_t count = context_.ways->CountKernelPort();
      WEFT_LOG_WARN(context_.name, ": no free source port takes the way ", way.ToString(), " to ",
                    address_.ToString(), "; socket ", index, " gets one of the kernel's (", count,
                    " connections are not on a planned way)");
    }
    return source;
  }
  if (context_.binds_own_address) source = context_.own_address;
  // No port where a path that was planned has failed.
  absl::Span<const uint16_t> ports = context_.source_ports.For(peer_);
  source.set_port(resumes_ || ports.empty() ? 0 : ports[index]);
  return source;
}

void Connector::Attempt(absl::Time now) {
  ++attempts_;
  HandshakeIdentity self{identity_.self, context_.options.world_size, identity_.secret,
                         context_.purpose};
  absl::Status planned = PlanWays();
  if (!planned.ok()) return Fail(planned, now);
  if (resumes_) {
    sockets_ = 1;
    ++parameters_.epoch;
    SetDeadline(std::min(give_up_, now + kResumeAttempt));
  } else {
    Nonce random = NewNonce();
    std::memcpy(&parameters_.link_id, random.data(), sizeof(parameters_.link_id));
    const size_t ports = context_.source_ports.For(peer_).size();
    sockets_ = !ways_.empty() ? ways_.size()
               : ports > 0    ? ports
                              : static_cast<size_t>(context_.sockets);
    parameters_.count = static_cast<uint16_t>(sockets_);
    SetDeadline(std::min(give_up_, now + patience_of_dials_));
  }
  for (size_t i = 0; i < sockets_; ++i) {
    if (!resumes_) parameters_.index = static_cast<uint16_t>(i);
    parameters_.rate = ways_.empty() ? 0 : static_cast<uint64_t>(ways_[i % ways_.size()].rate);
    dials_.push_back(std::make_unique<Dial>(*this, self, parameters_));
    absl::Status started = dials_.back()->Start(address_, SourceOf(i), context_.tuning);
    if (!started.ok()) {
      return OnDialFailed(started, resumes_ || absl::IsUnavailable(started), now);
    }
  }
}

void Connector::StopAttempt() {
  for (auto& dial : dials_) {
    dial->Leave();
    poller().DeferDelete(std::move(dial));
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
    LimitInFlight(dial->fd(), FlowEnd::kSends, dial->rate(), context_.tuning);
    sockets.push_back(dial->TakeSocket());
    received.push_back(dial->TakeReceived());
  }
  StopAttempt();
  if (!resumes_) NoteFailedWays(now);
  owner_.OnConnected(std::move(sockets), std::move(received), now);
}

void Connector::OnDialFailed(const absl::Status& why, bool again, absl::Time now) {
  if (finished_) return;
  StopAttempt();
  last_failure_ = why;
  if (!again) return Fail(why, now);
  if (attempts_ == 1) {
    WEFT_LOG_DEBUG("rank ", peer_.value(), " at ", address_text_, " is not there yet (",
                   why.message(), "); trying again");
  }
  SetDeadline(std::min(give_up_, now + pause_));
  pause_ = std::min(pause_ * 2, kPauseLongest);
}

void Connector::OnDeadline(absl::Time now) {
  if (finished_) return;
  if (resumes_ && !dials_.empty() && dials_[0]->connected() && now < patience_) {
    return SetDeadline(patience_);
  }
  if (now >= give_up_) return Fail(OutOfTime(), now);
  if (dials_.empty()) return Attempt(now);
  if (!resumes_) {
    const auto silent = std::find_if(dials_.begin(), dials_.end(),
                                     [](const auto& dial) { return !dial->connected(); });
    if (silent == dials_.end()) return SetDeadline(give_up_);  // its process is busy
    patience_of_dials_ = std::min(2 * patience_of_dials_, kLongestAttempt);
    LeaveSilentWays();
  }
  // Its path may be dead, or that of the answers: another port at once, which may get others.
  StopAttempt();
  last_failure_ = absl::UnavailableError("no answer yet");
  Attempt(now);
}

absl::Status Connector::OutOfTime() const {
  std::string last;
  for (const auto& dial : dials_) last = std::string(dial->phase());
  if (last.empty()) last = std::string(last_failure_.message());
  std::string tried =
      absl::StrCat(attempts_, attempts_ == 1 ? " attempt" : " attempts", "; the last: ", last);
  if (resumes_) return absl::DeadlineExceededError(tried);
  return absl::DeadlineExceededError(
      absl::StrCat("no connection within ", absl::FormatDuration(context_.connect_timeout),
                   " (transport.connect_timeout) in ", tried,
                   "; is that rank running, and does a firewall let this port through?"));
}

void Connector::Fail(const absl::Status& why, absl::Time now) {
  Cancel();
  owner_.OnConnectFailed(why, now);
}

}  // namespace weft::net
