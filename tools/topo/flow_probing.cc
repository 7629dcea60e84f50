#include "tools/topo/flow_probing.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "topology/fabric/file.h"

namespace weft::topo {
namespace {

using nlohmann::json;
using topology::Endpoint;
using topology::SeenNic;

constexpr int kFewPorts = 16;  // towards each of kMoreTargets hosts more, so that addresses differ
constexpr size_t kMoreTargets = 3;

int RoutersBetween(const KnownFabric& known, SeenNic source, SeenNic target) {
  return known.routes->Hops(known.endpoint.at(source), known.endpoint.at(target)) - 1;
}

NodeId LeafOf(const KnownFabric& known, SeenNic nic) {
  const topology::Fabric& fabric = *known.fabric;
  return fabric.link(fabric.Ports(known.endpoint.at(nic))[0]).target;
}

// The NICs to probe, with how many ports: one under each other leaf, and a few more. The k-th NIC
// under a leaf probes the k-th under another, so that both leaves see the same flows, which the
// search for Linux's seeds computes once.
std::vector<std::pair<SeenNic, int>> Targets(const KnownFabric& known, SeenNic own, int ports) {
  std::map<NodeId, std::vector<SeenNic>> by_leaf;
  size_t place = 0;  // under the own leaf
  std::vector<std::pair<SeenNic, int>> out;
  std::vector<SeenNic> others;
  for (const auto& [nic, _] : known.endpoint) {
    if (nic < own && LeafOf(known, nic) == LeafOf(known, own)) ++place;
    if (nic.host == own.host || RoutersBetween(known, own, nic) < 2) continue;
    by_leaf[LeafOf(known, nic)].push_back(nic);
    others.push_back(nic);
  }
  for (const auto& [_, nics] : by_leaf) out.emplace_back(nics[place % nics.size()], ports);
  for (size_t i = 0; i < std::min(kMoreTargets, others.size()); ++i) {
    const auto at = static_cast<size_t>(own.host) * 7 + i * 5 + 1;
    out.emplace_back(others[at % others.size()], std::min(ports, kFewPorts));
  }
  return out;
}

}  // namespace

absl::StatusOr<KnownFabric> ReadKnownFabric(const std::string& fabric, const std::string& hashes,
                                            const std::string& folder, const JobHosts& job) {
  KnownFabric out;
  WEFT_ASSIGN_OR_RETURN(topology::Fabric read,
                        topology::ReadFabric(fabric, absl::StrCat(folder, "/fabric.toml")));
  out.fabric = std::make_unique<topology::Fabric>(std::move(read));
  WEFT_ASSIGN_OR_RETURN(out.file,
                        topology::ParseHashFile(hashes, absl::StrCat(folder, "/hashes.txt")));
  WEFT_RETURN_IF_ERROR(topology::Routes::Feasible(*out.fabric));
  out.routes = std::make_unique<topology::Routes>(*out.fabric);
  std::map<topology::IpAddress, Endpoint> by_address;
  for (const auto& [nic, address] : out.file.addresses) {
    WEFT_ASSIGN_OR_RETURN(NodeId host, out.fabric->Find(nic.first));
    by_address[address] = {host, nic.second};
  }
  for (size_t host = 0; host < job.hosts().size(); ++host) {
    const topology::SeenHost& seen = job.hosts()[host];
    for (size_t nic = 0; nic < seen.addresses.size(); ++nic) {
      auto found = by_address.find(seen.addresses[nic]);
      if (found == by_address.end()) {
        return absl::FailedPreconditionError(absl::StrCat(
            folder, "/hashes.txt is of other hosts: it has no NIC with address ",
            seen.addresses[nic].ToString(), ", of ", seen.name, "; run weft-topo discover first"));
      }
      out.endpoint[{static_cast<int>(host), static_cast<int>(nic)}] = found->second;
    }
  }
  return out;
}

absl::StatusOr<std::vector<topology::ProbedFlow>> FlowProbing::Flows(const std::string& what,
                                                                     int ports, uint64_t salt,
                                                                     bool alike) {
  const json own = job_.own() >= 0 ? ProbeOwn(ports, salt, alike) : json();
  WEFT_ASSIGN_OR_RETURN(const std::vector<json> all, job_.Exchange(what, own));
  return Gathered(all);
}

absl::StatusOr<std::vector<topology::ProbedFlow>> FlowProbing::TableFlows(
    const std::set<NodeId>& wanted) {
  const json own = job_.own() >= 0 ? ProbeForTables(wanted) : json();
  WEFT_ASSIGN_OR_RETURN(const std::vector<json> all, job_.Exchange("tables", own));
  twice_ = differing_ = 0;
  for (const json& host : all) {
    twice_ += host["twice"].get<int64_t>();
    differing_ += host["differing"].get<int64_t>();
  }
  return Gathered(all);
}

absl::StatusOr<std::vector<topology::ProbedFlow>> FlowProbing::Gathered(
    const std::vector<json>& all) {
  std::vector<topology::ProbedFlow> out;
  asked_ = 0;
  for (size_t host = 0; host < all.size(); ++host) {
    asked_ += all[host]["asked"].get<int64_t>();
    for (const json& row : all[host]["flows"]) {
      out.push_back(Read(static_cast<int>(host), row));
    }
    if (job_.rank() > 0 || all[host]["failed"] == 0) continue;
    absl::FPrintF(stderr, "weft-topo: %s could not probe %d of its targets: %s\n",
                  job_.hosts()[host].name, all[host]["failed"].get<int>(),
                  all[host]["problem"].get<std::string>());
  }
  return out;
}

json FlowProbing::ProbeOwn(int ports, uint64_t salt, bool alike) {
  json out = {{"flows", json::array()}, {"asked", 0}, {"failed", 0}, {"problem", ""}};
  for (const auto& [own, _] : known_.endpoint) {
    if (own.host != job_.own()) continue;
    for (const auto& [target, count] : Targets(known_, own, ports)) {
      std::set<uint16_t>& before = probed_[{own, target}];
      const std::vector<uint16_t> chosen =
          job_.DrawPorts(count, alike ? salt : ++salt, alike, before);
      before.insert(chosen.begin(), chosen.end());
      topology::TraceOptions options = job_.Options(own, target);
      options.named_flows = 0;
      out["asked"] = out["asked"].get<int64_t>() + count;
      absl::StatusOr<std::vector<topology::TracedFlow>> flows = topology::TraceFlows(
          options, RoutersBetween(known_, own, target), chosen, job_.statistics());
      if (!flows.ok()) {
        out["failed"] = out["failed"].get<int>() + 1;
        out["problem"] = std::string(flows.status().message());
        continue;
      }
      for (const topology::TracedFlow& flow : *flows) {
        out["flows"].push_back({own.nic, target.host, target.nic, flow.source_port,
                                flow.recorded.empty() ? flow.answered : flow.recorded});
      }
    }
  }
  return out;
}

json FlowProbing::ProbeForTables(const std::set<NodeId>& wanted) {
  json out = {{"flows", json::array()}, {"asked", 0}, {"failed", 0},
              {"problem", ""},          {"twice", 0}, {"differing", 0}};
  int64_t asked = 0, failed = 0, twice = 0, differing = 0;
  const bool is_leaf_alone = std::all_of(wanted.begin(), wanted.end(), [&](NodeId node) {
    return known_.fabric->node(node).tier <= 1;
  });
  uint64_t salt = 90'000;
  for (const auto& [own, source] : known_.endpoint) {
    if (own.host != job_.own()) continue;
    if (is_leaf_alone && wanted.count(LeafOf(known_, own)) == 0) continue;
    std::vector<SeenNic> targets;
    for (const auto& [nic, _] : known_.endpoint) {
      if (nic.host != own.host && RoutersBetween(known_, own, nic) >= 2) targets.push_back(nic);
    }
    // The NICs behind this one in the order of addresses come first: a ring's neighbours are there.
    const auto next = std::upper_bound(targets.begin(), targets.end(), own);
    std::rotate(targets.begin(), next, targets.end());
    if (targets.size() > kTableTargetsMost) targets.resize(kTableTargetsMost);
    for (SeenNic target : targets) {
      const int64_t paths = known_.routes->Paths(source, known_.endpoint.at(target));
      const int count = kTableFlows * static_cast<int>(std::min<int64_t>(paths, 16));
      const std::vector<uint16_t> ports = job_.DrawPorts(count, ++salt);
      topology::TraceOptions options = job_.Options(own, target);
      options.named_flows = 0;
      asked += count;
      std::map<uint16_t, std::vector<std::string>> first;
      for (int round = 0; round < 2; ++round) {
        absl::StatusOr<std::vector<topology::TracedFlow>> flows = topology::TraceFlows(
            options, RoutersBetween(known_, own, target), ports, job_.statistics());
        if (!flows.ok()) {
          ++failed;
          out["problem"] = std::string(flows.status().message());
          break;
        }
        for (const topology::TracedFlow& flow : *flows) {
          const auto& names = flow.recorded.empty() ? flow.answered : flow.recorded;
          if (round == 0) {
            first[flow.source_port] = names;
            continue;
          }
          const auto before = first.find(flow.source_port);
          if (before == first.end()) continue;
          ++twice;
          if (before->second != names) {
            ++differing;
          } else {
            out["flows"].push_back({own.nic, target.host, target.nic, flow.source_port, names});
          }
        }
      }
    }
  }
  out["asked"] = asked;
  out["failed"] = failed;
  out["twice"] = twice;
  out["differing"] = differing;
  return out;
}

topology::ProbedFlow FlowProbing::Read(int host, const json& row) const {
  const auto address = [&](SeenNic nic) {
    return job_.hosts()[static_cast<size_t>(nic.host)].addresses[static_cast<size_t>(nic.nic)];
  };
  const SeenNic source{host, row[0]}, target{row[1], row[2]};
  topology::ProbedFlow flow;
  flow.source = known_.endpoint.at(source);
  flow.target = known_.endpoint.at(target);
  flow.tuple = {address(source), address(target), row[3], job_.port(), topology::kProtocolUdp, 0};
  const auto names = row[4].get<std::vector<std::string>>();
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    NodeId at;
    if (i == 0) {
      at = LeafOf(known_, source);
    } else if (auto name = known_.file.routers.find(names[i]); name != known_.file.routers.end()) {
      if (auto node = known_.fabric->Find(name->second); node.ok()) at = *node;
    }
    flow.switches.push_back(at);
  }
  return flow;
}

}  // namespace weft::topo
