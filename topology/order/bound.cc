#include "topology/order/bound.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

namespace weft::topology {
namespace {

// Slots of each group of one kind of traffic; 0: groups differ, and nothing is said of crossings.
int SlotsOfGroups(const TrafficFlows& flows) {
  std::vector<std::set<int32_t>> slots(flows.flows_of_group.size());
  for (const SlotFlow& flow : flows.flows) {
    slots[static_cast<size_t>(flow.group)].insert(flow.source);
    slots[static_cast<size_t>(flow.group)].insert(flow.target);
  }
  size_t size = slots.empty() ? 0 : slots[0].size();
  for (const std::set<int32_t>& group : slots) {
    if (group.size() != size) return 0;
  }
  return static_cast<int>(size);
}

// The time that crossings which no order avoids take on the worst cut.
double CrossingSeconds(const CostModel& model, size_t traffic) {
  const TrafficFlows& flows = model.flows(traffic);
  int group_slots = SlotsOfGroups(flows);
  bool has_spares = static_cast<int>(model.hosts().size()) > model.blocks().slots;
  if (group_slots < 2 || has_spares) return 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const SlotFlow& flow : flows.flows) least = std::min(least, flow.bytes);

  double most = 0;
  for (const CostModel::GroupHosts& group : model.HostsByGroup()) {
    int rest = group.hosts % group_slots;
    if (rest == 0) continue;
    int64_t crossing = 1;
    if (model.job().traffic[traffic].collective == Collective::kAllToAll) {
      crossing = int64_t{rest} * (group_slots - rest);
    }
    most = std::max(most, model.GroupSeconds(group, crossing, crossing * least));
  }
  return most;
}

}  // namespace

StepCost LowerBound(const CostModel& model) {
  StepCost bound;
  for (size_t i = 0; i < model.job().traffic.size(); ++i) {
    const TrafficFlows& flows = model.flows(i);
    TrafficCost cost;
    double inside = absl::ToDoubleSeconds(flows.inside);
    double network = std::max(model.NicFloorLeast(i), CrossingSeconds(model, i));
    cost.transfer = absl::Seconds(flows.inside_adds ? inside + network : std::max(inside, network));
    absl::Duration alpha = model.job().node.network_latency + model.tree().Latency(1);
    cost.latency = flows.inside_latency;
    if (!flows.flows.empty()) cost.latency += alpha * flows.network_steps;
    cost.once = cost.latency + cost.transfer;
    cost.exposed = model.job().traffic[i].Exposed(cost.once);
    bound.exposed += cost.exposed;
    bound.traffic.push_back(std::move(cost));
  }
  return bound;
}

}  // namespace weft::topology
