#include "tools/init/report.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/init/model.h"
#include "tools/init/peer_links.h"

namespace weft::init {
namespace {

using Json = nlohmann::ordered_json;

// In which a rank took longest.
size_t SlowestPhase(const Measurement& m) {
  auto longest = std::max_element(m.phases.begin(), m.phases.end(),
                                  [](const auto& a, const auto& b) { return a.max < b.max; });
  return static_cast<size_t>(longest - m.phases.begin());
}

}  // namespace

std::string TimeText(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.2f s", seconds);
  if (seconds >= 1e-3) return absl::StrFormat("%.2f ms", seconds * 1e3);
  return absl::StrFormat("%.1f us", seconds * 1e6);
}

void PrintTable(const Options& options, const Measurement& m) {
  absl::PrintF(
      "%d ranks on %d hosts, layout %s, store %s%s; %d client processes and the server "
      "on this machine\n\n",
      m.ranks, m.hosts, options.mesh.ToText(), options.store->name(),
      !options.relay ? ""
      : options.fan_out == 0
          ? " with a relay a host"
          : absl::StrCat(" with a relay a host and one above each ", options.fan_out),
      m.workers);
  absl::PrintF("%-12s %10s   %10s %10s %10s   %s\n", "phase", "all ranks", "rank p50", "p99", "max",
               "slowest");
  for (size_t p = 0; p < kPhases; ++p) {
    const auto& phase = m.phases[p];
    absl::PrintF("%-12s %10s   %10s %10s %10s   rank %d on host%d\n",
                 ToString(static_cast<Phase>(p)), TimeText(phase.seconds), TimeText(phase.p50),
                 TimeText(phase.p99), TimeText(phase.max), phase.slowest,
                 phase.slowest / options.ranks_per_host());
  }
  absl::PrintF("%-12s %10s\n\n", "total", TimeText(m.total_seconds));
  size_t slowest = SlowestPhase(m);
  absl::PrintF("slowest of all: rank %d on host%d, %s in %s\n", m.phases[slowest].slowest,
               m.phases[slowest].slowest / options.ranks_per_host(),
               TimeText(m.phases[slowest].max), ToString(static_cast<Phase>(slowest)));
  absl::PrintF("messages: %d on all connections, %d of them with the root; server CPU %s\n",
               m.messages, m.root_messages,
               m.server_cpu_seconds < 0 ? "unknown" : TimeText(m.server_cpu_seconds));
  if (!options.group_maker) {
    absl::PrintF("records: %.1f KB to a %s, %s%s\n", static_cast<double>(m.exchange_bytes) * 1e-3,
                 options.relay ? "host" : "rank",
                 options.all_records ? "those of all" : "those that it needs, on average",
                 m.root_bytes < 0 ? ""
                                  : absl::StrFormat("; the root sent %.1f MB in all",
                                                    static_cast<double>(m.root_bytes) * 1e-6));
  }
  int sampled = options.group_maker ? 0 : SampledRanks(options);
  absl::PrintF("connections between ranks: %d opened", m.connections);
  if (sampled < m.ranks) {
    absl::PrintF(", all of those of %d ranks on evenly spread hosts (--connect-ranks)", sampled);
  }
  absl::PrintF("\n");
  if (!m.note.empty()) absl::PrintF("note: %s\n", m.note);
  if (options.replace > 0) {
    absl::PrintF(
        "%d ranks replaced: all that it concerns know after %s (%.1f %% of the total); "
        "%d groups' survivors heard of it\n",
        options.replace, TimeText(m.replace_seconds), m.replace_seconds / m.total_seconds * 100,
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
  size_t slowest = SlowestPhase(m);
  return {
      {"ranks", m.ranks},
      {"hosts", m.hosts},
      {"store", options.store->name()},
      {"relay", options.relay},
      {"fan_out", options.fan_out},
      {"layout", options.mesh.ToText()},
      {"phases", phases},
      {"rank_seconds", ranks},
      {"slowest",
       {{"rank", m.phases[slowest].slowest},
        {"host", absl::StrCat("host", m.phases[slowest].slowest / options.ranks_per_host())},
        {"phase", ToString(static_cast<Phase>(slowest))},
        {"seconds", m.phases[slowest].max}}},
      {"total_seconds", m.total_seconds},
      {"messages", m.messages},
      {"root_messages", m.root_messages},
      {"records", options.all_records ? "all" : "wanted"},
      {"exchange_bytes", m.exchange_bytes},
      {"root_sent_bytes", m.root_bytes < 0 ? Json(nullptr) : Json(m.root_bytes)},
      {"connections", m.connections},
      {"connect_ranks", SampledRanks(options)},
      {"server_cpu_seconds", m.server_cpu_seconds < 0 ? Json(nullptr) : Json(m.server_cpu_seconds)},
      {"note", m.note},
      {"replaced", options.replace},
      {"replace_seconds", m.replace_seconds},
      {"workers", m.workers}};
}

Json PrintModel(const std::vector<Measurement>& runs) {
  std::vector<std::pair<double, double>> points;
  points.reserve(runs.size());
  for (const Measurement& run : runs) points.emplace_back(run.ranks, run.total_seconds);
  auto [last, measured] = points.back();
  auto [first, smallest] = points.front();
  Model before = Fit({points.begin(), points.end() - 1});
  double error = before(last) / measured - 1;
  Model model = Fit(points);
  absl::PrintF("\nmodel of the total on this machine: t(n) = a + b n + c n^2\n");
  for (const auto& [n, t] : points) absl::PrintF("  %7.0f ranks  measured %s\n", n, TimeText(t));
  absl::PrintF("  fitted to the smaller sizes it predicts %s for %.0f ranks: %+.0f %%\n",
               TimeText(before(last)), last, error * 100);
  absl::PrintF("  from %.0f to %.0f ranks, %.0f times as many, it takes %.1f times as long\n",
               first, last, last / first, measured / smallest);
  absl::PrintF("  fitted to all: a %s, b %.3f us, c %.3f ns\n", TimeText(model.coefficients[0]),
               model.coefficients[1] * 1e6, model.coefficients[2] * 1e9);
  Json predictions = Json::object();
  for (double n : {12288.0, 16384.0, 32768.0, 98304.0}) {
    absl::PrintF("  %7.0f ranks  predicted %s\n", n, TimeText(model(n)));
    predictions[absl::StrCat(static_cast<int64_t>(n))] = model(n);
  }
  Json sizes = Json::object();
  for (const auto& [n, t] : points) sizes[absl::StrCat(static_cast<int64_t>(n))] = t;
  return {{"measured_seconds", sizes},
          {"coefficients", model.coefficients},
          {"error_at_largest", error},
          {"growth", measured / smallest},
          {"predicted_seconds", predictions}};
}

Json PrintOps(const Options& options, const OpsMeasurement& ops) {
  absl::PrintF("store %s; one client thread and the server on this machine; 64 B values\n\n",
               options.store->name());
  absl::PrintF("%-5s %12s %7s %13s %11s %11s %13s %12s %18s %9s\n", "op", "connections", "depth",
               "operations/s", "p50", "p99", "messages/op", "server CPU", "reads+writes/op",
               "waits/op");
  auto calls = [](double value) {
    return value < 0 ? std::string("unknown") : absl::StrFormat("%.3f", value);
  };
  auto json = [](double value) { return value < 0 ? Json(nullptr) : Json(value); };
  Json rows = Json::array();
  for (const OpsResult& row : ops.rows) {
    absl::PrintF("%-5s %12d %7d %13.0f %11s %11s %13.2f %12s %18s %9s\n", row.op, row.connections,
                 row.depth, row.per_second, TimeText(row.p50), TimeText(row.p99), row.messages,
                 row.server_cpu < 0 ? "unknown" : TimeText(row.server_cpu),
                 calls(row.reads_and_writes), calls(row.waits));
    rows.push_back({{"op", row.op},
                    {"connections", row.connections},
                    {"depth", row.depth},
                    {"operations", row.operations},
                    {"per_second", row.per_second},
                    {"p50_seconds", row.p50},
                    {"p99_seconds", row.p99},
                    {"messages_per_operation", row.messages},
                    {"server_reads_and_writes_per_operation", json(row.reads_and_writes)},
                    {"server_waits_per_operation", json(row.waits)},
                    {"server_cpu_seconds_per_operation", json(row.server_cpu)}});
  }
  if (!ops.note.empty()) absl::PrintF("note: %s\n", ops.note);
  return {{"store", options.store->name()}, {"ops", rows}, {"note", ops.note}};
}

Json PrintNewGroup(const NewGroupMeasurement& m) {
  double made = m.made[m.made.size() / 2];
  double ready = m.ready[m.ready.size() / 2];
  absl::PrintF("%d processes on this host, each rank's slowest\n\n", m.ranks);
  absl::PrintF("%-52s %10s\n", "endpoint: every process knows every other", TimeText(m.endpoint));
  absl::PrintF("%-52s %10s\n", "world, and its first barrier, which makes links",
               TimeText(m.world));
  absl::PrintF("%-52s %10s  (%s - %s)\n", "new group over all ranks: made", TimeText(made),
               TimeText(m.made.front()), TimeText(m.made.back()));
  absl::PrintF("%-52s %10s  (%s - %s)\n", "  and its first barrier over: all know that all have it",
               TimeText(ready), TimeText(m.ready.front()), TimeText(m.ready.back()));
  return {{"ranks", m.ranks},
          {"endpoint_seconds", m.endpoint},
          {"world_seconds", m.world},
          {"made_seconds", made},
          {"ready_seconds", ready},
          {"all_made_seconds", m.made},
          {"all_ready_seconds", m.ready}};
}

Json PrintNccl(const Options& options, const NcclMeasurement& m) {
  absl::PrintF("%d ranks on this host, layout %s; %s\n\n", m.ranks, options.mesh.ToText(),
               m.device);
  auto row = [](const char* what, double seconds) {
    absl::PrintF("%-66s %10s\n", what, TimeText(seconds));
  };
  row("exchange: every rank has its groups' unique ids", m.exchange);
  row(m.scales ? "groups, from all of their ids (ncclCommInitRankScalable)"
               : "groups, from an id each (ncclCommInitRank)",
      m.from_ids);
  row("  and the first all-reduce on each", m.first_sum);
  row("a communicator of all ranks", m.world);
  row(m.splits ? "groups once more, split off it (ncclCommSplit)"
               : "groups once more, from an id each: this NCCL has no ncclCommSplit",
      m.split);
  if (m.shared) {
    absl::PrintF(
        "note: ranks share GPUs, as if each were a host of its own; their times are not "
        "those of a GPU each\n");
  }
  return {{"ranks", m.ranks},
          {"device", m.device},
          {"splits", m.splits},
          {"scales", m.scales},
          {"shared_gpus", m.shared},
          {"exchange_seconds", m.exchange},
          {"from_ids_seconds", m.from_ids},
          {"first_all_reduce_seconds", m.first_sum},
          {"world_seconds", m.world},
          {"split_seconds", m.split}};
}

}  // namespace weft::init
