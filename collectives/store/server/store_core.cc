#include "collectives/store/server/store_core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

// What is kept beside bytes, here and by those who execute: objects and nodes of containers.
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
      budget_(std::make_shared<StoreBudget>(StoreBudget{options_.memory_limit})),
      connections_(options_, budget_, this) {
  StoreRecord server;
  server.text = id_;
  Write(server);
}

// ---- Requests

absl::Status StoreCore::Handle(StoreConnections::Id connection, StoreSession& session,
                               StoreFrame& frame, absl::Time now) {
  StoreRequest& request = request_;
  if (absl::Status status = DecodeRequest(frame, request); !status.ok()) {
    request_ = StoreRequest();
    return status;
  }
  ++requests_;
  if (request.op == StoreOp::kHello) return absl::InvalidArgumentError("a second hello");
  if (request.id == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", ToString(request.op), " request of number 0; they begin with 1"));
  }
  if (request.op == StoreOp::kGoodbye) {
    session.connection = 0;
    connections_.Release(connection, "");
    Expire(session.number);
    return absl::OkStatus();
  }
  StoreSessionRequests& requests = session.requests;
  requests.Acknowledge(request.acknowledged);
  if (const Retained* done = requests.FindReply(request.id); done != nullptr) {
    connections_.Send(connection, done->frame, Bytes(0));  // which is charged for
    return absl::OkStatus();
  }
  if (requests.Waits(request.id)) return absl::OkStatus();
  // Not retained: nothing was done, and what is sent again may be.
  StoreReply refusal;
  const Bytes charge = ChargeOf(request);
  if (requests.held() + charge > options_.session_limit) {
    refusal.status = absl::ResourceExhaustedError(
        absl::StrCat(requests.waiting(), " requests of this client wait and ", requests.retained(),
                     " replies to it are not acknowledged: ", requests.held().count(),
                     " bytes, at most ", options_.session_limit.count(), " may be"));
  } else if (single_ != nullptr) {  // who asks another, and looks at no budget
    refusal.status = budget_->Check(charge, ToString(request.op));
  }
  if (!refusal.status.ok()) {
    connections_.Send(connection, EncodeReply(request.op, request.id, refusal),
                      Size(refusal.status.message()));
    return absl::OkStatus();
  }
  Run(session, std::move(request), now);
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

void StoreCore::Run(StoreSession& session, StoreRequest&& request, absl::Time now) {
  StoreTicket ticket{session.number, request.id};
  StoreSessionRequests& requests = session.requests;
  Waiting waiting{request.op, nullptr, ChargeOf(request)};
  const size_t journal_before = journal_.size();
  if (options_.journal && ChangesState(request.op)) {
    waiting.frame = std::make_shared<const std::string>(EncodeRequest(request));
    StoreRecord record;
    record.kind = StoreRecord::Kind::kRequest;
    record.number = session.number;
    record.text = *waiting.frame;
    Write(record);
  }
  StoreOp op = request.op;
  requests.Hold(waiting.charge);
  executing_ = ticket;
  executes_for_ = &session;
  answered_ = full_ = false;
  absl::Status fence = CheckFence(session, request);
  if (!fence.ok() || op == StoreOp::kAnnounce) {
    StoreAnswer answer{ticket, op, {}};
    answer.reply.status = fence.ok() ? Register(session, request) : fence;
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
      connections_.Send(session.connection, std::move(frame), Size(refusal.status.message()));
    }
    answered_ = true;
  }
  if (answered_) return requests.Hold(Bytes(0) - waiting.charge);
  if (waiting.frame) {
    const Bytes frame = kRequestOverhead + HeapBytes(*waiting.frame);
    waiting.charge += frame;
    requests.Hold(frame);
  }
  requests.Await(ticket.request, std::move(waiting));
}

// A relay names one of its ranks. kResourceExhausted: there is no room.
absl::Status StoreCore::Register(const StoreSession& session, const StoreRequest& request) {
  auto hello = DecodeHello(request.keys[0]);
  const StoreHello& relay = *session.hello;
  if (!hello.ok() || hello->job != relay.job) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(budget_->Check(StoreMembers::BytesOf(*hello), hello->name));
  Enroll(std::make_shared<const StoreHello>(*std::move(hello)), session.number);
  return absl::OkStatus();
}

// ---- Answers

void StoreCore::DeliverAnswers(StoreBackend& backend) {
  backend.TakeAnswers(taken_);
  for (const StoreAnswer& answer : taken_) Deliver(answer);
  taken_.clear();
}

void StoreCore::Deliver(const StoreAnswer& answer) {
  bool executing = executing_.session != 0 && answer.ticket == executing_;
  auto found = executing ? sessions_.end() : sessions_.find(answer.ticket.session);
  if (!executing && found == sessions_.end()) return;
  StoreSession& session = executing ? *executes_for_ : found->second;
  if (executing) {
    answered_ = true;
  } else {
    session.requests.TakeWaiting(answer.ticket.request);
  }
  StoreFrameOut frame = EncodeReply(answer.op, answer.ticket.request, answer.reply);
  const Bytes own = OwnBytes(answer.reply, frame);
  if (executing && answer.reply.full) {
    full_ = true;
  } else if (ChangesState(answer.op)) {
    session.requests.Retain(answer.ticket.request, frame, answer.reply.shared, own);
  }
  if (session.connection != 0) connections_.Send(session.connection, std::move(frame), own);
}

// What a reply's body itself takes: errors' texts, a relay's part of what it passes on. The table's
// bodies are charged by themselves.
Bytes StoreCore::OwnBytes(const StoreReply& reply, const StoreFrameOut& frame) const {
  if (!frame.body || (reply.status.ok() && single_ == nullptr)) return Bytes(0);
  return Bytes(static_cast<int64_t>(frame.body->size() / reply.shared));
}

// ---- Ends

// Reads that wait are sent again by a client that comes back; what changes state stays.
void StoreCore::Detach(StoreSession& session, absl::Time now) {
  session.connection = 0;
  session.away_since = now;
  away_.insert({now + options_.session_linger, session.number});
  std::vector<uint64_t> reads;
  session.requests.ForEachWaiting([&](uint64_t request, const Waiting& waiting) {
    if (!ChangesState(waiting.op)) reads.push_back(request);
  });
  for (uint64_t request : reads) {
    session.backend->Forget({session.number, request});
    session.requests.TakeWaiting(request);
  }
}

void StoreCore::Expire(uint64_t number) {
  const StoreSession& session = sessions_.at(number);
  session.requests.ForEachWaiting([&](uint64_t request, const Waiting&) {
    session.backend->Forget({number, request});
  });
  session_by_id_.erase(session.hello->id);
  sessions_.erase(number);
  StoreRecord record;
  record.kind = StoreRecord::Kind::kEnd;
  record.number = number;
  Write(record);
}

void StoreCore::Advance(absl::Time now) {
  connections_.Advance(now);
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
  absl::Time next = connections_.deadline();
  if (single_ != nullptr) next = std::min(next, single_->deadline());
  for (const auto& [name, job] : jobs_) {
    if (job.table) next = std::min(next, job.table->deadline());
  }
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
