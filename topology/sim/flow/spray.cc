#include "topology/sim/flow/spray.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace weft::topology {

LinkCells::LinkCells(const Fabric& fabric, absl::Span<const double> capacities, bool merge)
    : merge_(merge) {
  std::map<double, MaxMin::Resource> by_capacity;
  for (size_t i = 0; i < capacities.size(); ++i) {
    const MaxMin::Resource fresh = static_cast<MaxMin::Resource>(capacities_.size());
    MaxMin::Resource cell = fresh;
    if (merge && fabric.link(LinkId(static_cast<int>(i))).nic < 0) {
      cell = by_capacity.try_emplace(capacities[i], fresh).first->second;
    }
    if (cell == fresh) {
      capacities_.push_back(capacities[i]);
      size_.push_back(0);
    }
    cell_.push_back(cell);
    ++size_[cell];
  }
}

// `links` of the cell, fewer than all, become another.
MaxMin::Resource LinkCells::Split(MaxMin::Resource cell, absl::Span<const MaxMin::Use> links,
                                  Fluid& fluid) {
  const MaxMin::Resource fresh = fluid.Split(cell);
  for (const MaxMin::Use& link : links) cell_[link.resource] = fresh;
  size_.resize(fresh + 1);
  size_[fresh] = static_cast<uint32_t>(links.size());
  size_[cell] -= size_[fresh];
  ++splits_;
  return fresh;
}

void LinkCells::Rewrite(std::vector<MaxMin::Use>& uses, Fluid& fluid) {
  if (!merge_) return;
  sorted_.assign(uses.begin(), uses.end());
  std::sort(sorted_.begin(), sorted_.end(), [&](const MaxMin::Use& a, const MaxMin::Use& b) {
    return std::tuple(cell_[a.resource], a.weight, a.resource) <
           std::tuple(cell_[b.resource], b.weight, b.resource);
  });
  uses.clear();
  for (size_t begin = 0; begin < sorted_.size();) {
    // A run of one cell and weight. What of the cell is left when the run before it was split off
    // is a whole cell again.
    const MaxMin::Resource cell = cell_[sorted_[begin].resource];
    const double weight = sorted_[begin].weight;
    size_t end = begin;
    while (end < sorted_.size() && cell_[sorted_[end].resource] == cell &&
           sorted_[end].weight == weight) {
      ++end;
    }
    const absl::Span<const MaxMin::Use> run(&sorted_[begin], end - begin);
    uses.push_back({run.size() == size_[cell] ? cell : Split(cell, run, fluid), weight});
    begin = end;
  }
}

MaxMin::Resource LinkCells::Isolate(LinkId link, Fluid& fluid) {
  const MaxMin::Resource cell = cell_[link.index()];
  if (size_[cell] == 1) return cell;
  const MaxMin::Use use{static_cast<MaxMin::Resource>(link.value()), 1};
  return Split(cell, {&use, 1}, fluid);
}

void SprayPaths::Find(Endpoint source, Endpoint target, Fluid& fluid, FlowPath& path) {
  const absl::Span<const LinkId> out = fabric_.Ports(source), in = fabric_.Ports(target);
  if (source.host == target.host || out.size() != 1 || in.size() != 1 || !fabric_.link(out[0]).up ||
      !fabric_.link(in[0]).up) {
    paths_.Find(source, target, 0, path);
    cells_.Rewrite(path.uses, fluid);
    return;
  }
  const FabricLink& first = fabric_.link(out[0]);
  const FabricLink& last = fabric_.link(in[0]);  // its reverse is the last link; both are alike
  const Key key{first.target.value(),
                last.target.value(),
                first.bandwidth.bytes_per_second(),
                last.bandwidth.bytes_per_second(),
                first.delay,
                last.delay};
  const auto [entry, is_new] = known_.try_emplace(key);
  Known& known = entry->second;
  if (is_new) {
    paths_.Find(source, target, 0, path);
    if (!path.reachable) {
      known_.erase(entry);
      return;
    }
    for (const MaxMin::Use& use : path.uses) {
      const bool at_host = fabric_.link(LinkId(static_cast<int>(use.resource))).nic >= 0;
      if (!at_host) known.links.push_back(use);
    }
    known.propagation = path.propagation;
    known.per_byte = path.per_byte;
  }
  if (is_new || known.splits != cells_.splits()) {
    known.cells = known.links;
    cells_.Rewrite(known.cells, fluid);
    known.splits = cells_.splits();
  }
  path.reachable = true;
  path.propagation = known.propagation;
  path.per_byte = known.per_byte;
  path.uses.assign(1, {cells_.cell(out[0]), 1});
  path.uses.insert(path.uses.end(), known.cells.begin(), known.cells.end());
  path.uses.push_back({cells_.cell(last.reverse), 1});
}

}  // namespace weft::topology
