#include "net/tcp/acceptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/open_files.h"
#include "base/status.h"
#include "net/handshake.h"
#include "net/tcp/close_on_fork.h"
#include "net/tcp/connector.h"
#include "net/tcp/link_session.h"

namespace weft::net {
namespace {

constexpr int kAcceptsPerTurn = 64;
constexpr absl::Duration kExhaustedPause = absl::Milliseconds(50);

FileDescriptor OpenSpare() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

int64_t UnprovenPeersMax(int64_t limit) { return std::clamp<int64_t>(limit / 16, 8, 512); }
int64_t DescriptorsReserved(int64_t limit) { return std::clamp<int64_t>(limit / 16, 4, 64); }

// A connection that has not become part of a link yet.
class Acceptor::PendingConnection final : public PollHandler {
 public:
  PendingConnection(Acceptor& acceptor, FileDescriptor fd, const HandshakeIdentity& self,
                    absl::Time now)
      : PollHandler(acceptor.poller()),
        acceptor_(acceptor),
        fd_(std::move(fd)),
        from_(RemoteAddress(fd_.get())),
        since_(now),
        handshake_(self, NewNonce()) {}
  ~PendingConnection() override { Close(); }

  bool Start() {
    SetDeadline(since_ + kHandshakeTimeout);
    return poller().Add(fd_.get(), EPOLLIN, this).ok() && Flush();
  }
  void Close() {
    if (fd_) poller().Remove(fd_.get());
    fd_ = FileDescriptor();
    SetDeadline(absl::InfiniteFuture());
  }
  FileDescriptor TakeSocket() {
    poller().Remove(fd_.get());
    SetDeadline(absl::InfiniteFuture());
    return std::move(fd_);
  }
  int fd() const { return fd_.get(); }
  Rank rank() const { return handshake_.hello().rank; }
  bool proven() const { return handshake_.state() == HandshakeState::kDone; }
  const LinkParameters& parameters() const { return parameters_; }
  const SocketAddress& from() const { return from_; }
  absl::Time since() const { return since_; }
  bool unproven() const { return unproven_; }
  bool NoLongerUnproven() { return std::exchange(unproven_, false); }  // what it was

  void OnDeadline(absl::Time now) override {
    if (acceptor_.late_.Admit(now)) {
      WEFT_LOG_WARN(from_.ToString(), " was closed: it did not finish its handshake within ",
                    absl::FormatDuration(kHandshakeTimeout), acceptor_.late_.LeftOut());
    }
    acceptor_.Drop(*this);
  }

  void OnEvents(uint32_t, absl::Time now) override {
    if (!fd_) return;
    std::array<char, kHandshakeBytesMax> buffer;
    ssize_t got = recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return acceptor_.Drop(*this);
    absl::string_view bytes(buffer.data(), static_cast<size_t>(got));
    size_t used = handshake_.Feed(bytes);
    if (handshake_.state() == HandshakeState::kHello) {
      absl::Status fits = acceptor_.CheckHello(handshake_.hello(), &parameters_);
      if (fits.ok()) {
        handshake_.Accept({});
      } else {
        handshake_.Refuse(fits.message());
      }
    }
    bool flushed = Flush();
    if (handshake_.state() == HandshakeState::kFailed) {
      if (acceptor_.turned_away_.Admit(now)) {
        WEFT_LOG_WARN(from_.ToString(), " was turned away: ", handshake_.status().message(),
                      acceptor_.turned_away_.LeftOut());
      }
      if (handshake_.proven() && parameters_.epoch == 0) {
        acceptor_.TellTurnedAway(rank(), handshake_.status());
      }
      return acceptor_.Drop(*this);
    }
    // Nobody speaks between a Hello and the first frame, which follows the verdict.
    if (!flushed || used < bytes.size()) return acceptor_.Drop(*this);
    if (proven()) acceptor_.OnProven(*this, now);
  }

 private:
  bool Flush() {  // a new socket takes some hundred bytes at once, or is no good
    std::string output = handshake_.TakeOutput();
    return output.empty() ||
           send(fd_.get(), output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
               static_cast<ssize_t>(output.size());
  }

  Acceptor& acceptor_;
  FileDescriptor fd_;
  const SocketAddress from_;
  const absl::Time since_;
  bool unproven_ = true;
  ListenerHandshake handshake_;
  LinkParameters parameters_;
};

Acceptor::Acceptor(TcpContext& context, FileDescriptor listener, FileDescriptor spare,
                   AcceptorOwner& owner)
    : PollHandler(*context.poller),
      context_(context),
      listener_(std::move(listener)),
      spare_(std::move(spare)),
      owner_(owner) {}

Acceptor::~Acceptor() {
  if (listening_) poller().Remove(listener_.get());
}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Create(TcpContext& context,
                                                           const SocketAddress& address,
                                                           AcceptorOwner& owner) {
  WEFT_ASSIGN_OR_RETURN(FileDescriptor listener, Listen(address, context.tuning));
  FileDescriptor spare = OpenSpare();
  if (!spare) return DescriptorsExhausted(errno, "open /dev/null");
  std::unique_ptr<Acceptor> out(
      new Acceptor(context, std::move(listener), std::move(spare), owner));
  WEFT_RETURN_IF_ERROR(context.poller->Add(out->listener_.get(), EPOLLIN, out.get()));
  out->listening_ = true;
  return out;
}

void Acceptor::OnEvents(uint32_t, absl::Time now) {
  const int64_t limit = OpenFilesLimit(), reserved = DescriptorsReserved(limit);
  for (int i = 0; i < kAcceptsPerTurn && listening_; ++i) {
    const bool full = unproven_count_ >= UnprovenPeersMax(limit);
    if (full && (!SomebodyWaits() || !Evict(now))) return;
    FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const int error = errno;
    // The kernel gives the lowest number that is free.
    if (fd && fd.get() >= limit - reserved && !Evict(now)) {
      return OnExhausted(
          absl::ResourceExhaustedError(
              absl::StrCat("accept: descriptor ", fd.get(), " of ", limit, ", the last ", reserved,
                           " of which are left for files; raise the limit with ulimit -n")),
          now);
    }
    if (fd) {
      BeginHandshake(std::move(fd), now);
    } else if (IsDescriptorExhaustion(error)) {
      if (!SomebodyWaits()) return;  // it comes before EAGAIN
      if (!Evict(now)) return OnExhausted(DescriptorsExhausted(error, "accept"), now);
    } else if (error == EAGAIN) {
      return;
    }
    // Else that connection broke before it was accepted (ECONNABORTED, ENETDOWN, ...): the next.
  }
}

bool Acceptor::SomebodyWaits() const {
  pollfd queue{listener_.get(), POLLIN, 0};
  return poll(&queue, 1, 0) == 1;
}

bool Acceptor::Evict(absl::Time now) {
  int64_t most = 0;
  for (const auto& [network, count] : unproven_) most = std::max(most, count);
  auto found = std::find_if(
      pending_connections_.begin(), pending_connections_.end(), [&](const auto& connection) {
        return connection->unproven() && unproven_.at(connection->from().Network()) == most;
      });
  if (found == pending_connections_.end()) return false;
  PendingConnection& connection = **found;
  if (now < connection.since() + kProofGrace) {
    Pause(connection.since() + kProofGrace);
    return false;
  }
  if (evicted_.Admit(now)) {
    WEFT_LOG_WARN(
        connection.from().ToString(), " was closed for another: it had not proved within ",
        absl::FormatDuration(absl::Trunc(now - connection.since(), absl::Milliseconds(1))),
        " that it belongs to the job, and ", unproven_count_, " had not", evicted_.LeftOut());
  }
  Drop(connection);
  return true;
}

void Acceptor::OnExhausted(const absl::Status& why, absl::Time now) {
  if (exhausted_.Admit(now)) {
    WEFT_LOG_ERROR(why.message(), "; peers are turned away until one is free",
                   exhausted_.LeftOut());
  }
  spare_ = FileDescriptor();
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    FileDescriptor turned_away(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!turned_away) break;
  }
  spare_ = OpenSpare();
  Pause(now + kExhaustedPause);
}

void Acceptor::Pause(absl::Time until) {
  if (listening_) poller().Remove(listener_.get());
  listening_ = false;
  SetDeadline(until);
}

void Acceptor::ListenAgain() {
  if (listening_ || stopped_) return;
  if (!spare_) spare_ = OpenSpare();
  listening_ = poller().Add(listener_.get(), EPOLLIN, this).ok();
}

void Acceptor::StopAccepting() {
  Pause(absl::InfiniteFuture());
  stopped_ = true;
  pending_links_.clear();
  pending_connections_.clear();
}

void Acceptor::OnDeadline(absl::Time now) {
  ListenAgain();
  if (!listening_) SetDeadline(now + kExhaustedPause);
}

void Acceptor::BeginHandshake(FileDescriptor fd, absl::Time now) {
  SetCloseOnFork(fd.get());
  if (!TuneSocket(fd.get(), context_.tuning).ok()) return;  // it has gone already
  HandshakeIdentity self{context_.options.self, context_.options.world_size,
                         context_.options.secret, context_.purpose};
  pending_connections_.push_back(
      std::make_unique<PendingConnection>(*this, std::move(fd), self, now));
  PendingConnection& connection = *pending_connections_.back();
  ++unproven_[connection.from().Network()];
  ++unproven_count_;
  if (!connection.Start()) Drop(connection);
}

absl::Status Acceptor::CheckHello(const Hello& hello, LinkParameters* out) const {
  absl::string_view parameters = hello.parameters;
  if (context_.check_terms != nullptr && parameters.size() >= LinkParameters::kBytes) {
    absl::Status agreed = context_.check_terms(parameters.substr(LinkParameters::kBytes));
    if (!agreed.ok()) return agreed;
    parameters = parameters.substr(0, LinkParameters::kBytes);
  }
  WEFT_ASSIGN_OR_RETURN(*out, LinkParameters::Decode(parameters));
  // What transports above tcp say to each other goes to one place, one after the other.
  if (context_.purpose != HandshakePurpose::kTcpLink && out->count != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", ToString(context_.purpose), " of one socket was to have ", out->count));
  }
  if (out->epoch == 0) return owner_.Admit(hello.rank);
  if (context_.book == nullptr) return absl::FailedPreconditionError("links are not resumed here");
  return context_.book->Check(hello.rank, *out);
}

void Acceptor::ForgetUnproven(PendingConnection& connection) {
  if (!connection.NoLongerUnproven()) return;
  auto found = unproven_.find(connection.from().Network());
  if (--found->second == 0) unproven_.erase(found);
  --unproven_count_;
  ListenAgain();  // a deadline that is left does no harm
}

void Acceptor::OnProven(PendingConnection& connection, absl::Time now) {
  ForgetUnproven(connection);
  Rank rank = connection.rank();
  const LinkParameters parameters = connection.parameters();
  LimitInFlight(connection.fd(), FlowEnd::kReceives, parameters.rate, context_.tuning);
  if (parameters.epoch > 0) {
    FileDescriptor socket = connection.TakeSocket();
    Drop(connection);
    return context_.book->Deliver(rank, parameters, std::move(socket));
  }
  auto found = pending_links_.find(rank);
  if (found != pending_links_.end() && (found->second.link_id != parameters.link_id ||
                                        found->second.connections.size() != parameters.count)) {
    DropPendingLink(rank);  // an attempt that was given up
    found = pending_links_.end();
  }
  if (found == pending_links_.end()) {
    PendingLink link{parameters.link_id, std::vector<PendingConnection*>(parameters.count), 0};
    found = pending_links_.emplace(rank, std::move(link)).first;
  }
  PendingLink& link = found->second;
  if (link.connections[parameters.index] != nullptr) return Drop(connection);
  link.connections[parameters.index] = &connection;
  if (++link.present < link.connections.size()) return;
  std::vector<FileDescriptor> sockets;
  for (PendingConnection* one : link.connections) sockets.push_back(one->TakeSocket());
  DropPendingLink(rank);
  owner_.OnPeer(rank, parameters, std::move(sockets), now);
}

void Acceptor::TellTurnedAway(Rank rank, const absl::Status& why) {
  context_.options.events->OnTurnedAway(rank, why);
}

void Acceptor::DropPendingLink(Rank rank) {
  auto found = pending_links_.find(rank);
  if (found == pending_links_.end()) return;
  std::vector<PendingConnection*> connections = std::move(found->second.connections);
  pending_links_.erase(found);
  for (PendingConnection* connection : connections) {
    if (connection != nullptr) Drop(*connection);
  }
}

void Acceptor::Drop(PendingConnection& connection) {
  connection.Close();
  auto self = std::find_if(pending_connections_.begin(), pending_connections_.end(),
                           [&](const auto& one) { return one.get() == &connection; });
  if (self == pending_connections_.end()) return;
  ForgetUnproven(connection);
  poller().DeferDelete(std::move(*self));
  pending_connections_.erase(self);
  const auto link = pending_links_.find(connection.rank());
  if (link == pending_links_.end()) return;
  const std::vector<PendingConnection*>& present = link->second.connections;
  if (std::find(present.begin(), present.end(), &connection) != present.end()) {
    DropPendingLink(connection.rank());  // the others are of no use without it
  }
}

}  // namespace weft::net
