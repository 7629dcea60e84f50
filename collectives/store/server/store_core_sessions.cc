// StoreCore's sessions, the ranks that they speak for, and their fences.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/store/server/store_core.h"

namespace weft::collectives {
namespace {

// What a session and a job take beside their texts.
constexpr Bytes kSessionOverhead = KiB(1);
constexpr Bytes kJobOverhead = KiB(2);

Bytes SessionBytes(const StoreHello& hello) {
  // The number is also what it is found by.
  return kSessionOverhead + HeapBytes(hello.id) * 2 + HeapBytes(hello.name) + HeapBytes(hello.job) +
         HeapBytes(hello.host);
}

std::string Describe(int32_t rank, const StoreHello& hello) {
  return absl::StrCat(rank, " (", hello.name, hello.host.empty() ? "" : " on ", hello.host, ")");
}

}  // namespace

absl::Status StoreCore::CheckRoom(const StoreHello& hello) const {
  if (session_by_id_.count(hello.id) != 0) return absl::OkStatus();  // it comes again
  const bool added = jobs_.count(hello.job) == 0;
  if (added && single_ == nullptr && static_cast<int>(jobs_.size()) >= options_.jobs_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this store serves ", jobs_.size(), " jobs already"));
  }
  return budget_->Check(
      SessionBytes(hello) + StoreMembers::BytesOf(hello) +
          (added ? kJobOverhead + Bytes(static_cast<int64_t>(hello.job.size())) : Bytes(0)),
      absl::StrCat("the client ", hello.name));
}

StoreCore::Job& StoreCore::JobOf(const std::string& name) {
  auto [entry, added] = jobs_.try_emplace(name);
  if (added) Charge(kJobOverhead + Bytes(static_cast<int64_t>(name.size())));
  if (added && single_ == nullptr) {
    entry->second.table = std::make_unique<StoreTable>(
        budget_, [this, name](int32_t rank) { return DescribeRank(name, rank); });
  }
  return entry->second;
}

std::string StoreCore::DescribeRank(const std::string& name, int32_t rank) const {
  auto job = jobs_.find(name);
  if (job == jobs_.end() || job->second.members.empty()) return absl::StrCat(rank);
  const Member* member = job->second.members.Find(rank);
  if (member == nullptr) return absl::StrCat(rank, " (never connected)");
  auto session = sessions_.find(member->session);
  const char* state = " has left";
  if (session != sessions_.end()) {
    state = session->second.connection != 0 ? "" : ", whose connection is lost";
  }
  return absl::StrCat(Describe(rank, *member->hello), state);
}

uint64_t StoreCore::MakeSession(StoreHello hello, uint64_t number) {
  next_session_ = std::max(next_session_, number + 1);
  Session& session = sessions_[number];
  session.number = number;
  session.hello = std::make_shared<const StoreHello>(std::move(hello));
  session.charge = SessionBytes(*session.hello);
  Charge(session.charge);
  session_by_id_.emplace(session.hello->id, number);
  Job& job = JobOf(session.hello->job);
  session.job = &job;
  session.backend = single_ != nullptr ? single_ : job.table.get();
  StoreRecord record;
  record.kind = StoreRecord::Kind::kSession;
  record.number = number;
  record.text = EncodeHello(*session.hello);
  Write(record);
  Enroll(session.hello, number);
  return number;
}

void StoreCore::Enroll(const std::shared_ptr<const StoreHello>& hello, uint64_t number) {
  if (hello->ranks == 0) return;
  Job& job = JobOf(hello->job);
  job.generation = std::max(job.generation, hello->generation);
  const Bytes before = job.members.bytes();
  const bool fences = job.members.Enroll(hello, number);
  Charge(job.members.bytes() - before);
  if (fences) FenceOld(*hello);
  if (on_hello_) on_hello_(*hello);
}

// Sessions all of whose ranks have been replaced: what they wait for fails.
void StoreCore::FenceOld(const StoreHello& hello) {
  for (auto& [number, session] : sessions_) {
    const StoreHello& old = *session.hello;
    if (session.fenced || old.job != hello.job || old.ranks == 0) continue;
    session.fenced = session.job->members.All(
        old.rank, old.ranks, [&](const Member& member) { return Succeeds(member, session); });
    if (!session.fenced) continue;
    absl::Status why = CheckFence(session, StoreRequest());
    std::vector<uint64_t> ended;
    session.waiting.ForEach([&](uint64_t request, const Waiting&) { ended.push_back(request); });
    for (uint64_t request : ended) session.backend->Expel({number, request}, why);
  }
}

const StoreCore::Member* StoreCore::Successor(const Session& session, int32_t rank) const {
  if (session.job->generation <= session.hello->generation) return nullptr;
  const Member* member = session.job->members.Find(rank);
  return member != nullptr && Succeeds(*member, session) ? member : nullptr;
}

bool StoreCore::Succeeds(const Member& member, const Session& session) {
  return member.hello->generation > session.hello->generation && member.session != session.number;
}

absl::Status StoreCore::CheckFence(const Session& session, const StoreRequest& request) const {
  const StoreHello& hello = *session.hello;
  if (hello.ranks == 0) return absl::OkStatus();
  int32_t rank = hello.rank;
  if (hello.ranks > 1 && !session.fenced) {
    // A relay fences its ranks itself; it says whose request this is.
    bool says = request.op != StoreOp::kGroup && request.rank >= hello.rank &&
                request.rank - hello.rank < hello.ranks;
    if (!says) return absl::OkStatus();
    rank = request.rank;
  }
  const Member* member = Successor(session, rank);
  if (member == nullptr) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("rank ", rank, " was replaced: rank ",
                                         Describe(rank, *member->hello), " of generation ",
                                         member->hello->generation, " has its place; ", hello.name,
                                         " is of generation ", hello.generation, " and must end"));
}

void StoreCore::Attach(ConnectionId id, Connection& connection, StoreHello hello) {
  unproven_.erase({connection.opened + net::kHandshakeTimeout, id});
  auto known = session_by_id_.find(hello.id);
  bool added = known == session_by_id_.end();
  uint64_t number = added ? MakeSession(std::move(hello), next_session_) : known->second;
  connection.session = number;
  Session& session = sessions_.at(number);
  connection.known = &session;  // for as long as it has this connection
  if (session.connection != 0) {
    Connection& previous = connections_.at(session.connection);
    previous.session = 0;
    Refuse(session.connection, previous, "the client has come again on another connection");
  } else if (!added) {
    away_.erase({session.away_since + options_.session_linger, number});
  }
  session.connection = id;
}

}  // namespace weft::collectives
