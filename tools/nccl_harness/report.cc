#include "tools/nccl_harness/report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"
#include "base/write_file.h"

namespace weft::harness {
namespace {

using nlohmann::ordered_json;

double GigabytesPerSecond(const Measured& row) {
  return row.time_us > 0 ? static_cast<double>(row.bytes) / row.time_us / 1e3 : 0;
}

std::string Figures(const Outcome& outcome) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : outcome.figures) {
    texts.push_back(absl::StrFormat("%s %.6g", name, value));
  }
  return absl::StrJoin(texts, ", ");
}

// nccl-tests' columns, and the half round trip.
void PrintMeasured(const Outcome& outcome) {
  std::puts("#       size     latency        time     algbw     busbw   #wrong");
  std::puts("#        (B)        (us)        (us)    (GB/s)    (GB/s)");
  for (const Measured& row : outcome.measured) {
    double bandwidth = GigabytesPerSecond(row);
    absl::PrintF("%12d %11.2f %11.2f %9.2f %9.2f %8d\n", row.bytes, row.half_round_trip_us,
                 row.time_us, bandwidth, bandwidth, row.wrong);
  }
}

}  // namespace

void PrintContracts() {
  for (const ContractRow& row : Contracts()) {
    absl::PrintF("%-25s %s\n", row.name, row.sentence);
  }
}

void PrintHead(const PluginInfo& plugin, const Options& options) {
  absl::PrintF("# plugin \"%s\", %s, tables v%s\n", plugin.name, plugin.path,
               absl::StrJoin(plugin.versions, " v"));
  absl::PrintF("# two ranks as %s, device %d, seed %d\n",
               options.threads ? "threads of one process" : "processes", options.device,
               options.seed);
}

void PrintOutcome(const Outcome& outcome) {
  absl::PrintF("v%-2d %-16s %6.2f s  %s%s%s\n", outcome.version, ToString(outcome.scenario),
               outcome.seconds,
               outcome.kept()             ? "kept"
               : outcome.breaches.empty() ? "FAILED"
                                          : "BROKEN",
               outcome.figures.empty() ? "" : "  ", Figures(outcome));
  for (const Breach& breach : outcome.breaches) {
    absl::PrintF("    %s, rank %d, %d times: %s\n", RowOf(breach.contract).name, breach.rank,
                 breach.count, breach.detail);
  }
  if (!outcome.failure.empty()) absl::PrintF("    %s\n", outcome.failure);
  if (!outcome.measured.empty()) PrintMeasured(outcome);
  std::fflush(stdout);
}

bool Keeps(const std::vector<Outcome>& outcomes) {
  return std::all_of(outcomes.begin(), outcomes.end(),
                     [](const Outcome& outcome) { return outcome.kept(); });
}

void PrintVerdict(const std::vector<Outcome>& outcomes) {
  std::set<std::string> broken;
  for (const Outcome& outcome : outcomes) {
    for (const Breach& breach : outcome.breaches) {
      broken.insert(std::string(RowOf(breach.contract).name));
    }
  }
  if (broken.empty()) {
    absl::PrintF("# no contract of %d is broken%s\n", Contracts().size(),
                 Keeps(outcomes) ? "" : ", but not all was tried");
    return;
  }
  absl::PrintF("# broken: %s (weft-nccl-harness --contracts says what they ask)\n",
               absl::StrJoin(broken, ", "));
}

absl::Status WriteJson(const std::string& path, const PluginInfo& plugin, const Options& options,
                       const std::vector<Outcome>& outcomes) {
  ordered_json scenarios = ordered_json::array();
  for (const Outcome& outcome : outcomes) {
    ordered_json breaches = ordered_json::array(), measured = ordered_json::array(),
                 figures = ordered_json::object();
    for (const Breach& breach : outcome.breaches) {
      breaches.push_back({{"contract", std::string(RowOf(breach.contract).name)},
                          {"rank", breach.rank},
                          {"count", breach.count},
                          {"detail", breach.detail}});
    }
    for (const Measured& row : outcome.measured) {
      measured.push_back({{"bytes", row.bytes},
                          {"latency_us", row.half_round_trip_us},
                          {"time_us", row.time_us},
                          {"gigabytes_per_second", GigabytesPerSecond(row)},
                          {"wrong_bytes", row.wrong}});
    }
    for (const auto& [name, value] : outcome.figures) figures[name] = value;
    scenarios.push_back({{"version", outcome.version},
                         {"scenario", ToString(outcome.scenario)},
                         {"seconds", outcome.seconds},
                         {"broken", breaches},
                         {"failure", outcome.failure},
                         {"figures", figures},
                         {"measured", measured}});
  }
  ordered_json all = {{"plugin", plugin.path},
                      {"name", plugin.name},
                      {"tables", plugin.versions},
                      {"seed", options.seed},
                      {"scenarios", scenarios}};
  return WriteOutput(path, JsonText(all, 2) + "\n");
}

}  // namespace weft::harness
