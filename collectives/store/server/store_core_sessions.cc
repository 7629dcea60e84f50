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

// What a job takes beside its name.
constexpr Bytes kJobOverhead = KiB(2);

// Whether the member is of a later generation's session than this one.
bool Succeeds(const StoreMembers::Member& member, const StoreSession& session) {
  return member.hello->generation > session.hello->generation && member.session != session.number;
}

std::string Describe(int32_t rank, const StoreHello& hello) {
  return absl::StrCat(rank, " (", hello.name, hello.host.empty() ? "" : " on ", hello.host, ")");
}

}  // namespace

absl::Status StoreCore::Admit(const StoreHello& hello) const {
  if (session_by_id_.count(hello.id) != 0) return absl::OkStatus();  // it comes again
  const bool added = jobs_.count(hello.job) == 0;
  if (added && single_ == nullptr && static_cast<int>(jobs_.size()) >= options_.jobs_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this store serves ", jobs_.size(), " jobs already"));
  }
  return budget_->Check(
      StoreSession::BytesOf(hello) + StoreMembers::BytesOf(hello) +
          (added ? kJobOverhead + Bytes(static_cast<int64_t>(hello.job.size())) : Bytes(0)),
      absl::StrCat("the client ", hello.name));
}

StoreJob& StoreCore::JobOf(const std::string& name) {
  auto [entry, added] = jobs_.try_emplace(name);
  if (added) budget_->used += kJobOverhead + Bytes(static_cast<int64_t>(name.size()));
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

StoreSession& StoreCore::MakeSession(const StoreHello& hello, uint64_t number) {
  next_session_ = std::max(next_session_, number + 1);
  StoreSession& session = sessions_.try_emplace(number, number, hello, budget_).first->second;
  session_by_id_.emplace(session.hello->id, number);
  StoreJob& job = JobOf(session.hello->job);
  session.job = &job;
  session.backend = single_ != nullptr ? single_ : job.table.get();
  StoreRecord record;
  record.kind = StoreRecord::Kind::kSession;
  record.number = number;
  record.text = EncodeHello(*session.hello);
  Write(record);
  Enroll(session.hello, number);
  return session;
}

void StoreCore::Enroll(const std::shared_ptr<const StoreHello>& hello, uint64_t number) {
  if (hello->ranks == 0) return;
  StoreJob& job = JobOf(hello->job);
  job.generation = std::max(job.generation, hello->generation);
  const Bytes before = job.members.bytes();
  const bool fences = job.members.Enroll(hello, number);
  budget_->used += job.members.bytes() - before;
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
    session.requests.ForEachWaiting(
        [&](uint64_t request, const Waiting&) { ended.push_back(request); });
    for (uint64_t request : ended) session.backend->Expel({number, request}, why);
  }
}

const StoreCore::Member* StoreCore::Successor(const StoreSession& session, int32_t rank) const {
  if (session.job->generation <= session.hello->generation) return nullptr;
  const Member* member = session.job->members.Find(rank);
  return member != nullptr && Succeeds(*member, session) ? member : nullptr;
}

absl::Status StoreCore::CheckFence(const StoreSession& session, const StoreRequest& request) const {
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

StoreSession* StoreCore::Attach(StoreConnections::Id connection, const StoreHello& hello) {
  auto known = session_by_id_.find(hello.id);
  const bool added = known == session_by_id_.end();
  StoreSession& session = added ? MakeSession(hello, next_session_) : sessions_.at(known->second);
  if (session.connection != 0) {
    connections_.Release(session.connection, "the client has come again on another connection");
  } else if (!added) {
    away_.erase({session.away_since + options_.session_linger, session.number});
  }
  session.connection = connection;
  return &session;
}

}  // namespace weft::collectives
