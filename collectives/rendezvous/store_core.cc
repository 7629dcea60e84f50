#include "collectives/rendezvous/store_core.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

// A retained reply, beside its bytes.
constexpr size_t kRetainedOverhead = 96;

net::HandshakeIdentity Identity(const net::JobSecret& secret) {
  net::HandshakeIdentity identity;
  identity.secret = secret;
  identity.purpose = net::HandshakePurpose::kStore;
  return identity;
}

Bytes ChargeOf(const StoreFrameOut& frame) {
  return Bytes(static_cast<int64_t>(frame.head.size() + kRetainedOverhead));
}

}  // namespace

std::string NewStoreId() {
  net::Nonce nonce = net::NewNonce();
  return std::string(nonce.begin(), nonce.begin() + kStoreIdBytes);
}

StoreCore::StoreCore(StoreCoreOptions options)
    : options_(std::move(options)), table_(options_.memory_limit) {
  options_.description.resize(std::min<size_t>(options_.description.size(), 256));
}

void StoreCore::Open(ConnectionId id, absl::string_view peer, absl::Time now) {
  auto [entry, added] = connections_.try_emplace(
      id, Connection{std::string(peer),
                     net::ListenerHandshake(Identity(options_.secret), net::NewNonce()), now});
  WEFT_CHECK(added, "connection " << id << " is open already");
  unproven_.insert({now + net::kHandshakeTimeout, id});
  Send(id, {entry->second.handshake.TakeOutput(), nullptr});
}

void StoreCore::Refuse(ConnectionId id, Connection& connection, std::string reason) {
  if (connection.closing) return;
  connection.closing = true;
  closings_.push_back({id, connection.peer, std::move(reason)});
}

bool StoreCore::WantsInput(ConnectionId id) const {
  auto found = connections_.find(id);
  return found != connections_.end() && !found->second.paused && !found->second.closing;
}

void StoreCore::Receive(ConnectionId id, absl::string_view bytes, absl::Time now) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  if (connection.session == 0) bytes.remove_prefix(FeedHandshake(id, connection, bytes));
  if (connection.session != 0) Consume(id, connection, bytes, now);
}

size_t StoreCore::FeedHandshake(ConnectionId id, Connection& connection, absl::string_view bytes) {
  size_t used = connection.handshake.Feed(bytes);
  if (connection.handshake.state() == net::HandshakeState::kHello) {
    if (connection.handshake.hello().parameters.size() < kStoreIdBytes) {
      connection.handshake.Refuse("a store's client must give its number");
    } else {
      connection.handshake.Accept(absl::StrCat(id_, options_.description));
    }
  }
  Send(id, {connection.handshake.TakeOutput(), nullptr});
  if (connection.handshake.state() == net::HandshakeState::kFailed) {
    Refuse(id, connection, std::string(connection.handshake.status().message()));
  } else if (connection.handshake.state() == net::HandshakeState::kDone) {
    Attach(id, connection);
  }
  return used;
}

void StoreCore::Attach(ConnectionId id, Connection& connection) {
  const std::string& parameters = connection.handshake.hello().parameters;
  unproven_.erase({connection.opened + net::kHandshakeTimeout, id});
  auto [known, added] =
      session_by_id_.try_emplace(parameters.substr(0, kStoreIdBytes), next_session_);
  if (added) ++next_session_;
  connection.session = known->second;
  Session& session = sessions_[known->second];
  session.id = known->first;
  session.name = parameters.substr(kStoreIdBytes);
  if (session.connection != 0) {
    Connection& previous = connections_.at(session.connection);
    previous.session = 0;
    Refuse(session.connection, previous, "the client has come again on another connection");
  } else if (!added) {
    away_.erase({session.away_since + options_.session_linger, known->second});
  }
  session.connection = id;
}

void StoreCore::Consume(ConnectionId id, Connection& connection, absl::string_view bytes,
                        absl::Time now) {
  while (!bytes.empty() && !connection.closing) {
    if (connection.paused) {
      connection.unread.append(bytes.data(), bytes.size());
      table_.Charge(Bytes(static_cast<int64_t>(bytes.size())));
      return;
    }
    size_t used = 0;
    auto before = static_cast<int64_t>(connection.reader.buffered());
    absl::StatusOr<std::optional<StoreFrame>> frame = connection.reader.Feed(bytes, &used);
    table_.Charge(Bytes(static_cast<int64_t>(connection.reader.buffered()) - before));
    bytes.remove_prefix(used);
    absl::Status status = frame.status();
    if (status.ok() && frame->has_value()) {
      status = Handle(id, connection, **frame, now);
    } else if (status.ok() && table_.memory() > table_.memory_limit() + MiB(80)) {
      status = absl::ResourceExhaustedError("the store is full with half-received requests");
    }
    if (!status.ok()) return Refuse(id, connection, std::string(status.message()));
  }
}

absl::Status StoreCore::Handle(ConnectionId id, Connection& connection, const StoreFrame& frame,
                               absl::Time now) {
  WEFT_ASSIGN_OR_RETURN(StoreRequest request, DecodeRequest(frame));
  uint64_t number = connection.session;
  Session& session = sessions_.at(number);
  if (request.op == StoreOp::kGoodbye) {
    session.connection = 0;
    connection.session = 0;
    Refuse(id, connection, "");
    Expire(number);
    return absl::OkStatus();
  }
  Acknowledge(session, request.acknowledged);
  if (auto done = session.retained.find(request.id); done != session.retained.end()) {
    Send(id, done->second);
    return absl::OkStatus();
  }
  if (!session.waiting.emplace(request.id, request.op).second) return absl::OkStatus();
  StoreTicket ticket{number, request.id};
  table_.Execute(ticket, std::move(request), now);
  DeliverAnswers();
  return absl::OkStatus();
}

void StoreCore::Acknowledge(Session& session, uint64_t below) {
  auto end = session.retained.lower_bound(below);
  for (auto it = session.retained.begin(); it != end; it = session.retained.erase(it)) {
    table_.Charge(Bytes(0) - ChargeOf(it->second));
  }
}

void StoreCore::DeliverAnswers() {
  for (StoreAnswer& answer : table_.TakeAnswers()) {
    auto found = sessions_.find(answer.ticket.session);
    if (found == sessions_.end()) continue;
    Session& session = found->second;
    session.waiting.erase(answer.ticket.request);
    StoreFrameOut frame = EncodeReply(answer.op, answer.ticket.request, answer.reply);
    if (ChangesState(answer.op)) {
      table_.Charge(ChargeOf(frame));
      session.retained.emplace(answer.ticket.request, frame);
    }
    if (session.connection != 0) Send(session.connection, std::move(frame));
  }
}

void StoreCore::Send(ConnectionId id, StoreFrameOut frame) {
  if (frame.size() == 0) return;
  Connection& connection = connections_.at(id);
  if (connection.closing) return;
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
  if (backlog > options_.output_pause) connection.paused = true;
  output_.push_back({id, std::move(frame)});
}

void StoreCore::Sent(ConnectionId id, size_t bytes, absl::Time now) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  WEFT_CHECK(bytes <= connection.backlog, "sent " << bytes << " of " << connection.backlog);
  connection.backlog -= bytes;
  if (!connection.paused ||
      Bytes(static_cast<int64_t>(connection.backlog)) > options_.output_pause / 2) {
    return;
  }
  connection.paused = false;
  std::string unread = std::exchange(connection.unread, {});
  table_.Charge(Bytes(-static_cast<int64_t>(unread.size())));
  Consume(id, connection, unread, now);
}

void StoreCore::Close(ConnectionId id, absl::Time now) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  table_.Charge(Bytes(-static_cast<int64_t>(connection.reader.buffered())));
  table_.Charge(Bytes(-static_cast<int64_t>(connection.unread.size())));
  unproven_.erase({connection.opened + net::kHandshakeTimeout, id});
  if (connection.session != 0) Detach(connection.session, now);
  connections_.erase(found);
}

// Reads that wait are sent again by a client that comes back; what changes state stays.
void StoreCore::Detach(uint64_t number, absl::Time now) {
  Session& session = sessions_.at(number);
  session.connection = 0;
  session.away_since = now;
  away_.insert({now + options_.session_linger, number});
  for (auto it = session.waiting.begin(); it != session.waiting.end();) {
    if (ChangesState(it->second)) {
      ++it;
      continue;
    }
    table_.Forget({number, it->first});
    it = session.waiting.erase(it);
  }
}

void StoreCore::Expire(uint64_t number) {
  auto found = sessions_.find(number);
  Session& session = found->second;
  for (const auto& [request, op] : session.waiting) table_.Forget({number, request});
  Acknowledge(session, ~uint64_t{0});
  session_by_id_.erase(session.id);
  sessions_.erase(found);
}

void StoreCore::Advance(absl::Time now) {
  while (!unproven_.empty() && unproven_.begin()->first <= now) {
    ConnectionId id = unproven_.begin()->second;
    unproven_.erase(unproven_.begin());
    Refuse(id, connections_.at(id), "it did not finish its handshake in time");
  }
  while (!away_.empty() && away_.begin()->first <= now) {
    uint64_t number = away_.begin()->second;
    away_.erase(away_.begin());
    Expire(number);
  }
  table_.Advance(now);
  DeliverAnswers();
}

absl::Time StoreCore::deadline() const {
  absl::Time next = table_.deadline();
  if (!unproven_.empty()) next = std::min(next, unproven_.begin()->first);
  if (!away_.empty()) next = std::min(next, away_.begin()->first);
  return next;
}

}  // namespace weft::collectives
