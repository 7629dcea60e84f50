#include "tools/observe/detectors.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/median.h"
#include "tools/observe/rules.h"

namespace weft::observe {
namespace {

using Window = std::vector<double>;

double Dot(const Window& a, const Window& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double Distance(const Window& a, const Window& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// The windows as a linear autoencoder gives them back: their mean, and what of them lies along
// their principal components (by power iteration, with deflation).
void Denoise(std::vector<Window*> windows, size_t components) {
  constexpr int kIterations = 30;
  const size_t width = windows[0]->size();
  Window mean(width);
  for (const Window* window : windows) {
    for (size_t i = 0; i < width; ++i)
      mean[i] += (*window)[i] / static_cast<double>(windows.size());
  }
  std::vector<Window> rest;
  for (const Window* window : windows) {
    rest.push_back(*window);
    for (size_t i = 0; i < width; ++i) rest.back()[i] -= mean[i];
  }
  for (Window* window : windows) *window = mean;
  for (size_t component = 0; component < std::min(components, width); ++component) {
    Window axis(width, 1);
    axis[component % width] += 0.5;
    for (int iteration = 0; iteration < kIterations; ++iteration) {
      Window next(width);
      for (const Window& one : rest) {
        const double along = Dot(one, axis);
        for (size_t i = 0; i < width; ++i) next[i] += along * one[i];
      }
      const double length = std::sqrt(Dot(next, next));
      if (length < 1e-12) return;
      for (size_t i = 0; i < width; ++i) axis[i] = next[i] / length;
    }
    for (size_t w = 0; w < windows.size(); ++w) {
      const double along = Dot(rest[w], axis);
      for (size_t i = 0; i < width; ++i) {
        (*windows[w])[i] += along * axis[i];
        rest[w][i] -= along * axis[i];
      }
    }
  }
}

// The rank farthest from the others, where it is far enough.
std::optional<int> Farthest(const std::map<int, Window>& windows, const MinderOptions& options) {
  std::vector<double> sums;
  std::pair<double, int> top{-1, -1};
  for (const auto& [rank, own] : windows) {
    double sum = 0;
    for (const auto& [other, theirs] : windows) sum += Distance(own, theirs);
    sum /= static_cast<double>(windows.size() - 1);
    sums.push_back(sum);
    top = std::max(top, {sum, rank});
  }
  const double median = LowerMedian(std::move(sums));
  if (top.first < options.distance || top.first < options.times * median) return std::nullopt;
  return top.second;
}

// Student's t as the normal-inverse-gamma prior predicts the next value.
struct Belief {
  double mean, kappa, alpha, beta;
  double Log(double x) const {
    const double scale = beta * (kappa + 1) / (alpha * kappa);
    const double z = (x - mean) * (x - mean) / (2 * alpha * scale);
    return std::lgamma(alpha + 0.5) - std::lgamma(alpha) -
           0.5 * std::log(2 * alpha * std::numbers::pi * scale) - (alpha + 0.5) * std::log1p(z);
  }
  Belief After(double x) const {
    return {(kappa * mean + x) / (kappa + 1), kappa + 1, alpha + 0.5,
            beta + kappa * (x - mean) * (x - mean) / (2 * (kappa + 1))};
  }
};

// The seconds of each phase that is no waiting, by step, of steps that all ranks have.
std::map<std::string, MetricSeries> PhaseSeries(const JobView& view) {
  std::map<int64_t, size_t> count;
  std::set<std::string> phases;
  for (const auto& [number, rank] : view.ranks) {
    for (const StepTimes& step : rank.steps) {
      ++count[step.step];
      for (const auto& [phase, took] : step.seconds) {
        if (!absl::StartsWith(phase, "wait")) phases.insert(phase);
      }
    }
  }
  std::map<std::string, MetricSeries> series;
  for (const auto& [number, rank] : view.ranks) {
    for (const StepTimes& step : rank.steps) {
      if (count[step.step] != view.ranks.size()) continue;
      for (const std::string& phase : phases) {
        const auto took = step.seconds.find(phase);
        series[phase][number].push_back(took == step.seconds.end() ? 0 : took->second);
      }
      series["own"][number].push_back(step.own());
    }
  }
  return series;
}

Finding Slow(int rank, std::string evidence) {
  Finding finding{.fault = Fault::kSlowRank, .component = Component::kUnknown};
  finding.culprits = {rank};
  finding.evidence = {std::move(evidence)};
  return finding;
}

std::vector<Finding> ByMinder(const JobView& view) {
  const double step = MedianStep(view);
  for (auto& [metric, series] : PhaseSeries(view)) {
    double most = 0;
    for (const auto& [rank, values] : series) {
      for (double value : values) most = std::max(most, value);
    }
    if (most < 0.05 * step) continue;  // a phase too short to slow a step
    const std::optional<int> rank = MinderOutlier(series);
    if (rank.has_value()) {
      return {Slow(*rank, absl::StrCat("its ", metric,
                                       " is farthest from the others', again and "
                                       "again"))};
    }
  }
  return {};
}

std::vector<Finding> ByGreyhound(const JobView& view, const DiagnoseOptions& options) {
  std::map<std::string, MetricSeries> all = PhaseSeries(view);
  std::vector<Finding> findings;
  const MetricSeries& own = all["own"];
  std::vector<double> shifts;
  std::map<int, ChangePoint> changes;
  for (const auto& [rank, values] : own) {
    const std::optional<ChangePoint> change = LastChange(values);
    shifts.push_back(change.has_value() ? change->shift() : 0);
    if (change.has_value()) changes[rank] = *change;
  }
  const double common = std::max(0.0, LowerMedian(shifts));
  for (const auto& [rank, change] : changes) {
    if (change.shift() - common < options.slow_ratio - 1) continue;
    findings.push_back(Slow(rank, absl::StrFormat("its own time a step rose by %.0f%%, and stays",
                                                  change.shift() * 100)));
  }
  return findings;
}

FlowProgress ProgressOf(const Flow& flow) {
  return {flow.record.bytes_matched, flow.record.bytes_transmitted, flow.record.bytes_done};
}

std::vector<Finding> ByMycroft(const JobView& view, const DiagnoseOptions& options) {
  const Stillness still = HowStill(view, options);
  if (!still.stands) return {};
  Finding finding{.fault = Fault::kHangOutside, .component = Component::kUnknown};
  finding.since_ns = still.since_ns;
  for (const auto& [group, members] : view.groups) {
    std::map<uint32_t, std::vector<int>> by_sequence;
    for (int member : members) {
      const auto rank = view.ranks.find(member);
      const bool known = rank != view.ranks.end() && rank->second.next.count(group) != 0;
      by_sequence[known ? rank->second.next.at(group) : 0].push_back(member);
    }
    if (by_sequence.size() < 2) continue;
    finding.culprits = by_sequence.begin()->second;
    finding.evidence = {
        absl::StrCat("the fewest operations in group ", group, ": ", by_sequence.begin()->first)};
    return {finding};
  }
  const Flow* least = nullptr;
  for (const auto& [number, rank] : view.ranks) {
    for (const auto& [key, flow] : rank.flows) {
      if (!key.second || flow.record.outstanding == 0) continue;
      if (least != nullptr && flow.record.bytes_done >= least->record.bytes_done) continue;
      least = &flow;
      finding.culprits = {number, key.first};
    }
  }
  if (least == nullptr) return {};
  std::optional<FlowProgress> received;
  const RankView& receiver = view.ranks.at(finding.culprits[1]);
  if (const auto other = receiver.flows.find({finding.culprits[0], false});
      other != receiver.flows.end()) {
    received = ProgressOf(other->second);
  }
  switch (BlameOf(ProgressOf(*least), received)) {
    case FlowBlame::kNotStarted:
    case FlowBlame::kDevice:
      finding.culprits = {finding.culprits[0]};
      break;
    case FlowBlame::kReceiver:
      finding.fault = Fault::kReceiverNotPosting;
      finding.culprits = {finding.culprits[1]};
      break;
    case FlowBlame::kLocalOrPeer:
    case FlowBlame::kNetwork:
      finding.fault = Fault::kStuckFlow;
      finding.component = Component::kNetwork;
      break;
  }
  finding.evidence = {"the flow with the least data of all that are under way"};
  return {finding};
}

}  // namespace

std::optional<int> MinderOutlier(const MetricSeries& series, const MinderOptions& options) {
  if (series.size() < 3) return std::nullopt;
  const size_t steps = series.begin()->second.size();
  if (steps < options.window + options.continuity - 1) return std::nullopt;
  std::vector<double> all;
  for (const auto& [rank, values] : series) all.insert(all.end(), values.begin(), values.end());
  // Min-max of all but the highest and lowest twentieth, which a long first step would stretch; and
  // no closer than a fifth of the median, or noise would fill the range.
  std::sort(all.begin(), all.end());
  const size_t cut = all.size() / 20;
  const double least = all[cut], most = all[all.size() - 1 - cut];
  const double range = std::max(most - least, 0.2 * std::abs(LowerMedian(all)));
  if (range <= 0) return std::nullopt;
  const size_t count = steps - options.window + 1;
  std::vector<std::map<int, Window>> windows(count);
  std::vector<Window*> every;
  for (size_t at = 0; at < count; ++at) {
    for (const auto& [rank, values] : series) {
      Window& window = windows[at][rank];
      for (size_t i = 0; i < options.window; ++i) {
        window.push_back(std::clamp((values[at + i] - least) / range, -1.0, 2.0));
      }
      every.push_back(&window);
    }
  }
  if (options.denoise) Denoise(every, options.components);
  std::optional<int> candidate;
  for (size_t back = 0; back < options.continuity; ++back) {
    const std::optional<int> rank = Farthest(windows[count - 1 - back], options);
    if (!rank.has_value() || (back > 0 && rank != candidate)) return std::nullopt;
    candidate = rank;
  }
  return candidate;
}

std::optional<ChangePoint> LastChange(absl::Span<const double> values) {
  constexpr double kHazard = 1.0 / 50, kCertain = 0.9;
  constexpr size_t kLeast = 3;
  if (values.size() < 2 * kLeast) return std::nullopt;
  const double scale = LowerMedian(Window{values.begin(), values.end()});
  if (scale <= 0) return std::nullopt;
  const Belief prior{1, 0.1, 1, 1e-3};
  // By run length: the posterior, and what it believes of the values of that run.
  std::vector<double> posterior = {1};
  std::vector<Belief> beliefs = {prior};
  for (double value : values) {
    const double x = value / scale;
    std::vector<double> next(posterior.size() + 1);
    for (size_t run = 0; run < posterior.size(); ++run) {
      const double weight = posterior[run] * std::exp(beliefs[run].Log(x));
      next[run + 1] = weight * (1 - kHazard);
      next[0] += weight * kHazard;
    }
    const double sum = std::accumulate(next.begin(), next.end(), 0.0);
    for (double& one : next) one = sum > 0 ? one / sum : 0;
    std::vector<Belief> after = {prior};
    for (const Belief& belief : beliefs) after.push_back(belief.After(x));
    posterior = std::move(next);
    beliefs = std::move(after);
  }
  const auto run =
      static_cast<size_t>(std::max_element(posterior.begin(), posterior.end()) - posterior.begin());
  double about = 0;
  for (size_t one = run > 0 ? run - 1 : 0; one <= std::min(run + 1, values.size()); ++one) {
    about += posterior[one];
  }
  if (about < kCertain || run < kLeast || values.size() - run < kLeast) return std::nullopt;
  ChangePoint change{.at = values.size() - run};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(change.at);
  change.before = LowerMedian(Window{values.begin(), middle});
  change.after = LowerMedian(Window{middle, values.end()});
  return change;
}

FlowBlame BlameOf(const FlowProgress& sender, const std::optional<FlowProgress>& receiver) {
  if (sender.ready == 0 && sender.transmitted == 0 && sender.done == 0) {
    return FlowBlame::kNotStarted;
  }
  if (sender.ready > sender.transmitted) return FlowBlame::kLocalOrPeer;
  if (sender.transmitted > sender.done) {
    const bool receiver_is_even = receiver.has_value() &&
                                  receiver->ready == receiver->transmitted &&
                                  receiver->transmitted == receiver->done;
    return receiver_is_even ? FlowBlame::kReceiver : FlowBlame::kNetwork;
  }
  return FlowBlame::kDevice;
}

std::optional<Detector> DetectorNamed(absl::string_view name) {
  if (name == "all") return Detector::kAll;
  if (name == "minder") return Detector::kMinder;
  if (name == "greyhound") return Detector::kGreyhound;
  if (name == "mycroft") return Detector::kMycroft;
  return std::nullopt;
}

std::vector<Finding> Detect(Detector detector, const JobView& view,
                            const DiagnoseOptions& options) {
  switch (detector) {
    case Detector::kAll:
      return Diagnose(view, options);
    case Detector::kMinder:
      return ByMinder(view);
    case Detector::kGreyhound:
      return ByGreyhound(view, options);
    case Detector::kMycroft:
      return ByMycroft(view, options);
  }
  return {};
}

}  // namespace weft::observe
