// Rules about processes that have ended or are stopped, and about what failed. They need
// no job that stands still.
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "tools/observe/rules.h"

namespace weft::observe {
namespace {

std::string HowItEnded(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return absl::StrCat("was killed by signal ", WTERMSIG(wait_status), " (",
                        strsignal(WTERMSIG(wait_status)), ")");
  }
  return absl::StrCat("ended with status ", WEXITSTATUS(wait_status));
}

// By itself: not in good order, not because another failed, and not ended by its launcher.
bool Died(const RankView& rank, bool one_is_known) {
  const RecordProcess& process = rank.process;
  if (process.ended_ns != 0 || process.failed || process.told_to_end) return false;
  if (process.reaped_ns != 0) return process.wait_status != 0;
  return rank.state.gone() && !one_is_known;
}

// In good order, not told to; it has left early where others wait for it.
bool LeftEarly(const RankView& rank) { return rank.ended_well() && !rank.process.told_to_end; }

// A rank that ended in good order takes its ring along: the others, all of whose rings are here,
// stand still or have failed.
std::vector<Finding> FindMissing(const JobView& view, const Stillness& still,
                                 const std::vector<WaitsFor>& graph) {
  Finding finding{.fault = Fault::kLeftEarly, .component = Component::kProgram};
  bool failed = false;
  bool began = false;
  for (const auto& [number, rank] : view.ranks) {
    failed |= rank.process.failed;
    began |= !rank.next.empty();
  }
  if (!began || view.ranks.empty()) return {};
  const std::string host = view.ranks.begin()->second.process.host;
  for (const auto& [number, rank] : view.ranks) {
    if (rank.process.host != host) return {};  // the others may be where nobody looked
  }
  // Where two or more ranks are missing, it is not known which ended first.
  for (int rank = 0; rank < view.world_size && finding.culprits.size() < 2; ++rank) {
    if (view.ranks.count(rank) == 0) finding.culprits.push_back(rank);
  }
  if (finding.culprits.size() != 1) return {};
  const int rank = finding.culprits[0];
  if (!failed && !(still.stands && AnyWaitsFor(graph, rank))) return {};
  finding.evidence.push_back(
      absl::StrCat("rank ", rank,
                   " has taken its records along, as a process does that ends in "
                   "good order, while the others ",
                   failed ? "failed" : "wait for it"));
  finding.rejected.push_back("a crash: that leaves its records behind");
  finding.victims = Waiting(view, finding.culprits);
  finding.advice = "see why its program ended before the others'";
  return {finding};
}

// Hosts all of whose ranks are stopped, while others' are not: it is the host.
std::vector<Finding> MergeHosts(const JobView& view, std::vector<Finding> findings) {
  std::map<std::string, std::vector<int>> ranks, stopped;
  for (const auto& [number, rank] : view.ranks) {
    ranks[rank.process.host].push_back(number);
    if (rank.state.stopped()) stopped[rank.process.host].push_back(number);
  }
  if (ranks.size() < 2) return findings;
  std::vector<Finding> out;
  std::set<std::string> said;
  for (Finding& finding : findings) {
    const std::string& host = view.ranks.at(finding.culprits[0]).process.host;
    const bool whole = finding.fault == Fault::kStoppedRank && ranks[host].size() > 1 &&
                       stopped[host] == ranks[host];
    if (whole && !said.insert(host).second) continue;
    if (whole) {
      finding.fault = Fault::kStoppedHost;
      finding.component = Component::kHost;
      finding.culprits = ranks[host];
      finding.victims = Waiting(view, finding.culprits);
      finding.evidence.push_back(
          absl::StrCat("all ranks of host ", host, " (", RanksText(ranks[host]), ") are stopped"));
      finding.rejected.push_back("a rank: its neighbours on the host stand still with it");
      finding.advice = absl::StrCat("see what holds host ", host, " (a freezer, its hypervisor)");
    }
    out.push_back(std::move(finding));
  }
  return out;
}

}  // namespace

std::vector<Finding> FindEnded(const JobView& view, const Stillness& still) {
  std::vector<Finding> findings;
  const std::vector<WaitsFor> graph = WaitGraph(view);
  // Once a launcher has named the first, those that it has not reaped yet are the first's victims.
  const bool one_is_known =
      std::any_of(view.ranks.begin(), view.ranks.end(), [](const auto& entry) {
        return entry.second.process.reaped_ns != 0 && !entry.second.process.told_to_end &&
               entry.second.process.wait_status != 0 && !entry.second.process.failed;
      });
  const bool others_failed =
      std::any_of(view.ranks.begin(), view.ranks.end(),
                  [](const auto& entry) { return entry.second.process.failed; });
  for (const auto& [number, rank] : view.ranks) {
    Finding finding;
    finding.culprits = {number};
    finding.since_ns = rank.moved_ns;
    if (Died(rank, one_is_known)) {
      finding.fault = Fault::kDeadRank;
      finding.component = Component::kProcess;
      if (rank.process.reaped_ns != 0) {
        finding.evidence.push_back(
            absl::StrCat("it ", HowItEnded(rank.process.wait_status), " before any other rank"));
      }
      finding.evidence.push_back(
          absl::StrCat("pid ", rank.process.pid, " on host ", rank.process.host,
                       " is gone and did not end in good order; it was ", PhaseText(view, rank),
                       ", at step ", rank.process.step));
      if (!rank.open.empty()) {
        finding.evidence.push_back(absl::StrCat("it was in ", CallText(rank.open.front())));
      }
      finding.advice = "see its log and the kernel's for the signal (out of memory, a crash)";
    } else if (LeftEarly(rank) && (others_failed || (still.stands && AnyWaitsFor(graph, number)))) {
      finding.fault = Fault::kLeftEarly;
      finding.component = Component::kProgram;
      finding.evidence.push_back(absl::StrCat("rank ", number, " ended in good order at step ",
                                              rank.process.step, ", and others wait for it"));
      finding.advice = "see why its program ended before the others'";
    } else if (rank.state.stopped() && (still.stands || AnyWaitsFor(graph, number))) {
      finding.fault = Fault::kStoppedRank;
      finding.component = Component::kProcess;
      finding.evidence.push_back(absl::StrCat(
          "pid ", rank.process.pid, " on host ", rank.process.host, " is stopped (state ",
          std::string(1, rank.state.state), "), ", PhaseText(view, rank)));
      finding.rejected.push_back("the network: a stopped process answers nobody");
      finding.advice = absl::StrCat("kill -CONT ", rank.process.pid,
                                    ", or find out who stopped it (a debugger, a freezer)");
    } else {
      continue;
    }
    finding.victims = Waiting(view, finding.culprits);
    findings.push_back(std::move(finding));
  }
  // Where all ended in good order, the rank that took its ring along was the first: the others
  // ended because of it.
  const bool left_only = std::all_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.fault == Fault::kLeftEarly;
  });
  if (left_only) {
    std::vector<Finding> missing = FindMissing(view, still, graph);
    if (!missing.empty() || findings.empty()) return missing;
  }
  return MergeHosts(view, std::move(findings));
}

std::vector<Finding> FindNotFinite(const JobView& view) {
  Finding finding;
  for (const auto& [number, rank] : view.ranks) {
    const auto bad = std::find_if(rank.steps.begin(), rank.steps.end(),
                                  [](const StepTimes& step) { return !step.own_is_finite; });
    if (bad == rank.steps.end()) continue;
    finding.culprits.push_back(number);
    finding.since_ns = bad->end_ns;
    finding.evidence.push_back(absl::StrCat("the loss or a gradient of rank ", number,
                                            " was not finite in step ", bad->step));
  }
  if (finding.culprits.empty()) return {};
  finding.fault = Fault::kNotFinite;
  finding.component = Component::kProgram;
  finding.advice =
      "go back to the last checkpoint; if the same rank does it again, on the same data it is the "
      "data or the learning rate, on other data its device";
  return {finding};
}

std::vector<Finding> FindDifferentCalls(const JobView& view) {
  // What each rank means by a number that is open somewhere, or failed there.
  std::map<std::pair<std::string, uint32_t>, std::map<std::string, std::vector<int>>> meant;
  std::set<std::pair<std::string, uint32_t>> open;
  for (const auto& [number, rank] : view.ranks) {
    for (const Call& call : rank.open) {
      if (!call.is_message()) open.emplace(call.group, call.record.sequence);
    }
    for (const auto& [group, calls] : rank.calls) {  // and those that failed
      for (const Call& call : calls) {
        if (call.record.code != 0) open.emplace(group, call.record.sequence);
      }
    }
  }
  std::vector<int> all;
  for (const auto& [number, rank] : view.ranks) all.push_back(number);
  for (const auto& [group, sequence] : open) {
    const auto members = view.groups.find(group);
    for (const int number : members == view.groups.end() ? all : members->second) {
      const auto rank = view.ranks.find(number);
      if (rank == view.ranks.end()) continue;
      const auto calls = rank->second.calls.find(group);
      if (calls == rank->second.calls.end()) continue;
      for (const Call& call : calls->second) {
        if (call.record.sequence != sequence) continue;
        meant[{group, sequence}]
             [absl::StrCat(CallText(call), " (", call.record.count, " elements, type ",
                           call.record.type, ", check ", absl::Hex(call.record.check), ")")]
                 .push_back(number);
      }
    }
  }
  for (const auto& [key, texts] : meant) {
    if (texts.size() < 2) continue;
    const auto most =
        std::max_element(texts.begin(), texts.end(), [](const auto& a, const auto& b) {
          return a.second.size() != b.second.size() ? a.second.size() < b.second.size()
                                                    : a.second.front() > b.second.front();
        });
    Finding finding{.fault = Fault::kDifferentCalls, .component = Component::kProgram};
    for (const auto& [text, ranks] : texts) {
      finding.evidence.push_back(absl::StrCat("ranks ", RanksText(ranks), " called ", text));
      auto& side = text == most->first ? finding.victims : finding.culprits;
      side.insert(side.end(), ranks.begin(), ranks.end());
    }
    std::sort(finding.culprits.begin(), finding.culprits.end());
    finding.rejected.push_back("the network: the ranks wait for each other's other calls");
    finding.advice = "compare what those ranks' programs do before this call";
    return {finding};
  }
  return {};
}

}  // namespace weft::observe
