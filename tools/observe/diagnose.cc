#include "tools/observe/diagnose.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

std::vector<WaitsFor> WaitGraph(const JobView& view) {
  std::vector<WaitsFor> graph;
  for (const auto& [number, rank] : view.ranks) {
    if (!rank.blocked()) continue;
    for (const Call& call : rank.open) {
      WaitsFor waits{number, &call, {}};
      if (call.is_message()) {
        if (call.record.peer >= 0) waits.ranks = {call.record.peer};
      } else if (const auto group = view.groups.find(call.group); group != view.groups.end()) {
        for (int member : group->second) {
          if (member == number) continue;
          const auto other = view.ranks.find(member);
          const bool called = other != view.ranks.end() && other->second.next.count(call.group) &&
                              other->second.next.at(call.group) > call.record.sequence;
          if (!called) waits.ranks.push_back(member);
        }
      }
      graph.push_back(std::move(waits));
    }
  }
  return graph;
}

std::vector<Finding> Diagnose(const JobView& view, const DiagnoseOptions& options) {
  std::vector<Finding> findings = FindNotFinite(view);
  const Stillness still = HowStill(view, options);
  for (Finding& finding : FindEnded(view, still)) findings.push_back(std::move(finding));
  for (Finding& finding : FindDifferentCalls(view)) findings.push_back(std::move(finding));
  if (findings.empty() && still.stands) findings = ExplainStill(view, still);
  if (findings.empty()) findings = FindSlowRanks(view, options);
  if (findings.empty()) findings = FindSlowFlows(view, options);
  return findings;
}

std::string ToText(const Finding& finding) {
  std::string text = absl::StrCat(ToString(finding.fault));
  const bool flow = finding.fault == Fault::kStuckFlow || finding.fault == Fault::kSlowFlow;
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
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace weft::observe
