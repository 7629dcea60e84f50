#include "net/tcp/acceptor.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/handshake.h"
#include "net/tcp/connector.h"
#include "net/tcp/link_core.h"

namespace weft::net {
namespace {

constexpr int kAcceptsPerTurn = 64;
// Above this the rest waits in the kernel's queue until some have finished or timed out.
constexpr size_t kGuestsMax = 1024;
constexpr absl::Duration kExhaustedPause = absl::Milliseconds(50);

FileDescriptor OpenSpare() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

// A connection that has not become part of a link yet.
class Acceptor::Guest final : public Handler {
 public:
  Guest(Acceptor& acceptor, FileDescriptor fd, const HandshakeIdentity& self)
      : Handler(acceptor.poller()),
        acceptor_(acceptor),
        fd_(std::move(fd)),
        from_(RemoteAddress(fd_.get()).ToString()),
        handshake_(self, NewNonce()) {}
  ~Guest() override { Close(); }

  bool Start(absl::Time now) {
    SetDeadline(now + kHandshakeTimeout);
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
  Rank rank() const { return handshake_.hello().rank; }
  bool proven() const { return handshake_.state() == HandshakeState::kDone; }
  const LinkParameters& parameters() const { return parameters_; }

  void OnDeadline(absl::Time) override {
    WEFT_LOG_WARN(from_, " was closed: it did not finish its handshake within ",
                  absl::FormatDuration(kHandshakeTimeout));
    acceptor_.Dismiss(*this);
  }

  void OnEvents(uint32_t, absl::Time now) override {
    if (!fd_) return;
    std::array<char, kHandshakeBytesMax> buffer;
    ssize_t got = recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return acceptor_.Dismiss(*this);
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
      WEFT_LOG_WARN(from_, " was turned away: ", handshake_.status().message());
      if (handshake_.proven() && parameters_.epoch == 0) {
        acceptor_.TellTurnedAway(rank(), handshake_.status());
      }
      return acceptor_.Dismiss(*this);
    }
    // Nobody speaks between a Hello and the first frame, which follows the verdict.
    if (!flushed || used < bytes.size()) return acceptor_.Dismiss(*this);
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
  std::string from_;
  ListenerHandshake handshake_;
  LinkParameters parameters_;
};

Acceptor::Acceptor(TcpContext& context, FileDescriptor listener, FileDescriptor spare,
                   AcceptorOwner& owner)
    : Handler(*context.poller),
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
  for (int i = 0; i < kAcceptsPerTurn && listening_; ++i) {
    if (guests_.size() >= kGuestsMax) return Pause(absl::InfiniteFuture());
    FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      warned_ = false;
      Welcome(std::move(fd), now);
    } else if (IsDescriptorExhaustion(errno)) {
      return OnExhausted(errno, now);
    } else if (errno == EAGAIN) {
      return;
    }
    // Else that connection broke before it was accepted (ECONNABORTED, ENETDOWN, ...): the next.
  }
}

void Acceptor::OnExhausted(int error_number, absl::Time now) {
  if (!warned_) {
    warned_ = true;
    WEFT_LOG_ERROR(DescriptorsExhausted(error_number, "accept").message(),
                   "; peers are turned away until one is free");
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

void Acceptor::OnDeadline(absl::Time now) {
  if (!spare_) spare_ = OpenSpare();
  listening_ = poller().Add(listener_.get(), EPOLLIN, this).ok();
  if (!listening_) SetDeadline(now + kExhaustedPause);
}

void Acceptor::Welcome(FileDescriptor fd, absl::Time now) {
  if (!TuneSocket(fd.get(), context_.tuning).ok()) return;  // it has gone already
  HandshakeIdentity self{context_.options.self, context_.options.world_size,
                         context_.options.secret, context_.purpose};
  guests_.push_back(std::make_unique<Guest>(*this, std::move(fd), self));
  Guest& guest = *guests_.back();
  if (!guest.Start(now)) Dismiss(guest);
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

void Acceptor::OnProven(Guest& guest, absl::Time now) {
  Rank rank = guest.rank();
  const LinkParameters parameters = guest.parameters();
  if (parameters.epoch > 0) {
    FileDescriptor socket = guest.TakeSocket();
    Dismiss(guest);
    return context_.book->Deliver(rank, parameters, std::move(socket));
  }
  auto found = parties_.find(rank);
  if (found != parties_.end() && (found->second.link_id != parameters.link_id ||
                                  found->second.guests.size() != parameters.count)) {
    DismissParty(rank);  // an attempt that was given up
    found = parties_.end();
  }
  if (found == parties_.end()) {
    Party party{parameters.link_id, std::vector<Guest*>(parameters.count), 0};
    found = parties_.emplace(rank, std::move(party)).first;
  }
  Party& party = found->second;
  if (party.guests[parameters.index] != nullptr) return Dismiss(guest);
  party.guests[parameters.index] = &guest;
  if (++party.present < party.guests.size()) return;
  std::vector<FileDescriptor> sockets;
  for (Guest* one : party.guests) sockets.push_back(one->TakeSocket());
  DismissParty(rank);
  owner_.OnPeer(rank, parameters, std::move(sockets), now);
}

void Acceptor::TellTurnedAway(Rank rank, const absl::Status& why) {
  context_.options.events->OnTurnedAway(rank, why);
}

void Acceptor::DismissParty(Rank rank) {
  auto found = parties_.find(rank);
  if (found == parties_.end()) return;
  std::vector<Guest*> guests = std::move(found->second.guests);
  parties_.erase(found);
  for (Guest* guest : guests) {
    if (guest != nullptr) Dismiss(*guest);
  }
}

void Acceptor::Dismiss(Guest& guest) {
  guest.Close();
  auto self = std::find_if(guests_.begin(), guests_.end(),
                           [&](const auto& one) { return one.get() == &guest; });
  if (self == guests_.end()) return;
  poller().Bury(std::move(*self));
  guests_.erase(self);
  if (auto party = parties_.find(guest.rank());
      guest.proven() && party != parties_.end() &&
      party->second.link_id == guest.parameters().link_id &&
      party->second.guests[guest.parameters().index] == &guest) {
    DismissParty(guest.rank());  // the others are of no use without it
  }
  if (!listening_ && guests_.size() < kGuestsMax && spare_) OnDeadline(absl::InfinitePast());
}

}  // namespace weft::net
