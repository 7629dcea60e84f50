// Of jobs that go on, but slower than they should.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/observe/rules.h"

namespace weft::observe {
namespace {

constexpr size_t kNoiseSteps = 10;
constexpr double kNoiseLeast = 0.01;
// So many standard errors: heavy tails of a busy host's times need more than the usual three.
constexpr double kCertain = 6;

// The lower one of two: of two ranks, the slower one stands out.
double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t middle = (values.size() - 1) / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle),
                   values.end());
  return values[middle];
}

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

// The last steps that every one of these ranks has ended, newest first.
std::vector<int64_t> CommonSteps(const JobView& view, const std::vector<int>& ranks) {
  std::map<int64_t, size_t, std::greater<>> count;
  for (int rank : ranks) {
    for (const StepTimes& step : view.ranks.at(rank).steps) ++count[step.step];
  }
  std::vector<int64_t> steps;
  for (const auto& [step, times] : count) {
    if (times == ranks.size()) steps.push_back(step);
  }
  return steps;
}

const StepTimes& StepOf(const RankView& rank, int64_t step) {
  return *std::find_if(rank.steps.begin(), rank.steps.end(),
                       [&](const StepTimes& times) { return times.step == step; });
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
    most.second += Outside(StepOf(view.ranks.at(culprit), step)) - Median(others);
  }
  most.second = std::max(0.0, most.second / static_cast<double>(steps.size()));
  for (const std::string& phase : phases) {
    if (absl::StartsWith(phase, "wait")) continue;
    double excess = 0;
    for (int64_t step : steps) {
      std::vector<double> others;
      for (int peer : peers) others.push_back(SecondsIn(StepOf(view.ranks.at(peer), step), phase));
      excess += SecondsIn(StepOf(view.ranks.at(culprit), step), phase) - Median(others);
    }
    excess /= static_cast<double>(steps.size());
    if (excess > most.second) most = {phase, excess};
  }
  return most;
}

// The part of its life that a process was ready to run and had no core.
double RunQueueShare(const JobView& view, const RankView& rank) {
  const double lived = static_cast<double>(view.now_ns - rank.process.monotonic_ns) * 1e-9;
  return lived <= 0 ? 0 : rank.state.run_queue_seconds / lived;
}

// By rank: its own time over the peers' median, step by step.
std::map<int, std::vector<double>> OwnRatios(const JobView& view, const std::vector<int>& peers,
                                             const std::vector<int64_t>& steps) {
  std::map<int, std::vector<double>> ratios;
  for (int64_t step : steps) {
    std::vector<double> own;
    for (int rank : peers) own.push_back(StepOf(view.ranks.at(rank), step).own());
    const double median = Median(own);
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
  return std::max(kNoiseLeast, 1.4826 * Median(strays));
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
  } else if (share > 0.1 + 2 * Median(shares)) {
    finding.component = Component::kHost;
    finding.evidence.push_back(absl::StrFormat(
        "it was ready to run without a core for %.0f%% of its life, its peers for %.0f%%",
        share * 100, Median(shares) * 100));
    finding.advice = absl::StrCat("see what else runs on host ", rank.process.host);
  } else {
    finding.component = Component::kDevice;
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
      const double mean = std::accumulate(own.begin(), end, 0.0) / static_cast<double>(needed);
      const double error = NoiseOf(ratios, rank) / std::sqrt(static_cast<double>(needed));
      if (least < options.slow_ratio || mean - 1 < kCertain * error) continue;
      findings.push_back(SlowRank(view, peers, rank, steps, least));
    }
  }
  return findings;
}

std::vector<Finding> FindSlowFlows(const JobView& view, const DiagnoseOptions& options) {
  constexpr int kSamplesMin = 10;
  constexpr double kBusy = 0.6;
  struct Candidate {
    int rank = 0, peer = 0;
    const Flow* flow = nullptr;
  };
  std::map<std::string, std::vector<Candidate>> by_transport;
  for (const auto& [number, rank] : view.ranks) {
    for (const auto& [key, flow] : rank.flows) {
      if (key.second && flow.samples >= kSamplesMin) {
        by_transport[flow.transport].push_back({number, key.first, &flow});
      }
    }
  }
  std::vector<Finding> findings;
  for (const auto& [transport, candidates] : by_transport) {
    if (candidates.size() < 3) continue;
    std::vector<double> busy;
    for (const Candidate& candidate : candidates) busy.push_back(candidate.flow->busy);
    const double median = Median(busy);
    for (const Candidate& candidate : candidates) {
      const double own = candidate.flow->busy;
      if (own < kBusy || median > own * options.slow_flow_ratio) continue;
      Finding finding{.fault = Fault::kSlowFlow, .component = Component::kNetwork};
      finding.culprits = {candidate.rank, candidate.peer};
      finding.evidence.push_back(absl::StrFormat(
          "in %.0f%% of the samples the link over %s had bytes that its receiver waits for and "
          "that were not delivered; its siblings in %.0f%%",
          own * 100, transport, median * 100));
      if (candidate.flow->record.rtt_us > 0) {
        finding.evidence.push_back(
            absl::StrCat("its round trip is ", candidate.flow->record.rtt_us, " us"));
      }
      if (candidate.flow->record.repeats > 0) {
        finding.evidence.push_back(
            absl::StrCat(candidate.flow->record.repeats, " repeats since it was made"));
      }
      finding.rejected.push_back("a slow rank: no rank's own phases stand out");
      finding.advice = absl::StrCat("measure the path: weft-bw link between the hosts of ranks ",
                                    candidate.rank, " and ", candidate.peer);
      finding.since_ns = candidate.flow->record.time_ns;
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

}  // namespace weft::observe
