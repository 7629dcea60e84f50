// What the engine does when something goes wrong: who differs, who is missing, who is dead; and how
// a failure reaches every rank of a group.
//
// An operation that has not moved for kStallNs asks the ranks with which it has messages left what
// they mean by its sequence number, by notices (notice.h): a call that differs leaves some rank
// with a message that its own rank does not send or take. All ranks of the group are asked once two
// calls differ, where a message of another meaning was met, or where the time runs out, so that all
// say the same. Not before: a question opens a link where there is none, and n ranks that wait for
// a late one would open n^2.
//
// A failed group tells its ranks, waits a moment so that all have heard before one of them leaves,
// and closes links that still hold its memory: only then are its works done, for buffers of a work
// that is done are the caller's again. Other groups that use such a link at that time fail with it.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/status.h"
#include "collectives/endpoint_impl.h"
#include "collectives/notice.h"

namespace weft::collectives {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kStallNs = 200 * kMillisecond;
constexpr int64_t kAskAgainNs = 1000 * kMillisecond;
// Once asked: how long a rank that has not called yet, or does not answer, is waited for before the
// others are compared without it, and how often it is asked meanwhile.
constexpr int64_t kPatienceNs = 400 * kMillisecond;
constexpr int64_t kPressNs = 40 * kMillisecond;
// All are asked so long before the time is out; twice their time to answer.
constexpr int64_t kAskAllNs = 1000 * kMillisecond;
static_assert(kAskAllNs >= 2 * kPatienceNs);
// Links of a failed group stay this long beyond their time for notices that have not left, as those
// over links that are being made: without its notice, a peer would take the close for a death.
constexpr int64_t kTellNs = 1000 * kMillisecond;
// An endpoint that goes after it told or heard of a failure stays this long, for links to be made
// first.
constexpr int64_t kLingerNs = 250 * kMillisecond;

// "rank 2", "ranks 0, 1 and 3".
std::string RankList(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0]);
  return absl::StrCat("ranks ", absl::StrJoin(ranks.begin(), ranks.end() - 1, ", "), " and ",
                      ranks.back());
}

// Whether group rank `r` is among those who are asked.
bool IsAsked(Operation& operation, size_t r) {
  if (operation.group().peers[r] == nullptr) return false;
  return operation.diagnosis->of_all || operation.Needs(static_cast<int>(r));
}

bool HasCalled(const Operation& operation, size_t r) {
  using Answer = Operation::Diagnosis::Answer;
  const Answer::State state = operation.diagnosis->answers[r].state;
  return state == Answer::kCalled || state == Answer::kPassed;
}

// The group's mutex is held. What it means by a call, where it has made that; `text`: which, or the
// number of its next call.
Operation::Diagnosis::Answer::State StateOf(const Group& group, uint32_t sequence,
                                            std::string& text) {
  using Answer = Operation::Diagnosis::Answer;
  const uint32_t ahead = group.next_sequence - sequence;  // wraps with the numbers
  if (ahead == 0 || ahead > UINT32_MAX / 2) {
    text = absl::StrCat(group.next_sequence);
    return Answer::kNotYet;
  }
  if (ahead > Group::kHistory) return Answer::kPassed;
  text = group.history[sequence % Group::kHistory].ToText();
  return Answer::kCalled;
}

bool AllHaveCalled(Operation& operation) {
  for (size_t r = 0; r < operation.group().peers.size(); ++r) {
    if (IsAsked(operation, r) && !HasCalled(operation, r)) return false;
  }
  return true;
}

// Who differs, and in what; OK: no two of the calls that were heard of differ.
absl::Status Judge(Operation& operation) {
  using Answer = Operation::Diagnosis::Answer;
  Group& group = operation.group();
  std::map<std::string, std::vector<int>> by_text;
  for (size_t r = 0; r < group.ranks.size(); ++r) {
    const Answer& answer = operation.diagnosis->answers[r];
    if (answer.state == Answer::kCalled) by_text[answer.text].push_back(group.ranks[r].value());
  }
  if (by_text.size() < 2) return absl::OkStatus();
  // The calls that differ are named first, that of the majority last. Where two calls have as many
  // ranks, the one with the lowest rank counts as the majority's, so that every rank says the same.
  std::vector<std::pair<std::string, std::vector<int>>> calls(by_text.begin(), by_text.end());
  std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) {
    if (a.second.size() != b.second.size()) return a.second.size() < b.second.size();
    return a.second.front() > b.second.front();
  });
  std::string text = absl::StrCat("collective #", operation.sequence(), ": ");
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool last = i + 1 == calls.size();
    absl::StrAppend(&text,
                    i == 0 ? ""
                    : last ? ", but "
                           : ", ",
                    RankList(calls[i].second), " called ", calls[i].first);
  }
  return WithFailure(absl::FailedPreconditionError(text),
                     {.scope = FailureScope::kRequest, .rank = calls.front().second.front()});
}

// Who is missing.
absl::Status Overdue(Operation& operation, int64_t now_ns, absl::Duration timeout) {
  using Answer = Operation::Diagnosis::Answer;
  Group& group = operation.group();
  // A rank that does not answer is at fault before those that have not called: they may wait for
  // it, as all may without needing anything of its own. Others are only waited for.
  struct Blamed {
    std::vector<int> ranks;
    std::vector<std::string> reasons;
    void Add(int rank, std::string reason) {
      ranks.push_back(rank);
      reasons.push_back(std::move(reason));
    }
  };
  Blamed silent, late;
  std::vector<int> awaited;
  const bool asked_long = operation.diagnosis != nullptr && operation.diagnosis->of_all &&
                          now_ns - operation.diagnosis->first_asked_ns >= kPatienceNs;
  for (size_t r = 0; r < group.ranks.size(); ++r) {
    if (static_cast<int>(r) == group.rank) continue;
    const int rank = group.ranks[r].value();
    const Answer* answer =
        operation.diagnosis == nullptr ? nullptr : &operation.diagnosis->answers[r];
    const bool is_needed = operation.Needs(static_cast<int>(r));
    const bool was_asked = asked_long && group.peers[r] != nullptr && group.peers[r]->gone.ok();
    if (answer != nullptr && answer->state == Answer::kNotYet) {
      late.Add(rank,
               absl::StrCat("rank ", rank, " has not called it: its next is #", answer->next));
    } else if (answer != nullptr && answer->state == Answer::kForgotten) {
      late.Add(rank, absl::StrCat("rank ", rank, " has no such communicator"));
    } else if (answer != nullptr && answer->state == Answer::kNone && (is_needed || was_asked)) {
      silent.Add(rank, absl::StrCat("rank ", rank, " does not answer"));
    } else if (is_needed) {
      awaited.push_back(rank);
    }
  }
  std::vector<std::string> reasons = silent.reasons;
  reasons.insert(reasons.end(), late.reasons.begin(), late.reasons.end());
  if (reasons.empty() && !awaited.empty()) {
    reasons.push_back(absl::StrCat("still waits for ", RankList(awaited)));
  }
  const std::vector<int>& named = !silent.ranks.empty() ? silent.ranks
                                  : !late.ranks.empty() ? late.ranks
                                                        : awaited;
  return WithFailure(absl::DeadlineExceededError(absl::StrCat(
                         operation.Describe(), " is not done after ", absl::FormatDuration(timeout),
                         ": ", absl::StrJoin(reasons, "; "))),
                     {.scope = FailureScope::kRequest, .rank = named.empty() ? -1 : named[0]});
}

}  // namespace

void EndpointImpl::OnRequestFailed(Operation& operation, int64_t now_ns) {
  int peer = -1;
  const absl::Status failure = operation.failure(&peer);
  if (failure.code() == absl::StatusCode::kFailedPrecondition && operation.has_sequence() &&
      absl::StrContains(failure.message(), "check differs")) {
    operation.suspicion = failure;
    operation.suspect = peer;
    Ask(operation, now_ns, /*of_all=*/true);
    return;
  }
  Group& group = operation.group();
  const Peer* other = peer >= 0 ? group.peers[static_cast<size_t>(peer)] : nullptr;
  absl::Status status = failure;
  if (other != nullptr) {
    // Where two ranks contradict each other, all hear of it from one of them.
    const std::string who =
        absl::StrCat("rank ", rank().value(), " says of rank ", other->rank.value());
    status = other->gone.ok() ? Annotate(failure, who) : other->gone;
  }
  const int rank = other != nullptr ? static_cast<int>(other->rank.value()) : -1;
  status = WithFailure(status, {.scope = FailureScope::kRequest, .rank = rank});
  FailGroup(group, Annotate(status, operation.Describe()), now_ns, absl::Milliseconds(100));
}

void EndpointImpl::OnBufferFault(Operation& operation, const absl::Status& found, int64_t now_ns) {
  Group& group = operation.group();
  const absl::Status named =
      Annotate(found, absl::StrCat("rank ", rank().value(), ", ", operation.Describe()));
  FailGroup(group, WithFailure(named, {.scope = FailureScope::kRequest, .rank = rank().value()}),
            now_ns, absl::Milliseconds(100));
  std::lock_guard<std::mutex> lock(group.mutex);
  operation.verdict = group.status;
}

void EndpointImpl::FailGroup(Group& group, const absl::Status& status, int64_t now_ns,
                             absl::Duration grace, const Peer* told_by, bool says) {
  absl::Status verdict;
  {
    std::lock_guard<std::mutex> lock(group.mutex);
    if (!group.status.ok()) return;
    const std::string name = absl::StrCat("communicator \"", group.name, "\"");
    group.status = absl::StartsWith(status.message(), name) ? status : Annotate(status, name);
    verdict = group.status;
  }
  // Unless this process gave the group up itself, as one does that ends.
  if (told_by != nullptr || !absl::IsCancelled(verdict)) recorder_.MarkFailed();
  if (verdict.code() == absl::StatusCode::kCancelled || !says) {
    WEFT_LOG_DEBUG(verdict.message());
  } else if (told_by == nullptr) {
    WEFT_LOG_WARN(verdict.message());
  }
  for (Peer* peer : group.peers) {
    if (peer != nullptr && peer->receive != nullptr) peer->receive->DropUnwanted();
  }
  TellFailure(group, verdict, told_by);
  if (options_.rejoins) AskToDrain(group);
  // Also where another rank told: one that has not heard yet shall hear the cause from that, and
  // not first that the links to this one were closed.
  linger_ns_ = now_ns + kLingerNs;
  const int64_t cut_ns = now_ns + (options_.rejoins ? kDrainNs : absl::ToInt64Nanoseconds(grace));
  for (auto& operation : active_) {
    if (operation == nullptr || &operation->group() != &group || operation->complete()) continue;
    operation->verdict = verdict;
    operation->cut_ns = cut_ns;
  }
  examine_ns_ = std::min(examine_ns_, cut_ns);
}

void EndpointImpl::TellFailure(const Group& group, const absl::Status& verdict,
                               const Peer* told_by) {
  const std::string notice =
      Pack(kAbort, group.id, 0, static_cast<uint32_t>(verdict.code()),
           absl::StrCat(ToText(FailureOf(verdict)), "\n", verdict.message()));
  const auto link_is_held = [&](size_t r) {
    return std::any_of(active_.begin(), active_.end(), [&](const auto& operation) {
      return operation != nullptr && &operation->group() == &group &&
             operation->Holds(static_cast<int>(r));
    });
  };
  for (size_t r = 0; r < group.peers.size(); ++r) {
    Peer* peer = group.peers[r];
    if (peer == nullptr || peer == told_by) continue;
    if (told_by == nullptr || link_is_held(r)) links_.Notify(*peer, notice);
  }
  links_.FlushNotices(now_ns_);
}

void EndpointImpl::CloseLinksOf(Operation& operation) {
  Group& group = operation.group();
  for (size_t r = 0; r < group.peers.size(); ++r) {
    Peer* peer = group.peers[r];
    if (peer == nullptr || !operation.Holds(static_cast<int>(r))) continue;
    if (peer->gone.ok()) {
      if (peer->HoldsNotices() && now_ns_ < operation.cut_ns + kTellNs) continue;
      peer->gone = WithFailure(
          absl::UnavailableError(absl::StrCat("links to rank ", peer->rank.value(),
                                              " were closed: ", operation.verdict.message())),
          FailureOf(operation.verdict));
    }
    peer->send.reset();
    peer->receive.reset();
  }
}

void EndpointImpl::Examine(int64_t now_ns) {
  for (size_t i = 0; i < active_.size(); ++i) {
    Operation& operation = *active_[i];
    if (!operation.verdict.ok()) {
      if (now_ns >= operation.cut_ns) CloseLinksOf(operation);
      continue;
    }
    ExamineOne(operation, now_ns);
  }
}

absl::Status EndpointImpl::Left(const Operation& operation, size_t peer) {
  Group& group = const_cast<Operation&>(operation).group();
  std::optional<uint32_t> called;
  {
    std::lock_guard<std::mutex> lock(group.mutex);
    const bool has_finished =
        operation.has_sequence() && group.HasFinished(group.ranks[peer], operation.sequence());
    if (has_finished) return absl::OkStatus();
    called = group.left[peer];
  }
  if (!called.has_value()) return absl::OkStatus();
  const int rank = group.ranks[peer].value();
  return WithFailure(absl::UnavailableError(
                         absl::StrCat("rank ", rank, " is gone: it left the communicator after ",
                                      *called, " collectives, before ", operation.Describe())),
                     {.scope = FailureScope::kConnection, .rank = rank});
}

bool EndpointImpl::MayHaveSentAhead(Operation& operation, size_t peer) {
  // No receive is at the link of a send, nor of a receive from any rank before one has offered.
  if (!operation.has_sequence() && !operation.Holds(static_cast<int>(peer))) return false;
  Group& group = operation.group();
  const net::ReceiveLink* link = group.peers[peer]->receive.get();
  if (link == nullptr || !link->status().ok()) return false;
  std::lock_guard<std::mutex> lock(group.mutex);
  return group.left[peer].has_value();
}

void EndpointImpl::ExamineOne(Operation& operation, int64_t now_ns) {
  Group& group = operation.group();
  for (size_t r = 0; r < group.peers.size(); ++r) {
    const Peer* peer = group.peers[r];
    if (peer == nullptr || !operation.Needs(static_cast<int>(r))) continue;
    // The end of its link tells a message that its peer has left, but where links are kept.
    const bool may_be_left = operation.has_sequence() || options_.rejoins;
    absl::Status left = may_be_left ? Left(operation, r) : absl::OkStatus();
    if (!left.ok() && !operation.has_sequence() && now_ns < operation.deadline_ns) {
      // A message that the peer has sent before may still come.
      operation.deadline_ns = std::min(operation.deadline_ns, now_ns + kStallNs);
      left = absl::OkStatus();
    }
    if (!left.ok()) {
      FailGroup(group, left, now_ns, absl::Milliseconds(100));
      return;
    }
    if (peer->gone.ok() || PeerLinks::IsParting(*peer, now_ns)) continue;
    if (MayHaveSentAhead(operation, r)) continue;
    FailGroup(group, peer->gone, now_ns, absl::Milliseconds(100));
    return;
  }
  operation.Remind(*this, now_ns);
  const bool stalled = now_ns - operation.moved_ns >= kStallNs;
  if (now_ns >= operation.deadline_ns && stalled) {
    FailGroup(operation.group(), Overdue(operation, now_ns, operation.group().timeout), now_ns,
              absl::Milliseconds(100));
    return;
  }
  if (!operation.has_sequence()) return;
  const bool suspicious = !operation.suspicion.ok();
  if (!stalled && !suspicious) {
    operation.diagnosis.reset();
    return;
  }
  const Operation::Diagnosis* diagnosis = operation.diagnosis.get();
  absl::Status judgement = diagnosis == nullptr ? absl::OkStatus() : Judge(operation);
  const bool of_all = suspicious || !judgement.ok() || now_ns >= operation.deadline_ns - kAskAllNs;
  if (diagnosis == nullptr || (of_all && !diagnosis->of_all) ||
      now_ns - diagnosis->asked_ns >= kAskAgainNs) {
    Ask(operation, now_ns, of_all);
    return;
  }
  const bool patient = now_ns - diagnosis->first_asked_ns < kPatienceNs;
  if (patient && !AllHaveCalled(operation)) {
    if (now_ns - diagnosis->asked_ns >= kPressNs) Ask(operation, now_ns, of_all);
    return;
  }
  if (judgement.ok() && suspicious && !patient) {
    const Peer* peer = operation.group().peers[static_cast<size_t>(operation.suspect)];
    judgement = Annotate(operation.suspicion,
                         absl::StrCat(operation.Describe(), " with rank ", peer->rank.value()));
  }
  if (!judgement.ok()) {
    FailGroup(operation.group(), judgement, now_ns, absl::Milliseconds(100));
  }
}

void EndpointImpl::Ask(Operation& operation, int64_t now_ns, bool of_all) {
  Group& group = operation.group();
  if (operation.diagnosis == nullptr) {
    operation.diagnosis = std::make_unique<Operation::Diagnosis>();
    operation.diagnosis->answers.resize(group.ranks.size());
    operation.diagnosis->first_asked_ns = now_ns;
    auto& own = operation.diagnosis->answers[static_cast<size_t>(group.rank)];
    std::lock_guard<std::mutex> lock(group.mutex);
    own.state = StateOf(group, operation.sequence(), own.text);
  }
  if (of_all && !std::exchange(operation.diagnosis->of_all, true)) {
    operation.diagnosis->first_asked_ns = now_ns;
  }
  operation.diagnosis->asked_ns = now_ns;
  for (size_t r = 0; r < group.peers.size(); ++r) {
    if (!IsAsked(operation, r) || HasCalled(operation, r)) continue;
    links_.Notify(*group.peers[r], Pack(kAsk, group.id, operation.sequence(), 0));
  }
}

void EndpointImpl::Answer(Peer& peer, uint32_t group_id, uint32_t sequence) {
  auto state = Operation::Diagnosis::Answer::kForgotten;
  std::string text;
  if (Group* group = groups_.Find(group_id); group != nullptr) {
    std::lock_guard<std::mutex> lock(group->mutex);
    state = StateOf(*group, sequence, text);
  }
  links_.Notify(peer, Pack(kAnswer, group_id, sequence, state, text));
}

void EndpointImpl::HandleNotice(Peer& peer, absl::string_view bytes) {
  uint32_t words[4];
  if (bytes.size() < sizeof(words)) return;
  std::memcpy(words, bytes.data(), sizeof(words));
  const std::string text(bytes.substr(sizeof(words)));
  const auto [kind, group_id, sequence, value] = words;
  if (kind == kAsk) return Answer(peer, group_id, sequence);
  if (kind == kSeek || kind == kOffer) {
    return HandleAnySource(peer, kind == kOffer, group_id, sequence, value);
  }
  if (kind == kAbort) {
    if (value == 0) return;  // nothing has failed
    const size_t end = std::min(text.find('\n'), text.size());
    const absl::Status reason =
        WithFailure(absl::Status(static_cast<absl::StatusCode>(value),
                                 text.substr(std::min(end + 1, text.size()))),
                    ParseFailure(absl::string_view(text).substr(0, end)));
    if (Group* group = groups_.FindElseFail(group_id, reason); group != nullptr) {
      FailGroup(*group, reason, now_ns_, absl::Milliseconds(100), &peer);
    }
    return;
  }
  if (kind == kDrain) return HandleDrain(peer, group_id, sequence, value != 0, text);
  if (kind == kGoodbye) return HandleGoodbye(peer, group_id, sequence);
  if (kind != kAnswer) return;
  for (auto& operation : active_) {
    if (!operation->has_sequence() || operation->group().id != group_id ||
        operation->sequence() != sequence || operation->diagnosis == nullptr) {
      continue;
    }
    const auto& peers = operation->group().peers;
    const size_t r = std::find(peers.begin(), peers.end(), &peer) - peers.begin();
    if (r == peers.size()) continue;
    auto& answer = operation->diagnosis->answers[r];
    answer.state = static_cast<Operation::Diagnosis::Answer::State>(value);
    answer.text = text;
    answer.next = answer.state == Operation::Diagnosis::Answer::kNotYet
                      ? static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 10))
                      : 0;
  }
}

void EndpointImpl::Abort(const std::shared_ptr<Group>& group, absl::Status reason, bool says) {
  if (reason.ok()) reason = absl::CancelledError("aborted without a reason");
  driver_.Run([&] { FailGroup(*group, reason, now_ns_, absl::Milliseconds(100), nullptr, says); });
}

}  // namespace weft::collectives
