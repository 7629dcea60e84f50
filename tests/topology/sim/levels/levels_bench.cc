// sim-levels: what the flow level costs, and how near it is to the packet level. One line a
// workload; docs/benchmarks/sim-flow.md holds its tables and the commands behind them.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "topology/fabric/clos.h"
#include "topology/sim/flow/flow.h"
#include "topology/sim/packet/options.h"
#include "topology/sim/workloads/registry.h"

namespace weft::topology {
namespace {

struct Options {
  std::string fabric = "8x16x16", level = "both", balance = "ecmp", transport = "go_back_n";
  std::vector<std::string> workloads{"permutation"};
  uint64_t seed = 1;
  bool derate = false;
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

struct Outcome {
  double end = 0, mean = 0, p99 = 0, max = 0;  // microseconds
  double wall = 0;                             // seconds
  int64_t unfinished = 0, events = 0;
};

Outcome Summarize(const Workload& workload, const SimulationResult& result, double wall) {
  Outcome outcome{.end = absl::ToDoubleMicroseconds(result.end),
                  .wall = wall,
                  .unfinished = result.unfinished,
                  .events = result.events};
  std::vector<double> times;
  for (OperationId i = 0; i < workload.size(); ++i) {
    const OperationResult& one = result.operations[i];
    if (workload.operation(i).kind != OperationKind::kTransfer) continue;
    if (one.ended == absl::InfiniteDuration()) continue;
    times.push_back(absl::ToDoubleMicroseconds(one.ended - one.started));
    outcome.mean += times.back();
  }
  if (times.empty()) return outcome;
  std::sort(times.begin(), times.end());
  outcome.mean /= static_cast<double>(times.size());
  outcome.p99 = times[(times.size() - 1) * 99 / 100];
  outcome.max = times.back();
  return outcome;
}

double Now() { return absl::ToDoubleSeconds(SystemClock().Now() - absl::UnixEpoch()); }

absl::Status RunOne(const Options& options, const Fabric& fabric, const std::string& text) {
  const LoadBalance balance = options.balance == "ecmp"    ? LoadBalance::kEcmp
                              : options.balance == "spray" ? LoadBalance::kSpray
                                                           : LoadBalance::kAdaptive;
  double began = Now();
  WEFT_ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(text, fabric, options.seed));
  std::printf("%s: %zu operations, %lld transfers, built in %.2f s\n", text.c_str(),
              workload.size(), static_cast<long long>(workload.transfers()), Now() - began);
  Outcome flow, packet;
  if (options.level != "packet") {
    FlowStatistics statistics;
    FlowOptions flow_options;
    flow_options.seed = options.seed;
    flow_options.load_balance = balance;
    flow_options.statistics = &statistics;
    if (options.derate) flow_options.ack = Bytes(64);
    began = Now();
    WEFT_ASSIGN_OR_RETURN(const SimulationResult result,
                          SimulateFlows(fabric, workload, flow_options));
    flow = Summarize(workload, result, Now() - began);
    std::printf(
        "  flow    end %.1f us  mean %.1f  p99 %.1f  max %.1f  unfinished %lld\n"
        "          %.2f s: %lld flows, %.0f a second; %.0f events a second; %lld solves, "
        "%lld rates\n",
        flow.end, flow.mean, flow.p99, flow.max, static_cast<long long>(flow.unfinished), flow.wall,
        static_cast<long long>(statistics.flows), static_cast<double>(statistics.flows) / flow.wall,
        static_cast<double>(flow.events) / flow.wall, static_cast<long long>(statistics.solves),
        static_cast<long long>(statistics.rates));
  }
  if (options.level != "flow") {
    PacketOptions packet_options;
    packet_options.seed = options.seed;
    packet_options.load_balance = balance;
    if (options.transport != "go_back_n") packet_options.transport = TransportKind::kSelective;
    if (options.transport == "nscc") {
      packet_options.congestion = CongestionKind::kNscc;
      packet_options.ecn.enabled = true;
    }
    began = Now();
    WEFT_ASSIGN_OR_RETURN(const SimulationResult result,
                          SimulatePackets(fabric, workload, packet_options));
    packet = Summarize(workload, result, Now() - began);
    std::printf(
        "  packet  end %.1f us  mean %.1f  p99 %.1f  max %.1f  unfinished %lld\n"
        "          %.2f s; %.0f events a second\n",
        packet.end, packet.mean, packet.p99, packet.max, static_cast<long long>(packet.unfinished),
        packet.wall, static_cast<double>(packet.events) / packet.wall);
  }
  if (options.level == "both") {
    std::printf("  flow / packet: end %.3f", flow.end / packet.end);
    if (packet.p99 > 0) std::printf("  p99 %.3f", flow.p99 / packet.p99);
    std::printf("  speed %.0f\n", packet.wall / flow.wall);
  }
  return absl::OkStatus();
}

absl::Status Main(const Options& options) {
  WEFT_ASSIGN_OR_RETURN(const Fabric fabric, BuildFabric(options.fabric));
  std::printf("%s: %d nodes, %d links\n", options.fabric.c_str(), fabric.nodes(), fabric.links());
  for (const std::string& text : options.workloads) {
    WEFT_RETURN_IF_ERROR(RunOne(options, fabric, text));
    std::fflush(stdout);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("largest memory: %ld MiB\n", usage.ru_maxrss / 1024);
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
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_flag("--ack", options.derate, "flow level: leave 64 bytes a packet to acknowledgements");
  app.footer(weft::topology::WorkloadHelp());
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = weft::topology::Main(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "sim-levels: %s\n", std::string(status.message()).c_str());
  return 1;
}
