#include "tools/observe/table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"
#include "base/median.h"
#include "tools/observe/rules.h"

namespace weft::observe {
namespace {

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// What the finding calls this rank; "" where none does.
std::string MarkOf(const std::vector<Finding>& findings, int rank) {
  for (const Finding& finding : findings) {
    const auto& culprits = finding.culprits;
    if (std::find(culprits.begin(), culprits.end(), rank) != culprits.end()) {
      return ToString(finding.fault);
    }
  }
  return "";
}

std::string StateText(const RankView& rank) {
  if (!rank.state.known) return "-";
  if (rank.process.ended_ns != 0) return "ended";
  if (rank.state.gone()) return "gone";
  if (rank.state.stopped()) return "stopped";
  return std::string(1, rank.state.state);
}

double Exposed(const RankView& rank) {
  double waited = 0, total = 0;
  for (const StepTimes& step : rank.steps) waited += step.waiting(), total += step.total();
  return total > 0 ? waited / total : 0;
}

std::string DoingText(const JobView& view, const RankView& rank) {
  if (rank.open.empty()) return "";
  return absl::StrFormat("%s for %.1f s", CallText(rank.open.front()),
                         Seconds(view.now_ns - rank.open.front().record.start_ns));
}

// The last collective of each group; without an end it is under way.
nlohmann::ordered_json CallsJson(const RankView& rank) {
  auto out = nlohmann::ordered_json::array();
  for (const auto& [group, calls] : rank.calls) {
    if (calls.empty()) continue;
    const Call& call = calls.back();
    nlohmann::ordered_json row = {{"kind", call.name},
                                  {"group", group},
                                  {"sequence", call.record.sequence},
                                  {"bytes", call.record.bytes},
                                  {"start_ns", call.record.start_ns}};
    if (call.record.end_ns != 0) row["end_ns"] = call.record.end_ns;
    out.push_back(std::move(row));
  }
  return out;
}

nlohmann::ordered_json FlowsJson(const RankView& rank) {
  auto out = nlohmann::ordered_json::array();
  for (const auto& [key, flow] : rank.flows) {
    out.push_back({{"peer", key.first},
                   {"sends", key.second},
                   {"transport", flow.transport},
                   {"bytes_matched", flow.record.bytes_matched},
                   {"bytes_done", flow.record.bytes_done},
                   {"outstanding", flow.record.outstanding},
                   {"waiting", flow.record.waiting},
                   {"stuck_ms", flow.record.stuck_ms},
                   {"rtt_us", flow.record.rtt_us},
                   {"repeats", flow.record.repeats}});
  }
  return out;
}

// What found no room to be recorded: the last that the process has said.
int64_t Dropped(const RankView& rank) {
  int64_t dropped = 0;
  for (const std::string& line : rank.process.lines) {
    absl::string_view text = line;
    int64_t number = 0;
    if (absl::ConsumePrefix(&text, "dropped ") && absl::SimpleAtoi(text, &number)) dropped = number;
  }
  return dropped;
}

}  // namespace

double TokensPerSecond(const JobView& view) {
  std::vector<double> rates;
  for (const auto& [number, rank] : view.ranks) {
    if (rank.steps.empty() || rank.steps.back().total() <= 0) continue;
    rates.push_back(static_cast<double>(rank.steps.back().tokens) / rank.steps.back().total());
  }
  return UpperMedian(std::move(rates));
}

std::string JobTable(const JobView& view, const std::vector<Finding>& findings, size_t rows) {
  int64_t step = -1;
  double loss = 0;
  for (const auto& [number, rank] : view.ranks) {
    if (!rank.steps.empty() && rank.steps.back().step >= step) {
      step = rank.steps.back().step;
      loss = rank.steps.back().loss;
    }
  }
  std::string text = absl::StrFormat("job %s   %d of %d ranks here%s", view.job, view.ranks.size(),
                                     view.world_size,
                                     view.mesh.empty() ? "" : absl::StrCat("   mesh ", view.mesh));
  if (step >= 0) {
    absl::StrAppendFormat(&text, "   step %d   loss %.4f   %.0f tokens/s", step, loss,
                          TokensPerSecond(view));
  }
  if (!view.other_jobs.empty()) {
    absl::StrAppend(&text, "\n", view.other_jobs.size(), " more ",
                    view.other_jobs.size() == 1 ? "job is" : "jobs are",
                    " alive: ", absl::StrJoin(view.other_jobs, ", "), " (--job)");
  }
  absl::StrAppendFormat(&text, "\n\n%5s %-12s %7s %-7s %-20s %8s %8s %8s %8s  %s\n", "rank", "host",
                        "pid", "state", "phase", "step", "step ms", "exposed", "memory", "doing");
  std::vector<const RankView*> order;
  for (const auto& [number, rank] : view.ranks) order.push_back(&rank);
  std::stable_partition(order.begin(), order.end(), [&](const RankView* rank) {
    return !MarkOf(findings, rank->rank()).empty();
  });
  const size_t shown = rows == 0 ? order.size() : std::min(rows, order.size());
  std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown),
            [](const RankView* a, const RankView* b) { return a->rank() < b->rank(); });
  for (size_t i = 0; i < shown; ++i) {
    const RankView& rank = *order[i];
    const std::string mark = MarkOf(findings, rank.rank());
    const double last = rank.steps.empty() ? 0 : rank.steps.back().total();
    absl::StrAppendFormat(
        &text, "%5d %-12s %7d %-7s %-20s %8d %8.1f %7.1f%% %5d MB  %s%s\n", rank.rank(),
        rank.process.host.substr(0, 12), rank.process.pid, StateText(rank),
        rank.process.phase.empty() ? "-" : rank.process.phase.substr(0, 20), rank.process.step,
        last * 1e3, Exposed(rank) * 100, rank.state.resident_bytes >> 20,
        mark.empty() ? "" : absl::StrCat("<< ", mark, "  "), DoingText(view, rank));
  }
  if (shown < order.size()) {
    absl::StrAppend(&text, "  and ", order.size() - shown, " more ranks\n");
  }
  if (!findings.empty()) text += '\n';
  for (const Finding& finding : findings) text += ToText(finding);
  return text;
}

std::string JobJson(const JobView& view, const std::vector<Finding>& findings, uint64_t received) {
  nlohmann::ordered_json out = nlohmann::ordered_json::parse(ToJson(view, findings));
  out["mesh"] = view.mesh;
  out["other_jobs"] = view.other_jobs;
  out["tokens_per_second"] = TokensPerSecond(view);
  out["received_bytes"] = received;
  out["ranks"] = nlohmann::json::array();
  for (const auto& [number, rank] : view.ranks) {
    nlohmann::ordered_json row = {{"rank", number},
                                  {"host", rank.process.host},
                                  {"pid", rank.process.pid},
                                  {"state", StateText(rank)},
                                  {"phase", rank.process.phase},
                                  {"step", rank.process.step},
                                  {"exposed_ratio", Exposed(rank)},
                                  {"resident_bytes", rank.state.resident_bytes},
                                  {"open_calls", rank.open.size()},
                                  {"calls", CallsJson(rank)},
                                  {"flows", FlowsJson(rank)},
                                  {"records_lost", rank.lost},
                                  {"events_dropped", Dropped(rank)},
                                  {"mark", MarkOf(findings, number)}};
    if (!rank.steps.empty()) {
      row["step_seconds"] = rank.steps.back().total();
      row["loss"] = rank.steps.back().loss;
    }
    out["ranks"].push_back(std::move(row));
  }
  return JsonText(out);
}

}  // namespace weft::observe
