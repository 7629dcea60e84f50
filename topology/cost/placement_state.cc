#include "topology/cost/placement_state.h"

#include <algorithm>
#include <utility>

namespace weft::topology {

MaxTree::MaxTree(size_t size) {
  while (leaves_ < size) leaves_ *= 2;
  tree_.assign(2 * leaves_, 0.0);
}

void MaxTree::Set(size_t i, double value) {
  i += leaves_;
  if (tree_[i] == value) return;
  tree_[i] = value;
  for (i /= 2; i > 0; i /= 2) {
    double most = std::max(tree_[2 * i], tree_[2 * i + 1]);
    if (tree_[i] == most) break;
    tree_[i] = most;
  }
}

size_t MaxTree::Where() const {
  size_t i = 1;
  while (i < leaves_) i = 2 * i + (tree_[2 * i] == tree_[i] ? 0 : 1);
  return i - leaves_;
}

PlacementState::PlacementState(const CostModel& model, Placement placement)
    : model_(model), placement_(std::move(placement)) {
  size_t cuts = 0, groups = 0;
  for (size_t i = 0; i < model_.job_.traffic.size(); ++i) {
    const Traffic& traffic = model_.job_.traffic[i];
    const TrafficFlows& flows = model_.flows_[i];
    if (!model_.Matters(i)) {
      constant_ += absl::ToDoubleSeconds(traffic.Exposed(flows.inside_latency + flows.inside));
      continue;
    }
    CutLoads loads(model_, i);
    size_t slots = static_cast<size_t>(model_.blocks_.slots);
    Followed one{i,
                 loads,
                 MaxTree(loads.cuts()),
                 MaxTree(flows.flows_of_group.size()),
                 MaxTree(slots),
                 absl::ToDoubleSeconds(flows.inside),
                 absl::ToDoubleSeconds(flows.inside_latency),
                 0,
                 0,
                 std::vector<std::vector<int32_t>>(slots)};
    for (size_t f = 0; f < flows.flows.size(); ++f) {
      const SlotFlow& flow = flows.flows[f];
      one.flows_of_slot[static_cast<size_t>(flow.source)].push_back(static_cast<int32_t>(f));
      one.flows_of_slot[static_cast<size_t>(flow.target)].push_back(static_cast<int32_t>(f));
      one.loads.Add(flow, placement_, 1);
    }
    for (size_t cut = 0; cut < one.loads.cuts(); ++cut) {
      double seconds = one.loads.Seconds(cut);
      one.cut_seconds.Set(cut, seconds);
      one.pressure += seconds * seconds;
    }
    for (size_t group = 0; group < flows.flows_of_group.size(); ++group) {
      one.group_latency.Set(group, one.loads.LatencyOf(group));
    }
    for (size_t slot = 0; slot < slots; ++slot) {
      one.nic_seconds.Set(slot, model_.NicSeconds(i, static_cast<int32_t>(slot), placement_[slot]));
    }
    one.floor = std::max(one.nic_seconds.Max(), one.inside);
    cuts = std::max(cuts, loads.cuts());
    groups = std::max(groups, flows.flows_of_group.size());
    followed_.push_back(std::move(one));
  }
  is_touched_cut_.assign(cuts, 0);
  is_touched_group_.assign(groups, 0);
}

void PlacementState::Move(Followed& one, int32_t a, int32_t b, int sign) {
  const std::vector<SlotFlow>& flows = model_.flows_[one.traffic].flows;
  auto move = [&](int32_t slot, int32_t but) {
    if (slot >= model_.blocks_.slots) return;
    for (int32_t f : one.flows_of_slot[static_cast<size_t>(slot)]) {
      const SlotFlow& flow = flows[static_cast<size_t>(f)];
      if (flow.source == but || flow.target == but) continue;
      ++updates_;
      one.loads.Add(flow, placement_, sign, [&](size_t cut) {
        if (is_touched_cut_[cut] != 0) return;
        is_touched_cut_[cut] = 1;
        touched_cuts_.push_back(cut);
      });
      auto group = static_cast<size_t>(flow.group);
      if (is_touched_group_[group] == 0) {
        is_touched_group_[group] = 1;
        touched_groups_.push_back(flow.group);
      }
    }
  };
  move(a, -1);
  move(b, a);
}

void PlacementState::Refresh(Followed& one) {
  for (size_t cut : touched_cuts_) {
    double before = one.cut_seconds.Get(cut), after = one.loads.Seconds(cut);
    one.cut_seconds.Set(cut, after);
    one.pressure += after * after - before * before;
    is_touched_cut_[cut] = 0;
  }
  for (int32_t group : touched_groups_) {
    auto i = static_cast<size_t>(group);
    one.group_latency.Set(i, one.loads.LatencyOf(i));
    is_touched_group_[i] = 0;
  }
  touched_cuts_.clear();
  touched_groups_.clear();
}

void PlacementState::Swap(int32_t a, int32_t b) {
  if (a == b) return;
  auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
  for (Followed& one : followed_) {
    Move(one, a, b, -1);
    std::swap(placement_[i], placement_[j]);
    Move(one, a, b, 1);
    std::swap(placement_[i], placement_[j]);
    Refresh(one);
  }
  std::swap(placement_[i], placement_[j]);
  if (model_.uniform_nics()) return;
  for (Followed& one : followed_) {
    for (int32_t slot : {a, b}) {
      if (slot >= model_.blocks_.slots) continue;
      auto at = static_cast<size_t>(slot);
      one.nic_seconds.Set(at, model_.NicSeconds(one.traffic, slot, placement_[at]));
    }
  }
}

double PlacementState::OnceOf(const Followed& one) const {
  double network = std::max(one.nic_seconds.Max(), one.cut_seconds.Max());
  double transfer =
      model_.flows_[one.traffic].inside_adds ? one.inside + network : std::max(one.inside, network);
  return one.group_latency.Max() + one.inside_latency + transfer;
}

double PlacementState::StepSeconds(const Followed& one) const {
  const Traffic& traffic = model_.job_.traffic[one.traffic];
  double all = OnceOf(one) * traffic.times;
  double hidden = all * (1 - traffic.exposed);
  return all - hidden + std::max(0.0, hidden - absl::ToDoubleSeconds(traffic.window));
}

double PlacementState::Seconds() const {
  double sum = constant_;
  for (const Followed& one : followed_) sum += StepSeconds(one);
  return sum;
}

double PlacementState::Pressure() const {
  double sum = 0;
  for (const Followed& one : followed_) {
    const Traffic& traffic = model_.job_.traffic[one.traffic];
    if (one.floor <= 0) continue;
    sum += traffic.exposed * traffic.times * one.pressure /
           (one.floor * static_cast<double>(one.loads.cuts()));
  }
  return sum;
}

PlacementState::Bottleneck PlacementState::WorstCut() const {
  Bottleneck worst;
  double most = 0;
  for (size_t i = 0; i < followed_.size(); ++i) {
    const Followed& one = followed_[i];
    const Traffic& traffic = model_.job_.traffic[one.traffic];
    double above = (one.cut_seconds.Max() - one.floor) * traffic.exposed * traffic.times;
    if (above <= most) continue;
    most = above;
    worst = {static_cast<int>(i), one.cut_seconds.Where()};
  }
  return worst;
}

void PlacementState::SlotsOn(Bottleneck where, std::vector<int32_t>& inner,
                             std::vector<int32_t>& outer) const {
  inner.clear();
  outer.clear();
  if (where.traffic < 0) return;
  const Followed& one = followed_[static_cast<size_t>(where.traffic)];
  auto group = static_cast<int32_t>(where.cut / 2);
  bool up = where.cut % 2 == 0;
  for (const SlotFlow& flow : model_.flows_[one.traffic].flows) {
    const int32_t* source =
        model_.PathOf(placement_[static_cast<size_t>(flow.source)], flow.source_nic);
    const int32_t* target =
        model_.PathOf(placement_[static_cast<size_t>(flow.target)], flow.target_nic);
    const int32_t* near = up ? source : target;
    const int32_t* far = up ? target : source;
    for (int level = 1; level < model_.levels_; ++level) {
      if (near[level] != group || far[level] == group) continue;
      inner.push_back(up ? flow.source : flow.target);
      outer.push_back(up ? flow.target : flow.source);
      break;
    }
  }
}

}  // namespace weft::topology
