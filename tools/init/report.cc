#include "tools/init/report.h"

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/init/model.h"

namespace weft::init {
namespace {

using Json = nlohmann::ordered_json;

std::string Time(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.2f s", seconds);
  if (seconds >= 1e-3) return absl::StrFormat("%.2f ms", seconds * 1e3);
  return absl::StrFormat("%.1f us", seconds * 1e6);
}

}  // namespace

void PrintTable(const Options& options, const Measurement& m) {
  absl::PrintF(
      "%d ranks on %d hosts, layout %s, store weft%s; %d client processes and the server "
      "on this machine\n\n",
      m.ranks, m.hosts, options.mesh.ToText(), options.relay ? " with a relay a host" : "",
      m.workers);
  absl::PrintF("%-12s %10s   %10s %10s %10s   %s\n", "phase", "all ranks", "rank p50", "p99", "max",
               "slowest");
  for (size_t p = 0; p < kPhases; ++p) {
    const auto& phase = m.phases[p];
    absl::PrintF("%-12s %10s   %10s %10s %10s   rank %d on host%d\n",
                 ToString(static_cast<Phase>(p)), Time(phase.seconds), Time(phase.p50),
                 Time(phase.p99), Time(phase.max), phase.slowest,
                 phase.slowest / options.ranks_per_host());
  }
  absl::PrintF("%-12s %10s\n\n", "total", Time(m.total_seconds));
  absl::PrintF("messages: %d on all connections, %d of them with the root; server CPU %s\n",
               m.messages, m.root_messages, Time(m.server_cpu_seconds));
  if (options.replace > 0) {
    absl::PrintF(
        "%d ranks replaced: all that it concerns know after %s (%.1f %% of the total); "
        "%d groups' survivors heard of it\n",
        options.replace, Time(m.replace_seconds), m.replace_seconds / m.total_seconds * 100,
        m.watches);
  }
  std::fflush(stdout);
}

Json ToJson(const Options& options, const Measurement& m) {
  Json phases = Json::object();
  Json ranks = Json::object();
  for (size_t p = 0; p < kPhases; ++p) {
    const auto& phase = m.phases[p];
    const char* name = ToString(static_cast<Phase>(p));
    phases[name] = phase.seconds;
    ranks[name] = {
        {"p50", phase.p50},
        {"p99", phase.p99},
        {"max", phase.max},
        {"slowest_rank", phase.slowest},
        {"slowest_host", absl::StrCat("host", phase.slowest / options.ranks_per_host())}};
  }
  return {{"ranks", m.ranks},
          {"hosts", m.hosts},
          {"store", "weft"},
          {"relay", options.relay},
          {"layout", options.mesh.ToText()},
          {"phases", phases},
          {"rank_seconds", ranks},
          {"total_seconds", m.total_seconds},
          {"messages", m.messages},
          {"root_messages", m.root_messages},
          {"server_cpu_seconds", m.server_cpu_seconds},
          {"replaced", options.replace},
          {"replace_seconds", m.replace_seconds},
          {"workers", m.workers}};
}

Json PrintModel(const std::vector<Measurement>& runs) {
  std::vector<std::pair<double, double>> points;
  points.reserve(runs.size());
  for (const Measurement& run : runs) points.emplace_back(run.ranks, run.total_seconds);
  auto [last, measured] = points.back();
  Model before = Fit({points.begin(), points.end() - 1});
  double error = before(last) / measured - 1;
  Model model = Fit(points);
  absl::PrintF("\nmodel of the total on this machine: t(n) = a + b n + c n^2\n");
  for (const auto& [n, t] : points) absl::PrintF("  %7.0f ranks  measured %s\n", n, Time(t));
  absl::PrintF("  fitted to the smaller sizes it predicts %s for %.0f ranks: %+.0f %%\n",
               Time(before(last)), last, error * 100);
  absl::PrintF("  fitted to all: a %s, b %.3f us, c %.3f ns\n", Time(model.coefficients[0]),
               model.coefficients[1] * 1e6, model.coefficients[2] * 1e9);
  Json predictions = Json::object();
  for (double n : {12288.0, 16384.0, 32768.0, 98304.0}) {
    absl::PrintF("  %7.0f ranks  predicted %s\n", n, Time(model(n)));
    predictions[absl::StrCat(static_cast<int64_t>(n))] = model(n);
  }
  Json sizes = Json::object();
  for (const auto& [n, t] : points) sizes[absl::StrCat(static_cast<int64_t>(n))] = t;
  return {{"measured_seconds", sizes},
          {"coefficients", model.coefficients},
          {"error_at_largest", error},
          {"predicted_seconds", predictions}};
}

}  // namespace weft::init
