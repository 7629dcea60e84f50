#include "collectives/store/server/store_connections.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

net::HandshakeIdentity Identity(const net::JobSecret& secret) {
  net::HandshakeIdentity identity;
  identity.secret = secret;
  identity.purpose = net::HandshakePurpose::kStore;
  return identity;
}

// What is kept beside bytes, here and by those who write: objects and nodes of containers.
constexpr Bytes kConnectionOverhead = KiB(3);
constexpr Bytes kHandshakeOverhead = StoreConnections::kUnprovenBytes - kConnectionOverhead;
// Frames that wait to be written lie in vectors, which grow to twice what is in them.
constexpr Bytes kFrameOverhead{2 * sizeof(StoreConnections::Output)};
// Where the store is full, a connection with this much output is not read from.
constexpr Bytes kPauseWhenFull = KiB(64);
// With so much more than its memory in halves of requests the store closes those that bring more.
constexpr Bytes kHalvesWhenFull = MiB(80);

Bytes Size(absl::string_view text) { return Bytes(static_cast<int64_t>(text.size())); }

}  // namespace

StoreConnections::StoreConnections(StoreConnectionsOptions options,
                                   std::shared_ptr<StoreBudget> budget, Owner* owner)
    : options_(std::move(options)), budget_(std::move(budget)), owner_(*owner) {
  options_.description.resize(std::min<size_t>(options_.description.size(), 256));
}

void StoreConnections::Open(Id id, absl::string_view peer, absl::Time now, bool local) {
  auto [entry, added] = connections_.try_emplace(id);
  WEFT_CHECK(added, "connection " << id << " is open already");
  Connection& connection = entry->second;
  connection.peer = std::string(peer);
  connection.opened = now;
  connection.local = local;
  connection.charge = local ? kConnectionOverhead : kConnectionOverhead + kHandshakeOverhead;
  Charge(connection.charge);
  unproven_.insert({now + net::kHandshakeTimeout, id});
  if (local) return;
  connection.handshake =
      std::make_unique<net::ListenerHandshake>(Identity(options_.secret), net::NewNonce());
  SendText(id, connection.handshake->TakeOutput());
}

void StoreConnections::Receive(Id id, absl::string_view bytes, absl::Time now) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  if (connection.handshake) bytes.remove_prefix(FeedHandshake(id, connection, bytes));
  if (!connection.handshake) Consume(id, connection, bytes, now);
}

size_t StoreConnections::FeedHandshake(Id id, Connection& connection, absl::string_view bytes) {
  net::ListenerHandshake& handshake = *connection.handshake;
  size_t used = handshake.Feed(bytes);
  StoreHello hello;
  if (handshake.state() == net::HandshakeState::kHello) {
    auto decoded = DecodeHello(handshake.hello().parameters);
    absl::Status status = decoded.ok() ? owner_.Admit(*decoded) : decoded.status();
    if (status.ok()) {
      hello = *std::move(decoded);
      handshake.Accept(absl::StrCat(owner_.id(), options_.description));
    } else {
      handshake.Refuse(status.message());
    }
  }
  SendText(id, handshake.TakeOutput());
  if (handshake.state() == net::HandshakeState::kFailed) {
    Refuse(id, connection, std::string(handshake.status().message()));
  } else if (handshake.state() == net::HandshakeState::kDone) {
    connection.handshake.reset();
    connection.charge -= kHandshakeOverhead;
    Charge(Bytes(0) - kHandshakeOverhead);
    Prove(id, connection, hello);
  }
  return used;
}

absl::Status StoreConnections::GreetLocal(Id id, Connection& connection, const StoreFrame& frame) {
  WEFT_ASSIGN_OR_RETURN(StoreRequest request, DecodeRequest(frame));
  if (request.op != StoreOp::kHello) {
    return absl::InvalidArgumentError(
        absl::StrCat("it begins with ", ToString(request.op), " instead of hello"));
  }
  WEFT_ASSIGN_OR_RETURN(StoreHello hello, DecodeHello(request.keys[0]));
  WEFT_RETURN_IF_ERROR(owner_.Admit(hello));
  StoreReply reply;
  auto body = std::make_shared<std::string>();
  AppendValue(*body, owner_.id());
  AppendValue(*body, options_.description);
  reply.values = 2;
  reply.body = std::move(body);
  Send(id, EncodeReply(StoreOp::kHello, frame.id, reply), Size(*reply.body));
  Prove(id, connection, hello);
  return absl::OkStatus();
}

void StoreConnections::Prove(Id id, Connection& connection, const StoreHello& hello) {
  unproven_.erase({connection.opened + net::kHandshakeTimeout, id});
  connection.session = owner_.Attach(id, hello);
}

void StoreConnections::Consume(Id id, Connection& connection, absl::string_view bytes,
                               absl::Time now) {
  while (!bytes.empty() && !connection.closing) {
    if (connection.paused) {
      const Bytes before = HeapBytes(connection.unread);
      connection.unread.append(bytes.data(), bytes.size());
      return Charge(HeapBytes(connection.unread) - before);
    }
    size_t used = 0;
    const Bytes before = connection.reader.memory();
    absl::StatusOr<std::optional<StoreFrame>> frame = connection.reader.Feed(bytes, &used);
    Charge(connection.reader.memory() - before);
    bytes.remove_prefix(used);
    absl::Status status = frame.status();
    if (status.ok() && frame->has_value()) {
      status = connection.session == nullptr ? GreetLocal(id, connection, **frame)
                                             : owner_.Handle(id, *connection.session, **frame, now);
    } else if (status.ok() && budget_->room() < Bytes(0) - kHalvesWhenFull) {
      status = absl::ResourceExhaustedError("the store is full with half-received requests");
    }
    if (!status.ok()) return Refuse(id, connection, std::string(status.message()));
  }
}

void StoreConnections::Refuse(Id id, Connection& connection, std::string reason) {
  if (connection.closing) return;
  connection.closing = true;
  unproven_.erase({connection.opened + net::kHandshakeTimeout, id});
  closings_.push_back({id, connection.peer, std::move(reason)});
}

void StoreConnections::Release(Id id, std::string reason) {
  Connection& connection = connections_.at(id);
  connection.session = nullptr;
  Refuse(id, connection, std::move(reason));
}

bool StoreConnections::WantsInput(Id id) const {
  auto found = connections_.find(id);
  return found != connections_.end() && !found->second.paused && !found->second.closing;
}

void StoreConnections::Send(Id id, StoreFrameOut frame, Bytes own) {
  if (frame.size() == 0) return;
  Connection& connection = connections_.at(id);
  if (connection.closing) return;
  connection.output += kFrameOverhead + own;
  Charge(kFrameOverhead + own);
  connection.backlog += frame.size();
  auto backlog = Bytes(static_cast<int64_t>(connection.backlog));
  // One reply alone may be larger than the bound: it was asked for, and it is shared.
  bool one = connection.backlog == frame.size();
  if (backlog > options_.output_limit && !one) {
    return Refuse(
        id, connection,
        absl::StrCat("it reads too slowly: ", backlog.count(), " bytes wait for it, at most ",
                     options_.output_limit.count(), " may"));
  }
  const bool full = budget_->room() < Bytes(0) && backlog > kPauseWhenFull;
  if (full || backlog > options_.output_pause) connection.paused = true;
  output_.push_back({id, std::move(frame)});
}

void StoreConnections::SendText(Id id, std::string text) {
  if (text.empty()) return;
  StoreFrameOut frame;
  const auto own = Bytes(static_cast<int64_t>(text.size()));
  frame.body = std::make_shared<const std::string>(std::move(text));
  Send(id, std::move(frame), own);
}

void StoreConnections::Sent(Id id, size_t bytes, absl::Time now) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  WEFT_CHECK(bytes <= connection.backlog, "sent " << bytes << " of " << connection.backlog);
  // The owner knows of how many frames these bytes are a part.
  const Bytes taken =
      bytes == connection.backlog
          ? connection.output
          : Bytes(static_cast<int64_t>(static_cast<double>(connection.output.count()) *
                                       static_cast<double>(bytes) /
                                       static_cast<double>(connection.backlog)));
  connection.output -= taken;
  Charge(Bytes(0) - taken);
  connection.backlog -= bytes;
  if (!connection.paused ||
      Bytes(static_cast<int64_t>(connection.backlog)) > options_.output_pause / 2) {
    return;
  }
  connection.paused = false;
  std::string unread = std::exchange(connection.unread, {});
  Charge(Bytes(0) - HeapBytes(unread));
  Consume(id, connection, unread, now);
}

void StoreConnections::Close(Id id, absl::Time now) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  Charge(Bytes(0) - connection.reader.memory() - HeapBytes(connection.unread) - connection.charge -
         connection.output);
  unproven_.erase({connection.opened + net::kHandshakeTimeout, id});
  if (connection.session != nullptr) owner_.Detach(*connection.session, now);
  connections_.erase(found);
}

void StoreConnections::Advance(absl::Time now) {
  while (!unproven_.empty() && unproven_.begin()->first <= now) {
    const Id id = unproven_.begin()->second;
    Refuse(id, connections_.at(id), "it did not finish its handshake in time");
  }
}

absl::Time StoreConnections::deadline() const {
  return unproven_.empty() ? absl::InfiniteFuture() : unproven_.begin()->first;
}

}  // namespace weft::collectives
