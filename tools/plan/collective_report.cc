#include "tools/plan/collective_report.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"

namespace weft::plan {

using nlohmann::ordered_json;
namespace planner = collectives::planner;

std::string Microseconds(int64_t nanoseconds) {
  return absl::StrFormat("%.1f", static_cast<double>(nanoseconds) / 1e3);
}

namespace {

std::string SimulatedText(const std::optional<int64_t>& nanoseconds) {
  return nanoseconds.has_value() ? Microseconds(*nanoseconds) : "-";
}

std::string ChunkText(const CollectiveGroup& group, const planner::Plan& plan) {
  return ToString(Bytes(static_cast<int64_t>(plan.chunk * group.element)));
}

}  // namespace

std::string Explanation(const CollectiveGroup& group, const CollectiveAnswer& answer,
                        size_t count) {
  std::string text = absl::StrFormat(
      "%s of %s: %s\n\n  %-20s %12s %12s %10s %8s%s\n", ToString(group.kind),
      ToString(Bytes(answer.bytes)), answer.choice.why, "algorithm", "time (us)", "busbw (GB/s)",
      "chunk", "of best", answer.simulated.empty() ? "" : " simulated (us)");
  for (size_t i = 0; i < std::min(count, answer.plans.size()); ++i) {
    const planner::Plan& plan = answer.plans[i];
    const bool chosen = plan.ToText() == answer.choice.ToText();
    absl::StrAppendFormat(
        &text, "%s %-20s %12s %12.3f %10s %7.2fx", chosen ? "*" : " ", plan.ToText(),
        Microseconds(plan.nanoseconds), BusBandwidth(group, answer.bytes, plan.nanoseconds),
        ChunkText(group, plan),
        static_cast<double>(plan.nanoseconds) /
            static_cast<double>(std::max<int64_t>(answer.plans[0].nanoseconds, 1)));
    if (!answer.simulated.empty()) {
      absl::StrAppendFormat(&text, " %14s", SimulatedText(answer.simulated[i]));
    }
    text += '\n';
  }
  return text;
}

std::string RegretText(absl::Span<const CollectiveAnswer> answers) {
  double sum = 0, most = 0;
  int64_t at = 0;
  size_t count = 0;
  for (const CollectiveAnswer& answer : answers) {
    const std::optional<double> regret = answer.Regret();
    if (!regret.has_value()) continue;
    ++count;
    sum += *regret;
    if (*regret >= most) most = *regret, at = answer.bytes;
  }
  if (count == 0) return "no choice was simulated: the schedules have too many steps\n";
  return absl::StrFormat(
      "simulated: the choices take %.1f %% longer than the best, on average over %d sizes; at most "
      "%.1f %%, at %s\n",
      100 * sum / static_cast<double>(count), count, 100 * most, ToString(Bytes(at)));
}

std::string Table(const CollectiveGroup& group, absl::Span<const CollectiveAnswer> answers) {
  const bool simulates = !answers.empty() && !answers[0].simulated.empty();
  std::string text =
      absl::StrFormat("%10s  %-20s %12s %12s %10s%s  %s\n", "size", "algorithm", "time (us)",
                      "busbw (GB/s)", "chunk", simulates ? " simulated (us)   regret" : "", "then");
  for (const CollectiveAnswer& answer : answers) {
    std::string then;
    int others = 0;
    for (const planner::Plan& plan : answer.plans) {
      if (plan.algorithm == answer.choice.algorithm || others == 2) continue;
      absl::StrAppend(&then, others++ == 0 ? "" : ", ", plan.ToText(), " ",
                      Microseconds(plan.nanoseconds));
    }
    std::string simulated;
    if (simulates) {
      const std::optional<double> regret = answer.Regret();
      simulated =
          absl::StrFormat(" %14s %8s", SimulatedText(answer.Simulated(answer.choice)),
                          regret.has_value() ? absl::StrFormat("%.1f %%", 100 * *regret) : "-");
    }
    absl::StrAppendFormat(&text, "%10s  %-20s %12s %12.3f %10s%s  %s\n",
                          ToString(Bytes(answer.bytes)), answer.choice.ToText(),
                          Microseconds(answer.choice.nanoseconds),
                          BusBandwidth(group, answer.bytes, answer.choice.nanoseconds),
                          ChunkText(group, answer.choice), simulated, then);
  }
  return text;
}

ordered_json PlanJson(const CollectiveGroup& group, const CollectiveAnswer& answer,
                      const planner::Plan& plan) {
  ordered_json json{{"algorithm", plan.algorithm->name},
                    {"channels", plan.channels},
                    {"chunk_bytes", plan.chunk * group.element},
                    {"time_us", static_cast<double>(plan.nanoseconds) / 1e3},
                    {"busbw_gbytes_per_s", BusBandwidth(group, answer.bytes, plan.nanoseconds)}};
  if (const std::optional<int64_t> simulated = answer.Simulated(plan)) {
    json["simulated_us"] = static_cast<double>(*simulated) / 1e3;
  }
  return json;
}

ordered_json Json(const CollectiveGroup& group, absl::Span<const CollectiveAnswer> answers) {
  ordered_json json{{"collective", ToString(group.kind)},
                    {"group", group.name},
                    {"ranks", group.ranks},
                    {"hosts", group.hosts},
                    {"fabric", group.fabric},
                    {"cores", group.table.cores},
                    {"cache_bytes", static_cast<int64_t>(group.table.cache_bytes)},
                    {"costs", group.table.source},
                    {"sizes", ordered_json::array()}};
  for (const CollectiveAnswer& answer : answers) {
    ordered_json plans = ordered_json::array();
    for (const planner::Plan& plan : answer.plans) {
      plans.push_back(PlanJson(group, answer, plan));
    }
    json["sizes"].push_back({{"bytes", answer.bytes},
                             {"choice", PlanJson(group, answer, answer.choice)},
                             {"why", answer.choice.why},
                             {"plans", std::move(plans)}});
    if (const std::optional<double> regret = answer.Regret()) {
      json["sizes"].back()["regret"] = *regret;
    }
  }
  return json;
}

Picture PictureOf(const CollectiveGroup& group, absl::Span<const CollectiveAnswer> answers) {
  Picture picture;
  picture.kind = ToString(group.kind);
  picture.group = group.Describe();
  picture.ranks = absl::StrCat(group.ranks, " ranks on ", group.hosts, " hosts");
  picture.fabric = group.fabric;
  for (const CollectiveAnswer& answer : answers) {
    if (!answer.simulated.empty()) picture.measure = "simulated";
    for (const planner::Plan& plan : answer.plans) {
      const bool chosen = plan.algorithm == answer.choice.algorithm;
      const planner::Plan& shown = chosen ? answer.choice : plan;
      const int64_t nanoseconds =
          answer.simulated.empty() ? shown.nanoseconds : answer.Simulated(shown).value_or(0);
      if (nanoseconds == 0) continue;  // not simulated
      picture.Add(plan.algorithm->name, static_cast<double>(answer.bytes),
                  BusBandwidth(group, answer.bytes, nanoseconds), chosen);
    }
  }
  return picture;
}

}  // namespace weft::plan
