#include "topology/sim/flow/paths.h"

#include <algorithm>

#include "topology/sim/path_choice.h"

namespace weft::topology {
namespace {

struct Way {  // along a path
  double propagation = 0;
  double per_byte = 0;  // of all links
  double slowest = 0;   // of one link
};

Way Extend(const Fabric& fabric, Way way, const FabricLink& link) {
  const double per_byte = 1 / link.bandwidth.bytes_per_second();
  way.propagation += absl::ToDoubleSeconds(link.delay);
  const FabricNode& target = fabric.node(link.target);
  if (target.kind == NodeKind::kSwitch) way.propagation += absl::ToDoubleSeconds(target.latency);
  way.per_byte += per_byte;
  way.slowest = std::max(way.slowest, per_byte);
  return way;
}

}  // namespace

FlowPaths::FlowPaths(const Routes& routes, uint64_t seed, LoadBalance balance, const PathHash* hash)
    : routes_(routes),
      fabric_(routes.fabric()),
      seed_(seed),
      balance_(balance),
      hash_(hash),
      visits_(static_cast<size_t>(fabric_.nodes())),
      weights_(static_cast<size_t>(fabric_.links())) {}

void FlowPaths::Find(Endpoint source, Endpoint target, uint16_t source_port, FlowPath& path) {
  path.uses.clear();
  path.propagation = path.per_byte = 0;
  path.reachable = source.host == target.host;
  if (path.reachable) return;
  if (balance_ == LoadBalance::kEcmp) {
    FindOne({source, target, source_port}, path);
  } else {
    FindAll(source, target, path);
  }
}

void FlowPaths::FindOne(const PathHash::Flow& flow, FlowPath& path) {
  const Endpoint target = flow.target;
  const uint64_t hash = FlowHash(seed_, flow.source, target, flow.source_port);
  absl::Span<const LinkId> next = routes_.First(flow.source, target);
  Way way;
  NodeId at = flow.source.host;
  while (true) {
    if (next.empty()) return;
    const LinkId id = next[hash_ != nullptr && next.size() > 1 ? hash_->Choose(at, flow, next)
                                                               : ChooseLink(hash, at, next.size())];
    const FabricLink& link = fabric_.link(id);
    path.uses.push_back({static_cast<MaxMin::Resource>(id.value()), 1});
    way = Extend(fabric_, way, link);
    at = link.target;
    if (at == target.host) break;
    next = routes_.Next(at, target);
  }
  path.reachable = true;
  path.propagation = way.propagation;
  path.per_byte = way.per_byte - way.slowest;
}

// All shortest paths, node by node in order of distance: a node's share parts equally over the
// links out of it.
void FlowPaths::FindAll(Endpoint source, Endpoint target, FlowPath& path) {
  level_.assign(1, source.host);
  visits_[source.host.index()] = {.share = 1};
  Way last;
  bool arrived = false;
  while (!level_.empty()) {
    next_level_.clear();
    for (NodeId at : level_) {
      const Visit here = visits_[at.index()];
      visits_[at.index()].share = 0;
      const absl::Span<const LinkId> next =
          at == source.host ? routes_.First(source, target) : routes_.Next(at, target);
      const double share = here.share / static_cast<double>(next.size());
      for (LinkId id : next) {
        const FabricLink& link = fabric_.link(id);
        path.uses.push_back({static_cast<MaxMin::Resource>(id.value()), share});
        const Way way = Extend(fabric_, {here.propagation, here.per_byte, here.slowest}, link);
        if (link.target == target.host) {
          arrived = true;
          last.propagation = std::max(last.propagation, way.propagation);
          last.per_byte = std::max(last.per_byte, way.per_byte - way.slowest);
          continue;
        }
        Visit& there = visits_[link.target.index()];
        if (there.share == 0) {
          there = {};
          next_level_.push_back(link.target);
        }
        there.share += share;
        if (way.propagation >= there.propagation) {
          there.propagation = way.propagation;
          there.per_byte = way.per_byte;
          there.slowest = way.slowest;
        }
      }
    }
    std::swap(level_, next_level_);
  }
  path.reachable = arrived;
  path.propagation = last.propagation;
  path.per_byte = last.per_byte;
}

void FlowPaths::FindRing(absl::Span<const Endpoint> members, int nic, uint16_t source_port,
                         uint32_t steps, double packet, FlowPath& path) {
  const size_t n = members.size();
  path.uses.clear();
  path.propagation = path.per_byte = 0;
  path.reachable = true;
  used_.clear();
  latencies_.clear();
  for (size_t i = 0; i < n && path.reachable; ++i) {
    const Endpoint from = members[i], to = members[(i + 1) % n];
    Find({from.host, from.nic + nic}, {to.host, to.nic + nic}, source_port, edge_);
    path.reachable = edge_.reachable;
    latencies_.push_back(edge_.uses.empty() ? 0 : edge_.Latency(packet));
    for (const MaxMin::Use& use : edge_.uses) {
      if (weights_[use.resource] == 0) used_.push_back(LinkId(static_cast<int>(use.resource)));
      weights_[use.resource] += use.weight;
    }
  }
  for (LinkId link : used_) {
    path.uses.push_back({static_cast<MaxMin::Resource>(link.value()), weights_[link.index()]});
    weights_[link.index()] = 0;
  }
  if (!path.reachable) return;
  double around = 0, window = 0;
  for (double latency : latencies_) around += latency;
  const size_t rest = steps % n;
  for (size_t i = 0; i < rest; ++i) window += latencies_[i];
  double longest = window;
  for (size_t i = 0; rest > 0 && i < n; ++i) {
    window += latencies_[(i + rest) % n] - latencies_[i];
    longest = std::max(longest, window);
  }
  const size_t laps = steps / n;
  path.propagation = longest + around * static_cast<double>(laps);
}

}  // namespace weft::topology
