// sim-levels: what the flow level costs, and how near it is to the packet level. `tools/dev bench
// sim_flow` runs it; docs/benchmarks/sim-flow.md holds the tables.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/simulate/workloads.h"
#include "net/multipath/simulated.h"
#include "topology/fabric/clos.h"
#include "topology/sim/flow/flow.h"
#include "topology/sim/packet/options.h"
#include "topology/sim/workloads/registry.h"

namespace weft::topology {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string fabric = "8x16x16", level = "both", balance = "ecmp", transport = "go_back_n";
  std::vector<std::string> workloads{"permutation"};
  uint64_t seed = 1;
  double window = 0;
  bool acks = false, exact = false, json = false;
};

// "8x16x16": leaves x hosts of a leaf x spines, 400 Gbit/s and 1 us; "megascale:1536": hosts.
absl::StatusOr<Fabric> BuildFabric(const std::string& text) {
  int hosts = 0;
  if (std::sscanf(text.c_str(), "megascale:%d", &hosts) == 1) {
    WEFT_ASSIGN_OR_RETURN(const ClosSpec spec, MegaScaleClos(hosts));
    return BuildClos(spec);
  }
  ClosSpec spec;
  if (std::sscanf(text.c_str(), "%dx%dx%d", &spec.groups, &spec.hosts_per_group, &spec.spines) !=
      3) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fabric ", text, ": wanted is LEAVESxHOSTSxSPINES, as 8x16x16, or megascale:HOSTS"));
  }
  spec.leaf.delay = spec.spine.delay = absl::Microseconds(1);
  return BuildClos(spec);
}

double Now() { return absl::ToDoubleSeconds(SystemClock().Now() - absl::UnixEpoch()); }

int64_t PeakMiB() {  // of this process so far
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

// Times of the simulated world in microseconds, of this one in seconds.
Json Summary(const Workload& workload, const SimulationResult& result, double wall) {
  std::vector<double> times;
  double sum = 0;
  for (OperationId i = 0; i < workload.size(); ++i) {
    const OperationResult& one = result.operations[i];
    if (workload.operation(i).kind != OperationKind::kTransfer) continue;
    if (one.ended == absl::InfiniteDuration()) continue;
    times.push_back(absl::ToDoubleMicroseconds(one.ended - one.started));
    sum += times.back();
  }
  Json json = {{"end_us", absl::ToDoubleMicroseconds(result.end)},
               {"unfinished", result.unfinished},
               {"wall_seconds", wall},
               {"events", result.events}};
  if (times.empty()) return json;
  std::sort(times.begin(), times.end());
  json["mean_us"] = sum / static_cast<double>(times.size());
  json["p99_us"] = times[(times.size() - 1) * 99 / 100];
  json["max_us"] = times.back();
  return json;
}

LoadBalance BalanceOf(const Options& options) {
  return options.balance == "ecmp"    ? LoadBalance::kEcmp
         : options.balance == "spray" ? LoadBalance::kSpray
                                      : LoadBalance::kAdaptive;
}

absl::StatusOr<Json> RunFlow(const Options& options, const Fabric& fabric,
                             const Workload& workload) {
  FlowStatistics statistics;
  FlowOptions flow;
  flow.seed = options.seed;
  flow.load_balance = BalanceOf(options);
  flow.statistics = &statistics;
  if (options.exact) flow.late = 0;
  if (options.acks) flow.ack = Bytes(64);
  const double began = Now();
  WEFT_ASSIGN_OR_RETURN(const SimulationResult result, SimulateFlows(fabric, workload, flow));
  Json json = Summary(workload, result, Now() - began);
  json["flows"] = statistics.flows;
  json["solves"] = statistics.solves;
  json["rates"] = statistics.rates;
  return json;
}

absl::StatusOr<Json> RunPacket(const Options& options, const Fabric& fabric,
                               const Workload& workload) {
  PacketOptions packet;
  packet.seed = options.seed;
  packet.load_balance = BalanceOf(options);
  if (options.transport != "go_back_n") packet.transport = TransportKind::kSelective;
  if (options.transport == "nscc") {
    packet.make_congestion =
        net::multipath::SimulatedControllers({.kind = net::ControllerKind::kNscc}, /*hops=*/3);
    packet.ecn.enabled = true;
  }
  packet.window = Bytes(static_cast<int64_t>(options.window));
  const double began = Now();
  WEFT_ASSIGN_OR_RETURN(const SimulationResult result, SimulatePackets(fabric, workload, packet));
  return Summary(workload, result, Now() - began);
}

void Print(const char* level, const Json& json) {
  std::printf("  %-7s end %.1f us", level, json["end_us"].get<double>());
  for (const char* key : {"mean_us", "p99_us", "max_us"}) {
    if (json.contains(key)) std::printf("  %.4s %.1f", key, json[key].get<double>());
  }
  std::printf("  unfinished %lld\n          %.2f s", json["unfinished"].get<long long>(),
              json["wall_seconds"].get<double>());
  for (const char* key : {"events", "flows", "solves", "rates"}) {
    if (json.contains(key)) std::printf("  %s %lld", key, json[key].get<long long>());
  }
  std::printf("\n");
}

absl::Status RunOne(const Options& options, const Fabric& fabric, const std::string& text) {
  const double began = Now();
  WEFT_ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(text, fabric, options.seed,
                                                              collectives::CollectiveWorkloads()));
  Json json = {{"workload", text},
               {"operations", workload.size()},
               {"transfers", workload.transfers()},
               {"build_seconds", Now() - began}};
  if (options.level != "packet") {
    WEFT_ASSIGN_OR_RETURN(json["flow"], RunFlow(options, fabric, workload));
    json["flow"]["max_rss_mb"] =
        PeakMiB();  // nothing larger ran before it, in a process of its own
  }
  if (options.level != "flow") {
    WEFT_ASSIGN_OR_RETURN(json["packet"], RunPacket(options, fabric, workload));
  }
  if (options.json) {
    std::printf("%s\n", json.dump().c_str());
    return absl::OkStatus();
  }
  std::printf("%s: %zu operations, %lld transfers, built in %.2f s\n", text.c_str(),
              workload.size(), static_cast<long long>(workload.transfers()),
              json["build_seconds"].get<double>());
  for (const char* level : {"flow", "packet"}) {
    if (json.contains(level)) Print(level, json[level]);
  }
  if (options.level != "both") return absl::OkStatus();
  auto ratio = [&](const char* key) {
    return json["flow"][key].get<double>() / json["packet"][key].get<double>();
  };
  std::printf("  flow / packet: end %.3f", ratio("end_us"));
  if (json["packet"].contains("p99_us")) std::printf("  p99 %.3f", ratio("p99_us"));
  std::printf("  speed %.0f\n", 1 / ratio("wall_seconds"));
  return absl::OkStatus();
}

absl::Status Main(const Options& options) {
  WEFT_ASSIGN_OR_RETURN(const Fabric fabric, BuildFabric(options.fabric));
  if (!options.json) {
    std::printf("%s: %d nodes, %d links\n", options.fabric.c_str(), fabric.nodes(), fabric.links());
  }
  for (const std::string& text : options.workloads) {
    WEFT_RETURN_IF_ERROR(RunOne(options, fabric, text));
    std::fflush(stdout);
  }
  if (!options.json) std::printf("largest memory: %lld MiB\n", static_cast<long long>(PeakMiB()));
  return absl::OkStatus();
}

}  // namespace
}  // namespace weft::topology

int main(int argc, char** argv) {
  weft::topology::Options options;
  CLI::App app("Times the flow level of the simulator and compares it with the packet level.");
  app.add_option("--fabric", options.fabric, "LEAVESxHOSTSxSPINES or megascale:HOSTS")
      ->capture_default_str();
  app.add_option("--workload", options.workloads, "name:key=value,...; several may be given")
      ->capture_default_str();
  app.add_option("--level", options.level)
      ->check(CLI::IsMember({"flow", "packet", "both"}))
      ->capture_default_str();
  app.add_option("--load-balance", options.balance)
      ->check(CLI::IsMember({"ecmp", "spray", "adaptive"}))
      ->capture_default_str();
  app.add_option("--transport", options.transport, "of the packet level")
      ->check(CLI::IsMember({"go_back_n", "selective", "nscc"}))
      ->capture_default_str();
  app.add_option("--window", options.window, "bytes in flight of a transfer at the packet level")
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_flag("--ack", options.acks, "flow level: an acknowledgement of 64 bytes a packet");
  app.add_flag("--exact", options.exact, "flow level: rates are never late");
  app.add_flag("--json", options.json, "a JSON object a workload, and nothing else");
  app.footer(weft::topology::WorkloadHelp({}));
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = weft::topology::Main(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "sim-levels: %s\n", std::string(status.message()).c_str());
  return 1;
}
