#include "tools/observe/diagnose.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json_text.h"
#include "tools/observe/rules.h"

namespace weft::observe {

const char* ToString(Fault fault) {
  switch (fault) {
    case Fault::kDeadRank:
      return "dead rank";
    case Fault::kLeftEarly:
      return "rank left early";
    case Fault::kStoppedRank:
      return "stopped rank";
    case Fault::kDifferentCalls:
      return "different calls";
    case Fault::kDeadlock:
      return "deadlock";
    case Fault::kHangOutside:
      return "hang outside of communication";
    case Fault::kReceiverNotPosting:
      return "receiver does not post";
    case Fault::kStuckFlow:
      return "stuck flow";
    case Fault::kSlowRank:
      return "slow rank";
    case Fault::kSlowData:
      return "slow data";
    case Fault::kSlowFlow:
      return "slow flow";
    case Fault::kNotFinite:
      return "not finite";
    case Fault::kDeviceError:
      return "device error";
    case Fault::kHostError:
      return "host error";
    case Fault::kOutOfMemory:
      return "out of memory";
    case Fault::kNicDown:
      return "NIC down";
    case Fault::kLinkFlaps:
      return "link flaps";
    case Fault::kReconnected:
      return "connection restored";
    case Fault::kBrokenPath:
      return "broken path";
    case Fault::kSlowNic:
      return "slow NIC";
    case Fault::kCongestion:
      return "congestion";
    case Fault::kLossyLink:
      return "lossy link";
    case Fault::kReordering:
      return "reordering";
    case Fault::kCorruptingLink:
      return "corrupting link";
    case Fault::kCorruptData:
      return "corrupt data";
    case Fault::kDifferentSettings:
      return "different settings";
    case Fault::kLateThread:
      return "communication thread held up";
    case Fault::kLivelock:
      return "livelock";
    case Fault::kStoppedHost:
      return "stopped host";
    case Fault::kRepeatedError:
      return "repeated error";
    case Fault::kReplicaDiffers:
      return "replica differs";
    case Fault::kLossSpike:
      return "loss spike";
    case Fault::kSaveFailed:
      return "save failed";
    case Fault::kBadShard:
      return "bad shard";
    case Fault::kSlowStorage:
      return "slow storage";
    case Fault::kControlPlane:
      return "control plane lost";
    case Fault::kStaleRank:
      return "stale rank";
    case Fault::kObserverDegraded:
      return "observer degraded";
    case Fault::kUnknown:
      return "unknown";
  }
  return "";
}

const char* ToString(Component component) {
  switch (component) {
    case Component::kProgram:
      return "program";
    case Component::kProcess:
      return "process";
    case Component::kHost:
      return "host";
    case Component::kCpu:
      return "CPU";
    case Component::kMemory:
      return "memory";
    case Component::kNic:
      return "NIC";
    case Component::kDevice:
      return "device";
    case Component::kData:
      return "data";
    case Component::kStorage:
      return "storage";
    case Component::kNetwork:
      return "network";
    case Component::kUnknown:
      return "unknown";
  }
  return "";
}

std::string CallText(const Call& call) {
  if (call.is_message()) {
    return absl::StrCat(call.name, " of ", call.record.bytes, " bytes ",
                        call.name == "send" ? "to rank " : "from rank ", call.record.peer,
                        " in group ", call.group);
  }
  return absl::StrCat(call.name, " #", call.record.sequence, " of ", call.record.bytes,
                      " bytes in group ", call.group);
}

namespace {

// Members of a group that have not made its call number `sequence`.
std::vector<int> NotYet(const JobView& view, const std::string& group, uint32_t sequence) {
  std::vector<int> ranks;
  const auto members = view.groups.find(group);
  if (members == view.groups.end()) return ranks;
  for (int member : members->second) {
    const auto rank = view.ranks.find(member);
    if (rank != view.ranks.end()) {
      const auto next = rank->second.next.find(group);
      if (next != rank->second.next.end() && next->second > sequence) continue;
    }
    ranks.push_back(member);
  }
  return ranks;
}

}  // namespace

bool WaitsFor::IsFor(int other) const {
  return std::find(ranks->begin(), ranks->end(), other) != ranks->end();
}

std::vector<WaitsFor> WaitGraph(const JobView& view) {
  std::vector<WaitsFor> graph;
  // Who is missing from a call is the same for all that wait in it.
  std::map<std::pair<std::string, uint32_t>, std::shared_ptr<const std::vector<int>>> missing;
  for (const auto& [number, rank] : view.ranks) {
    if (!rank.blocked()) continue;
    for (const Call& call : rank.open) {
      if (call.is_message()) {
        const int peer = call.record.peer;
        graph.push_back(
            {number, &call, std::make_shared<const std::vector<int>>(peer >= 0 ? 1 : 0, peer)});
        continue;
      }
      auto& ranks = missing[{call.group, call.record.sequence}];
      if (ranks == nullptr) {
        ranks = std::make_shared<const std::vector<int>>(
            NotYet(view, call.group, call.record.sequence));
      }
      graph.push_back({number, &call, ranks});
    }
  }
  return graph;
}

namespace {

bool Share(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](int rank) { return std::find(b.begin(), b.end(), rank) != b.end(); });
}

// What is not explained by a finding that is there: of other ranks, or not of those who suffer.
void Add(std::vector<Finding> more, std::vector<Finding>* findings) {
  const std::vector<Finding> known = *findings;
  for (Finding& finding : more) {
    const bool explained = std::any_of(known.begin(), known.end(), [&](const Finding& other) {
      return finding.fault == Fault::kUnknown || Share(finding.culprits, other.culprits) ||
             (other.culprits.empty() && Share(finding.culprits, other.victims));
    });
    if (!explained) findings->push_back(std::move(finding));
  }
}

}  // namespace

std::vector<Finding> Diagnose(const JobView& view, const DiagnoseOptions& options) {
  std::vector<Finding> findings = FindNotFinite(view);
  Add(FindTold(view), &findings);
  const Stillness still = HowStill(view, options);
  std::vector<Finding> stops = FindEnded(view, still);
  for (Finding& finding : FindDifferentCalls(view)) stops.push_back(std::move(finding));
  if (stops.empty() && still.stands) stops = ExplainStill(view, still);
  if (stops.empty() && !still.stands) stops = FindLivelock(view, options);
  const bool goes_on = stops.empty();
  Add(std::move(stops), &findings);
  if (!goes_on) return findings;
  Add(FindSlowRanks(view, options), &findings);
  Add(FindPeriodicSlowness(view), &findings);
  Add(FindSlowStorage(view), &findings);
  if (findings.empty()) findings = FindSlowFlows(view, options);
  return findings;
}

std::string ToText(const Finding& finding) {
  std::string text = absl::StrCat(ToString(finding.fault));
  const bool flow = finding.fault == Fault::kStuckFlow || finding.fault == Fault::kSlowFlow ||
                    finding.fault == Fault::kLossyLink;
  if (flow && finding.culprits.size() == 2) {
    absl::StrAppend(&text, ": from rank ", finding.culprits[0], " to rank ", finding.culprits[1]);
  } else if (!finding.culprits.empty()) {
    absl::StrAppend(&text, finding.culprits.size() == 1 ? ": rank " : ": ranks ",
                    RanksText(finding.culprits));
  }
  absl::StrAppend(&text, " (", ToString(finding.component), ")\n");
  for (const std::string& line : finding.evidence) absl::StrAppend(&text, "  because ", line, "\n");
  for (const std::string& line : finding.rejected) absl::StrAppend(&text, "  not ", line, "\n");
  if (!finding.victims.empty()) {
    absl::StrAppend(&text, "  waiting for it: ranks ", RanksText(finding.victims), "\n");
  }
  if (!finding.advice.empty()) absl::StrAppend(&text, "  do: ", finding.advice, "\n");
  return text;
}

int64_t LastStep(const JobView& view) {
  int64_t step = -1;
  for (const auto& [number, rank] : view.ranks) step = std::max(step, rank.process.step);
  return step;
}

std::string ToJson(const JobView& view, const std::vector<Finding>& findings) {
  nlohmann::ordered_json out = {{"job", view.job},
                                {"world_size", view.world_size},
                                {"ranks_seen", view.ranks.size()},
                                {"now_ns", view.now_ns},
                                {"step", LastStep(view)},
                                {"findings", nlohmann::json::array()}};
  for (const Finding& finding : findings) {
    out["findings"].push_back({{"fault", ToString(finding.fault)},
                               {"component", ToString(finding.component)},
                               {"culprits", finding.culprits},
                               {"victims", finding.victims},
                               {"since_ns", finding.since_ns},
                               {"evidence", finding.evidence},
                               {"rejected", finding.rejected},
                               {"advice", finding.advice}});
  }
  return JsonText(out);
}

}  // namespace weft::observe
