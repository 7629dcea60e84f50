#include "topology/paths/path_planner.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "topology/paths/load_bound.h"
#include "topology/paths/port_search.h"
#include "topology/paths/rails.h"
#include "topology/paths/target_paths.h"

namespace weft::topology {
namespace {

std::string FlowName(const Fabric& fabric, uint32_t index, const TrafficFlow& flow) {
  return absl::StrCat("flow ", index, " from ", fabric.node(flow.source.host).name, " to ",
                      fabric.node(flow.target.host).name);
}

absl::Status Check(const PathPlannerOptions& options) {
  auto bad = [](absl::string_view what, absl::string_view right) {
    return absl::InvalidArgumentError(absl::StrCat("path planner: ", what, "; ", right));
  };
  if (options.port_first == 0 || options.port_first > options.port_last) {
    return bad(absl::StrCat("source ports ", options.port_first, "..", options.port_last),
               "right is FIRST..LAST with 1 <= FIRST <= LAST");
  }
  if (options.subflows_max < 1 || options.subflows_max > 256) {
    return bad(absl::StrCat(options.subflows_max, " queue pairs a flow"), "right is 1..256");
  }
  if (options.probes_max < 1 || options.search_probes < -1 || options.subflow_gain < 0) {
    return bad("probes_max, search_probes or subflow_gain is too small",
               "right is at least 1, 0 and 0");
  }
  return absl::OkStatus();
}

absl::Status Check(const Fabric& fabric, absl::Span<const TrafficFlow> flows) {
  for (uint32_t i = 0; i < flows.size(); ++i) {
    const TrafficFlow& flow = flows[i];
    for (const Endpoint& end : {flow.source, flow.target}) {
      bool known = end.host.value() >= 0 && end.host.value() < fabric.nodes() &&
                   fabric.node(end.host).kind == NodeKind::kHost;
      if (!known) {
        return absl::InvalidArgumentError(
            absl::StrCat("flow ", i, ": node ", end.host.value(), " is no host of the fabric"));
      }
      if (end.nic != kAnyNic && (end.nic < 0 || end.nic >= fabric.nics(end.host))) {
        return absl::InvalidArgumentError(
            absl::StrCat(FlowName(fabric, i, flow), ": ", fabric.node(end.host).name, " has ",
                         fabric.nics(end.host), " NICs; number ", end.nic, " is none of them"));
      }
    }
    if (flow.bytes.count() < 0 || flow.source.host == flow.target.host) {
      return absl::InvalidArgumentError(absl::StrCat(
          FlowName(fabric, i, flow),
          flow.bytes.count() < 0 ? ": its bytes are negative" : ": both ends are one host"));
    }
  }
  return absl::OkStatus();
}

double Mean(const LinkLoads& loads, absl::Span<const LinkId> links) {
  double sum = 0;
  for (LinkId link : links) sum += loads[link];
  return links.empty() ? 0 : sum / static_cast<double>(links.size());
}

PhaseLoad Summarise(const LinkLoads& loads, absl::Span<const LinkId> links) {
  absl::Span<const double> all = loads.all();
  auto worst = std::max_element(all.begin(), all.end());
  PhaseLoad out;
  if (worst == all.end() || *worst <= 0) return out;
  out.worst = *worst;
  out.worst_link = LinkId(static_cast<int32_t>(worst - all.begin()));
  out.mean = Mean(loads, links);
  return out;
}

using PhaseFlows = std::map<uint32_t, std::vector<uint32_t>>;  // flows of each phase, in order

PhaseFlows ByPhase(absl::Span<const TrafficFlow> flows) {
  PhaseFlows out;
  for (uint32_t i = 0; i < flows.size(); ++i) out[flows[i].phase].push_back(i);
  return out;
}

std::vector<Subflow> Cut(absl::Span<const TrafficFlow> flows, absl::Span<const uint32_t> members,
                         int parts) {
  std::vector<Subflow> out;
  out.reserve(members.size() * static_cast<size_t>(parts));
  for (uint32_t index : members) {
    const TrafficFlow& flow = flows[index];
    int64_t each = flow.bytes.count() / parts, more = flow.bytes.count() % parts;
    for (int part = 0; part < parts; ++part) {
      Subflow subflow{index, static_cast<uint32_t>(part), flow.source, flow.target};
      subflow.bytes = static_cast<double>(each + (part < more ? 1 : 0));
      subflow.target_port = flow.target_port;
      out.push_back(subflow);
    }
  }
  return out;
}

// One plan in the making.
class Maker {
 public:
  Maker(const Routes& routes, const FabricHashes& hashes, const PathPlannerOptions& options,
        absl::Span<const TrafficFlow> flows)
      : fabric_(routes.fabric()),
        tracer_(routes, hashes, options.target_port, options.protocol),
        options_(options),
        flows_(flows.begin(), flows.end()) {}

  absl::Status ChooseRails() { return weft::topology::ChooseRails(fabric_, flows_); }

  // Loads of one queue pair a flow with ports that nobody chose.
  absl::Status Before(PhaseReport& report, absl::Span<const uint32_t> members,
                      absl::Span<const LinkId> links) {
    LinkLoads loads(fabric_);
    for (const Subflow& flow : Cut(flows_, members, 1)) {
      FiveTuple tuple = tracer_.Tuple(flow);
      uint64_t state = ~uint64_t{flow.flow};
      uint64_t range = options_.port_last - options_.port_first + 1u;
      tuple.source_port = static_cast<uint16_t>(options_.port_first + SplitMix64(state) % range);
      PathLinks path;
      if (!tracer_.Trace(flow, tuple, /*wanted=*/false, path)) {
        return absl::NotFoundError(absl::StrCat(
            FlowName(fabric_, flow.flow, flows_[flow.flow]),
            ": there is no way through the links that are up: the fabric is partitioned"));
      }
      loads.Add(path, flow.bytes);
    }
    report.before = Summarise(loads, links);
    return absl::OkStatus();
  }

  absl::Status PlanPhase(uint32_t phase, const std::vector<uint32_t>& members) {
    PhaseReport report{phase, static_cast<int>(members.size())};
    LoadBound whole = BoundLoad(fabric_, Cut(flows_, members, 1));
    report.bound_fluid = whole.fluid;
    WEFT_RETURN_IF_ERROR(Before(report, members, whole.links));
    std::vector<Attempt> attempts;
    for (int parts = 1; parts <= options_.subflows_max;
         parts = parts < options_.subflows_max ? std::min(2 * parts, options_.subflows_max)
                                               : parts + 1) {
      WEFT_ASSIGN_OR_RETURN(Attempt attempt, Try(members, parts));
      attempts.push_back(std::move(attempt));
      if (attempts.back().load.worst <= whole.fluid * (1 + options_.subflow_gain)) break;
    }
    double best = attempts[0].load.worst;
    for (const Attempt& attempt : attempts) best = std::min(best, attempt.load.worst);
    for (Attempt& attempt : attempts) {
      if (attempt.load.worst > best * (1 + options_.subflow_gain)) continue;
      report.subflows = attempt.parts;
      Finish(std::move(report), attempt);
      break;
    }
    return absl::OkStatus();
  }

  // `old`: the phase's subflows as they were.
  absl::Status ReplanPhase(uint32_t phase, const std::vector<uint32_t>& members,
                           std::vector<Subflow> old) {
    PhaseReport report{phase, static_cast<int>(members.size())};
    report.subflows = static_cast<int>(old.size() / std::max<size_t>(1, members.size()));
    report.bound_fluid = BoundLoad(fabric_, Cut(flows_, members, 1)).fluid;
    std::vector<uint16_t> ports;
    LinkLoads before(fabric_);
    for (Subflow& subflow : old) {
      ports.push_back(subflow.port);
      if (subflow.open) continue;
      WEFT_RETURN_IF_ERROR(Follow(subflow));
      before.Add(subflow.links, subflow.bytes);
      taken_.Take(subflow);
    }
    LoadBound bound = BoundLoad(fabric_, old);
    report.before = Summarise(before, bound.links);
    Attempt attempt{report.subflows, std::move(old), std::move(bound)};
    WEFT_RETURN_IF_ERROR(Search(attempt));
    for (size_t i = 0; i < ports.size(); ++i) {
      plan_.moved += attempt.subflows[i].port != ports[i] ? 1 : 0;
    }
    Finish(std::move(report), attempt);
    return absl::OkStatus();
  }

  // The path that the subflow's port gives now.
  absl::Status Follow(Subflow& subflow) {
    FiveTuple tuple = tracer_.Tuple(subflow);
    tuple.source_port = subflow.port;
    subflow.placed = tracer_.Trace(subflow, tuple, /*wanted=*/false, subflow.links);
    if (subflow.placed) return absl::OkStatus();
    return absl::NotFoundError(
        absl::StrCat(FlowName(fabric_, subflow.flow, flows_[subflow.flow]),
                     ": there is no way through the links that are up: the fabric is partitioned"));
  }

  PathPlan Take() && {
    std::sort(plan_.paths.begin(), plan_.paths.end(),
              [](const PlannedPath& a, const PlannedPath& b) {
                return std::pair(a.flow, a.subflow) < std::pair(b.flow, b.subflow);
              });
    return std::move(plan_);
  }

 private:
  struct Attempt {
    int parts = 1;
    std::vector<Subflow> subflows;
    LoadBound bound;
    PhaseLoad load;
    int unmet = 0;
  };

  absl::StatusOr<Attempt> Try(const std::vector<uint32_t>& members, int parts) {
    Attempt attempt{parts, Cut(flows_, members, parts), {}};
    attempt.bound = BoundLoad(fabric_, attempt.subflows);
    ChooseTargetPaths(tracer_.routes(), attempt.subflows);
    TakenPorts before = taken_;  // an attempt that is not used takes no ports
    absl::Status found = Search(attempt);
    taken_ = std::move(before);
    if (!found.ok()) return found;
    return attempt;
  }

  absl::Status Search(Attempt& attempt) {
    PortSearch search(tracer_, options_, taken_, attempt.subflows, attempt.bound.seconds);
    WEFT_RETURN_IF_ERROR(search.Place());
    search.Improve();
    attempt.load = Summarise(search.loads(), attempt.bound.links);
    attempt.unmet = search.unmet();
    plan_.probes += search.probes();
    return absl::OkStatus();
  }

  void Finish(PhaseReport report, Attempt& attempt) {
    report.after = attempt.load;
    report.bound = attempt.bound.seconds;
    report.bound_reason = attempt.bound.reason;
    plan_.seconds_before += report.before.worst;
    plan_.seconds_after += report.after.worst;
    plan_.seconds_bound += report.bound;
    plan_.unmet += attempt.unmet;
    plan_.phases.push_back(std::move(report));
    for (const Subflow& subflow : attempt.subflows) {
      plan_.open += subflow.open ? 1 : 0;
      if (!subflow.open) taken_.Take(subflow);
      plan_.paths.push_back({subflow.flow,
                             subflow.subflow,
                             subflow.source,
                             subflow.target,
                             subflow.port,
                             Bytes(static_cast<int64_t>(subflow.bytes)),
                             {subflow.links.begin(), subflow.links.end()},
                             subflow.open});
    }
  }

  const Fabric& fabric_;
  Tracer tracer_;
  const PathPlannerOptions& options_;
  std::vector<TrafficFlow> flows_;
  TakenPorts taken_;
  PathPlan plan_;
};

absl::Status CheckPaths(absl::Span<const TrafficFlow> flows, absl::Span<const PlannedPath> paths) {
  std::vector<char> seen(flows.size());
  for (const PlannedPath& path : paths) {
    bool same = path.flow < flows.size() && path.source.host == flows[path.flow].source.host &&
                path.target.host == flows[path.flow].target.host;
    if (!same) {
      return absl::InvalidArgumentError(absl::StrCat("the plan's path of flow ", path.flow,
                                                     " is of none of the ", flows.size(),
                                                     " flows: was it made for others?"));
    }
    seen[path.flow] = 1;
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    if (!seen[i]) {
      return absl::InvalidArgumentError(absl::StrCat("the plan has no path for flow ", i));
    }
  }
  return absl::OkStatus();
}

Subflow ToSubflow(const PlannedPath& path) {
  Subflow subflow{path.flow, path.subflow, path.source, path.target};
  subflow.bytes = static_cast<double>(path.bytes.count());
  subflow.port = path.source_port;
  subflow.open = path.open;
  return subflow;
}

}  // namespace

PathPlanner::PathPlanner(const Routes& routes, const FabricHashes& hashes,
                         const PathPlannerOptions& options)
    : routes_(routes), hashes_(hashes), options_(options) {}

absl::StatusOr<PathPlan> PathPlanner::Plan(absl::Span<const TrafficFlow> flows) const {
  WEFT_RETURN_IF_ERROR(Check(options_));
  WEFT_RETURN_IF_ERROR(Check(routes_.fabric(), flows));
  Maker maker(routes_, hashes_, options_, flows);
  WEFT_RETURN_IF_ERROR(maker.ChooseRails());
  for (const auto& [phase, members] : ByPhase(flows)) {
    WEFT_RETURN_IF_ERROR(maker.PlanPhase(phase, members));
  }
  return std::move(maker).Take();
}

absl::StatusOr<PathPlan> PathPlanner::Replan(absl::Span<const TrafficFlow> flows,
                                             const PathPlan& plan) const {
  WEFT_RETURN_IF_ERROR(Check(options_));
  WEFT_RETURN_IF_ERROR(Check(routes_.fabric(), flows));
  WEFT_RETURN_IF_ERROR(CheckPaths(flows, plan.paths));
  std::vector<TrafficFlow> railed(flows.begin(), flows.end());
  std::map<uint32_t, std::vector<Subflow>> old;
  for (const PlannedPath& path : plan.paths) {
    railed[path.flow].source = path.source;
    railed[path.flow].target = path.target;
    Subflow subflow = ToSubflow(path);
    subflow.target_port = flows[path.flow].target_port;
    old[flows[path.flow].phase].push_back(std::move(subflow));
  }
  Maker maker(routes_, hashes_, options_, railed);
  for (const auto& [phase, members] : ByPhase(flows)) {
    WEFT_RETURN_IF_ERROR(maker.ReplanPhase(phase, members, std::move(old[phase])));
  }
  return std::move(maker).Take();
}

absl::StatusOr<PathPlan> PathPlanner::Evaluate(absl::Span<const TrafficFlow> flows,
                                               std::vector<PlannedPath> paths) const {
  PathPlan plan;
  plan.paths = std::move(paths);
  PathPlannerOptions fixed = options_;
  fixed.search_probes = -1;
  PathPlanner evaluator(routes_, hashes_, fixed);
  return evaluator.Replan(flows, plan);
}

}  // namespace weft::topology
