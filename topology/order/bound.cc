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
  absl::Duration most;
  for (const CutBound& cut : CutBounds(model, traffic)) most = std::max(most, cut.time);
  return absl::ToDoubleSeconds(most);
}

}  // namespace

std::vector<CutBound> CutBounds(const CostModel& model, size_t traffic) {
  const TrafficFlows& flows = model.flows(traffic);
  const int group_slots = SlotsOfGroups(flows);
  const bool has_spares = static_cast<int>(model.hosts().size()) > model.blocks().slots;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const SlotFlow& flow : flows.flows) least = std::min(least, flow.bytes);
  std::vector<CutBound> bounds;
  for (const CostModel::GroupHosts& group : model.HostsByGroup()) {
    bounds.push_back({group.group, 0, {}, {}});
    const int rest = group_slots < 2 || has_spares ? 0 : group.hosts % group_slots;
    if (rest == 0) continue;
    CutBound& bound = bounds.back();
    const bool to_all = model.job().traffic[traffic].collective == CollectiveKind::kAllToAll;
    bound.flows = to_all ? int64_t{rest} * (group_slots - rest) : 1;
    bound.bytes = Bytes(bound.flows * least);
    bound.time = absl::Seconds(model.GroupSeconds(group, bound.flows, bound.bytes.count()));
  }
  return bounds;
}

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
