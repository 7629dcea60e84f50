#include "topology/fabric/routes.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace weft::topology {
namespace {

// Link visits of the breadth-first searches: about 10 s of one core.
constexpr int64_t kMaxVisits = int64_t{1} << 33;

// The switches on which a NIC hangs by ports that are up.
std::vector<NodeId> SwitchesOf(const Fabric& fabric, Endpoint endpoint) {
  std::vector<NodeId> switches;
  for (LinkId port : fabric.Ports(endpoint)) {
    if (fabric.link(port).up) switches.push_back(fabric.link(port).target);
  }
  std::sort(switches.begin(), switches.end());
  switches.erase(std::unique(switches.begin(), switches.end()), switches.end());
  return switches;
}

}  // namespace

Routes::Routes(const Fabric& fabric) : fabric_(fabric) { Build(); }

absl::Status Routes::Feasible(const Fabric& fabric) {
  absl::flat_hash_set<std::vector<NodeId>> groups;
  for (Endpoint endpoint : fabric.Endpoints()) groups.insert(SwitchesOf(fabric, endpoint));
  auto switches = static_cast<int64_t>(fabric.switches().size());
  auto count = static_cast<int64_t>(groups.size());
  if (count * switches <= kMaxEntries && count * fabric.links() <= kMaxVisits) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("routes to ", count, " different sets of switches over ", switches,
                   " switches and ", fabric.links() / 2, " cables are too many: at most ",
                   kMaxEntries, " sets times switches, and ", kMaxVisits, " sets times links"));
}

void Routes::Build() {
  generation_ = fabric_.generation();
  auto links = static_cast<size_t>(fabric_.links());
  up_.assign(links, 0);
  for (size_t i = 0; i < links; ++i) up_[i] = fabric_.link(LinkId(static_cast<int>(i))).up ? 1 : 0;

  switch_index_.assign(static_cast<size_t>(fabric_.nodes()), -1);
  absl::Span<const NodeId> switches = fabric_.switches();
  for (size_t i = 0; i < switches.size(); ++i) {
    switch_index_[switches[i].index()] = static_cast<int32_t>(i);
  }
  neighbors_.clear();
  neighbors_begin_.assign(1, 0);
  for (NodeId node : switches) {
    for (LinkId link : fabric_.LinksFrom(node)) {
      int32_t at = switch_index_[fabric_.link(link).target.index()];
      if (at >= 0) neighbors_.push_back({link, at});
    }
    neighbors_begin_.push_back(static_cast<uint32_t>(neighbors_.size()));
  }

  sets_ = {Set{0, 0, 0}, Set{0, 0, -1}};
  set_links_.clear();
  set_of_.clear();
  groups_.clear();
  group_of_.clear();
  last_.clear();
  last_begin_.assign(1, 0);
  endpoint_group_.assign(static_cast<size_t>(fabric_.endpoints()), -1);
  for (Endpoint endpoint : fabric_.Endpoints()) {
    last_.resize(last_.size() + fabric_.Ports(endpoint).size());
    last_begin_.push_back(static_cast<uint32_t>(last_.size()));
    PlaceEndpoint(endpoint);
  }
  FindScatteredPorts();
  size_when_built_ = set_links_.size() + groups_.size();
}

// Finds or makes the group of a NIC, and notes its last hops.
void Routes::PlaceEndpoint(Endpoint endpoint) {
  auto index = static_cast<size_t>(fabric_.IndexOf(endpoint));
  std::vector<std::pair<NodeId, LinkId>> last;  // by switch, then id
  for (LinkId port : fabric_.Ports(endpoint)) {
    const FabricLink& link = fabric_.link(port);
    if (link.up) last.emplace_back(link.target, link.reverse);
  }
  std::sort(last.begin(), last.end());
  std::fill(last_.begin() + last_begin_[index], last_.begin() + last_begin_[index + 1], LinkId());
  for (size_t i = 0; i < last.size(); ++i) last_[last_begin_[index] + i] = last[i].second;

  endpoint_group_[index] = -1;
  if (last.empty()) return;
  std::vector<NodeId> switches = SwitchesOf(fabric_, endpoint);
  auto [found, is_new] = group_of_.try_emplace(switches, static_cast<int32_t>(groups_.size()));
  endpoint_group_[index] = found->second;
  if (!is_new) return;
  groups_.push_back({std::move(switches), {}});
  ComputeGroup(groups_.back());
}

absl::Span<const Routes::Neighbor> Routes::NeighborsOf(int32_t at) const {
  auto index = static_cast<size_t>(at);
  return absl::MakeConstSpan(neighbors_)
      .subspan(neighbors_begin_[index], neighbors_begin_[index + 1] - neighbors_begin_[index]);
}

// Breadth first from the group's switches; then each switch's links to those one nearer.
void Routes::ComputeGroup(Group& group) {
  size_t count = fabric_.switches().size();
  distance_.assign(count, -1);
  std::vector<int32_t> queue;
  queue.reserve(count);
  for (NodeId node : group.switches) {
    int32_t at = switch_index_[node.index()];
    distance_[static_cast<size_t>(at)] = 0;
    queue.push_back(at);
  }
  for (size_t head = 0; head < queue.size(); ++head) {
    int32_t next = distance_[static_cast<size_t>(queue[head])] + 1;
    for (const Neighbor& neighbor : NeighborsOf(queue[head])) {
      int32_t& there = distance_[static_cast<size_t>(neighbor.at)];
      if (there >= 0 || up_[neighbor.link.index()] == 0) continue;
      there = next;
      queue.push_back(neighbor.at);
    }
  }
  // Sets are mostly those that there were, or those of the group before.
  std::vector<SetId> hints = std::move(group.table);
  if (hints.empty() && groups_.size() > 1) hints = groups_[groups_.size() - 2].table;
  hints.resize(count, kUnreachable);
  group.table.assign(count, kUnreachable);
  for (int32_t at : queue) {
    auto index = static_cast<size_t>(at);
    group.table[index] = distance_[index] == 0
                             ? kAttached
                             : NextSet(at, distance_[index], hints[index], [this](int32_t other) {
                                 return distance_[static_cast<size_t>(other)];
                               });
  }
}

// The set of the links from `at` that lead one nearer. kUnreachable: there are none.
template <typename DistanceOf>
Routes::SetId Routes::NextSet(int32_t at, int32_t distance, SetId hint, DistanceOf distance_of) {
  auto& [key_distance, links] = key_;
  key_distance = distance;
  links.clear();
  for (const Neighbor& neighbor : NeighborsOf(at)) {
    if (up_[neighbor.link.index()] != 0 && distance_of(neighbor.at) == distance - 1) {
      links.push_back(neighbor.link);
    }
  }
  if (links.empty()) return kUnreachable;
  const Set& guess = sets_[hint];
  if (guess.distance == distance && guess.size == links.size() &&
      std::equal(links.begin(), links.end(), set_links_.begin() + guess.begin)) {
    return hint;
  }
  auto [found, is_new] = set_of_.try_emplace(key_, static_cast<SetId>(sets_.size()));
  if (is_new) {
    sets_.push_back(
        {static_cast<uint32_t>(set_links_.size()), static_cast<uint32_t>(links.size()), distance});
    set_links_.insert(set_links_.end(), links.begin(), links.end());
  }
  return found->second;
}

int32_t Routes::Distance(const Group& group, NodeId at) const {
  return sets_[group.table[static_cast<size_t>(switch_index_[at.index()])]].distance;
}

const Routes::Group* Routes::GroupOf(Endpoint target) const {
  int32_t group = endpoint_group_[static_cast<size_t>(fabric_.IndexOf(target))];
  return group < 0 ? nullptr : &groups_[static_cast<size_t>(group)];
}

absl::Span<const LinkId> Routes::Next(NodeId at, Endpoint target) const {
  int32_t index = switch_index_[at.index()];
  const Group* group = GroupOf(target);
  if (index < 0 || group == nullptr) return {};
  SetId id = group->table[static_cast<size_t>(index)];
  if (id != kAttached) {
    return absl::MakeConstSpan(set_links_).subspan(sets_[id].begin, sets_[id].size);
  }
  auto endpoint = static_cast<size_t>(fabric_.IndexOf(target));
  auto begin = last_.begin() + last_begin_[endpoint];
  auto end = last_.begin() + last_begin_[endpoint + 1];
  auto is_here = [&](LinkId link) { return link != LinkId() && fabric_.link(link).source == at; };
  auto first = std::find_if(begin, end, is_here);
  auto last = std::find_if_not(first, end, is_here);
  return absl::MakeConstSpan(&*first, static_cast<size_t>(last - first));
}

// Bit i: the i-th port of the NIC is up and no other is nearer.
uint64_t Routes::NearestPorts(Endpoint source, const Group& group) const {
  absl::Span<const LinkId> ports = fabric_.Ports(source);
  uint64_t nearest = 0;
  int32_t least = std::numeric_limits<int32_t>::max();
  for (size_t i = 0; i < ports.size(); ++i) {
    if (up_[ports[i].index()] == 0) continue;
    int32_t distance = Distance(group, fabric_.link(ports[i]).target);
    if (distance < 0 || distance > least) continue;
    if (distance < least) nearest = 0;
    least = distance;
    nearest |= uint64_t{1} << i;
  }
  return nearest;
}

absl::Span<const LinkId> Routes::First(Endpoint source, Endpoint target) const {
  const Group* group = GroupOf(target);
  if (group == nullptr || source.host == target.host) return {};
  uint64_t nearest = NearestPorts(source, *group);
  if (nearest == 0) return {};
  auto begin = static_cast<size_t>(std::countr_zero(nearest));
  auto size = static_cast<size_t>(std::popcount(nearest));
  if (static_cast<size_t>(std::countr_one(nearest >> begin)) == size) {
    return fabric_.Ports(source).subspan(begin, size);
  }
  return scattered_.at({fabric_.IndexOf(source), nearest});
}

// With one or two ports every choice is a run of neighbours.
void Routes::FindScatteredPorts() {
  scattered_.clear();
  for (Endpoint endpoint : fabric_.Endpoints()) {
    absl::Span<const LinkId> ports = fabric_.Ports(endpoint);
    if (ports.size() < 3) continue;
    for (const Group& group : groups_) {
      uint64_t nearest = NearestPorts(endpoint, group);
      auto [found, is_new] = scattered_.try_emplace({fabric_.IndexOf(endpoint), nearest});
      if (!is_new) continue;
      for (size_t i = 0; i < ports.size(); ++i) {
        if ((nearest >> i & 1) != 0) found->second.push_back(ports[i]);
      }
    }
  }
}

int Routes::Hops(Endpoint source, Endpoint target) const {
  if (source.host == target.host) return 0;
  absl::Span<const LinkId> first = First(source, target);
  if (first.empty()) return -1;
  return Distance(*GroupOf(target), fabric_.link(first[0]).target) + 2;
}

int64_t Routes::Paths(Endpoint source, Endpoint target) const {
  if (source.host == target.host) return 1;
  auto add = [](int64_t& sum, int64_t more) {
    if (__builtin_add_overflow(sum, more, &sum)) sum = std::numeric_limits<int64_t>::max();
  };
  absl::flat_hash_map<NodeId, int64_t> level;  // switches equally far, and the ways to each
  for (LinkId port : First(source, target)) add(level[fabric_.link(port).target], 1);
  while (!level.empty()) {
    absl::flat_hash_map<NodeId, int64_t> next_level;
    for (const auto& [at, ways] : level) {
      for (LinkId link : Next(at, target)) add(next_level[fabric_.link(link).target], ways);
    }
    level = std::move(next_level);
    if (level.contains(target.host)) return level[target.host];
  }
  return 0;
}

absl::Status Routes::Unreachable(Endpoint source, Endpoint target) const {
  return absl::NotFoundError(absl::StrCat(fabric_.node(source.host).name, " NIC ", source.nic,
                                          " cannot reach ", fabric_.node(target.host).name, " NIC ",
                                          target.nic, ": no path over links that are up"));
}

// Where no distance changes, only the switches at the ends of `changed` choose anew. False: some
// distance changes, and the group must be computed from scratch.
//
// Why that is enough: if every link that is up joins switches whose old distances differ by at most
// one, no switch came nearer; and if every switch still has a link to one that is one nearer, none
// went farther.
bool Routes::Patch(Group& group, absl::Span<const LinkId> changed) {
  for (LinkId id : changed) {
    const FabricLink& link = fabric_.link(id);
    int32_t a = Distance(group, link.source);
    int32_t b = Distance(group, link.target);
    if (link.up && (std::min(a, b) < 0 ? a != b : std::abs(a - b) > 1)) return false;
  }
  for (LinkId id : changed) {
    const FabricLink& link = fabric_.link(id);
    int32_t a = Distance(group, link.source);
    int32_t b = Distance(group, link.target);
    if (a == b) continue;
    int32_t at = switch_index_[(a > b ? link.source : link.target).index()];
    SetId& set = group.table[static_cast<size_t>(at)];
    SetId chosen = NextSet(at, std::max(a, b), set, [&](int32_t other) {
      return sets_[group.table[static_cast<size_t>(other)]].distance;
    });
    if (chosen == kUnreachable) return false;
    set = chosen;
  }
  return true;
}

void Routes::Update() {
  if (generation_ == fabric_.generation()) return;
  if (set_links_.size() + groups_.size() > 4 * size_when_built_ + 4096) return Build();
  generation_ = fabric_.generation();
  std::vector<LinkId> changed;
  std::vector<Endpoint> moved;
  for (int i = 0; i < fabric_.links(); ++i) {
    const FabricLink& link = fabric_.link(LinkId(i));
    char& up = up_[static_cast<size_t>(i)];
    if ((up != 0) == link.up) continue;
    up = link.up ? 1 : 0;
    if (link.nic >= 0) {
      if (switch_index_[link.source.index()] < 0) moved.push_back({link.source, link.nic});
    } else if (LinkId(i) < link.reverse) {
      changed.push_back(LinkId(i));
    }
  }
  if (changed.empty() && moved.empty()) return;
  for (Group& group : groups_) {
    if (!Patch(group, changed)) ComputeGroup(group);
  }
  for (Endpoint endpoint : moved) PlaceEndpoint(endpoint);
  FindScatteredPorts();
}

Bytes Routes::memory() const {
  size_t bytes = up_.size() + neighbors_.size() * sizeof(Neighbor) + last_.size() * sizeof(LinkId) +
                 (switch_index_.size() + neighbors_begin_.size() + endpoint_group_.size() +
                  last_begin_.size()) *
                     sizeof(int32_t) +
                 sets_.size() * (sizeof(Set) + sizeof(SetKey) + sizeof(SetId)) +
                 2 * set_links_.size() * sizeof(LinkId);
  for (const Group& group : groups_) {
    bytes += sizeof(Group) + 2 * group.switches.size() * sizeof(NodeId) +
             group.table.size() * sizeof(SetId);
  }
  for (const auto& [key, ports] : scattered_) {
    bytes += sizeof(key) + sizeof(std::vector<LinkId>) + ports.size() * sizeof(LinkId);
  }
  return Bytes(static_cast<int64_t>(bytes));
}

}  // namespace weft::topology
