// Rules about what is counted or said beside calls: counters of ports, devices, cgroups, settings
// that differ, checksums of replicas, errors that the program took. A counter alone is no fault:
// each rule has a least growth, below which a healthy cluster is, too.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/median.h"
#include "tools/observe/rules.h"

namespace weft::observe {
namespace {

// One finding of each fault of a component; ranks that show the same are its culprits together.
class Findings {
 public:
  Finding& Of(Fault fault, Component component, int64_t since_ns, const char* advice) {
    Finding& finding = findings_[{fault, component}];
    if (finding.fault == Fault::kUnknown) finding.since_ns = since_ns;
    finding.fault = fault;
    finding.component = component;
    finding.since_ns = std::min(finding.since_ns, since_ns);
    finding.advice = advice;
    return finding;
  }
  void Blame(Finding* finding, int rank, std::string evidence) {
    if (finding->culprits.empty() || finding->culprits.back() != rank) {
      finding->culprits.push_back(rank);
    }
    if (finding->evidence.size() < 8) finding->evidence.push_back(std::move(evidence));
  }
  std::vector<Finding> Take() {
    std::vector<Finding> out;
    for (auto& [key, finding] : findings_) out.push_back(std::move(finding));
    return out;
  }

 private:
  std::map<std::pair<Fault, Component>, Finding> findings_;
};

struct CounterRule {
  const char* source;  // the source begins so
  const char* name;
  double grew;  // at least
  Fault fault;
  Component component;
  const char* advice;
};

// Names are the kernel's (sysfs of mlx5, cgroup v2), DCGM's, and our own where these have none, as
// for the kernel's log (kernel_log.h).
constexpr CounterRule kCounterRules[] = {
    {"gpu/", "DCGM_FI_DEV_XID_ERRORS", 1, Fault::kDeviceError, Component::kDevice,
     "take the device out: an XID needs a reset, or another device"},
    {"gpu/", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1, Fault::kDeviceError, Component::kDevice,
     "take the device out: its memory lost two bits of a word"},
    {"gpu/", "DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, Fault::kDeviceError, Component::kDevice,
     "take the device out: it has no spare row left for one that failed"},
    {"gpu/", "xid", 1, Fault::kDeviceError, Component::kDevice,
     "take the device out: an XID needs a reset, or another device"},
    {"nic/", "errors", 1, Fault::kHostError, Component::kNic,
     "see the kernel's log for the NIC; take the host out if it repeats"},
    {"disk/", "errors", 1, Fault::kHostError, Component::kStorage,
     "see the kernel's log for the disk or file server; checkpoints there may fail"},
    {"memory", "errors", 1, Fault::kHostError, Component::kMemory,
     "take the host out: its memory lost words that cannot be corrected"},
    {"cpu", "errors", 1, Fault::kHostError, Component::kCpu,
     "take the host out: its processor reports errors that cannot be corrected"},
    {"cpu", "lockups", 1, Fault::kHostError, Component::kCpu,
     "see the kernel's log: a core was held for more than 20 s"},
    {"kernel", "oom_kill", 1, Fault::kOutOfMemory, Component::kMemory,
     "give the host more memory, or find out what grows in its processes"},
    {"cgroup", "oom_kill", 1, Fault::kOutOfMemory, Component::kMemory,
     "give the rank's cgroup more memory, or find out what grows in its processes"},
    {"nic/", "rx_icrc_encapsulated", 10, Fault::kCorruptingLink, Component::kNetwork,
     "change the cable or the transceiver; the data was sent again and is whole"},
    {"nic/", "out_of_sequence", 200, Fault::kReordering, Component::kNetwork,
     "look for a path that is split by packet; nothing was lost"},
    {"nic/", "np_cnp_sent", 1000, Fault::kCongestion, Component::kNetwork,
     "see what else uses these links; no rank has to go"},
    {"nic/", "pauses_received", 10000, Fault::kCongestion, Component::kNetwork,
     "see which receiver behind this switch is slow, and what else uses these links"},
    {"nic/", "pauses_sent", 10000, Fault::kSlowNic, Component::kNic,
     "see the host's PCIe link, memory and NUMA placement: it takes packets too slowly"},
    {"observer", "rows_dropped", 1, Fault::kObserverDegraded, Component::kProgram,
     "see whether the sink of the metrics answers and its disk has room; training goes on"},
    {"progress", "gaps", 1, Fault::kLateThread, Component::kCpu,
     "give the thread that drives communication a core of its own"},
};

void TakeCounters(const JobView& view, Findings* findings) {
  for (const auto& [number, rank] : view.ranks) {
    for (const auto& [key, reading] : rank.readings) {
      for (const CounterRule& rule : kCounterRules) {
        if (key.second != rule.name || !absl::StartsWith(key.first, rule.source)) continue;
        if (reading.grew() < rule.grew) continue;
        Finding& finding =
            findings->Of(rule.fault, rule.component, reading.changed_ns, rule.advice);
        findings->Blame(&finding, number,
                        absl::StrFormat("%s of %s of rank %d grew by %.0f to %.0f", rule.name,
                                        key.first, number, reading.grew(), reading.last));
      }
    }
  }
}

// A port that is down; one that came back twice; queue pairs that failed and were made anew.
void TakePorts(const JobView& view, Findings* findings) {
  for (const auto& [number, rank] : view.ranks) {
    for (const auto& [key, downed] : rank.readings) {
      if (key.second == "link_downed" && downed.grew() >= 1) {
        const Reading* active = rank.FindReading(key.first, "port_active");
        const bool is_down = active != nullptr && active->last == 0;
        if (!is_down && downed.grew() < 2) continue;
        Finding& finding = findings->Of(
            is_down ? Fault::kNicDown : Fault::kLinkFlaps, Component::kNic, downed.changed_ns,
            is_down ? "see the port's cable and its switch; traffic goes over the other ports"
                    : "change the cable or the transceiver before the link stays down");
        findings->Blame(&finding, number,
                        absl::StrFormat("%s of rank %d went down %.0f times, and is %s", key.first,
                                        number, downed.grew(), is_down ? "down" : "up again"));
        finding.rejected = {"the path beyond: the port itself says so"};
      } else if (key.second == "qp_errors" && downed.grew() >= 1) {
        Finding& finding =
            findings->Of(Fault::kReconnected, Component::kNic, downed.changed_ns,
                         "nothing at once: messages were sent again; see the NIC if it repeats");
        const Reading* again = rank.FindReading(key.first, "reconnects");
        findings->Blame(
            &finding, number,
            absl::StrFormat("%.0f queue pairs of %s of rank %d failed, %.0f were connected again",
                            downed.grew(), key.first, number,
                            again == nullptr ? 0.0 : again->grew()));
      }
    }
  }
}

// What should be equal on all ranks: the minority differs. Of two sides of one size, the later one.
template <typename Value>
std::vector<int> Minority(const std::map<Value, std::vector<int>>& sides) {
  if (sides.size() < 2) return {};
  const auto most = std::max_element(sides.begin(), sides.end(), [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() < b.second.size()
                                              : a.second.front() > b.second.front();
  });
  std::vector<int> ranks;
  for (auto side = sides.begin(); side != sides.end(); ++side) {
    if (side != most) ranks.insert(ranks.end(), side->second.begin(), side->second.end());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void TakeSettings(const JobView& view, Findings* findings) {
  std::map<std::string, std::map<double, std::vector<int>>> settings;
  int64_t since_ns = view.now_ns;
  for (const auto& [number, rank] : view.ranks) {
    for (const auto& [key, reading] : rank.readings) {
      if (key.first != "setting") continue;
      settings[key.second][reading.last].push_back(number);
      since_ns = std::min(since_ns, reading.changed_ns);
    }
  }
  for (const auto& [name, sides] : settings) {
    for (int number : Minority(sides)) {
      const Reading& own = *view.ranks.at(number).FindReading("setting", name);
      Finding& finding =
          findings->Of(Fault::kDifferentSettings, Component::kProgram, own.changed_ns,
                       "set it alike on every host: small messages pass, large ones do not");
      findings->Blame(
          &finding, number,
          absl::StrFormat("rank %d has %s = %g, most others have not", number, name, own.last));
    }
  }
}

// Ranks that go on under an earlier number of the job's membership, a second after it has changed.
void TakeEpochs(const JobView& view, Findings* findings) {
  constexpr int64_t kGraceNs = 1'000'000'000;
  double newest = 0;
  int64_t since_ns = 0;
  for (const auto& [number, rank] : view.ranks) {
    const Reading* epoch = rank.FindReading("job", "epoch");
    if (epoch == nullptr || epoch->last < newest) continue;
    if (epoch->last > newest) newest = epoch->last, since_ns = 0;
    since_ns = std::max(since_ns, epoch->changed_ns);
  }
  if (view.now_ns - since_ns < kGraceNs) return;
  for (const auto& [number, rank] : view.ranks) {
    const Reading* epoch = rank.FindReading("job", "epoch");
    if (epoch == nullptr || epoch->last >= newest) continue;
    Finding& finding = findings->Of(Fault::kStaleRank, Component::kProcess, since_ns,
                                    "end that process: the job has gone on without it");
    findings->Blame(
        &finding, number,
        absl::StrFormat("rank %d is of epoch %.0f, the job of %.0f", number, epoch->last, newest));
  }
}

void TakeChecksums(const JobView& view, Findings* findings) {
  std::map<int64_t, std::map<uint64_t, std::vector<int>>> steps;
  for (const auto& [number, rank] : view.ranks) {
    for (const auto& [step, sum] : rank.checksums) steps[step][sum].push_back(number);
  }
  for (const auto& [step, sides] : steps) {
    const std::vector<int> ranks = Minority(sides);
    for (int number : ranks) {
      Finding& finding = findings->Of(
          Fault::kReplicaDiffers, Component::kDevice, view.ranks.at(number).moved_ns,
          "go back to the last checkpoint before that step, and test that device's memory");
      findings->Blame(
          &finding, number,
          absl::StrCat("the replica of rank ", number, " differs from most others' in step ", step,
                       ", though all are finite"));
    }
    if (!ranks.empty()) return;
  }
}

// A rank's loss far from its own median and from its peers': the batch that it had. A loss that is
// not finite, which all ranks have of a step that was left out, is FindNotFinite()'s.
void TakeLosses(const JobView& view, Findings* findings) {
  constexpr double kSpike = 4;
  const auto counts = [](const StepTimes& step) {
    return step.own_is_finite && std::isfinite(step.loss);
  };
  std::map<int64_t, std::vector<double>> losses;
  for (const auto& [number, rank] : view.ranks) {
    for (const StepTimes& step : rank.steps) {
      if (counts(step)) losses[step.step].push_back(step.loss);
    }
  }
  std::map<int64_t, double> medians;
  for (auto& [step, values] : losses) {
    if (values.size() < 3) continue;
    medians[step] = UpperMedian(std::move(values));
  }
  for (const auto& [number, rank] : view.ranks) {
    for (const StepTimes& step : rank.steps) {
      const auto median = medians.find(step.step);
      if (median == medians.end() || median->second <= 0 || !counts(step)) continue;
      if (step.loss < kSpike * median->second) continue;
      Finding& finding = findings->Of(
          Fault::kLossSpike, Component::kData, step.end_ns,
          "go back before that step and leave the batch out; on another rank it does the same");
      findings->Blame(&finding, number,
                      absl::StrFormat("the loss of rank %d in step %d was %.1f times the others'",
                                      number, step.step, step.loss / median->second));
    }
  }
}

// Messages whose end-to-end checksum was wrong although the link's was right.
void TakeCorruptCalls(const JobView& view, Findings* findings) {
  for (const auto& [number, rank] : view.ranks) {
    for (const Call& call : rank.corrupt) {
      Finding& finding = findings->Of(
          Fault::kCorruptData, Component::kNetwork, call.record.end_ns,
          "test memory and NIC of both hosts; the operation failed, and nothing wrong was summed");
      findings->Blame(&finding, call.record.peer,
                      absl::StrCat("rank ", number, " found a wrong checksum in ", CallText(call)));
      finding.culprits.push_back(number);
      finding.rejected = {"the cable: its checksum (ICRC) was right"};
    }
  }
}

void TakeErrors(const JobView& view, Findings* findings) {
  std::map<std::string, std::set<int>> without_store;
  for (const auto& [number, rank] : view.ranks) {
    for (size_t i = 0; i < rank.errors.size(); ++i) {
      const ToldError& error = rank.errors[i];
      const std::string text = absl::StrCat("rank ", number, " at step ", error.step, ": ",
                                            error.code, ": ", error.text);
      if (error.place == "checkpoint" && error.code == "DATA_LOSS") {
        Finding& finding = findings->Of(Fault::kBadShard, Component::kStorage, error.time_ns,
                                        "use the replica, or the checkpoint before it");
        findings->Blame(&finding, number, text);
      } else if (error.place == "checkpoint") {
        Finding& finding =
            findings->Of(Fault::kSaveFailed, Component::kStorage, error.time_ns,
                         "make room for checkpoints; the last one that was saved is still valid");
        findings->Blame(&finding, number, text);
      } else if (error.place == "store") {
        Finding& finding = findings->Of(Fault::kControlPlane, Component::kProcess, error.time_ns,
                                        "see the store's process; no rank is at fault");
        if (finding.evidence.size() < 8) finding.evidence.push_back(text);
        finding.victims.push_back(number);
      } else if (i > 0 && error.text == rank.errors[i - 1].text &&
                 error.step == rank.errors[i - 1].step) {
        Finding& finding = findings->Of(
            Fault::kRepeatedError, Component::kProgram, error.time_ns,
            "do not start it again: it ends the same way; see its program and the batch");
        findings->Blame(&finding, number, absl::StrCat(text, ", twice without a step between"));
      }
    }
  }
}

}  // namespace

std::vector<Finding> FindTold(const JobView& view) {
  Findings findings;
  TakeCounters(view, &findings);
  TakePorts(view, &findings);
  TakeSettings(view, &findings);
  TakeEpochs(view, &findings);
  TakeChecksums(view, &findings);
  TakeLosses(view, &findings);
  TakeCorruptCalls(view, &findings);
  TakeErrors(view, &findings);
  std::vector<Finding> out = findings.Take();
  for (Finding& finding : out) {
    if (finding.fault != Fault::kCongestion && finding.fault != Fault::kControlPlane) continue;
    for (int rank : finding.culprits) finding.victims.push_back(rank);
    finding.culprits.clear();
    finding.rejected.push_back("a rank, a NIC or a host: what they share is at fault");
  }
  return out;
}

}  // namespace weft::observe
