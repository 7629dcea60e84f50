// Rules about jobs that go on, but slower than they should.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/median.h"
#include "base/status.h"
#include "tools/observe/rules.h"

namespace weft::observe {
namespace {

constexpr size_t kNoiseSteps = 10;
constexpr double kNoiseLeast = 0.01;
// So many standard errors: heavy tails of a busy host's times need more than the usual three.
constexpr double kCertain = 6;

// Ranks that do the same work: those of one pipeline stage, which is the outermost axis of the
// mesh.
std::map<int, std::vector<int>> Peers(const JobView& view) {
  int stages = 1;
  for (absl::string_view axis : absl::StrSplit(view.mesh, ',')) {
    int size = 0;
    if (absl::ConsumePrefix(&axis, "pp") && absl::SimpleAtoi(axis, &size) && size > 0)
      stages = size;
  }
  const int each = std::max(1, view.world_size / stages);
  std::map<int, std::vector<int>> peers;
  for (const auto& [number, rank] : view.ranks) peers[number / each].push_back(number);
  return peers;
}

// The last steps that every one of these ranks has ended, newest first. A rank that was started
// anew does some of them again.
std::vector<int64_t> CommonSteps(const JobView& view, const std::vector<int>& ranks) {
  std::map<int64_t, size_t, std::greater<>> count;
  for (int rank : ranks) {
    std::set<int64_t> ended;
    for (const StepTimes& step : view.ranks.at(rank).steps) ended.insert(step.step);
    for (int64_t step : ended) ++count[step];
  }
  std::vector<int64_t> steps;
  for (const auto& [step, times] : count) {
    if (times == ranks.size()) steps.push_back(step);
  }
  return steps;
}

// One of CommonSteps(): the last time that the rank did it.
const StepTimes& StepOf(const RankView& rank, int64_t step) {
  const auto found = std::find_if(rank.steps.rbegin(), rank.steps.rend(),
                                  [&](const StepTimes& times) { return times.step == step; });
  WEFT_CHECK(found != rank.steps.rend(), "rank " << rank.rank() << " has not ended step " << step);
  return *found;
}

double SecondsIn(const StepTimes& step, const std::string& phase) {
  const auto found = step.seconds.find(phase);
  return found == step.seconds.end() ? 0 : found->second;
}

double Outside(const StepTimes& step) {
  double within = 0;
  for (const auto& [phase, took] : step.seconds) within += took;
  return step.total() - within;
}

// What takes a slow rank longer than its peers; seconds a step.
std::pair<std::string, double> SlowestPhase(const JobView& view, const std::vector<int>& peers,
                                            int culprit, const std::vector<int64_t>& steps) {
  std::set<std::string> phases;
  for (const StepTimes& step : view.ranks.at(culprit).steps) {
    for (const auto& [phase, took] : step.seconds) phases.insert(phase);
  }
  std::pair<std::string, double> most{"", 0};
  for (int64_t step : steps) {  // outside of all phases
    std::vector<double> others;
    for (int peer : peers) others.push_back(Outside(StepOf(view.ranks.at(peer), step)));
    most.second += Outside(StepOf(view.ranks.at(culprit), step)) - LowerMedian(others);
  }
  most.second = std::max(0.0, most.second / static_cast<double>(steps.size()));
  for (const std::string& phase : phases) {
    if (absl::StartsWith(phase, "wait")) continue;
    double excess = 0;
    for (int64_t step : steps) {
      std::vector<double> others;
      for (int peer : peers) others.push_back(SecondsIn(StepOf(view.ranks.at(peer), step), phase));
      excess += SecondsIn(StepOf(view.ranks.at(culprit), step), phase) - LowerMedian(others);
    }
    excess /= static_cast<double>(steps.size());
    if (excess > most.second) most = {phase, excess};
  }
  return most;
}

// The part of its life that a process was ready to run and had no core, summed over its threads.
double RunQueueShare(const JobView& view, const RankView& rank) {
  const double lived = static_cast<double>(view.now_ns - rank.process.monotonic_ns) * 1e-9;
  return lived <= 0 ? 0 : rank.state.run_queue_seconds / lived;
}

// The peers' median for each phase that says how many tokens it worked on.
std::map<std::string, double> MedianWork(const JobView& view, const std::vector<int>& peers,
                                         int64_t step) {
  std::map<std::string, std::vector<double>> all;
  for (int peer : peers) {
    for (const auto& [phase, work] : StepOf(view.ranks.at(peer), step).work) {
      all[phase].push_back(work);
    }
  }
  std::map<std::string, double> medians;
  for (auto& [phase, work] : all) medians[phase] = LowerMedian(std::move(work));
  return medians;
}

// Its own time, had it worked on as many tokens as its peers: a rank whose experts get more, or
// whose sequences are longer, is not slow.
double OwnAtMedianWork(const StepTimes& step, const std::map<std::string, double>& median) {
  double own = step.own();
  for (const auto& [phase, work] : step.work) {
    own += SecondsIn(step, phase) * (median.at(phase) / work - 1);
  }
  return own;
}

// By rank: its own time over the peers' median, step by step.
std::map<int, std::vector<double>> OwnRatios(const JobView& view, const std::vector<int>& peers,
                                             const std::vector<int64_t>& steps) {
  std::map<int, std::vector<double>> ratios;
  for (int64_t step : steps) {
    std::vector<double> own;
    const std::map<std::string, double> work = MedianWork(view, peers, step);
    for (int rank : peers) own.push_back(OwnAtMedianWork(StepOf(view.ranks.at(rank), step), work));
    const double median = LowerMedian(own);
    for (size_t i = 0; i < peers.size(); ++i) {
      ratios[peers[i]].push_back(median > 0 ? own[i] / median : 1);
    }
  }
  return ratios;
}

// How far the other ranks stray from the median: the standard deviation that their median absolute
// deviation stands for. Work that is uneven, or cores that are short, are no slow rank.
double NoiseOf(const std::map<int, std::vector<double>>& ratios, int candidate) {
  std::vector<double> strays;
  for (const auto& [rank, own] : ratios) {
    if (rank == candidate && ratios.size() > 2) continue;
    for (double ratio : own) strays.push_back(std::abs(ratio - 1));
  }
  return std::max(kNoiseLeast, 1.4826 * LowerMedian(strays));
}

// What DCGM says of a slow device.
void AddClocks(const RankView& rank, Finding* finding) {
  for (const auto& [key, reading] : rank.readings) {
    if (key.second == "DCGM_FI_DEV_SM_CLOCK" && reading.last < 0.9 * reading.first) {
      finding->evidence.push_back(absl::StrFormat("the clock of %s fell from %.0f to %.0f MHz",
                                                  key.first, reading.first, reading.last));
    } else if (key.second == "DCGM_FI_DEV_GPU_TEMP" && reading.last >= 85) {
      finding->evidence.push_back(absl::StrFormat("%s has %.0f C", key.first, reading.last));
    }
  }
}

Finding SlowRank(const JobView& view, const std::vector<int>& peers, int culprit,
                 const std::vector<int64_t>& steps, double ratio) {
  const RankView& rank = view.ranks.at(culprit);
  const auto [phase, excess] = SlowestPhase(view, peers, culprit, steps);
  Finding finding;
  finding.culprits = {culprit};
  finding.fault = phase == "data" ? Fault::kSlowData : Fault::kSlowRank;
  finding.evidence.push_back(absl::StrFormat(
      "its own phases took %.2f times those of its peers (ranks %s) in each of the last %d steps",
      ratio, RanksText(peers), steps.size()));
  if (phase.empty()) {
    finding.evidence.push_back(absl::StrFormat(
        "most of it in no phase that it has named: %.1f ms a step more", excess * 1e3));
  } else {
    finding.evidence.push_back(
        absl::StrFormat("most of it in phase %s: %.1f ms a step more", phase, excess * 1e3));
  }
  std::vector<double> shares;
  for (int peer : peers) shares.push_back(RunQueueShare(view, view.ranks.at(peer)));
  const double share = RunQueueShare(view, rank);
  if (phase == "data") {
    finding.component = Component::kData;
    finding.advice = "look at the source of its data and at what reads it";
  } else if (phase == "checkpoint") {
    finding.component = Component::kStorage;
    finding.advice = "look at the storage of its checkpoints";
  } else if (phase.empty()) {
    finding.component = Component::kProgram;
    finding.advice = "see what its program does between its phases";
  } else if (share > 0.1 + 2 * LowerMedian(shares)) {
    finding.component = Component::kHost;
    finding.evidence.push_back(
        absl::StrFormat("its threads were ready to run without a core for %.0f%% of its life, its "
                        "peers' for %.0f%%",
                        share * 100, LowerMedian(shares) * 100));
    finding.advice = absl::StrCat("see what else runs on host ", rank.process.host);
  } else if (const Reading* throttled = rank.FindReading("cgroup", "nr_throttled");
             throttled != nullptr && throttled->grew() >= 3) {
    finding.component = Component::kCpu;
    finding.evidence.push_back(absl::StrFormat(
        "its cgroup was throttled %.0f times: its quota of CPU is used up", throttled->grew()));
    finding.advice = "raise the CPU quota of its cgroup (cpu.max)";
  } else {
    finding.component = Component::kDevice;
    AddClocks(rank, &finding);
    finding.rejected.push_back("the host's cores: it waits for them no longer than its peers");
    finding.advice = absl::StrCat("look at clock, temperature and errors of the device of rank ",
                                  culprit, " on host ", rank.process.host);
  }
  finding.rejected.push_back("the network: time in which it waits for others is not counted");
  for (int peer : peers) {
    if (peer != culprit) finding.victims.push_back(peer);
  }
  finding.since_ns = StepOf(rank, steps.back()).start_ns;
  return finding;
}

}  // namespace

std::vector<Finding> FindSlowRanks(const JobView& view, const DiagnoseOptions& options) {
  std::vector<Finding> findings;
  const auto needed = static_cast<size_t>(options.slow_steps);
  for (const auto& [stage, peers] : Peers(view)) {
    if (peers.size() < 2) continue;
    std::vector<int64_t> steps = CommonSteps(view, peers);
    if (steps.size() < needed) continue;
    steps.resize(std::min(steps.size(), std::max(needed, kNoiseSteps)));
    const std::map<int, std::vector<double>> ratios = OwnRatios(view, peers, steps);
    steps.resize(needed);
    for (const auto& [rank, own] : ratios) {
      const auto end = own.begin() + static_cast<std::ptrdiff_t>(needed);
      const double least = *std::min_element(own.begin(), end);
      if (least < options.slow_ratio) continue;
      const double mean = std::accumulate(own.begin(), end, 0.0) / static_cast<double>(needed);
      const double error = NoiseOf(ratios, rank) / std::sqrt(static_cast<double>(needed));
      if (mean - 1 < kCertain * error) continue;
      findings.push_back(SlowRank(view, peers, rank, steps, least));
    }
  }
  return findings;
}

std::vector<Finding> FindPeriodicSlowness(const JobView& view) {
  constexpr size_t kStepsLeast = 8, kTimes = 3;
  constexpr double kHigh = 1.25;
  std::vector<Finding> findings;
  for (const auto& [stage, peers] : Peers(view)) {
    if (peers.size() < 3) continue;
    const std::vector<int64_t> steps = CommonSteps(view, peers);
    if (steps.size() < kStepsLeast) continue;
    const std::map<int, std::vector<double>> ratios = OwnRatios(view, peers, steps);
    for (const auto& [rank, own] : ratios) {
      const auto above = [&](double bound) {
        return static_cast<size_t>(
            std::count_if(own.begin(), own.end(), [&](double one) { return one >= bound; }));
      };
      if (above(kHigh) < kTimes) continue;
      const double high = std::max(kHigh, 1 + kCertain * NoiseOf(ratios, rank));
      std::vector<int64_t> slow;  // newest first
      for (size_t i = 0; i < own.size(); ++i) {
        if (own[i] >= high) slow.push_back(steps[i]);
      }
      if (slow.size() < kTimes) continue;
      const int64_t period = slow[0] - slow[1];
      if (period < 2 || slow[1] - slow[2] != period || steps[0] - slow[0] >= 2 * period) continue;
      Finding finding{.fault = Fault::kSlowRank, .component = Component::kDevice};
      finding.culprits = {rank};
      for (int peer : peers) {
        if (peer != rank) finding.victims.push_back(peer);
      }
      finding.evidence.push_back(absl::StrFormat(
          "one step in %d of it took more than %.2f times its peers' time: steps %d, %d and %d",
          period, high, slow[2], slow[1], slow[0]));
      finding.rejected.push_back("chance: it comes at equal distances");
      finding.advice = "look for what runs on its host or device at that period";
      finding.since_ns = StepOf(view.ranks.at(rank), slow[2]).start_ns;
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

std::vector<Finding> FindSlowStorage(const JobView& view) {
  constexpr double kRatio = 3;
  const std::string phase = "checkpoint";
  for (const auto& [stage, peers] : Peers(view)) {
    if (peers.size() < 3) continue;
    for (int64_t step : CommonSteps(view, peers)) {  // newest first
      std::vector<double> took;
      for (int peer : peers) took.push_back(SecondsIn(StepOf(view.ranks.at(peer), step), phase));
      const double median = LowerMedian(took);
      if (median <= 0) continue;
      for (size_t i = 0; i < peers.size(); ++i) {
        if (took[i] < kRatio * median || took[i] - median < 0.5 * MedianStep(view)) continue;
        Finding finding{.fault = Fault::kSlowStorage, .component = Component::kStorage};
        finding.culprits = {peers[i]};
        finding.evidence.push_back(absl::StrFormat(
            "its checkpoint in step %d took %.2f s, its peers' %.2f s", step, took[i], median));
        finding.rejected.push_back("the device: its other phases take as long as its peers'");
        finding.advice = "look at the storage that its host writes to";
        finding.since_ns = StepOf(view.ranks.at(peers[i]), step).start_ns;
        return {finding};
      }
      break;  // the newest with a checkpoint counts
    }
  }
  return {};
}

namespace {

constexpr int kSamplesMin = 10;

struct Candidate {
  int rank = 0, peer = 0;
  const Flow* flow = nullptr;
  double repeats() const {
    return static_cast<double>(flow->record.repeats) - flow->repeats_before;
  }
};

std::map<std::string, std::vector<Candidate>> Senders(const JobView& view) {
  std::map<std::string, std::vector<Candidate>> by_transport;
  for (const auto& [number, rank] : view.ranks) {
    for (const auto& [key, flow] : rank.flows) {
      if (key.second && flow.samples >= kSamplesMin) {
        by_transport[flow.transport].push_back({number, key.first, &flow});
      }
    }
  }
  return by_transport;
}

template <typename Value>
double MedianOf(const std::vector<Candidate>& candidates, Value value) {
  std::vector<double> values;
  for (const Candidate& candidate : candidates) values.push_back(value(candidate));
  return LowerMedian(std::move(values));
}

// What every slow flow of a transport has in common: one rank, where there are two of them or more.
std::optional<int> CommonEnd(const std::vector<Finding>& flows) {
  if (flows.size() < 2) return std::nullopt;
  for (int end : flows[0].culprits) {
    const bool in_all = std::all_of(flows.begin(), flows.end(), [&](const Finding& flow) {
      return flow.culprits[0] == end || flow.culprits[1] == end;
    });
    std::set<int> others;
    for (const Finding& flow : flows) {
      others.insert(flow.culprits[0] == end ? flow.culprits[1] : flow.culprits[0]);
    }
    if (in_all && others.size() > 1) return end;
  }
  return std::nullopt;
}

Finding SlowNic(int rank, const std::vector<Finding>& flows) {
  Finding finding{.fault = Fault::kSlowNic, .component = Component::kNic};
  finding.culprits = {rank};
  finding.since_ns = flows[0].since_ns;
  for (const Finding& flow : flows) {
    finding.evidence.push_back(absl::StrCat("from rank ", flow.culprits[0], " to rank ",
                                            flow.culprits[1], ": ", flow.evidence[0]));
    for (int end : flow.culprits) {
      const bool known =
          std::find(finding.victims.begin(), finding.victims.end(), end) != finding.victims.end();
      if (end != rank && !known) finding.victims.push_back(end);
    }
  }
  finding.rejected = {"a path: flows to several ranks are slow, and only this rank's"};
  finding.advice = absl::StrCat("see speed and width of the NIC of rank ", rank,
                                " and of its PCIe slot: weft-doctor");
  return finding;
}

}  // namespace

std::vector<Finding> FindSlowFlows(const JobView& view, const DiagnoseOptions& options) {
  constexpr double kBusy = 0.6, kRttTimes = 5, kRttLeastUs = 2000, kRepeatsLeast = 20,
                   kRepeatsTimes = 10;
  std::vector<Finding> findings;
  for (const auto& [transport, candidates] : Senders(view)) {
    if (candidates.size() < 3) continue;
    const double busy = MedianOf(candidates, [](const Candidate& c) { return c.flow->busy; });
    const double rtt = MedianOf(candidates, [](const Candidate& c) { return c.flow->rtt_us; });
    const double repeats = MedianOf(candidates, [](const Candidate& c) { return c.repeats(); });
    std::vector<Finding> slow;
    for (const Candidate& candidate : candidates) {
      const double own = candidate.flow->busy;
      const bool is_busy = own >= kBusy && busy <= own * options.slow_flow_ratio;
      const bool is_far =
          candidate.flow->rtt_us >= std::max(kRttLeastUs, kRttTimes * rtt) && rtt > 0;
      const bool is_lossy = candidate.repeats() >= std::max(kRepeatsLeast, kRepeatsTimes * repeats);
      if (!is_busy && !is_far && !is_lossy) continue;
      Finding finding{.fault = is_lossy ? Fault::kLossyLink : Fault::kSlowFlow,
                      .component = Component::kNetwork};
      finding.culprits = {candidate.rank, candidate.peer};
      finding.evidence.push_back(absl::StrFormat(
          "in %.0f%% of the samples the link over %s had bytes that its receiver waits for and "
          "that were not delivered; its siblings in %.0f%%",
          own * 100, transport, busy * 100));
      if (candidate.flow->rtt_us > 0) {
        finding.evidence.push_back(absl::StrFormat("its round trip is %.0f us, its siblings' %.0f",
                                                   candidate.flow->rtt_us, rtt));
      }
      if (candidate.repeats() > 0) {
        finding.evidence.push_back(
            absl::StrFormat("%.0f repeats, its siblings have %.0f", candidate.repeats(), repeats));
      }
      finding.rejected.push_back("a slow rank: no rank's own phases stand out");
      finding.advice = absl::StrCat("measure the path: weft-bw link between the hosts of ranks ",
                                    candidate.rank, " and ", candidate.peer);
      finding.since_ns = candidate.flow->record.time_ns;
      slow.push_back(std::move(finding));
    }
    const bool lossy = std::any_of(slow.begin(), slow.end(), [](const Finding& finding) {
      return finding.fault == Fault::kLossyLink;
    });
    if (const std::optional<int> end = CommonEnd(slow); end.has_value() && !lossy) {
      slow = {SlowNic(*end, slow)};
    }
    for (Finding& finding : slow) findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace weft::observe
