// What the library predicts of a leaf-spine fabric of network namespaces (netns.py), for the tests
// in Python: one JSON object a line in, one out.
//
//   {"op": "choose", "seed", "count", "policy"=3, "forwarded"=true,
//    "tuples": [[s, d, sp, dp, proto]]}
//     -> {"choice": [index of the next hop]}
//   {"op": "plan", fabric, "flows": [[source, target, bytes, target port]], "ports": [first, last],
//    "subflows"=1}
//     -> {"ports": [[source ports of each flow]], "before", "after", "bound"} (seconds)
//   {"op": "simulate", fabric, "level": "flow" | "packet",
//    "flows": [[source, target, bytes, source port, target port, [after]]]}
//     -> {"ended": [seconds of each flow], "end"}
// fabric: "leaves", "spines", "hosts_per_leaf", "mbit", "host_mbit", "seeds" (of the leaves),
// "addresses" (of the hosts).
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/ecmp/linux_hash.h"
#include "topology/fabric/clos.h"
#include "topology/paths/path_planner.h"
#include "topology/sim/flow/flow.h"
#include "topology/sim/packet/options.h"
#include "topology/sim/path_choice.h"

namespace weft::topology {
namespace {

using Json = nlohmann::json;

absl::StatusOr<Json> Choose(const Json& in) {
  LinuxHashOptions options;
  options.seed = in.at("seed");
  options.policy = in.value("policy", 3);
  options.forwarded = in.value("forwarded", true);
  WEFT_ASSIGN_OR_RETURN(LinuxHash hash, LinuxHash::Create(options));
  Json choice = Json::array();
  for (const Json& row : in.at("tuples")) {
    FiveTuple tuple;
    WEFT_ASSIGN_OR_RETURN(tuple.source, IpAddress::Parse(row[0].get<std::string>()));
    WEFT_ASSIGN_OR_RETURN(tuple.target, IpAddress::Parse(row[1].get<std::string>()));
    tuple.source_port = row[2];
    tuple.target_port = row[3];
    tuple.protocol = row[4];
    choice.push_back(SelectByThreshold(hash.Hash(tuple), in.at("count")));
  }
  return Json{{"choice", choice}};
}

absl::StatusOr<std::unique_ptr<Fabric>> MakeFabric(const Json& in) {
  ClosSpec spec;
  spec.groups = in.at("leaves");
  spec.hosts_per_group = in.at("hosts_per_leaf");
  spec.spines = in.at("spines");
  spec.leaf.bandwidth = Bandwidth::GigabitsPerSecond(in.at("host_mbit").get<double>() / 1000);
  spec.spine.bandwidth = Bandwidth::GigabitsPerSecond(in.at("mbit").get<double>() / 1000);
  spec.leaf.delay = spec.spine.delay = absl::Microseconds(20);
  WEFT_ASSIGN_OR_RETURN(Fabric fabric, BuildClos(spec));
  return std::make_unique<Fabric>(std::move(fabric));
}

absl::StatusOr<FabricHashes> MakeHashes(const Json& in, const Fabric& fabric) {
  WEFT_ASSIGN_OR_RETURN(FabricHashes hashes, FabricHashes::Create(fabric));
  for (size_t leaf = 0; leaf < in.at("seeds").size(); ++leaf) {
    SwitchHashOptions options{HashFunction::kLinux, HashSelect::kThreshold, in["seeds"][leaf]};
    WEFT_ASSIGN_OR_RETURN(SwitchHash hash, SwitchHash::Create(options));
    WEFT_ASSIGN_OR_RETURN(NodeId node, fabric.Find(absl::StrCat("leaf", leaf)));
    hashes.SetHash(node, hash);
  }
  for (size_t host = 0; host < in.at("addresses").size(); ++host) {
    WEFT_ASSIGN_OR_RETURN(IpAddress address,
                          IpAddress::Parse(in["addresses"][host].get<std::string>()));
    hashes.SetAddress({fabric.hosts()[host], 0}, address);
  }
  return hashes;
}

absl::StatusOr<Json> Plan(const Json& in) {
  WEFT_ASSIGN_OR_RETURN(auto fabric, MakeFabric(in));
  WEFT_ASSIGN_OR_RETURN(FabricHashes hashes, MakeHashes(in, *fabric));
  Routes routes(*fabric);
  std::vector<TrafficFlow> flows;
  for (const Json& row : in.at("flows")) {
    TrafficFlow flow;
    flow.source = {fabric->hosts()[row[0].get<size_t>()], 0};
    flow.target = {fabric->hosts()[row[1].get<size_t>()], 0};
    flow.bytes = Bytes(row[2].get<int64_t>());
    flow.target_port = row[3];
    flows.push_back(flow);
  }
  PathPlannerOptions options;
  options.protocol = kProtocolTcp;
  options.port_first = in.at("ports")[0];
  options.port_last = in.at("ports")[1];
  options.subflows_max = in.value("subflows", 1);
  WEFT_ASSIGN_OR_RETURN(PathPlan plan, PathPlanner(routes, hashes, options).Plan(flows));
  std::vector<std::vector<int>> ports(flows.size());
  for (const PlannedPath& path : plan.paths) ports[path.flow].push_back(path.source_port);
  return Json{{"ports", ports},
              {"before", plan.seconds_before},
              {"after", plan.seconds_after},
              {"bound", plan.seconds_bound}};
}

// A source port with which the simulators' own hash takes the spine that the kernel takes.
uint16_t PortOfSpine(const SimulationOptions& options, Endpoint source, Endpoint target,
                     NodeId leaf, size_t spines, size_t wanted) {
  for (uint16_t port = 1; port != 0; ++port) {
    uint64_t hash = FlowHash(options.seed, source, target, port);
    if (ChooseLink(hash, leaf, spines) == wanted) return port;
  }
  return 0;
}

absl::StatusOr<Json> Simulate(const Json& in) {
  WEFT_ASSIGN_OR_RETURN(auto fabric, MakeFabric(in));
  WEFT_ASSIGN_OR_RETURN(FabricHashes hashes, MakeHashes(in, *fabric));
  Routes routes(*fabric);
  PacketOptions options;
  options.payload = Bytes(1448);  // Ethernet, IPv4, TCP with timestamps
  options.header = Bytes(66);
  options.ack_every = 2;
  options.window = KiB(256);
  options.timeout = absl::Seconds(5);  // nothing is lost; queues may be long
  options.limit = absl::Seconds(600);
  Workload workload;
  for (const Json& row : in.at("flows")) {
    Operation operation;
    operation.source = {fabric->hosts()[row[0].get<size_t>()], 0};
    operation.target = {fabric->hosts()[row[1].get<size_t>()], 0};
    operation.bytes = Bytes(row[2].get<int64_t>());
    absl::Span<const LinkId> first = routes.First(operation.source, operation.target);
    if (!first.empty()) {
      NodeId leaf = fabric->link(first[0]).target;
      absl::Span<const LinkId> next = routes.Next(leaf, operation.target);
      FiveTuple tuple =
          hashes.Tuple(operation.source, operation.target, row[3], row[4], kProtocolTcp);
      size_t wanted = hashes.Choose(leaf, tuple, next);
      operation.source_port =
          PortOfSpine(options, operation.source, operation.target, leaf, next.size(), wanted);
    }
    auto after = row[5].get<std::vector<OperationId>>();
    workload.Add(operation, after);
  }
  absl::StatusOr<SimulationResult> result;
  if (in.at("level") == "packet") {
    result = SimulatePackets(*fabric, workload, options);
  } else {
    FlowOptions flow;
    static_cast<SimulationOptions&>(flow) = options;
    result = SimulateFlows(*fabric, workload, flow);
  }
  if (!result.ok()) return result.status();
  std::vector<double> ended;
  for (const OperationResult& one : result->operations) {
    ended.push_back(absl::ToDoubleSeconds(one.ended));
  }
  return Json{{"ended", ended},
              {"end", absl::ToDoubleSeconds(result->end)},
              {"unfinished", result->unfinished}};
}

absl::StatusOr<Json> Answer(const Json& in) {
  std::string op = in.at("op");
  if (op == "choose") return Choose(in);
  if (op == "plan") return Plan(in);
  if (op == "simulate") return Simulate(in);
  return absl::InvalidArgumentError(absl::StrCat("no such op: ", op));
}

}  // namespace
}  // namespace weft::topology

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    absl::StatusOr<nlohmann::json> answer = absl::InternalError("");
    try {
      answer = weft::topology::Answer(nlohmann::json::parse(line));
    } catch (const nlohmann::json::exception& error) {
      answer = absl::InvalidArgumentError(error.what());
    }
    if (!answer.ok()) {
      std::cerr << "fabric_oracle: " << answer.status().message() << "\n";
      return 1;
    }
    std::cout << *answer << std::endl;
  }
  return 0;
}
