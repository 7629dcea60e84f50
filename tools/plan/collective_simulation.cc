#include "tools/plan/collective_simulation.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "topology/sim/flow/flow.h"
#include "topology/sim/packet/options.h"
#include "topology/sim/workload.h"

namespace weft::plan {
namespace {

// 0: no time is known, so it takes none.
Bandwidth RateOf(double nanoseconds_a_byte) {
  return nanoseconds_a_byte > 0 ? Bandwidth::BytesPerSecond(1e9 / nanoseconds_a_byte) : Bandwidth();
}

}  // namespace

CollectiveSimulation::CollectiveSimulation(topology::Fabric fabric,
                                           std::vector<topology::Endpoint> ranks,
                                           const collectives::planner::CostTable& costs,
                                           absl::Duration across_latency, SimulationLevel level,
                                           topology::LoadBalance balance, int64_t steps_most)
    : fabric_(std::move(fabric)),
      cores_(costs.cores),
      level_(level),
      balance_(balance),
      steps_most_(static_cast<double>(steps_most)) {
  placement_.endpoints = std::move(ranks);
  placement_.memory = RateOf(costs.copy_byte);
  placement_.local = RateOf(costs.inside.byte);
  placement_.local_latency = absl::Nanoseconds(costs.inside.latency);
  // The latency of a message has its cost at both ends in it.
  placement_.message = std::min(absl::Nanoseconds(costs.across.message), across_latency);
  placement_.send_latency = across_latency - placement_.message;
  placement_.eager = Bytes(costs.eager_bytes);
}

absl::StatusOr<std::optional<int64_t>> CollectiveSimulation::Nanoseconds(
    const collectives::CollectiveSpec& spec, const collectives::planner::Plan& plan,
    size_t element) {
  const collectives::CollectiveSpec planned = collectives::planner::SpecOf(plan, spec);
  // Each message is a step of its sender and one of its receiver.
  const double steps = 2.0 * plan.algorithm->cost(planned).messages * spec.size;
  if (steps > steps_most_) return std::nullopt;
  placement_.element = Bytes(static_cast<int64_t>(element));
  topology::Workload workload;
  placement_.cores.clear();
  absl::flat_hash_map<int32_t, std::vector<uint32_t>> cores;  // by host
  for (const topology::Endpoint& rank : placement_.endpoints) {
    std::vector<uint32_t>& own = cores[rank.host.value()];
    own.push_back(own.size() < static_cast<size_t>(cores_)
                      ? workload.AddCore()
                      : own[own.size() - static_cast<size_t>(cores_)]);
    placement_.cores.push_back(own.back());
  }
  WEFT_ASSIGN_OR_RETURN(
      const topology::OperationId end,
      AddCollective(workload, *plan.algorithm, planned, placement_, plan.algorithm->name));
  absl::StatusOr<topology::SimulationResult> result;
  if (level_ == SimulationLevel::kPacket) {
    topology::PacketOptions options;
    options.load_balance = balance_;
    // Packets on several paths overtake each other.
    if (balance_ != topology::LoadBalance::kEcmp) {
      options.transport = topology::TransportKind::kSelective;
    }
    result = SimulatePackets(fabric_, workload, options);
  } else {
    topology::FlowOptions options;
    options.load_balance = balance_;
    options.ack = topology::PacketOptions().ack_size;
    result = SimulateFlows(fabric_, workload, options);
  }
  if (!result.ok()) return result.status();
  const absl::Duration ended = result->operations[end].ended;
  if (ended == absl::InfiniteDuration()) {
    return absl::DeadlineExceededError(absl::StrCat(
        plan.ToText(), " did not end within ",
        absl::FormatDuration(topology::SimulationOptions().limit), " of simulated time"));
  }
  return absl::ToInt64Nanoseconds(ended);
}

}  // namespace weft::plan
