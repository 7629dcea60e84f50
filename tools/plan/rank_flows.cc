#include "tools/plan/rank_flows.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "base/status.h"

namespace weft::plan {
namespace {

using topology::SlotFlow;
using topology::TrafficFlow;

RankFlows FlowsOf(const Placed& placed, absl::Span<const size_t> kinds, bool at_once) {
  struct Key {
    int source, target, source_nic, target_nic;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, TrafficFlow> flows;
  const topology::RankBlocks& blocks = placed.model.blocks();
  for (size_t kind : kinds) {
    for (const SlotFlow& flow : placed.model.flows(kind).flows) {
      auto rank = [&](int32_t slot, int16_t gpu) {
        return blocks.rank_at[static_cast<size_t>(slot) * static_cast<size_t>(blocks.gpus) +
                              static_cast<size_t>(gpu)];
      };
      auto end = [&](int32_t slot, int nic) {
        int32_t host = placed.placement[static_cast<size_t>(slot)];
        return topology::Endpoint{placed.model.hosts()[static_cast<size_t>(host)], nic};
      };
      TrafficFlow one{end(flow.source, flow.source_nic), end(flow.target, flow.target_nic),
                      Bytes(flow.bytes), static_cast<uint32_t>(at_once ? kinds.front() : kind)};
      const Key key{rank(flow.source, flow.source_gpu), rank(flow.target, flow.target_gpu),
                    flow.source_nic, flow.target_nic};
      auto [at, is_new] = flows.try_emplace(key, one);
      if (is_new) continue;
      if (at_once) {
        at->second.bytes += one.bytes;
      } else if (one.bytes > at->second.bytes) {
        at->second = one;
      }
    }
  }
  RankFlows all;
  for (const auto& [key, flow] : flows) {
    all.flows.push_back(flow);
    all.ranks.emplace_back(key.source, key.target);
  }
  return all;
}

}  // namespace

absl::StatusOr<PlannedFlows> PlanFlows(const topology::PathPlanner& planner, const Placed& placed,
                                       absl::Span<const size_t> kinds, bool at_once) {
  PlannedFlows out{FlowsOf(placed, kinds, at_once), {}};
  WEFT_ASSIGN_OR_RETURN(out.plan, planner.Plan(out.flows.flows));
  return out;
}

std::vector<TrafficRow> TrafficRows(const Input& input, const PlannedFlows& planned, bool at_once) {
  std::vector<TrafficRow> rows;
  for (const topology::PhaseReport& report : planned.plan.phases) {
    TrafficRow row{.flows = report.flows,
                   .subflows = report.subflows,
                   .before = report.before.worst,
                   .after = report.after.worst,
                   .mean = report.after.mean,
                   .bound = report.bound,
                   .bound_reason = report.bound_reason};
    row.name = at_once ? "all at once" : input.job.traffic[report.phase].name;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace weft::plan
