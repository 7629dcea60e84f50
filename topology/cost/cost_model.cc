#include "topology/cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/cost/cut_loads.h"

namespace weft::topology {
namespace {

constexpr const char* kBalanceNames[] = {"hashed", "planned", "even"};

}  // namespace

const char* ToString(Balance balance) { return kBalanceNames[static_cast<size_t>(balance)]; }

absl::StatusOr<Balance> ParseBalance(absl::string_view name) {
  for (size_t i = 0; i < std::size(kBalanceNames); ++i) {
    if (name == kBalanceNames[i]) return static_cast<Balance>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no way of balancing; there are hashed, planned, even"));
}

CostModel::CostModel(const CutTree& tree, Job job, RankBlocks blocks, std::vector<NodeId> hosts,
                     Balance balance)
    : tree_(tree),
      job_(std::move(job)),
      blocks_(std::move(blocks)),
      hosts_(std::move(hosts)),
      balance_(balance),
      levels_(tree.levels()) {}

absl::StatusOr<CostModel> CostModel::Create(const CutTree& tree, const Job& job, RankBlocks blocks,
                                            std::vector<NodeId> hosts, Balance balance) {
  CostModel model(tree, job, std::move(blocks), std::move(hosts), balance);
  WEFT_RETURN_IF_ERROR(model.job_.Validate());
  WEFT_RETURN_IF_ERROR(model.Check());
  model.Prepare();
  WEFT_RETURN_IF_ERROR(model.CheckRails());
  return model;
}

absl::Status CostModel::Check() const {
  const Fabric& fabric = tree_.fabric();
  if (static_cast<int>(hosts_.size()) < blocks_.slots) {
    return absl::InvalidArgumentError(absl::StrCat(job_.mesh.Describe(), " with ", blocks_.gpus,
                                                   " GPUs a host needs ", blocks_.slots,
                                                   " hosts; the allocation has ", hosts_.size()));
  }
  absl::flat_hash_set<int> seen;
  for (NodeId host : hosts_) {
    if (fabric.node(host).kind != NodeKind::kHost) {
      return absl::InvalidArgumentError(
          absl::StrCat(fabric.node(host).name, " is a switch, not a host"));
    }
    if (!seen.insert(host.value()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the allocation names ", fabric.node(host).name, " twice"));
    }
    if (fabric.nics(host) != fabric.nics(hosts_[0])) {
      return absl::InvalidArgumentError(
          absl::StrCat(fabric.node(host).name, " has ", fabric.nics(host), " NICs, ",
                       fabric.node(hosts_[0]).name, " has ", fabric.nics(hosts_[0]),
                       ": hosts of a job must have equally many"));
    }
    for (int nic = 0; nic < fabric.nics(host); ++nic) {
      if (tree_.MeetingLevel({hosts_[0], nic}, {host, nic}) >= 0) continue;
      return absl::FailedPreconditionError(absl::StrCat("no path joins NIC ", nic, " of ",
                                                        fabric.node(hosts_[0]).name, " and of ",
                                                        fabric.node(host).name));
    }
  }
  return absl::OkStatus();
}

// Check() has seen that each rail joins all hosts, so one host shows which rails meet.
absl::Status CostModel::CheckRails() const {
  absl::flat_hash_set<std::pair<int, int>> seen;
  for (size_t i = 0; i < flows_.size(); ++i) {
    for (const SlotFlow& flow : flows_[i].flows) {
      const int a = flow.source_nic, b = flow.target_nic;
      if (a == b || !seen.insert({a, b}).second) continue;
      if (tree_.MeetingLevel({hosts_[0], a}, {hosts_[0], b}) >= 0) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(job_.traffic[i].name, " goes from NIC ", a, " of a host to NIC ", b,
                       " of another, and no path joins these NICs, as those of ",
                       tree_.fabric().node(hosts_[0]).name));
    }
  }
  return absl::OkStatus();
}

void CostModel::Prepare() {
  nics_ = tree_.fabric().nics(hosts_[0]);
  auto levels = static_cast<size_t>(levels_);
  absl::flat_hash_map<int32_t, int32_t> dense;
  for (NodeId host : hosts_) {
    for (int nic = 0; nic < nics_; ++nic) {
      absl::Span<const int32_t> path = tree_.Path({host, nic});
      paths_.push_back(0);
      for (size_t level = 1; level < levels; ++level) {
        auto [at, is_new] = dense.try_emplace(path[level], static_cast<int32_t>(upper_.size()));
        if (is_new) upper_.push_back(path[level]);
        paths_.push_back(at->second);
      }
    }
  }
  for (int level = 0; level < levels_; ++level) {
    alpha_.push_back(absl::ToDoubleSeconds(job_.node.network_latency + tree_.Latency(level)));
  }

  int64_t most_flows = 1;
  for (const Traffic& traffic : job_.traffic) {
    flows_.push_back(FlowsOf(traffic, job_.mesh, job_.node, blocks_, nics_));
    most_flows = std::max(most_flows, static_cast<int64_t>(flows_.back().flows.size()));
    auto ends = static_cast<size_t>(blocks_.slots) * static_cast<size_t>(nics_) * 2;
    nic_bytes_.emplace_back(ends, 0);
    nic_flows_.emplace_back(ends, 0);
    auto add = [&](int32_t slot, int nic, int direction, int64_t bytes) {
      size_t at =
          (static_cast<size_t>(slot) * static_cast<size_t>(nics_) + static_cast<size_t>(nic)) * 2 +
          static_cast<size_t>(direction);
      nic_bytes_.back()[at] += bytes;
      nic_flows_.back()[at] += 1;
    };
    for (const SlotFlow& flow : flows_.back().flows) {
      add(flow.source, flow.source_nic, 0, flow.bytes);
      add(flow.target, flow.target_nic, 1, flow.bytes);
    }
  }

  // One table for each number of cables.
  most_flows = std::min<int64_t>(most_flows * job_.node.queue_pairs, 1 << 20);
  absl::flat_hash_map<int, std::shared_ptr<const CollisionTable>> of_paths;
  auto table = [&](int paths) {
    auto& entry = of_paths[std::max(1, paths)];
    if (!entry) entry = std::make_shared<CollisionTable>(std::max(1, paths), most_flows);
    return entry;
  };
  for (int group : upper_) tables_.push_back(table(tree_.cut(group).links));
  int ports = 1;
  absl::flat_hash_set<std::vector<double>> kinds;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    std::vector<double> kind;
    for (int nic = 0; nic < nics_; ++nic) {
      const CutTree::Cut& cut = tree_.cut(tree_.Path({hosts_[host], nic})[0]);
      ports = std::max(ports, cut.links);
      kind.insert(kind.end(), {1.0 * cut.links, cut.capacity, cut.slowest});
    }
    if (kinds.insert(std::move(kind)).second) nic_kinds_.push_back(static_cast<int32_t>(host));
  }
  port_table_ = table(ports);
}

namespace {

// Seconds of the fullest cable of a cut.
double FullestSeconds(const CutTree::Cut& cut, const CollisionTable& table, Balance balance,
                      int queue_pairs, double efficiency, int64_t flows, int64_t bytes) {
  if (flows == 0 || bytes == 0) return 0;
  double parts = static_cast<double>(flows) * queue_pairs;
  double each = static_cast<double>(bytes) / parts;
  double paths = cut.links, mean = cut.capacity / paths;
  double fullest = 0;  // parts on it
  switch (balance) {
    case Balance::kHashed:
      fullest = table.MaxLoad(parts);
      break;
    case Balance::kPlanned:
      fullest = std::ceil(parts / paths);
      break;
    case Balance::kEven:
      fullest = parts / paths;
      break;
  }
  double seconds = each * fullest / mean;
  if (cut.slowest < cut.fastest) {
    // A slow cable gets its share, or one part whenever it is hit at all. A planner avoids it.
    double hit = balance == Balance::kHashed ? 1 - std::pow(1 - 1 / paths, parts) : 0;
    if (balance != Balance::kPlanned) {
      seconds = std::max(seconds, each * std::max(parts / paths, hit) / cut.slowest);
    }
  }
  return seconds / efficiency;
}

}  // namespace

double CostModel::CutSeconds(int group, int64_t flows, int64_t bytes) const {
  return FullestSeconds(tree_.cut(upper_[static_cast<size_t>(group)]),
                        *tables_[static_cast<size_t>(group)], balance_, job_.node.queue_pairs,
                        job_.node.efficiency, flows, bytes);
}

double CostModel::NicSeconds(size_t traffic, int32_t slot, int32_t host) const {
  double seconds = 0;
  for (int nic = 0; nic < nics_; ++nic) {
    const CutTree::Cut& cut = tree_.cut(tree_.Path({hosts_[static_cast<size_t>(host)], nic})[0]);
    for (size_t direction : {0, 1}) {
      size_t at =
          (static_cast<size_t>(slot) * static_cast<size_t>(nics_) + static_cast<size_t>(nic)) * 2 +
          direction;
      seconds = std::max(seconds, FullestSeconds(cut, *port_table_, balance_, job_.node.queue_pairs,
                                                 job_.node.efficiency, nic_flows_[traffic][at],
                                                 nic_bytes_[traffic][at]));
    }
  }
  return seconds;
}

double CostModel::NicFloor(size_t traffic, const Placement& placement) const {
  double seconds = 0;
  for (int32_t slot = 0; slot < blocks_.slots; ++slot) {
    seconds = std::max(seconds, NicSeconds(traffic, slot, placement[static_cast<size_t>(slot)]));
  }
  return seconds;
}

double CostModel::NicFloorLeast(size_t traffic) const {
  double seconds = 0;
  for (int32_t slot = 0; slot < blocks_.slots; ++slot) {
    double best = std::numeric_limits<double>::infinity();
    for (int32_t host : nic_kinds_) best = std::min(best, NicSeconds(traffic, slot, host));
    seconds = std::max(seconds, best);
  }
  return seconds;
}

std::vector<CostModel::GroupHosts> CostModel::HostsByGroup() const {
  std::vector<GroupHosts> groups;
  std::vector<int32_t> last(upper_.size(), -1);
  for (size_t i = 0; i < upper_.size(); ++i) groups.push_back({upper_[i], static_cast<int>(i), 0});
  for (int32_t host = 0; host < static_cast<int32_t>(hosts_.size()); ++host) {
    for (int nic = 0; nic < nics_; ++nic) {
      for (int level = 1; level < levels_; ++level) {
        auto group = static_cast<size_t>(PathOf(host, nic)[level]);
        if (std::exchange(last[group], host) != host) ++groups[group].hosts;
      }
    }
  }
  std::erase_if(groups, [&](const GroupHosts& one) { return tree_.cut(one.group).links == 0; });
  return groups;
}

bool CostModel::Matters(size_t traffic) const {
  const Traffic& one = job_.traffic[traffic];
  return one.times > 0 && (one.exposed > 0 || one.window < absl::InfiniteDuration()) &&
         !flows_[traffic].flows.empty();
}

PlacementScore CostModel::Score(const Placement& placement) const {
  PlacementScore score;
  for (size_t i = 0; i < flows_.size(); ++i) {
    if (!Matters(i)) continue;
    CutLoads loads(*this, i);
    for (const SlotFlow& flow : flows_[i].flows) loads.Add(flow, placement, 1);
    double most = 0, pressure = 0;
    for (size_t cut = 0; cut < loads.cuts(); ++cut) {
      double seconds = loads.Seconds(cut);
      most = std::max(most, seconds);
      pressure += seconds * seconds;
    }
    double inside = absl::ToDoubleSeconds(flows_[i].inside);
    double nics = NicFloor(i, placement), network = std::max(nics, most);
    double once = loads.Latency() + absl::ToDoubleSeconds(flows_[i].inside_latency) +
                  (flows_[i].inside_adds ? inside + network : std::max(inside, network));
    const Traffic& traffic = job_.traffic[i];
    double all = once * traffic.times, hidden = all * (1 - traffic.exposed);
    score.seconds += all - hidden + std::max(0.0, hidden - absl::ToDoubleSeconds(traffic.window));
    double floor = std::max(nics, inside);
    if (floor > 0) {
      score.pressure +=
          traffic.exposed * traffic.times * pressure / (floor * static_cast<double>(loads.cuts()));
    }
  }
  return score;
}

StepCost CostModel::Evaluate(const Placement& placement) const {
  StepCost step;
  for (size_t i = 0; i < flows_.size(); ++i) {
    CutLoads loads(*this, i);
    for (const SlotFlow& flow : flows_[i].flows) loads.Add(flow, placement, 1);
    TrafficCost cost;
    double inside = absl::ToDoubleSeconds(flows_[i].inside);
    double nics = NicFloor(i, placement), cuts = 0;
    for (const CutLoad& load : loads.Largest(1)) {
      cost.worst = load;
      cuts = absl::ToDoubleSeconds(load.time);
    }
    double network = std::max(nics, cuts);
    cost.floor = absl::Seconds(flows_[i].inside_adds ? inside + nics : std::max(inside, nics));
    cost.transfer =
        absl::Seconds(flows_[i].inside_adds ? inside + network : std::max(inside, network));
    cost.latency = absl::Seconds(loads.Latency()) + flows_[i].inside_latency;
    cost.once = cost.latency + cost.transfer;
    cost.exposed = job_.traffic[i].Exposed(cost.once);
    cost.flows_at = loads.flows_at();
    cost.bytes_at = loads.bytes_at();
    step.exposed += cost.exposed;
    step.traffic.push_back(std::move(cost));
  }
  return step;
}

std::vector<CutLoad> CostModel::WorstCuts(const Placement& placement, size_t traffic,
                                          size_t count) const {
  CutLoads loads(*this, traffic);
  for (const SlotFlow& flow : flows_[traffic].flows) loads.Add(flow, placement, 1);
  return loads.Largest(count);
}

std::vector<int32_t> CostModel::GroupsOn(const Placement& placement, size_t traffic,
                                         const CutLoad& cut) const {
  std::vector<int32_t> groups;
  for (const SlotFlow& flow : flows_[traffic].flows) {
    const int32_t* source = PathOf(placement[static_cast<size_t>(flow.source)], flow.source_nic);
    const int32_t* target = PathOf(placement[static_cast<size_t>(flow.target)], flow.target_nic);
    int meeting = Meeting(source, target);
    const int32_t* end = cut.up ? source : target;
    for (int level = 1; level < meeting; ++level) {
      if (upper_[static_cast<size_t>(end[level])] == cut.group) groups.push_back(flow.group);
    }
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  return groups;
}

}  // namespace weft::topology
