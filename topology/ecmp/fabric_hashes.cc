#include "topology/ecmp/fabric_hashes.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::topology {
namespace {

// Whether two links would be members of one group, were both up.
bool SameGroup(const Fabric& fabric, const FabricLink& a, const FabricLink& b) {
  const FabricNode& x = fabric.node(a.target);
  const FabricNode& y = fabric.node(b.target);
  return x.kind == y.kind && x.tier == y.tier && x.pod == y.pod && x.plane == y.plane &&
         a.nic == b.nic && x.kind == NodeKind::kSwitch;
}

}  // namespace

absl::StatusOr<FabricHashes> FabricHashes::Create(const Fabric& fabric, uint32_t seed) {
  constexpr int kNicsMax = 16, kHostsMax = 1 << 20;
  FabricHashes out(fabric);
  out.hashes_.reserve(static_cast<size_t>(fabric.nodes()));
  for (int i = 0; i < fabric.nodes(); ++i) {
    uint32_t own = seed + static_cast<uint32_t>(i);
    WEFT_ASSIGN_OR_RETURN(SwitchHash hash,
                          SwitchHash::Create(PerTierHash(fabric.node(NodeId(i)).tier, own)));
    out.hashes_.push_back(hash);
  }
  if (fabric.hosts().size() > kHostsMax) {
    return absl::InvalidArgumentError(absl::StrCat("addresses 10.0.0.0/8 are for ", kHostsMax,
                                                   " hosts; this fabric has ",
                                                   fabric.hosts().size()));
  }
  uint32_t number = 0;
  for (NodeId host : fabric.hosts()) {
    int nics = fabric.nics(host);
    if (nics > kNicsMax) {
      return absl::InvalidArgumentError(absl::StrCat("host ", fabric.node(host).name, " has ", nics,
                                                     " NICs; addresses are for ", kNicsMax));
    }
    for (int nic = 0; nic < nics; ++nic) {
      out.addresses_[Endpoint{host, nic}] =
          IpAddress::V4(0x0A000000 + number * kNicsMax + static_cast<uint32_t>(nic));
    }
    ++number;
  }
  return out;
}

const IpAddress& FabricHashes::address(Endpoint endpoint) const {
  auto found = addresses_.find(endpoint);
  WEFT_CHECK(found != addresses_.end(),
             "no address of node " << endpoint.host.value() << " NIC " << endpoint.nic);
  return found->second;
}

void FabricHashes::SetHash(NodeId node, const SwitchHash& hash) {
  hashes_[node.index()] = hash;
  learned_.erase(node);
  if (!hash.KnowsAll()) learned_.insert(node);
}

std::vector<uint16_t> FabricHashes::TablePorts(const FiveTuple& tuple) const {
  std::set<uint16_t> out;
  for (NodeId node : learned_) {
    const auto& table = hashes_[node.index()].options().table;
    if (table == nullptr) continue;
    for (uint16_t port : table->Ports(tuple)) out.insert(port);
  }
  return {out.begin(), out.end()};
}

void FabricHashes::SetOrder(NodeId node, absl::Span<const NodeId> neighbours) {
  std::map<NodeId, std::vector<size_t>> places;
  for (size_t i = 0; i < neighbours.size(); ++i) places[neighbours[i]].push_back(i);
  auto& order = orders_[node];
  order.clear();
  std::map<NodeId, size_t> met;
  for (LinkId link : fabric_->LinksFrom(node)) {
    const NodeId target = fabric_->link(link).target;
    const auto known = places.find(target);
    if (known == places.end()) continue;
    order[link] = known->second[std::min(met[target]++, known->second.size() - 1)];
  }
}

size_t FabricHashes::InOrder(NodeId at, absl::Span<const LinkId> next, size_t index) const {
  if (orders_.empty()) return index;
  auto order = orders_.find(at);
  if (order == orders_.end()) return index;
  absl::InlinedVector<std::pair<size_t, size_t>, 64> members;  // rank, position
  for (size_t i = 0; i < next.size(); ++i) {
    auto rank = order->second.find(next[i]);
    members.emplace_back(rank == order->second.end() ? SIZE_MAX : rank->second, i);
  }
  absl::c_sort(members);
  return members[index].second;
}

std::vector<HashChoice> FabricHashes::Choices(const Routes& routes, Endpoint source,
                                              Endpoint target,
                                              absl::Span<const LinkId> path) const {
  std::vector<HashChoice> out;
  absl::Span<const LinkId> next = routes.First(source, target);
  for (LinkId link : path) {
    const NodeId at = fabric_->link(link).source;
    if (next.size() > 1) {
      for (size_t index = 0; index < next.size(); ++index) {
        if (next[InOrder(at, next, index)] != link) continue;
        out.push_back({at, static_cast<uint32_t>(index), static_cast<uint32_t>(next.size())});
      }
    }
    const NodeId there = fabric_->link(link).target;
    if (there != target.host) next = routes.Next(there, target);
  }
  return out;
}

size_t FabricHashes::Choose(NodeId at, const FiveTuple& tuple,
                            absl::Span<const LinkId> next) const {
  const SwitchHash& hash = hashes_[at.index()];
  if (hash.options().select != HashSelect::kResilient) {
    return InOrder(at, next, hash.Select(tuple, next.size()));
  }
  absl::InlinedVector<LinkId, 64> group;  // as it was built
  const FabricLink& example = fabric_->link(next[0]);
  for (LinkId id : fabric_->LinksFrom(at)) {
    if (SameGroup(*fabric_, example, fabric_->link(id))) group.push_back(id);
  }
  absl::InlinedVector<LinkId, 64> ordered(group.size());
  absl::InlinedVector<bool, 64> alive(group.size());
  size_t up = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    ordered[i] = group[InOrder(at, group, i)];
    alive[i] = absl::c_linear_search(next, ordered[i]);
    up += alive[i] ? 1 : 0;
  }
  if (up != next.size()) return InOrder(at, next, hash.Select(tuple, next.size()));
  const LinkId owner = ordered[hash.SelectAlive(tuple, alive)];
  return static_cast<size_t>(absl::c_find(next, owner) - next.begin());
}

FiveTuple FabricHashes::Tuple(Endpoint source, Endpoint target, uint16_t source_port,
                              uint16_t target_port, uint8_t protocol) const {
  return {address(source), address(target), source_port, target_port, protocol, 0};
}

absl::StatusOr<std::vector<LinkId>> FabricHashes::Path(const Routes& routes, Endpoint source,
                                                       Endpoint target,
                                                       const FiveTuple& tuple) const {
  return routes.Path(source, target, [&](NodeId at, absl::Span<const LinkId> next) {
    return Choose(at, tuple, next);
  });
}

}  // namespace weft::topology
