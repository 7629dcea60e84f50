#include "tests/bench/init/report.h"

#include <string>

#include "absl/strings/str_format.h"
#include "tools/init/report.h"

namespace weft::init {

using Json = nlohmann::ordered_json;

Json PrintComparison(const Options& options, const Comparison& c) {
  absl::PrintF("all groups of %s, store %s\n\n", options.mesh.ToText(), options.store->name());
  absl::PrintF("%-44s %8s %8s %14s %12s\n", "how", "ranks", "groups", "messages", "time");
  Json rows = Json::array();
  for (const auto& row : c.one_by_one) {
    absl::PrintF("%-44s %8d %8d %14d %12s%s\n", "one by one, each with a barrier of all, as torch",
                 row.ranks, row.groups, row.messages, TimeText(row.seconds),
                 row.predicted ? "  predicted" : "");
    rows.push_back({{"ranks", row.ranks},
                    {"groups", row.groups},
                    {"messages", row.messages},
                    {"seconds", row.seconds},
                    {"predicted", row.predicted}});
  }
  const auto& exchange = c.exchange.phases[static_cast<size_t>(Phase::kExchange)];
  const auto& groups = c.exchange.phases[static_cast<size_t>(Phase::kGroups)];
  // Connecting and registering apart: both ways need that.
  double seconds = exchange.seconds + groups.seconds;
  const auto& last = c.one_by_one.back();
  absl::PrintF("%-44s %8d %8d %14d %12s\n", "from one exchange", c.exchange.ranks, last.groups,
               c.exchange.messages, TimeText(seconds));
  absl::PrintF("\none exchange is %.0f times as fast", last.seconds / seconds);
  if (last.predicted) {
    absl::PrintF(
        " as the prediction: (a + b ranks) x groups, whose smaller sizes give the largest "
        "measured one within %+.0f %%",
        c.error * 100);
  }
  absl::PrintF("\n");
  if (!c.exchange.note.empty()) absl::PrintF("note: %s\n", c.exchange.note);
  return {{"one_by_one", rows},
          {"prediction_error", c.error},
          {"exchange",
           {{"ranks", c.exchange.ranks}, {"messages", c.exchange.messages}, {"seconds", seconds}}},
          {"ratio", last.seconds / seconds}};
}

Json PrintFloor(const Options& options, const FloorMeasurement& m) {
  absl::PrintF(
      "%d ranks on %d hosts%s; %d processes and a thread that serves them, on this "
      "machine; nothing but the kernel's work\n\n",
      m.ranks, m.hosts,
      options.relay ? ", a Unix connection a rank and a TCP one a host"
                    : ", a TCP connection a rank",
      m.processes);
  absl::PrintF("%-60s %10s\n", "connections, their first messages, and an answer to all",
               TimeText(m.connect));
  std::string what =
      absl::StrFormat("%.1f KB to every %s", static_cast<double>(m.exchange_bytes) * 1e-3,
                      options.relay ? "host, into a memory file, compared" : "rank, not compared");
  absl::PrintF("%-60s %10s\n", what, TimeText(m.exchange));
  return {{"ranks", m.ranks},
          {"hosts", m.hosts},
          {"relay", options.relay},
          {"exchange_bytes", m.exchange_bytes},
          {"connect_seconds", m.connect},
          {"exchange_seconds", m.exchange}};
}

}  // namespace weft::init
