#include "tools/cc/tune.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status.h"

namespace weft::cc {
namespace {

constexpr double kSpan = 4;  // drawn from 1 / kSpan to kSpan times the default
constexpr double kFirstStep = 1.5, kLastStep = 1.05;

class Search {
 public:
  Search(const TuneOptions& options, absl::FunctionRef<void(size_t done, size_t all)> done)
      : options_(options), done_(done), random_(options.seed) {}

  absl::Status Prepare() {
    WEFT_ASSIGN_OR_RETURN(base_, net::ParseController(options_.controller));
    WEFT_ASSIGN_OR_RETURN(protocol_.policy, net::ParsePolicy(options_.policy));
    protocol_.paths = options_.paths;
    for (const net::ParameterInfo& one : net::ParametersOf(base_.kind)) {
      bool is_named = std::find(options_.parameters.begin(), options_.parameters.end(), one.name) !=
                      options_.parameters.end();
      if (is_named || (options_.parameters.empty() && one.value != 0)) searched_.push_back(one);
    }
    for (const std::string& name : options_.parameters) {
      auto found = std::find_if(searched_.begin(), searched_.end(),
                                [&](const net::ParameterInfo& one) { return one.name == name; });
      if (found == searched_.end() || found->value == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", name, "' is no parameter of ", net::ToString(base_.kind),
                         " with a default to ", "search around; see weft-cc list"));
      }
    }
    values_.clear();
    for (const net::ParameterInfo& one : searched_) {
      double value = one.value;
      for (const auto& [name, given] : base_.parameters) {
        if (name == one.name) value = given;
      }
      values_.push_back(value);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<TuneRow>> Go() {
    WEFT_RETURN_IF_ERROR(Try(values_));
    best_ = values_;
    auto random_runs = static_cast<size_t>(options_.runs / 2);
    while (rows_.size() < random_runs) WEFT_RETURN_IF_ERROR(Try(Draw()));
    double step = kFirstStep;
    while (rows_.size() < static_cast<size_t>(options_.runs) && step > kLastStep) {
      bool helped = false;
      for (size_t i = 0; i < values_.size(); ++i) {
        for (double factor : {step, 1 / step}) {
          if (rows_.size() >= static_cast<size_t>(options_.runs)) return rows_;
          std::vector<double> next = best_;
          next[i] = Bound(i, next[i] * factor);
          if (next[i] == best_[i]) continue;
          double before = best_score_;
          WEFT_RETURN_IF_ERROR(Try(next));
          helped = helped || best_score_ < before;
        }
      }
      if (!helped) step = std::sqrt(step);
    }
    return rows_;
  }

 private:
  double Bound(size_t i, double value) const {
    return std::clamp(value, searched_[i].min, searched_[i].max);
  }
  std::vector<double> Draw() {
    std::vector<double> drawn;
    for (size_t i = 0; i < values_.size(); ++i) {
      double power = 2 * random_.Uniform() - 1;
      drawn.push_back(Bound(i, values_[i] * std::pow(kSpan, power)));
    }
    return drawn;
  }

  absl::Status Try(const std::vector<double>& values) {
    net::ControllerSpec spec = base_;
    for (size_t i = 0; i < values.size(); ++i) {
      std::erase_if(spec.parameters,
                    [&](const auto& one) { return one.first == searched_[i].name; });
      if (values[i] == searched_[i].value) continue;
      // Four digits, so that a line of settings says all there is.
      double rounded = std::stod(absl::StrFormat("%.4g", values[i]));
      spec.parameters.emplace_back(searched_[i].name, Bound(i, rounded));
    }
    protocol_.controller = spec;
    WEFT_ASSIGN_OR_RETURN(Outcome outcome, RunScenario(options_.scenario, protocol_));
    TuneRow row{spec, outcome, std::numeric_limits<double>::infinity()};
    if (outcome.unfinished == 0)
      row.score = Score(outcome, rows_.empty() ? outcome : rows_[0].outcome);
    if (rows_.empty() || row.score < best_score_) {
      best_score_ = row.score;
      best_ = values;
    }
    rows_.push_back(std::move(row));
    done_(rows_.size(), static_cast<size_t>(options_.runs));
    return absl::OkStatus();
  }

  double Score(const Outcome& one, const Outcome& base) const {
    auto ratio = [](double a, double b) { return std::log(std::max(a, 1e-3) / std::max(b, 1e-3)); };
    double time =
        (ratio(one.fct_p99_us, base.fct_p99_us) + ratio(one.fct_mean_us, base.fct_mean_us)) / 2;
    double queue = ratio(one.queue_mean_kb, base.queue_mean_kb);
    double weight = options_.queue_weight;
    return std::exp((1 - weight) * time + weight * queue);
  }

  const TuneOptions& options_;
  absl::FunctionRef<void(size_t done, size_t all)> done_;
  Random random_;
  net::ControllerSpec base_;
  net::multipath::SimulatedOptions protocol_;
  std::vector<net::ParameterInfo> searched_;
  std::vector<double> values_, best_;
  double best_score_ = std::numeric_limits<double>::infinity();
  std::vector<TuneRow> rows_;
};

}  // namespace

absl::StatusOr<std::vector<TuneRow>> Tune(const TuneOptions& options,
                                          absl::FunctionRef<void(size_t done, size_t all)> done) {
  Search search(options, done);
  WEFT_RETURN_IF_ERROR(search.Prepare());
  WEFT_ASSIGN_OR_RETURN(std::vector<TuneRow> rows, search.Go());
  if (std::isfinite(Best(rows).score)) return rows;
  return absl::DeadlineExceededError(absl::StrCat(
      "in none of ", rows.size(), " runs had all transfers ended after ",
      absl::FormatDuration(options.scenario.packet.limit),
      " of simulated time: none is the best; tune with less traffic, as by --largest-flow"));
}

const TuneRow& Best(const std::vector<TuneRow>& rows) {
  return *std::min_element(rows.begin(), rows.end(),
                           [](const TuneRow& a, const TuneRow& b) { return a.score < b.score; });
}

std::vector<TuneRow> Frontier(const std::vector<TuneRow>& rows) {
  std::vector<TuneRow> sorted = rows;
  std::erase_if(sorted, [](const TuneRow& row) { return row.outcome.unfinished > 0; });
  std::stable_sort(sorted.begin(), sorted.end(), [](const TuneRow& a, const TuneRow& b) {
    return a.outcome.fct_p99_us < b.outcome.fct_p99_us;
  });
  std::vector<TuneRow> frontier;
  for (TuneRow& row : sorted) {
    if (frontier.empty() || row.outcome.queue_mean_kb < frontier.back().outcome.queue_mean_kb) {
      frontier.push_back(std::move(row));
    }
  }
  return frontier;
}

std::string ToText(const std::vector<TuneRow>& rows) {
  std::string text =
      absl::StrFormat("%7s %8s %9s %9s %10s %10s %9s  %s\n", "score", "goodput", "mean us",
                      "p99 us", "queue KB", "paused us", "fairness", "controller");
  auto add = [&](const TuneRow& row) {
    const Outcome& one = row.outcome;
    absl::StrAppendFormat(&text, "%7.3f %8.3f %9.1f %9.1f %10.0f %10.0f %9.3f  %s\n", row.score,
                          one.goodput, one.fct_mean_us, one.fct_p99_us, one.queue_mean_kb,
                          one.paused_us, one.fairness, net::ToString(row.spec));
  };
  add(rows[0]);
  add(Best(rows));
  text += "\nTrade-off: no other run has both a shorter p99 and a shorter queue.\n";
  for (const TuneRow& row : Frontier(rows)) add(row);
  return text;
}

nlohmann::ordered_json ToJson(const std::vector<TuneRow>& rows) {
  auto json = nlohmann::ordered_json::array();
  for (const TuneRow& row : rows) {
    nlohmann::ordered_json one = {{"controller", net::ToString(row.spec)}};
    one["score"] = std::isfinite(row.score) ? nlohmann::ordered_json(row.score) : nullptr;
    one.update(ToJson(row.outcome));
    json.push_back(std::move(one));
  }
  return json;
}

LinePlot ToPlot(const std::vector<TuneRow>& rows, const std::string& title) {
  LinePlot plot;
  plot.title = title;
  plot.x_name = "p99, us";
  plot.y_name = "longest mean queue, KB";
  Line line{"trade-off", {}, false};
  for (const TuneRow& row : Frontier(rows)) {
    line.points.emplace_back(row.outcome.fct_p99_us, row.outcome.queue_mean_kb);
  }
  plot.lines.push_back(std::move(line));
  const Outcome& base = rows[0].outcome;
  plot.lines.push_back(
      {"defaults", {{base.fct_p99_us, 0}, {base.fct_p99_us, base.queue_mean_kb}}, true});
  return plot;
}

}  // namespace weft::cc
