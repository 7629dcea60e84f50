#include "topology/paths/plan_text.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace weft::topology {
namespace {

constexpr size_t kPathsMost = 256;  // looked at of one pair of switches

// Shortest paths that go on over `next` to `target`, until `out` has `most`: as many over each link
// as over the others, as far as there are so many, in order of links.
void EachPath(const Routes& routes, Endpoint target, absl::Span<const LinkId> next, size_t most,
              std::vector<LinkId>& path, std::vector<std::vector<LinkId>>& out) {
  for (size_t i = 0; i < next.size() && out.size() < most; ++i) {
    const size_t links = next.size() - i;
    const size_t share = (most - out.size() + links - 1) / links;
    path.push_back(next[i]);
    const NodeId there = routes.fabric().link(next[i]).target;
    if (there == target.host) {
      out.push_back(path);
    } else {
      EachPath(routes, target, routes.Next(there, target), out.size() + share, path, out);
    }
    path.pop_back();
  }
}

class Maker {
 public:
  Maker(const Routes& routes, const FabricHashes& hashes, const PathPlan& plan)
      : routes_(routes),
        fabric_(routes.fabric()),
        hashes_(hashes),
        seconds_(LinkSeconds(fabric_, plan.paths)) {}

  ConnectionPlanText Take() && { return std::move(text_); }

  void AddHosts(absl::Span<const NodeId> hosts) {
    for (NodeId id : hosts) {
      ConnectionPlanHost host;
      host.name = fabric_.node(id).name;
      for (int nic = 0; nic < fabric_.nics(id); ++nic) {
        const absl::Span<const LinkId> ports = fabric_.Ports({id, nic});
        const auto up = std::find_if(ports.begin(), ports.end(),
                                     [&](LinkId port) { return fabric_.link(port).up; });
        const NodeId leaf = fabric_.link(up == ports.end() ? ports[0] : *up).target;
        host.addresses.push_back(hashes_.address({id, nic}));
        host.leaves.push_back(fabric_.node(leaf).name);
        std::vector<Endpoint>& examples = examples_[leaf];
        if (examples.empty() || (examples.size() == 1 && examples[0].host != id)) {
          examples.push_back({id, nic});
        }
      }
      text_.hosts.push_back(std::move(host));
    }
  }

  void AddFlow(const PlannedPath& path, std::pair<int, int> ranks) {
    ConnectionPlanFlow flow;
    std::tie(flow.rank, flow.peer) = ranks;
    flow.source = fabric_.node(path.source.host).name;
    flow.target = fabric_.node(path.target.host).name;
    flow.source_nic = path.source.nic;
    flow.target_nic = path.target.nic;
    flow.way = WayOf(path.source, path.target, path.links);
    if (flow.way.seconds > 0) {
      flow.way.rate = static_cast<double>(path.bytes.count()) / flow.way.seconds;
    }
    text_.flows.push_back(std::move(flow));
  }

  void AddSpares(const PlanTextOptions& options) {
    if (examples_.size() * examples_.size() > options.spare_pairs_max) return;
    for (const auto& [source, sources] : examples_) {
      for (const auto& [target, targets] : examples_) {
        if (source == target) continue;
        // The two ends are NICs of different hosts, if there are any: the examples of two rails may
        // be NICs of the same hosts.
        Endpoint from = sources.front(), to = targets.front();
        if (from.host == to.host) to = targets.back();
        if (from.host == to.host) from = sources.back();
        if (from.host == to.host) continue;
        text_.spares[{fabric_.node(source).name, fabric_.node(target).name}] =
            Spares(from, to, options.spares);
      }
    }
  }

  void Begin(const PlanTextOptions& options) {
    text_.fingerprint = options.fingerprint;
    text_.ranks = options.ranks;
  }

  void AddRouters(const std::map<std::string, std::string>& routers) { text_.routers = routers; }

  // A way's seconds are those of the links between switches: the others are the same for all.
  PathWay WayOf(Endpoint source, Endpoint target, absl::Span<const LinkId> path) {
    PathWay way;
    for (LinkId link : path) {
      if (fabric_.link(link).nic < 0) way.seconds = std::max(way.seconds, seconds_[link.index()]);
    }
    for (const HashChoice& choice : hashes_.Choices(routes_, source, target, path)) {
      const std::string& name = fabric_.node(choice.at).name;
      text_.hashes.emplace(name, hashes_.hash(choice.at));
      const auto taken = std::find_if(path.begin(), path.end(), [&](LinkId link) {
        return fabric_.link(link).source == choice.at;
      });
      const std::string& to = fabric_.node(fabric_.link(*taken).target).name;
      way.choices.push_back({name, choice.index, choice.count, to});
    }
    return way;
  }

 private:
  // The least loaded ways over each of the first switch's links in turn, until there are `most`:
  // what is behind one of these may fail for all ways over it. The least loaded first.
  std::vector<PathWay> Spares(Endpoint from, Endpoint to, size_t most) {
    std::vector<std::vector<LinkId>> paths;
    std::vector<LinkId> path;
    EachPath(routes_, to, routes_.First(from, to), kPathsMost, path, paths);
    struct Spare {
      PathWay way;
      LinkId first;
      size_t turn = 0;
    };
    std::vector<Spare> spares;
    for (const auto& one : paths) spares.push_back({WayOf(from, to, one), one[1]});
    const auto sort_by = [&](auto key) {
      std::stable_sort(spares.begin(), spares.end(),
                       [&](const Spare& a, const Spare& b) { return key(a) < key(b); });
    };
    const auto seconds = [](const Spare& spare) { return spare.way.seconds; };
    sort_by(seconds);
    std::map<LinkId, size_t> turns;
    for (Spare& spare : spares) spare.turn = turns[spare.first]++;
    sort_by([](const Spare& spare) { return spare.turn; });
    if (spares.size() > most) spares.resize(most);
    sort_by(seconds);
    std::vector<PathWay> ways;
    for (Spare& spare : spares) ways.push_back(std::move(spare.way));
    return ways;
  }

  const Routes& routes_;
  const Fabric& fabric_;
  const FabricHashes& hashes_;
  const std::vector<double> seconds_;
  ConnectionPlanText text_;
  std::map<NodeId, std::vector<Endpoint>> examples_;  // by first switch: of two hosts, if so many
};

// Switches on the ways of flows that are neither the first nor the last.
std::set<NodeId> InnerSwitches(const Fabric& fabric, const PathPlan& plan) {
  std::set<NodeId> out;
  for (const PlannedPath& path : plan.paths) {
    for (size_t i = 2; i + 1 < path.links.size(); ++i) {
      out.insert(fabric.link(path.links[i]).source);
    }
  }
  return out;
}

// Whether both plans have the same subflows, at the same NICs.
bool AreAlike(const PathPlan& a, const PathPlan& b) {
  return std::equal(a.paths.begin(), a.paths.end(), b.paths.begin(), b.paths.end(),
                    [](const PlannedPath& one, const PlannedPath& other) {
                      return one.flow == other.flow && one.subflow == other.subflow &&
                             one.source == other.source && one.target == other.target;
                    });
}

}  // namespace

absl::StatusOr<int> AddDetours(const Routes& routes, const FabricHashes& hashes,
                               const PathPlannerOptions& options,
                               absl::Span<const TrafficFlow> flows, const PathPlan& plan,
                               int switches_max, ConnectionPlanText& text) {
  // What a plan over what is left may be worse than a new one, so that fewer flows move.
  constexpr double kWorse = 1.02;
  const std::set<NodeId> inner = InnerSwitches(routes.fabric(), plan);
  if (static_cast<int>(inner.size()) > switches_max) return static_cast<int>(inner.size());
  Fabric fabric = routes.fabric();
  Routes left(fabric);
  const PathPlanner planner(left, hashes, options);
  for (NodeId lost : inner) {
    std::vector<LinkId> downed;
    for (LinkId link : fabric.LinksFrom(lost)) {
      if (!fabric.link(link).up) continue;
      fabric.SetUp(link, false);
      downed.push_back(link);
    }
    left.Update();
    absl::StatusOr<PathPlan> detours = planner.Replan(flows, plan);
    if (detours.ok() && detours->seconds_after > kWorse * detours->seconds_bound) {
      absl::StatusOr<PathPlan> anew = planner.Plan(flows);
      if (anew.ok() && AreAlike(plan, *anew) &&
          kWorse * anew->seconds_after < detours->seconds_after) {
        detours = std::move(anew);
      }
    }
    for (LinkId link : downed) fabric.SetUp(link, true);
    if (absl::IsNotFound(detours.status())) continue;  // there is no way left
    if (!detours.ok()) return detours.status();
    Maker maker(routes, hashes, *detours);
    std::map<int, PathWay>& moved = text.detours[fabric.node(lost).name];
    for (size_t i = 0; i < text.flows.size(); ++i) {
      const PlannedPath& path = detours->paths[i];
      if (path.links == plan.paths[i].links) continue;
      moved.emplace(static_cast<int>(i), maker.WayOf(path.source, path.target, path.links));
    }
    if (moved.empty()) text.detours.erase(fabric.node(lost).name);
    text.hashes.merge(std::move(maker).Take().hashes);
  }
  return static_cast<int>(inner.size());
}

std::vector<double> LinkSeconds(const Fabric& fabric, absl::Span<const PlannedPath> paths) {
  std::vector<double> seconds(static_cast<size_t>(fabric.links()));
  for (const PlannedPath& path : paths) {
    for (LinkId link : path.links) {
      seconds[link.index()] +=
          static_cast<double>(path.bytes.count()) / fabric.link(link).bandwidth.bytes_per_second();
    }
  }
  return seconds;
}

ConnectionPlanText MakePlanText(const Routes& routes, const FabricHashes& hashes,
                                const PathPlan& plan, absl::Span<const std::pair<int, int>> ranks,
                                const PlanTextOptions& options) {
  Maker maker(routes, hashes, plan);
  maker.Begin(options);
  maker.AddHosts(options.hosts);
  for (const PlannedPath& path : plan.paths) maker.AddFlow(path, ranks[path.flow]);
  maker.AddSpares(options);
  maker.AddRouters(options.routers);
  return std::move(maker).Take();
}

}  // namespace weft::topology
