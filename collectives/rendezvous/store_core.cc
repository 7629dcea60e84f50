#include "collectives/rendezvous/store_core.h"

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

// What is kept of a request that waits, and of a reply, beside their bytes: nodes of containers.
constexpr Bytes kRequestOverhead{256};
constexpr Bytes kReplyOverhead{96};
// A longer request's memory is not kept for the next one.
constexpr size_t kScratchBytes = size_t{64} << 10;

// What a request keeps here while it waits. Values lie in the table, which charges for them.
Bytes ChargeOf(const StoreRequest& request) {
  Bytes sum = kRequestOverhead;
  for (const std::string& key : request.keys) sum += Bytes(static_cast<int64_t>(key.size() + 32));
  return sum;
}

}  // namespace

StoreCore::StoreCore(StoreCoreOptions options) : StoreCore(std::move(options), nullptr) {}

StoreCore::StoreCore(StoreCoreOptions options, StoreBackend* backend)
    : options_(std::move(options)), single_(backend), budget_{options_.memory_limit, Bytes(0)} {
  options_.description.resize(std::min<size_t>(options_.description.size(), 256));
  StoreRecord server;
  server.text = id_;
  Write(server);
}

// ---- Connections

void StoreCore::Open(ConnectionId id, absl::string_view peer, absl::Time now, bool local) {
  auto [entry, added] = connections_.try_emplace(id);
  WEFT_CHECK(added, "connection " << id << " is open already");
  Connection& connection = entry->second;
  connection.peer = std::string(peer);
  connection.opened = now;
  connection.local = local;
  unproven_.insert({now + net::kHandshakeTimeout, id});
  if (local) return;
  connection.handshake =
      std::make_unique<net::ListenerHandshake>(Identity(options_.secret), net::NewNonce());
  SendText(id, connection.handshake->TakeOutput());
}

void StoreCore::Refuse(ConnectionId id, Connection& connection, std::string reason) {
  if (connection.closing) return;
  connection.closing = true;
  unproven_.erase({connection.opened + net::kHandshakeTimeout, id});
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
  if (connection.handshake) bytes.remove_prefix(FeedHandshake(id, connection, bytes));
  if (!connection.handshake) Consume(id, connection, bytes, now);
}

size_t StoreCore::FeedHandshake(ConnectionId id, Connection& connection, absl::string_view bytes) {
  net::ListenerHandshake& handshake = *connection.handshake;
  size_t used = handshake.Feed(bytes);
  StoreHello hello;
  if (handshake.state() == net::HandshakeState::kHello) {
    auto decoded = DecodeHello(handshake.hello().parameters);
    absl::Status status = decoded.ok() ? CheckJob(*decoded) : decoded.status();
    if (status.ok()) {
      hello = *std::move(decoded);
      handshake.Accept(absl::StrCat(id_, options_.description));
    } else {
      handshake.Refuse(status.message());
    }
  }
  SendText(id, handshake.TakeOutput());
  if (handshake.state() == net::HandshakeState::kFailed) {
    Refuse(id, connection, std::string(handshake.status().message()));
  } else if (handshake.state() == net::HandshakeState::kDone) {
    connection.handshake.reset();
    Attach(id, connection, std::move(hello));
  }
  return used;
}

absl::Status StoreCore::GreetLocal(ConnectionId id, Connection& connection,
                                   const StoreFrame& frame) {
  WEFT_ASSIGN_OR_RETURN(StoreRequest request, DecodeRequest(frame));
  if (request.op != StoreOp::kHello) {
    return absl::InvalidArgumentError(
        absl::StrCat("it begins with ", ToString(request.op), " instead of hello"));
  }
  WEFT_ASSIGN_OR_RETURN(StoreHello hello, DecodeHello(request.keys[0]));
  WEFT_RETURN_IF_ERROR(CheckJob(hello));
  StoreReply reply;
  auto body = std::make_shared<std::string>();
  AppendValue(*body, id_);
  AppendValue(*body, options_.description);
  reply.values = 2;
  reply.body = std::move(body);
  Send(id, EncodeReply(StoreOp::kHello, frame.id, reply));
  Attach(id, connection, std::move(hello));
  return absl::OkStatus();
}

// ---- Requests

void StoreCore::Consume(ConnectionId id, Connection& connection, absl::string_view bytes,
                        absl::Time now) {
  while (!bytes.empty() && !connection.closing) {
    if (connection.paused) {
      connection.unread.append(bytes.data(), bytes.size());
      Charge(Bytes(static_cast<int64_t>(bytes.size())));
      return;
    }
    size_t used = 0;
    auto before = static_cast<int64_t>(connection.reader.buffered());
    absl::StatusOr<std::optional<StoreFrame>> frame = connection.reader.Feed(bytes, &used);
    Charge(Bytes(static_cast<int64_t>(connection.reader.buffered()) - before));
    bytes.remove_prefix(used);
    absl::Status status = frame.status();
    if (status.ok() && frame->has_value()) {
      status = connection.session == 0 ? GreetLocal(id, connection, **frame)
                                       : Handle(id, connection, **frame, now);
    } else if (status.ok() && budget_.used > budget_.limit + MiB(80)) {
      status = absl::ResourceExhaustedError("the store is full with half-received requests");
    }
    if (!status.ok()) return Refuse(id, connection, std::string(status.message()));
  }
}

absl::Status StoreCore::Handle(ConnectionId id, Connection& connection, StoreFrame& frame,
                               absl::Time now) {
  StoreRequest& request = request_;
  if (absl::Status status = DecodeRequest(frame, request); !status.ok()) {
    request_ = StoreRequest();
    return status;
  }
  uint64_t number = connection.session;
  Session& session = *connection.known;
  ++requests_;
  if (request.op == StoreOp::kHello) return absl::InvalidArgumentError("a second hello");
  if (request.op == StoreOp::kGoodbye) {
    session.connection = 0;
    connection.session = 0;
    Refuse(id, connection, "");
    Expire(number);
    return absl::OkStatus();
  }
  Acknowledge(session, request.acknowledged);
  if (const Retained* done = session.retained.Find(request.id); done != nullptr) {
    Send(id, done->frame);
    return absl::OkStatus();
  }
  if (session.waiting.Find(request.id) != nullptr) return absl::OkStatus();
  if (session.held + ChargeOf(request) > options_.session_limit) {
    // Not retained: nothing was done, and what is sent again may be.
    StoreReply reply;
    reply.status = absl::ResourceExhaustedError(absl::StrCat(
        session.waiting.size(), " requests of this client wait and ", session.retained.size(),
        " replies to it are not acknowledged: ", session.held.count(), " bytes, at most ",
        options_.session_limit.count(), " may be"));
    Send(id, EncodeReply(request.op, request.id, reply));
    return absl::OkStatus();
  }
  Run(number, session, std::move(request), now);
  if (frame.payload().size() > kScratchBytes) request_ = StoreRequest();
  return absl::OkStatus();
}

void StoreCore::Run(uint64_t number, Session& session, StoreRequest&& request, absl::Time now) {
  StoreTicket ticket{number, request.id};
  Waiting waiting{request.op, nullptr, ChargeOf(request)};
  if (options_.journal && ChangesState(request.op)) {
    waiting.frame = std::make_shared<const std::string>(EncodeRequest(request));
    StoreRecord record;
    record.kind = StoreRecord::Kind::kRequest;
    record.number = number;
    record.text = *waiting.frame;
    Write(record);
  }
  StoreOp op = request.op;
  Hold(session, waiting.charge);
  executing_ = ticket;
  executes_for_ = &session;
  answered_ = false;
  absl::Status fence = CheckFence(session, request);
  if (!fence.ok() || op == StoreOp::kAnnounce) {
    StoreAnswer answer{ticket, op, {}};
    answer.reply.status = fence;
    if (fence.ok()) Register(number, request);
    Deliver(answer);
  } else {
    bool forwarded = single_ != nullptr && session.hello->ranks == 1;
    if (forwarded && !IsGroup(op)) request.rank = session.hello->rank;  // for the root's fence
    session.backend->Execute(ticket, std::move(request), now);
    DeliverAnswers(*session.backend);
  }
  executing_ = {};
  if (answered_) return Hold(session, Bytes(0) - waiting.charge);
  session.waiting.Insert(ticket.request, std::move(waiting));
}

// A relay names one of its ranks.
void StoreCore::Register(uint64_t number, const StoreRequest& request) {
  auto hello = DecodeHello(request.keys[0]);
  const StoreHello& relay = *sessions_.at(number).hello;
  if (!hello.ok() || hello->job != relay.job) return;
  Enroll(std::make_shared<const StoreHello>(*std::move(hello)), number);
}

void StoreCore::Acknowledge(Session& session, uint64_t below) {
  session.retained.EraseBelow(
      below, [&](const Retained& retained) { Hold(session, Bytes(0) - retained.charge); });
}

void StoreCore::Retain(Session& session, uint64_t request, StoreFrameOut frame, uint32_t shared) {
  size_t body = frame.body ? frame.body->size() / shared : 0;
  auto charge = Bytes(static_cast<int64_t>(frame.head.size() + body)) + kReplyOverhead;
  Hold(session, charge);
  session.retained.Insert(request, Retained{std::move(frame), charge});
}

void StoreCore::DeliverAnswers(StoreBackend& backend) {
  backend.TakeAnswers(taken_);
  for (const StoreAnswer& answer : taken_) Deliver(answer);
  taken_.clear();
}

void StoreCore::Deliver(const StoreAnswer& answer) {
  bool executing = executing_.session != 0 && answer.ticket == executing_;
  auto found = executing ? sessions_.end() : sessions_.find(answer.ticket.session);
  if (!executing && found == sessions_.end()) return;
  Session& session = executing ? *executes_for_ : found->second;
  if (executing) {
    answered_ = true;
  } else if (auto waited = session.waiting.Take(answer.ticket.request); waited.has_value()) {
    Hold(session, Bytes(0) - waited->charge);
  }
  StoreFrameOut frame = EncodeReply(answer.op, answer.ticket.request, answer.reply);
  if (ChangesState(answer.op)) {
    Retain(session, answer.ticket.request, frame, answer.reply.shared);
  }
  if (session.connection != 0) Send(session.connection, std::move(frame));
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

void StoreCore::SendText(ConnectionId id, std::string text) {
  if (text.empty()) return;
  StoreFrameOut frame;
  frame.body = std::make_shared<const std::string>(std::move(text));
  Send(id, std::move(frame));
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
  Charge(Bytes(-static_cast<int64_t>(unread.size())));
  Consume(id, connection, unread, now);
}

// ---- Ends

void StoreCore::Close(ConnectionId id, absl::Time now) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  Charge(Bytes(-static_cast<int64_t>(connection.reader.buffered())));
  Charge(Bytes(-static_cast<int64_t>(connection.unread.size())));
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
  std::vector<uint64_t> reads;
  session.waiting.ForEach([&](uint64_t request, const Waiting& waiting) {
    if (!ChangesState(waiting.op)) reads.push_back(request);
  });
  for (uint64_t request : reads) {
    session.backend->Forget({number, request});
    Hold(session, Bytes(0) - session.waiting.Take(request)->charge);
  }
}

void StoreCore::Expire(uint64_t number) {
  auto found = sessions_.find(number);
  Session& session = found->second;
  session.waiting.ForEach([&](uint64_t request, const Waiting& waiting) {
    session.backend->Forget({number, request});
    Hold(session, Bytes(0) - waiting.charge);
  });
  Acknowledge(session, ~uint64_t{0});
  session_by_id_.erase(session.hello->id);
  sessions_.erase(found);
  StoreRecord record;
  record.kind = StoreRecord::Kind::kEnd;
  record.number = number;
  Write(record);
}

void StoreCore::Advance(absl::Time now) {
  while (!unproven_.empty() && unproven_.begin()->first <= now) {
    ConnectionId id = unproven_.begin()->second;
    Refuse(id, connections_.at(id), "it did not finish its handshake in time");
  }
  while (!away_.empty() && away_.begin()->first <= now) {
    uint64_t number = away_.begin()->second;
    away_.erase(away_.begin());
    Expire(number);
  }
  auto advance = [&](StoreBackend& backend) {
    backend.Advance(now);
    backend.TakeAnswers(taken_);
    for (const StoreAnswer& answer : taken_) {
      // What the passage of time has decided is no consequence of the requests.
      bool late = single_ == nullptr && ChangesState(answer.op) && !answer.reply.status.ok();
      if (late) {
        StoreRecord record;
        record.kind = StoreRecord::Kind::kExpelled;
        record.number = answer.ticket.session;
        record.other = answer.ticket.request;
        record.text = std::string(answer.reply.status.message());
        Write(record);
      }
      Deliver(answer);
    }
    taken_.clear();
  };
  if (single_ != nullptr) return advance(*single_);
  for (auto& [name, job] : jobs_) advance(*job.table);
}

absl::Time StoreCore::deadline() const {
  absl::Time next = single_ != nullptr ? single_->deadline() : absl::InfiniteFuture();
  for (const auto& [name, job] : jobs_) {
    if (job.table) next = std::min(next, job.table->deadline());
  }
  if (!unproven_.empty()) next = std::min(next, unproven_.begin()->first);
  if (!away_.empty()) next = std::min(next, away_.begin()->first);
  return next;
}

int64_t StoreCore::keys() const {
  int64_t sum = single_ != nullptr ? single_->keys() : 0;
  for (const auto& [name, job] : jobs_) sum += job.table ? job.table->keys() : 0;
  return sum;
}

int64_t StoreCore::waiting() const {
  int64_t sum = single_ != nullptr ? single_->waiting() : 0;
  for (const auto& [name, job] : jobs_) sum += job.table ? job.table->waiting() : 0;
  return sum;
}

// ---- The journal

void StoreCore::Write(const StoreRecord& record) {
  if (options_.journal && !replaying_) AppendRecord(journal_, record);
}

}  // namespace weft::collectives
