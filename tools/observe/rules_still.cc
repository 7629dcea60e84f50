// Rules about jobs that stand still.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/median.h"
#include "tools/observe/rules.h"

namespace weft::observe {
namespace {

// The progress engine turns every 100 ms while calls are under way; so much later it is taken for
// held up.
constexpr int64_t kSilentNs = 700'000'000;

Component OfPhase(const std::string& phase) {
  if (phase == "data") return Component::kData;
  if (phase == "checkpoint") return Component::kStorage;
  return Component::kProgram;
}

Finding Outside(const JobView& view, const std::vector<WaitsFor>& graph,
                const std::vector<int>& roots) {
  Finding finding;
  const RankView* first = nullptr;
  finding.each_is_culprit = true;
  for (int root : roots) {
    const auto rank = view.ranks.find(root);
    const bool is_seen = rank != view.ranks.end() && rank->second.state.known;
    finding.each_is_culprit = finding.each_is_culprit && is_seen;
    if (rank == view.ranks.end()) {
      finding.evidence.push_back(
          absl::StrCat("rank ", root,
                       " has left no records here: it has not started, or is on a "
                       "host whose records are not here"));
      continue;
    }
    if (first == nullptr) first = &rank->second;
    finding.evidence.push_back(absl::StrCat("rank ", root, " waits for no call, ",
                                            PhaseText(view, rank->second), ", at step ",
                                            rank->second.process.step));
  }
  for (const WaitsFor& waits : graph) {
    if (!waits.IsFor(roots[0])) continue;
    finding.evidence.push_back(absl::StrCat("rank ", waits.rank, " waits for it in ",
                                            CallText(*waits.call), " for ",
                                            Seconds(view.now_ns - waits.call->record.start_ns)));
    break;
  }
  finding.culprits = roots;
  finding.victims = Waiting(view, roots);
  finding.since_ns = first == nullptr ? 0 : first->moved_ns;
  finding.fault = Fault::kHangOutside;
  finding.component = first == nullptr ? Component::kUnknown : OfPhase(first->process.phase);
  if (first != nullptr) {
    finding.rejected.push_back(
        absl::StrCat("the network: rank ", roots[0], " waits for none of its calls"));
    if (first->state.known && first->state.exists) {
      finding.rejected.push_back(absl::StrCat("a dead or stopped process: pid ", first->process.pid,
                                              " is in state ", std::string(1, first->state.state)));
    }
    finding.advice = absl::StrCat(
        "look at the stack of pid ", first->process.pid, " on host ", first->process.host,
        finding.component == Component::kData      ? ", and at the source of its data"
        : finding.component == Component::kStorage ? ", and at the storage of its checkpoints"
                                                   : "");
  }
  return finding;
}

// Ranks that wait, and reach themselves again: from anyone who waits, on and on.
std::vector<int> Circle(const std::map<int, int>& next) {
  if (next.empty()) return {};
  std::vector<int> path;
  std::set<int> seen;
  int at = next.begin()->first;
  while (seen.insert(at).second) {
    path.push_back(at);
    const auto edge = next.find(at);
    if (edge == next.end()) return {};
    at = edge->second;
  }
  return {std::find(path.begin(), path.end(), at), path.end()};
}

bool IsIn(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

const Flow* FlowOf(const JobView& view, int rank, int peer, bool sends) {
  const auto found = view.ranks.find(rank);
  if (found == view.ranks.end()) return nullptr;
  const auto flow = found->second.flows.find({peer, sends});
  return flow == found->second.flows.end() ? nullptr : &flow->second;
}

std::string FlowText(int rank, int peer, const Flow& flow) {
  const FlowRecord& r = flow.record;
  return absl::StrCat("rank ", rank, r.sends ? " -> " : " <- ", "rank ", peer, " over ",
                      flow.transport, ": ", r.outstanding, " messages outstanding, of which ",
                      r.waiting, " wait for the other end, ", r.bytes_matched, " bytes matched, ",
                      r.bytes_transmitted, " moved, ", r.bytes_done, " done, still for ",
                      r.stuck_ms, " ms");
}

// Bytes that have left `from` and have not come to `to`, for a while.
bool MovesNot(const JobView& view, int from, int to) {
  const Flow* flow = FlowOf(view, from, to, true);
  return flow != nullptr && flow->record.outstanding > flow->record.waiting &&
         flow->record.stuck_ms > 500 && flow->record.bytes_transmitted > flow->record.bytes_done;
}

// A message whose other end is not posted, although that rank waits for something else, and so in
// the end for this one: whoever waits for a third rank has not come to its end yet.
std::optional<Finding> FindMissingEnd(const JobView& view, const std::vector<WaitsFor>& graph,
                                      const std::vector<int>& circle) {
  for (const WaitsFor& waits : graph) {
    if (!waits.call->is_message() || waits.call->record.peer < 0) continue;
    if (!IsIn(circle, waits.rank) || !IsIn(circle, waits.call->record.peer)) continue;
    const auto other = view.ranks.find(waits.call->record.peer);
    if (other == view.ranks.end() || !other->second.blocked()) continue;
    // Its earlier message is what holds it up.
    const bool held =
        std::any_of(other->second.open.begin(), other->second.open.end(), [&](const Call& call) {
          return call.name == "send" && MovesNot(view, other->first, call.record.peer);
        });
    if (held) continue;
    const bool posted =
        std::any_of(other->second.open.begin(), other->second.open.end(), [&](const Call& call) {
          return call.is_message() && call.name != waits.call->name &&
                 call.record.sequence == waits.call->record.sequence &&
                 (call.record.peer == waits.rank || call.record.peer < 0);
        });
    if (posted) continue;
    const bool sends = waits.call->name == "send";
    // A sender waits for no receive of messages that have been taken already.
    const Flow* flow = FlowOf(view, waits.rank, waits.call->record.peer, true);
    if (sends && flow != nullptr && flow->record.waiting == 0) continue;
    Finding finding{.fault = sends ? Fault::kReceiverNotPosting : Fault::kHangOutside,
                    .component = Component::kProgram};
    finding.culprits = {other->first};
    finding.evidence.push_back(absl::StrCat("rank ", waits.rank, " is in ", CallText(*waits.call),
                                            " with tag ", waits.call->record.sequence, " for ",
                                            Seconds(view.now_ns - waits.call->record.start_ns)));
    finding.evidence.push_back(absl::StrCat("rank ", other->first, " has posted no ",
                                            sends ? "receive" : "send", " for it and waits in ",
                                            CallText(other->second.open.front())));
    if (flow != nullptr && sends) {
      finding.evidence.push_back(FlowText(waits.rank, other->first, *flow));
    }
    finding.rejected.push_back("the network: nothing can move before both ends are posted");
    finding.advice = absl::StrCat("see why the program of rank ", other->first, " skips that ",
                                  sends ? "receive" : "send");
    return finding;
  }
  return std::nullopt;
}

// Everybody is in the call: which flow does not move? A receiver whose engine is silent comes
// first, then the flow that has stood still for longest.
Finding Inside(const JobView& view) {
  Finding finding;
  for (const auto& [number, rank] : view.ranks) {
    if (rank.open.empty() || view.now_ns - rank.process.alive_ns < kSilentNs) continue;
    finding.fault = Fault::kReceiverNotPosting;
    finding.component = Component::kProcess;
    finding.culprits.push_back(number);
    finding.evidence.push_back(absl::StrCat("the communication of rank ", number,
                                            " has not moved for ",
                                            Seconds(view.now_ns - rank.process.alive_ns),
                                            " although it is in ", CallText(rank.open.front())));
  }
  if (!finding.culprits.empty()) {
    finding.advice =
        "look at the threads of that process: the one that drives communication does "
        "not run";
    return finding;
  }
  uint32_t longest = 0;
  for (const auto& [number, rank] : view.ranks) {
    for (const auto& [key, flow] : rank.flows) {
      const FlowRecord& r = flow.record;
      if (!key.second || r.outstanding == 0 || r.stuck_ms <= longest) continue;
      const Flow* other = FlowOf(view, key.first, number, false);
      if (r.waiting == r.outstanding) {
        // Matched by nobody. Does the receiver say that it has posted?
        const bool posted = other != nullptr && other->record.outstanding > 0;
        finding.fault = posted ? Fault::kStuckFlow : Fault::kReceiverNotPosting;
      } else {
        finding.fault = Fault::kStuckFlow;
      }
      longest = r.stuck_ms;
      const bool flow_itself = finding.fault == Fault::kStuckFlow;
      finding.component = flow_itself ? Component::kNetwork : Component::kProgram;
      finding.culprits =
          flow_itself ? std::vector<int>{number, key.first} : std::vector<int>{key.first};
      finding.evidence = {FlowText(number, key.first, flow)};
      if (other != nullptr) finding.evidence.push_back(FlowText(key.first, number, *other));
    }
  }
  if (finding.fault == Fault::kStuckFlow &&
      MovesNot(view, finding.culprits[1], finding.culprits[0])) {
    finding.fault = Fault::kBrokenPath;
    finding.evidence.push_back("what goes the other way does not move either");
  }
  if (finding.fault == Fault::kStuckFlow || finding.fault == Fault::kBrokenPath) {
    finding.rejected.push_back("a rank that is late: all ranks of the call are in it");
    finding.advice = absl::StrCat("check the path between ranks ", finding.culprits[0], " and ",
                                  finding.culprits[1], ": weft-doctor pairs");
  } else if (finding.fault == Fault::kReceiverNotPosting) {
    finding.advice = absl::StrCat("rank ", finding.culprits[0],
                                  " posts no receive for what is sent to it: see its program");
  }
  return finding;
}

}  // namespace

double MedianStep(const JobView& view) {
  std::vector<double> times;
  for (const auto& [number, rank] : view.ranks) {
    for (const StepTimes& step : rank.steps) times.push_back(step.total());
  }
  return UpperMedian(std::move(times));
}

std::vector<Finding> FindLivelock(const JobView& view, const DiagnoseOptions& options) {
  constexpr int kTimes = 3, kPhasesLeast = 10;
  int64_t step_ns = 0;
  for (const auto& [number, rank] : view.ranks) {
    if (rank.steps.empty()) return {};
    step_ns = std::max(step_ns, rank.steps.back().end_ns);
  }
  const auto patience = std::max(static_cast<double>(options.still_ns), 3e9 * MedianStep(view));
  if (static_cast<double>(view.now_ns - step_ns) < patience) return {};
  const std::vector<WaitsFor> graph = WaitGraph(view);
  for (const auto& [number, rank] : view.ranks) {
    if (rank.phases_in_step < kTimes * rank.phases_of_last_step + kPhasesLeast) continue;
    if (rank.blocked() || !AnyWaitsFor(graph, number)) continue;
    Finding finding{.fault = Fault::kLivelock, .component = Component::kProgram};
    finding.culprits = {number};
    finding.since_ns = step_ns;
    finding.evidence = {
        absl::StrCat("rank ", number, " has ended ", rank.phases_in_step,
                     " phases since its last step, of which a step has ", rank.phases_of_last_step,
                     "; now it is ", PhaseText(view, rank)),
        absl::StrCat("no step has ended anywhere for ", Seconds(view.now_ns - step_ns))};
    finding.rejected = {"a hang: its phases go on ending",
                        absl::StrCat("the network: rank ", number, " waits for no call")};
    finding.victims = Waiting(view, finding.culprits);
    finding.advice = absl::StrCat("see what pid ", rank.process.pid, " on host ", rank.process.host,
                                  " tries again and again");
    return {finding};
  }
  return {};
}

Stillness HowStill(const JobView& view, const DiagnoseOptions& options) {
  Stillness still;
  bool waits = false;
  for (const auto& [number, rank] : view.ranks) {
    waits |= !rank.open.empty() && !rank.ended_well();
    if (!rank.state.gone() && rank.process.ended_ns == 0) {
      still.since_ns = std::max(still.since_ns, rank.moved_ns);
    }
  }
  const auto patience = std::max(static_cast<double>(options.still_ns), 3e9 * MedianStep(view));
  still.stands = waits && static_cast<double>(view.now_ns - still.since_ns) > patience;
  return still;
}

std::vector<Finding> ExplainStill(const JobView& view, const Stillness& still) {
  const std::vector<WaitsFor> graph = WaitGraph(view);
  std::map<int, int> next;  // of all that a rank waits for, the first
  std::set<const void*> seen;
  std::set<int> awaited, waiting;
  for (const WaitsFor& waits : graph) {
    waiting.insert(waits.rank);
    if (!waits.ranks->empty()) next.try_emplace(waits.rank, waits.ranks->front());
    if (seen.insert(waits.ranks.get()).second) {
      awaited.insert(waits.ranks->begin(), waits.ranks->end());
    }
  }
  std::vector<int> roots;
  std::set_difference(awaited.begin(), awaited.end(), waiting.begin(), waiting.end(),
                      std::back_inserter(roots));
  const std::vector<int> circle = roots.empty() ? Circle(next) : std::vector<int>{};
  Finding finding;
  if (!roots.empty()) {
    finding = Outside(view, graph, roots);
  } else if (std::optional<Finding> receiver = FindMissingEnd(view, graph, circle);
             receiver.has_value()) {
    finding = *std::move(receiver);
  } else if (circle.size() > 1) {
    finding.fault = Fault::kDeadlock;
    finding.component = Component::kProgram;
    finding.culprits = circle;
    for (int rank : circle) {
      for (const WaitsFor& waits : graph) {
        if (waits.rank != rank || waits.ranks->empty()) continue;
        finding.evidence.push_back(absl::StrCat("rank ", rank, " is in ", CallText(*waits.call),
                                                " and waits for ranks ", RanksText(*waits.ranks)));
        break;
      }
    }
    finding.rejected.push_back("the network: each waits for a call that the next has not made");
    finding.advice = "have all ranks make their calls of these groups in one order";
    // Two ends that wait for each other's message are a flow that does not move.
    const bool messages = std::all_of(graph.begin(), graph.end(), [&](const WaitsFor& waits) {
      return !IsIn(circle, waits.rank) || waits.call->is_message();
    });
    if (messages) {
      Finding flow = Inside(view);
      if (flow.fault == Fault::kStuckFlow || flow.fault == Fault::kBrokenPath)
        finding = std::move(flow);
    }
  } else {
    finding = Inside(view);
  }
  if (finding.fault == Fault::kUnknown) {
    for (const WaitsFor& waits : graph) {
      if (finding.evidence.size() == 8) break;
      finding.evidence.push_back(
          absl::StrCat("rank ", waits.rank, " is in ", CallText(*waits.call)));
    }
    finding.advice = "look at the stacks of these ranks";
  }
  if (finding.since_ns == 0) finding.since_ns = still.since_ns;
  if (finding.victims.empty()) finding.victims = Waiting(view, finding.culprits);
  return {finding};
}

}  // namespace weft::observe
