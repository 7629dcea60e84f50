#include "tools/plan/rank_flows.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "base/status.h"
#include "collectives/algorithms/exchange.h"

namespace weft::plan {
namespace {

using topology::CollectiveKind;
using topology::PathPlan;
using topology::SlotFlow;
using topology::Traffic;
using topology::TrafficFlow;

// What an all-to-all step by step may take above all of it at once.
constexpr double kStepsWorth = 1.1;

class StepNumbers {
 public:
  // The number of the step in which `source` sends to `target` when `size` ranks exchange pairwise.
  int Of(int source, int target, int size) {
    auto [steps, is_new] = steps_.try_emplace({size, source});
    if (is_new) steps->second = collectives::PairwiseSteps(source, size);
    return steps->second[static_cast<size_t>(target)];
  }

 private:
  std::map<std::pair<int, int>, std::vector<int>> steps_;
};

RankFlows FlowsOf(const Input& input, const Placed& placed, absl::Span<const size_t> kinds,
                  bool at_once, const std::set<size_t>& in_steps) {
  struct Key {
    int source, target, source_nic, target_nic;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, TrafficFlow> flows;
  const topology::RankBlocks& blocks = placed.model.blocks();
  const topology::Mesh& mesh = input.job.mesh;
  StepNumbers numbers;
  for (size_t kind : kinds) {
    const topology::AxisSet axes = input.job.traffic[kind].axes;
    const int size = mesh.GroupSize(axes);
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
      if (in_steps.count(kind) > 0) {
        one.step = numbers.Of(mesh.PositionIn(topology::JobRank(key.source), axes),
                              mesh.PositionIn(topology::JobRank(key.target), axes), size);
      }
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

// Whether a kind of traffic is all-to-alls of three ranks and more, no two of a group on one host:
// what such ranks send each other are flows of their own.
bool MayBeInSteps(const Input& input, const Placed& placed, size_t kind) {
  const Traffic& traffic = input.job.traffic[kind];
  const topology::Mesh& mesh = input.job.mesh;
  if (traffic.collective != CollectiveKind::kAllToAll || mesh.GroupSize(traffic.axes) < 3) {
    return false;
  }
  std::set<std::pair<int, int>> taken;  // group, slot
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const int slot = placed.model.blocks().slot_of[static_cast<size_t>(rank)];
    if (!taken.emplace(mesh.GroupIndexOf(topology::JobRank(rank), traffic.axes), slot).second)
      return false;
  }
  return true;
}

// What a rank sends in all steps takes, one after another, each as long as the fullest link on its
// path in the step does; likewise what it receives; the longest of all ranks'.
double StepSeconds(const topology::Fabric& fabric, const RankFlows& flows, const PathPlan& plan,
                   size_t kind) {
  std::map<int, std::vector<const topology::PlannedPath*>> of_step;
  for (const topology::PlannedPath& path : plan.paths) {
    const TrafficFlow& flow = flows.flows[path.flow];
    if (flow.phase == kind) of_step[flow.step].push_back(&path);
  }
  std::map<int, double> sent, received;  // by rank
  for (const auto& [_, paths] : of_step) {
    std::map<LinkId, double> load;
    for (const topology::PlannedPath* path : paths) {
      for (LinkId link : path->links) {
        load[link] += static_cast<double>(path->bytes.count()) /
                      fabric.link(link).bandwidth.bytes_per_second();
      }
    }
    std::map<std::pair<int, int>, double>
        step;  // by ranks: the slowest of their subflows and rails
    for (const topology::PlannedPath* path : paths) {
      double& worst = step[flows.ranks[path->flow]];
      for (LinkId link : path->links) worst = std::max(worst, load[link]);
    }
    for (const auto& [ranks, seconds] : step) {
      sent[ranks.first] += seconds;
      received[ranks.second] += seconds;
    }
  }
  double slowest = 0;
  for (const auto* all : {&sent, &received}) {
    for (const auto& [_, seconds] : *all) slowest = std::max(slowest, seconds);
  }
  return slowest;
}

}  // namespace

std::vector<int> RankFlows::Steps() const {
  std::vector<int> steps;
  for (const TrafficFlow& flow : flows) steps.push_back(flow.step);
  return steps;
}

absl::StatusOr<PlannedFlows> PlanFlows(const topology::PathPlanner& planner, const Input& input,
                                       const Placed& placed, absl::Span<const size_t> kinds,
                                       bool at_once) {
  std::set<size_t> in_steps;
  for (size_t kind : kinds) {
    const bool alone = !at_once || kinds.size() == 1;
    if (alone && MayBeInSteps(input, placed, kind)) in_steps.insert(kind);
  }
  PlannedFlows out{FlowsOf(input, placed, kinds, at_once, in_steps), {}};
  WEFT_ASSIGN_OR_RETURN(out.plan, planner.Plan(out.flows.flows));
  for (const topology::PhaseReport& report : out.plan.phases) {
    if (in_steps.count(report.phase) == 0) continue;
    const double seconds = StepSeconds(*input.fabric, out.flows, out.plan, report.phase);
    if (seconds <= kStepsWorth * report.after.worst) continue;
    for (TrafficFlow& flow : out.flows.flows) {
      if (flow.phase == report.phase) flow.step = 0;
    }
  }
  return out;
}

std::vector<TrafficRow> TrafficRows(const Input& input, const PlannedFlows& planned, bool at_once) {
  std::vector<TrafficRow> rows;
  for (const topology::PhaseReport& report : planned.plan.phases) {
    std::set<int> steps;
    for (const TrafficFlow& flow : planned.flows.flows) {
      if (flow.phase == report.phase && flow.step > 0) steps.insert(flow.step);
    }
    TrafficRow row{.flows = report.flows,
                   .subflows = report.subflows,
                   .steps = static_cast<int>(steps.size()),
                   .before = report.before.worst,
                   .after = report.after.worst,
                   .mean = report.after.mean,
                   .bound = report.bound,
                   .bound_reason = report.bound_reason};
    row.name = at_once && steps.empty() ? "all at once" : input.job.traffic[report.phase].name;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace weft::plan
