#include "collectives/simulate/simulate.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

using topology::Operation;
using topology::OperationId;
using topology::OperationKind;
using topology::Workload;

constexpr uint64_t kMostSteps = 20'000'000;

absl::Status CheckSteps(uint64_t steps) {
  if (steps <= kMostSteps) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("schedules of ", steps, " steps or more; at most ", kMostSteps,
                   " are simulated: use larger chunks, or fewer ranks"));
}

bool IsReceive(StepKind kind) {
  return kind == StepKind::kReceive || kind == StepKind::kReceiveReduce;
}

// A rank's step, in one numbering of all.
struct StepName {
  size_t rank;
  uint32_t step;
};

class Translator {
 public:
  Translator(Workload& workload, const std::vector<RankSchedule>& schedules,
             const SimulationPlacement& placement, uint32_t group)
      : workload_(workload), schedules_(schedules), placement_(placement), group_(group) {
    for (const RankSchedule& schedule : schedules) {
      base_.push_back(names_.size());
      for (uint32_t step = 0; step < schedule.steps.size(); ++step) {
        names_.push_back({base_.size() - 1, step});
      }
    }
    partner_.assign(names_.size(), kAlone);
    previous_.assign(names_.size(), kNone);
    next_.assign(names_.size(), kNone);
    posted_.resize(names_.size());
  }

  absl::Status Match();
  absl::StatusOr<OperationId> Translate(OperationId begin);

 private:
  static constexpr size_t kAlone = SIZE_MAX;
  static constexpr OperationId kNoOperation = UINT32_MAX;
  // When a message is on its way, and when its receive is posted (of eager messages that have a
  // next one between the same ranks; of others the former is never before the latter).
  struct Posted {
    OperationId left = kNoOperation, receive = kNoOperation;
  };
  const Step& At(size_t index) const {
    return schedules_[names_[index].rank].steps[names_[index].step];
  }
  std::string Name(size_t index) const {
    return absl::StrCat("rank ", names_[index].rank, ", step ", names_[index].step);
  }
  // A message is one node, at its send.
  size_t Node(size_t index) const { return IsReceive(At(index).kind) ? partner_[index] : index; }
  // What one half of a message waits for, or a step that is no message.
  template <typename Visit>
  void ForEachNeedOf(size_t half, Visit visit) const {
    const StepName name = names_[half];
    const RankSchedule& schedule = schedules_[name.rank];
    for (uint32_t earlier : schedule.After(schedule.steps[name.step])) {
      visit(Node(base_[name.rank] + earlier));
    }
  }
  template <typename Visit>
  void ForEachNeed(size_t node, Visit visit) const {
    for (size_t half : {node, partner_[node]}) {
      if (half != kAlone) ForEachNeedOf(half, visit);
    }
  }
  bool TakesTimeInside() const {
    return placement_.local.bytes_per_second() > 0 ||
           placement_.local_latency > absl::ZeroDuration();
  }
  // Where a step is done, and where a send goes.
  topology::Endpoint Source(size_t node) const { return placement_.endpoints[names_[node].rank]; }
  topology::Endpoint Target(size_t node) const {
    return placement_.endpoints[static_cast<size_t>(At(node).peer)];
  }
  bool LeavesItsHost(size_t node) const { return Source(node).host != Target(node).host; }
  Bytes Length(size_t node) const {
    return placement_.element * static_cast<int64_t>(At(node).length);
  }
  bool IsEager(size_t node) const {
    return LeavesItsHost(node) && Length(node) <= placement_.eager;
  }
  OperationId AddTransfer(size_t node, OperationId posted);
  // A message, and a step that is none. `sender`, `receiver`, `after`: what the half, or the step,
  // waits for; they may grow.
  OperationId AddMessage(size_t node, std::vector<OperationId>& sender,
                         std::vector<OperationId>& receiver);
  OperationId AddLocal(size_t node, std::vector<OperationId>& after);
  OperationId Compute(topology::Endpoint at, absl::Duration duration,
                      absl::Span<const OperationId> after, uint32_t core = 0) {
    return workload_.Add({.kind = OperationKind::kCompute,
                          .source = at,
                          .duration = duration,
                          .core = core,
                          .group = group_},
                         after);
  }
  uint32_t CoreOf(size_t rank) const {  // 0: none counts
    return placement_.cores.empty() ? 0 : placement_.cores[rank];
  }
  // What a rank's core does for one end of a message; returns what `after` does where none counts.
  OperationId Handle(size_t rank, OperationId after) {
    if (placement_.cores.empty() || placement_.message == absl::ZeroDuration()) return after;
    return Compute(placement_.endpoints[rank], placement_.message / 2, {&after, 1},
                   placement_.cores[rank]);
  }
  OperationId JoinOf(std::vector<OperationId>& after) {
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
    if (after.empty()) return begin_;
    if (after.size() == 1) return after[0];
    return workload_.Add({.kind = OperationKind::kJoin, .group = group_}, after);
  }

  Workload& workload_;
  const std::vector<RankSchedule>& schedules_;
  const SimulationPlacement& placement_;
  const uint32_t group_;
  std::vector<size_t> base_;  // by rank, of its steps
  std::vector<StepName> names_;
  std::vector<size_t> partner_;            // of a send: its receive, and the other way round
  std::vector<uint32_t> previous_, next_;  // of a send: those to the same rank; kNone: none
  std::vector<Posted> posted_;             // of a send
  OperationId begin_ = 0;
};

// The k-th send from a to b meets the k-th receive at b from a.
absl::Status Translator::Match() {
  absl::flat_hash_map<std::pair<size_t, size_t>, std::vector<size_t>> sends, receives;
  for (size_t i = 0; i < names_.size(); ++i) {
    const Step& step = At(i);
    const bool receives_it = IsReceive(step.kind);
    if (step.kind != StepKind::kSend && !receives_it) continue;
    if (step.peer < 0 || static_cast<size_t>(step.peer) >= schedules_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(Name(i), ": no rank ", step.peer));
    }
    const size_t rank = names_[i].rank, peer = static_cast<size_t>(step.peer);
    if (receives_it) {
      receives[{peer, rank}].push_back(i);
    } else {
      sends[{rank, peer}].push_back(i);
    }
  }
  for (size_t i = 0; i < names_.size(); ++i) {
    if (At(i).kind != StepKind::kSend && !IsReceive(At(i).kind)) continue;
    const size_t rank = names_[i].rank, peer = static_cast<size_t>(At(i).peer);
    const auto pair = IsReceive(At(i).kind) ? std::pair(peer, rank) : std::pair(rank, peer);
    const std::vector<size_t>&from = sends[pair], &to = receives[pair];
    if (from.size() != to.size()) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", pair.first, " sends ", from.size(),
                                                     " messages to rank ", pair.second,
                                                     ", which receives ", to.size()));
    }
    if (partner_[i] != kAlone) continue;
    for (size_t k = 0; k < from.size(); ++k) {
      if (At(from[k]).length != At(to[k]).length) {
        return absl::InvalidArgumentError(absl::StrCat(Name(from[k]), " sends ", At(from[k]).length,
                                                       " elements, and ", Name(to[k]), " receives ",
                                                       At(to[k]).length));
      }
      partner_[from[k]] = to[k];
      partner_[to[k]] = from[k];
      if (k == 0) continue;
      previous_[from[k]] = static_cast<uint32_t>(from[k - 1]);
      next_[from[k - 1]] = static_cast<uint32_t>(from[k]);
    }
  }
  return absl::OkStatus();
}

OperationId Translator::AddTransfer(size_t node, OperationId posted) {
  if (!LeavesItsHost(node) && TakesTimeInside()) {
    const bool counts = placement_.local.bytes_per_second() > 0;
    const absl::Duration moving = counts ? Length(node) / placement_.local : absl::ZeroDuration();
    return Compute(Source(node), placement_.local_latency + moving, {&posted, 1});
  }
  const bool leaves = LeavesItsHost(node);
  if (leaves) posted = Handle(names_[node].rank, posted);
  if (leaves && placement_.send_latency > absl::ZeroDuration()) {
    posted = Compute(Source(node), placement_.send_latency, {&posted, 1});
  }
  const OperationId arrived = workload_.Add({.in_order = true,
                                             .source = Source(node),
                                             .target = Target(node),
                                             .bytes = Length(node),
                                             .group = group_},
                                            {&posted, 1});
  return leaves ? Handle(static_cast<size_t>(At(node).peer), arrived) : arrived;
}

// As the executor does, sends to one rank are posted in the order of the schedule, and so are
// receives from one; a message is on its way once both are posted, and the message before it is on
// its way. An eager message does not wait for its receive, but who waits for the message does.
OperationId Translator::AddMessage(size_t node, std::vector<OperationId>& sender,
                                   std::vector<OperationId>& receiver) {
  Posted& posted = posted_[node];
  if (previous_[node] != kNone) {
    const Posted& before = posted_[previous_[node]];
    sender.push_back(before.left);
    receiver.push_back(before.receive == kNoOperation ? before.left : before.receive);
  }
  if (!IsEager(node)) {
    sender.insert(sender.end(), receiver.begin(), receiver.end());
    posted.left = JoinOf(sender);
    return AddTransfer(node, posted.left);
  }
  posted.left = JoinOf(sender);
  if (next_[node] != kNone) {
    posted.receive = JoinOf(receiver);
    receiver.assign(1, posted.receive);
  }
  receiver.push_back(AddTransfer(node, posted.left));
  return JoinOf(receiver);
}

OperationId Translator::AddLocal(size_t node, std::vector<OperationId>& after) {
  const OperationId ready = JoinOf(after);
  if (placement_.memory.bytes_per_second() == 0) return ready;
  // A core copies one stretch after the other.
  return Compute(Source(node), Length(node) / placement_.memory, {&ready, 1},
                 CoreOf(names_[node].rank));
}

absl::StatusOr<OperationId> Translator::Translate(OperationId begin) {
  begin_ = begin;
  std::vector<uint32_t> waits(names_.size());
  std::vector<std::vector<uint32_t>> needed_by(names_.size());
  // The first in the schedule goes first: cores do what is ready at once in the order of numbers.
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  size_t nodes = 0;
  for (size_t node = 0; node < names_.size(); ++node) {
    if (Node(node) != node) continue;
    ++nodes;
    ForEachNeed(node, [&](size_t need) {
      ++waits[node];
      needed_by[need].push_back(static_cast<uint32_t>(node));
    });
    if (previous_[node] != kNone) ++waits[node];
    if (waits[node] == 0) ready.push(node);
  }
  std::vector<OperationId> ids(names_.size());
  std::vector<OperationId> sender, receiver, ends{begin};
  auto settle = [&](uint32_t node) {
    if (--waits[node] == 0) ready.push(node);
  };
  size_t done = 0;
  for (; !ready.empty(); ++done) {
    const size_t node = ready.top();
    ready.pop();
    sender.clear(), receiver.clear();
    ForEachNeedOf(node, [&](size_t need) { sender.push_back(ids[need]); });
    if (At(node).kind == StepKind::kSend) {
      ForEachNeedOf(partner_[node], [&](size_t need) { receiver.push_back(ids[need]); });
      ids[node] = AddMessage(node, sender, receiver);
    } else {
      ids[node] = AddLocal(node, sender);
    }
    if (needed_by[node].empty()) ends.push_back(ids[node]);
    for (uint32_t next : needed_by[node]) settle(next);
    if (next_[node] != kNone) settle(next_[node]);
  }
  if (done < nodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the schedules wait for each other: ", nodes - done, " of ", nodes, " steps never start"));
  }
  return workload_.Add({.kind = OperationKind::kJoin, .group = group_}, ends);
}

}  // namespace

absl::StatusOr<OperationId> AddSchedules(Workload& workload,
                                         const std::vector<RankSchedule>& schedules,
                                         const SimulationPlacement& placement,
                                         absl::string_view name,
                                         absl::Span<const OperationId> after) {
  if (schedules.size() != placement.endpoints.size() || schedules.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("schedules of ", schedules.size(), " ranks on ",
                                                   placement.endpoints.size(), " endpoints"));
  }
  if (!placement.cores.empty() && placement.cores.size() != schedules.size()) {
    return absl::InvalidArgumentError(absl::StrCat("cores of ", placement.cores.size(),
                                                   " ranks for schedules of ", schedules.size()));
  }
  if (placement.element <= Bytes(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements of ", placement.element.count(), " bytes"));
  }
  uint64_t steps = 0;
  for (const RankSchedule& schedule : schedules) steps += schedule.steps.size();
  WEFT_RETURN_IF_ERROR(CheckSteps(steps));
  const uint32_t group = workload.AddGroup(std::string(name));
  Translator translator(workload, schedules, placement, group);
  WEFT_RETURN_IF_ERROR(translator.Match());
  const OperationId begin = workload.Add({.kind = OperationKind::kJoin, .group = group}, after);
  return translator.Translate(begin);
}

absl::StatusOr<OperationId> AddCollective(Workload& workload, const Algorithm& algorithm,
                                          const CollectiveSpec& spec,
                                          const SimulationPlacement& placement,
                                          absl::string_view name,
                                          absl::Span<const OperationId> after) {
  if (!algorithm.has(spec.kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm ", algorithm.name, " has no ", ToString(spec.kind)));
  }
  std::vector<RankSchedule> schedules;
  uint64_t steps = 0;
  for (int rank = 0; rank < spec.size; ++rank) {
    CollectiveSpec own = spec;
    own.rank = rank;
    schedules.push_back(algorithm.build(own));
    steps += schedules.back().steps.size();
    WEFT_RETURN_IF_ERROR(CheckSteps(steps));  // before those of 12,288 ranks take all the memory
  }
  return AddSchedules(workload, schedules, placement, name, after);
}

}  // namespace weft::collectives
