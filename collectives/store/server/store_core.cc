#include "collectives/store/server/store_core.h"

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

// What is kept beside bytes, here and by those who write and execute: objects and nodes of
// containers.
constexpr Bytes kConnectionOverhead = KiB(3);
constexpr Bytes kHandshakeOverhead = StoreCore::kUnprovenBytes - kConnectionOverhead;
constexpr Bytes kRequestOverhead{640};
constexpr Bytes kKeyOverhead{64};
// A longer request's memory is not kept for the next one.
constexpr size_t kScratchBytes = size_t{64} << 10;

Bytes Size(absl::string_view text) { return Bytes(static_cast<int64_t>(text.size())); }

}  // namespace

StoreCore::StoreCore(StoreCoreOptions options) : StoreCore(std::move(options), nullptr) {}

StoreCore::StoreCore(StoreCoreOptions options, StoreBackend* backend)
    : options_(std::move(options)),
      single_(backend),
      budget_(std::make_shared<StoreBudget>(StoreBudget{options_.memory_limit})) {
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
  connection.charge = local ? kConnectionOverhead : kConnectionOverhead + kHandshakeOverhead;
  Charge(connection.charge);
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
    absl::Status status = decoded.ok() ? CheckRoom(*decoded) : decoded.status();
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
    connection.charge -= kHandshakeOverhead;
    Charge(Bytes(0) - kHandshakeOverhead);
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
  WEFT_RETURN_IF_ERROR(CheckRoom(hello));
  StoreReply reply;
  auto body = std::make_shared<std::string>();
  AppendValue(*body, id_);
  AppendValue(*body, options_.description);
  reply.values = 2;
  reply.body = std::move(body);
  Send(id, EncodeReply(StoreOp::kHello, frame.id, reply), Size(*reply.body));
  Attach(id, connection, std::move(hello));
  return absl::OkStatus();
}

// ---- Requests

void StoreCore::Consume(ConnectionId id, Connection& connection, absl::string_view bytes,
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
      status = connection.session == 0 ? GreetLocal(id, connection, **frame)
                                       : Handle(id, connection, **frame, now);
    } else if (status.ok() && budget_->room() < Bytes(0) - MiB(80)) {
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
  if (request.id == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", ToString(request.op), " request of number 0; they begin with 1"));
  }
  if (request.op == StoreOp::kGoodbye) {
    session.connection = 0;
    connection.session = 0;
    Refuse(id, connection, "");
    Expire(number);
    return absl::OkStatus();
  }
  Acknowledge(session, request.acknowledged);
  if (const Retained* done = session.retained.Find(request.id); done != nullptr) {
    Send(id, done->frame, Bytes(0));  // which is charged for
    return absl::OkStatus();
  }
  if (session.waiting.Find(request.id) != nullptr) return absl::OkStatus();
  // Not retained: nothing was done, and what is sent again may be.
  StoreReply refusal;
  const Bytes charge = ChargeOf(request);
  if (session.held + charge > options_.session_limit) {
    refusal.status = absl::ResourceExhaustedError(absl::StrCat(
        session.waiting.size(), " requests of this client wait and ", session.retained.size(),
        " replies to it are not acknowledged: ", session.held.count(), " bytes, at most ",
        options_.session_limit.count(), " may be"));
  } else if (single_ != nullptr) {  // who asks another, and looks at no budget
    refusal.status = budget_->Check(charge, ToString(request.op));
  }
  if (!refusal.status.ok()) {
    Send(id, EncodeReply(request.op, request.id, refusal), Size(refusal.status.message()));
    return absl::OkStatus();
  }
  Run(number, session, std::move(request), now);
  if (frame.payload().size() > kScratchBytes) request_ = StoreRequest();
  return absl::OkStatus();
}

// What a request keeps here and with its backend while it waits. Values lie in the table, which
// charges for them; a relay has them twice, as they came and as they go up.
Bytes StoreCore::ChargeOf(const StoreRequest& request) const {
  Bytes keys, values, longest;
  for (const std::string& key : request.keys) {
    keys += Size(key) + kKeyOverhead;
    longest = std::max(longest, Size(key));
  }
  for (const std::string& value : request.values) values += Size(value);
  Bytes sum = kRequestOverhead + keys + longest * 2;  // the key that it waits for, twice
  if (request.op == StoreOp::kGroup) sum += Size(request.values[0]);
  if (single_ != nullptr) sum += (keys + values) * 2;
  return sum;
}

void StoreCore::Run(uint64_t number, Session& session, StoreRequest&& request, absl::Time now) {
  StoreTicket ticket{number, request.id};
  Waiting waiting{request.op, nullptr, ChargeOf(request)};
  const size_t journal_before = journal_.size();
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
  answered_ = full_ = false;
  absl::Status fence = CheckFence(session, request);
  if (!fence.ok() || op == StoreOp::kAnnounce) {
    StoreAnswer answer{ticket, op, {}};
    answer.reply.status = fence.ok() ? Register(number, request) : fence;
    answer.reply.full = fence.ok() && !answer.reply.status.ok();
    Deliver(answer);
  } else {
    bool forwarded = single_ != nullptr && session.hello->ranks == 1;
    if (forwarded && !IsGroup(op)) request.rank = session.hello->rank;  // for the root's fence
    session.backend->Execute(ticket, std::move(request), now);
    DeliverAnswers(*session.backend);
  }
  executing_ = {};
  // What was refused for want of memory depends on what else was here, and did nothing.
  if (full_ && !replaying_) journal_.resize(journal_before);
  if (!answered_ && !ChangesState(op) && single_ == nullptr && budget_->room() < Bytes(0)) {
    session.backend->Forget(ticket);
    StoreReply refusal;
    refusal.status =
        budget_->Check(waiting.charge, absl::StrCat("a ", ToString(op), " that waits"));
    StoreFrameOut frame = EncodeReply(op, ticket.request, refusal);
    if (session.connection != 0) {
      Send(session.connection, std::move(frame), Size(refusal.status.message()));
    }
    answered_ = true;
  }
  if (answered_) return Hold(session, Bytes(0) - waiting.charge);
  if (waiting.frame) {
    const Bytes frame = kRequestOverhead + HeapBytes(*waiting.frame);
    waiting.charge += frame;
    Hold(session, frame);
  }
  session.waiting.Insert(ticket.request, std::move(waiting));
  ChargeSlots(session);
}

// A relay names one of its ranks. kResourceExhausted: there is no room.
absl::Status StoreCore::Register(uint64_t number, const StoreRequest& request) {
  auto hello = DecodeHello(request.keys[0]);
  const StoreHello& relay = *sessions_.at(number).hello;
  if (!hello.ok() || hello->job != relay.job) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(budget_->Check(StoreMembers::BytesOf(*hello), hello->name));
  Enroll(std::make_shared<const StoreHello>(*std::move(hello)), number);
  return absl::OkStatus();
}

// ---- Ends

void StoreCore::Close(ConnectionId id, absl::Time now) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  Charge(Bytes(0) - connection.reader.memory() - HeapBytes(connection.unread) - connection.charge -
         connection.output);
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
  ChargeSlots(session);
}

void StoreCore::Expire(uint64_t number) {
  auto found = sessions_.find(number);
  Session& session = found->second;
  session.waiting.ForEach([&](uint64_t request, const Waiting& waiting) {
    session.backend->Forget({number, request});
    Hold(session, Bytes(0) - waiting.charge);
  });
  Acknowledge(session, ~uint64_t{0});
  Charge(Bytes(0) - session.charge - session.slots);
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
