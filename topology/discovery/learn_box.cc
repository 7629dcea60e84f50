#include "topology/discovery/learn_box.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/random.h"
#include "base/status.h"

namespace weft::topology {
namespace {

constexpr int kRounds = 64;                // of `flows` random flows of the whole fabric, at most
constexpr uint64_t kFirstSeeds = 1 << 16;  // of Linux, which people set; tried before silicon's

struct Box {
  std::vector<LinkId> members;
  std::vector<HashObservation> seen;
};

void Look(const Routes& routes, const FiveTuple& tuple, Endpoint target,
          const std::vector<LinkId>& path, std::map<NodeId, Box>& boxes) {
  for (size_t i = 1; i < path.size(); ++i) {
    const NodeId at = routes.fabric().link(path[i]).source;
    absl::Span<const LinkId> next = routes.Next(at, target);
    if (next.size() < 2) continue;
    Box& box = boxes[at];
    if (box.members.empty()) box.members.assign(next.begin(), next.end());
    if (!std::equal(next.begin(), next.end(), box.members.begin(), box.members.end())) continue;
    auto member = std::find(next.begin(), next.end(), path[i]);
    box.seen.push_back({tuple, static_cast<uint32_t>(member - next.begin())});
  }
}

}  // namespace

std::optional<FittedHash> ExplainSwitch(uint32_t members, absl::Span<const HashObservation> seen,
                                        absl::Span<const SwitchHash> before, uint64_t linux_seeds,
                                        double wrong_max) {
  for (const SwitchHash& hash : before) {
    if (auto fitted = TryHash(hash, members, seen, wrong_max)) return fitted;
  }
  const LinuxSeedSearch search({seen.begin(), seen.end()}, members);
  const auto try_linux = [&](uint64_t first, uint64_t count) -> std::optional<FittedHash> {
    for (int policy : {3, 1}) {
      auto hash = search.Search(static_cast<uint32_t>(first), count, policy, wrong_max);
      if (hash.has_value()) return TryHash(*hash, members, seen, wrong_max);
    }
    return std::nullopt;
  };
  if (auto fitted = try_linux(1, std::min(kFirstSeeds, linux_seeds))) return fitted;
  if (auto fitted = FitSilicon(members, seen, before, wrong_max)) return fitted;
  if (auto fitted = FitLinear(members, seen, wrong_max)) return fitted;
  if (linux_seeds <= kFirstSeeds) return std::nullopt;
  return try_linux(kFirstSeeds, linux_seeds - kFirstSeeds);
}

namespace {

// The tables of switches that are not explained, by flows between all NICs.
absl::Status AskForTables(const Routes& routes, const FabricHashes& box,
                          const LearnBoxOptions& options, Random& random,
                          const std::map<NodeId, Box>& boxes, LearnedBox& out) {
  const Fabric& fabric = routes.fabric();
  const std::vector<Endpoint> endpoints = fabric.Endpoints();
  const auto count = static_cast<int64_t>(endpoints.size());
  if (out.known.unknown.empty() || count * count > options.table_pairs) return absl::OkStatus();
  std::map<NodeId, HashTable> tables;
  for (const std::string& name : out.known.unknown) {
    WEFT_ASSIGN_OR_RETURN(const NodeId node, fabric.Find(name));
    tables.emplace(node, HashTable(static_cast<uint32_t>(boxes.at(node).members.size())));
  }
  for (Endpoint source : endpoints) {
    for (Endpoint target : endpoints) {
      if (source.host == target.host || routes.Hops(source, target) < 0) continue;
      const int64_t flows =
          std::min<int64_t>(routes.Paths(source, target), 32) * options.table_flows;
      for (int64_t i = 0; i < flows && routes.Paths(source, target) > 1; ++i) {
        const FiveTuple tuple =
            box.Tuple(source, target, static_cast<uint16_t>(0xC000 + random.Below(0x4000)),
                      kRoceTargetPort, kProtocolUdp);
        WEFT_ASSIGN_OR_RETURN(const auto path, box.Path(routes, source, target, tuple));
        ++out.flows;
        for (size_t hop = 1; hop < path.size(); ++hop) {
          const auto table = tables.find(fabric.link(path[hop]).source);
          if (table == tables.end()) continue;
          const std::vector<LinkId>& members = boxes.at(table->first).members;
          const auto member = std::find(members.begin(), members.end(), path[hop]);
          if (member == members.end()) continue;
          table->second.Add(tuple, static_cast<uint32_t>(member - members.begin()));
        }
      }
    }
  }
  for (auto& [node, table] : tables) {
    if (table.flows() == 0) continue;
    SwitchHashOptions hash;
    hash.function = HashFunction::kTable;
    hash.table = std::make_shared<const HashTable>(std::move(table));
    const std::string& name = fabric.node(node).name;
    WEFT_ASSIGN_OR_RETURN(const SwitchHash made, SwitchHash::Create(hash));
    out.known.hashes.insert_or_assign(name, made);
    out.known.unknown.erase(name);
    ++out.tables;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LearnedBox> LearnBox(const Routes& routes, const FabricHashes& box,
                                    const LearnBoxOptions& options) {
  const Fabric& fabric = routes.fabric();
  const std::vector<Endpoint> endpoints = fabric.Endpoints();
  Random random(options.seed);
  LearnedBox out;
  std::map<NodeId, Box> boxes;
  // Until every switch that was met has enough; one that few flows meet gets more of its own.
  for (int round = 0; round < kRounds; ++round) {
    const auto wanted = static_cast<size_t>(options.flows);
    const bool enough = round > 0 && std::all_of(boxes.begin(), boxes.end(), [&](const auto& one) {
                          return one.second.seen.size() >= wanted;
                        });
    if (enough) break;
    const auto flows = std::max<int64_t>(options.flows, static_cast<int64_t>(endpoints.size()));
    for (int64_t i = 0; i < flows; ++i) {
      const Endpoint source = endpoints[random.Below(endpoints.size())];
      const Endpoint target = endpoints[random.Below(endpoints.size())];
      if (source.host == target.host || routes.Hops(source, target) < 0) continue;
      const FiveTuple tuple =
          box.Tuple(source, target, static_cast<uint16_t>(1024 + random.Below(64000)),
                    kRoceTargetPort, kProtocolUdp);
      WEFT_ASSIGN_OR_RETURN(std::vector<LinkId> path, box.Path(routes, source, target, tuple));
      Look(routes, tuple, target, path, boxes);
      ++out.flows;
    }
  }
  std::vector<SwitchHash> found;
  for (const auto& [node, one] : boxes) {
    const std::string& name = fabric.node(node).name;
    const auto members = static_cast<uint32_t>(one.members.size());
    ++out.switches;
    std::optional<FittedHash> fitted =
        ExplainSwitch(members, one.seen, found, options.linux_seeds, options.wrong_max);
    if (!fitted.has_value()) {
      out.known.unknown.insert(name);
      continue;
    }
    if (!fitted->hash.KnowsAll()) {
      ++out.linear;
    } else if (found.size() < 16) {
      found.push_back(fitted->hash);
    }
    out.known.hashes.insert_or_assign(name, fitted->hash);
    std::vector<std::string> order;
    bool same = true;
    for (size_t i = 0; i < members; ++i) {
      order.push_back(fabric.node(fabric.link(one.members[fitted->member_at[i]]).target).name);
      same = same && fitted->member_at[i] == i;
    }
    if (!same) out.known.orders[name] = std::move(order);
  }
  WEFT_RETURN_IF_ERROR(AskForTables(routes, box, options, random, boxes, out));
  return out;
}

}  // namespace weft::topology
