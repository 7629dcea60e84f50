#include "tools/cc/run.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/status.h"
#include "collectives/simulate/workloads.h"
#include "topology/fabric/faults.h"
#include "topology/fabric/load.h"
#include "topology/sim/workloads/registry.h"

namespace weft::cc {
namespace {

using topology::Fabric;
using topology::LinkResult;
using topology::OperationKind;
using topology::SimulationResult;
using topology::Workload;

double Percentile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  auto at = static_cast<size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)));
  return sorted[std::min(at, sorted.size() - 1)];
}

// Payload over what the receiving NICs could have taken until the last byte came.
double Goodput(const Fabric& fabric, const Workload& workload, const SimulationResult& result) {
  double bytes = 0, could = 0;
  std::set<int> targets;
  for (topology::OperationId id = 0; id < workload.size(); ++id) {
    const topology::Operation& one = workload.operation(id);
    if (one.kind != OperationKind::kTransfer) continue;
    bytes += static_cast<double>(one.bytes.count());
    targets.insert(fabric.IndexOf(one.target));
  }
  auto endpoints = fabric.Endpoints();
  for (int target : targets) {
    for (LinkId port : fabric.Ports(endpoints[static_cast<size_t>(target)])) {
      could += fabric.link(port).bandwidth.bytes_per_second();
    }
  }
  could *= absl::ToDoubleSeconds(result.end);
  return could > 0 ? bytes / could : 0;
}

Outcome Summarise(const Fabric& fabric, const Workload& workload, const SimulationResult& result) {
  Outcome outcome;
  std::vector<double> times;
  double sum = 0, sum_squares = 0;
  for (topology::OperationId id = 0; id < workload.size(); ++id) {
    const topology::OperationResult& one = result.operations[id];
    if (workload.operation(id).kind != OperationKind::kTransfer) continue;
    if (one.acknowledged == absl::InfiniteDuration()) continue;
    double time = absl::ToDoubleMicroseconds(one.acknowledged - one.started);
    times.push_back(time);
    outcome.fct_mean_us += time;
    double rate = static_cast<double>(workload.operation(id).bytes.count()) / time;
    sum += rate;
    sum_squares += rate * rate;
  }
  std::sort(times.begin(), times.end());
  auto count = static_cast<double>(std::max<size_t>(1, times.size()));
  outcome.fct_mean_us /= count;
  outcome.fct_p50_us = Percentile(times, 0.5);
  outcome.fct_p99_us = Percentile(times, 0.99);
  outcome.fct_max_us = times.empty() ? 0 : times.back();
  outcome.fairness = sum_squares > 0 ? sum * sum / (count * sum_squares) : 0;
  outcome.goodput = Goodput(fabric, workload, result);
  const LinkResult* longest = nullptr;
  for (const LinkResult& link : result.links) {
    outcome.marked += link.marked;
    outcome.dropped += link.dropped;
    outcome.paused_us += absl::ToDoubleMicroseconds(link.paused);
    if (longest == nullptr || link.queue_mean > longest->queue_mean) longest = &link;
  }
  if (longest != nullptr) {
    outcome.queue_mean_kb = longest->queue_mean / 1e3;
    outcome.queue_max_kb = static_cast<double>(longest->queue_max.count()) / 1e3;
  }
  outcome.retransmissions = result.retransmissions;
  outcome.unfinished = result.unfinished;
  outcome.end_us = absl::ToDoubleMicroseconds(result.end);
  return outcome;
}

}  // namespace

absl::StatusOr<Outcome> RunScenario(const Scenario& scenario,
                                    const net::multipath::SimulatedOptions& protocol) {
  WEFT_ASSIGN_OR_RETURN(Fabric fabric, topology::LoadFabric(scenario.fabric));
  Workload workload;
  if (scenario.built) {
    workload = *scenario.built;
  } else {
    WEFT_ASSIGN_OR_RETURN(workload,
                          topology::MakeWorkload(scenario.workload, fabric, scenario.packet.seed,
                                                 collectives::CollectiveWorkloads()));
  }
  topology::PacketOptions packet = scenario.packet;
  net::multipath::SimulatedOptions simulated = protocol;
  simulated.hops = scenario.hops;
  if (!scenario.own_transport) {
    packet.make_transports = net::multipath::SimulatedTransports(simulated);
  }
  if (!scenario.broken.empty()) {
    WEFT_ASSIGN_OR_RETURN(std::vector<LinkId> links,
                          topology::CablesNamed(scenario.broken, fabric));
    for (LinkId link : links) {
      topology::LinkFault fault{.at = scenario.broken_at, .link = link, .reroute = false};
      if (scenario.broken_to) {
        fault.kind = topology::LinkFault::Kind::kBandwidth;
        fault.bandwidth = *scenario.broken_to;
      }
      packet.faults.push_back(fault);
    }
  }
  WEFT_ASSIGN_OR_RETURN(SimulationResult result, SimulatePackets(fabric, workload, packet));
  Outcome outcome = Summarise(fabric, workload, result);
  for (const topology::LinkFault& fault : packet.faults) {
    for (LinkId link : {fault.link, fabric.link(fault.link).reverse}) {
      outcome.lost_on_broken += result.links[link.index()].dropped;
    }
  }
  return outcome;
}

nlohmann::ordered_json ToJson(const Outcome& outcome) {
  return {{"goodput", outcome.goodput},
          {"fct_us",
           {{"mean", outcome.fct_mean_us},
            {"p50", outcome.fct_p50_us},
            {"p99", outcome.fct_p99_us},
            {"max", outcome.fct_max_us}}},
          {"queue_kb", {{"mean", outcome.queue_mean_kb}, {"max", outcome.queue_max_kb}}},
          {"fairness", outcome.fairness},
          {"paused_us", outcome.paused_us},
          {"retransmissions", outcome.retransmissions},
          {"marked", outcome.marked},
          {"dropped", outcome.dropped},
          {"unfinished", outcome.unfinished},
          {"end_us", outcome.end_us}};
}

}  // namespace weft::cc
