// StoreCore's journal: reading one back, and writing a snapshot of the state.
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/store/server/store_core.h"

namespace weft::collectives {
namespace {

// The session in whose name a snapshot has ranks arrive that wait for nothing; no client's.
constexpr uint64_t kNobodysSession = std::numeric_limits<uint64_t>::max();

absl::StatusOr<StoreFrame> WholeFrame(absl::string_view bytes, size_t payload_bytes_max) {
  StoreFrameReader reader(payload_bytes_max);
  size_t used = 0;
  WEFT_ASSIGN_OR_RETURN(std::optional<StoreFrame> frame, reader.Feed(bytes, &used));
  if (frame.has_value() && used == bytes.size()) return *std::move(frame);
  return absl::DataLossError("a record of the store's journal holds no whole frame");
}

StoreRecord Make(StoreRecord::Kind kind, uint64_t number, uint64_t other, std::string text) {
  StoreRecord record;
  record.kind = kind;
  record.number = number;
  record.other = other;
  record.text = std::move(text);
  return record;
}

// A client comes, has each of them arrive, and leaves, so that nobody waits for the answers.
void AppendArrived(std::string& out, const std::string& job, const StoreTable& table) {
  using Kind = StoreRecord::Kind;
  uint64_t last = 0;
  table.ForEachArrived([&](StoreRequest request) {
    if (last == 0) {
      StoreHello hello;
      hello.id = NewStoreId();
      hello.job = job;
      AppendRecord(out, Make(Kind::kSession, kNobodysSession, 0, EncodeHello(hello)));
    }
    request.id = request.acknowledged = ++last;
    AppendRecord(out, Make(Kind::kRequest, kNobodysSession, 0, EncodeRequest(request)));
  });
  if (last > 0) AppendRecord(out, Make(Kind::kEnd, kNobodysSession, 0, ""));
}

}  // namespace

absl::Status StoreCore::Replay(const StoreRecord& record, absl::Time now) {
  replaying_ = true;
  budget_->refuses = false;
  journal_.clear();
  absl::Status status = Apply(record, now);
  replaying_ = false;
  budget_->refuses = true;
  return status;
}

absl::Status StoreCore::Apply(const StoreRecord& record, absl::Time now) {
  using Kind = StoreRecord::Kind;
  auto session = sessions_.find(record.number);
  bool needs_session = record.kind == Kind::kRequest || record.kind == Kind::kReply ||
                       record.kind == Kind::kExpelled || record.kind == Kind::kEnd;
  if (needs_session && session == sessions_.end()) {
    return absl::DataLossError(
        absl::StrCat("the store's journal names session ", record.number, ", which never began"));
  }
  switch (record.kind) {
    case Kind::kServer:
      id_ = record.text;
      break;
    case Kind::kSession: {
      WEFT_ASSIGN_OR_RETURN(StoreHello hello, DecodeHello(record.text));
      if (session != sessions_.end() || session_by_id_.count(hello.id) != 0) {
        return absl::DataLossError(
            absl::StrCat("in the store's journal session ", record.number, " begins twice"));
      }
      MakeSession(hello, record.number).away_since = now;
      away_.insert({now + options_.session_linger, record.number});
      break;
    }
    case Kind::kRequest: {
      WEFT_ASSIGN_OR_RETURN(StoreFrame frame, WholeFrame(record.text, kStoreRequestBytesMax));
      WEFT_ASSIGN_OR_RETURN(StoreRequest request, DecodeRequest(frame));
      session->second.requests.Acknowledge(request.acknowledged);
      Run(session->second, std::move(request), now);
      break;
    }
    case Kind::kExpelled:
      session->second.backend->Expel({record.number, record.other},
                                     absl::DeadlineExceededError(record.text));
      DeliverAnswers(*session->second.backend);
      break;
    case Kind::kEnd:
      away_.erase({session->second.away_since + options_.session_linger, record.number});
      Expire(record.number);
      break;
    case Kind::kValue:
      JobOf(record.job)
          .table->Restore(record.key, record.text, static_cast<int64_t>(record.number));
      break;
    case Kind::kServed:
      JobOf(record.job).table->RestoreServed(record.key);
      break;
    case Kind::kReply: {
      StoreFrameOut frame;
      frame.body = ChargedBody(budget_, record.text);
      session->second.requests.Retain(record.other, std::move(frame), 1, Bytes(0));
      break;
    }
  }
  return absl::OkStatus();
}

size_t StoreCore::SnapshotBytes() const {
  size_t bytes = 0;
  for (const auto& [name, job] : jobs_) {
    if (!job.table) continue;
    job.table->ForEach([&](const StoreTable::Entry& entry) {
      bytes += 64 + entry.key.size() + entry.value.size();
    });
    job.table->ForEachArrived([&](const StoreRequest& request) {
      bytes += 128 + request.keys[0].size();
      for (const std::string& value : request.values) bytes += value.size();
    });
  }
  for (const auto& [number, session] : sessions_) {
    bytes += 256;
    session.requests.ForEachReply(
        [&](uint64_t, const Retained& retained) { bytes += 64 + retained.frame.size(); });
    session.requests.ForEachWaiting([&](uint64_t, const Waiting& waiting) {
      bytes += 64 + (waiting.frame ? waiting.frame->size() : 0);
    });
  }
  return bytes;
}

std::string StoreCore::Snapshot() const {
  using Kind = StoreRecord::Kind;
  std::string out;
  AppendRecord(out, Make(Kind::kServer, 0, 0, id_));
  for (const auto& [name, job] : jobs_) {
    if (!job.table) continue;
    job.table->ForEach([&, &job_name = name](const StoreTable::Entry& entry) {
      StoreRecord record =
          Make(Kind::kValue, static_cast<uint64_t>(entry.version), 0, std::string(entry.value));
      record.job = job_name;
      record.key = entry.key;
      AppendRecord(out, record);
    });
    job.table->ForEachServed([&, &job_name = name](const std::string& key) {
      StoreRecord record = Make(Kind::kServed, 0, 0, "");
      record.job = job_name;
      record.key = key;
      AppendRecord(out, record);
    });
    AppendArrived(out, name, *job.table);
  }
  // Sessions in the order in which they came: a later generation fences an earlier one.
  std::map<uint64_t, const StoreSession*> ordered;
  for (const auto& [number, session] : sessions_) ordered.emplace(number, &session);
  for (const auto& [number, session] : ordered) {
    AppendRecord(out, Make(Kind::kSession, number, 0, EncodeHello(*session->hello)));
    session->requests.ForEachReply([&, of = number](uint64_t request, const Retained& retained) {
      const StoreFrameOut& frame = retained.frame;
      AppendRecord(out, Make(Kind::kReply, of, request,
                             absl::StrCat(frame.head.view(), frame.body ? *frame.body : "")));
    });
  }
  for (const auto& [number, session] : ordered) {
    session->requests.ForEachWaiting([&, of = number](uint64_t request, const Waiting& waiting) {
      if (waiting.frame) AppendRecord(out, Make(Kind::kRequest, of, request, *waiting.frame));
    });
  }
  return out;
}

}  // namespace weft::collectives
