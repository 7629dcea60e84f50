#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/topo/fabric_commands.h"
#include "topology/fabric/name_list.h"
#include "topology/fabric/routes.h"

namespace weft::topo {
namespace {

using topology::Endpoint;
using topology::Fabric;
using topology::FabricLink;
using topology::NodeKind;
using topology::Routes;

// "h3", "h3/1" (its NIC 1) or a rank: hosts in order, `per_host` ranks each, NICs shared evenly.
absl::StatusOr<Endpoint> Parse(const std::string& text, int per_host, const Fabric& fabric) {
  std::pair<std::string, std::string> halves = absl::StrSplit(text, absl::MaxSplits('/', 1));
  absl::StatusOr<NodeId> node = fabric.Find(halves.first);
  int rank = 0;
  if (!node.ok() && halves.second.empty() && absl::SimpleAtoi(text, &rank)) {
    int64_t first = 0;  // rank of the host
    for (NodeId host : fabric.hosts()) {
      int count = per_host > 0 ? per_host : fabric.nics(host);
      if (rank >= 0 && rank < first + count) {
        return Endpoint{host, static_cast<int>((rank - first) * fabric.nics(host) / count)};
      }
      first += count;
    }
    return absl::NotFoundError(absl::StrCat("there is no rank ", rank, ": ", first, " ranks on ",
                                            fabric.hosts().size(), " hosts"));
  }
  if (!node.ok()) return node.status();
  if (fabric.node(*node).kind != NodeKind::kHost) {
    return absl::InvalidArgumentError(absl::StrCat(halves.first, " is a switch, not a host"));
  }
  Endpoint endpoint{*node, 0};
  bool is_number = halves.second.empty() || absl::SimpleAtoi(halves.second, &endpoint.nic);
  if (!is_number || fabric.Ports(endpoint).empty()) {
    return absl::NotFoundError(absl::StrCat("host ", halves.first, " has no NIC ", halves.second,
                                            "; it has ", fabric.nics(*node), ", from 0"));
  }
  return endpoint;
}

std::string NameOf(Endpoint endpoint, const Fabric& fabric) {
  std::string name = fabric.node(endpoint.host).name;
  return fabric.nics(endpoint.host) > 1 ? absl::StrCat(name, "/", endpoint.nic) : name;
}

// Over all shortest paths to a node: the narrowest link of the best and of the worst, the least and
// the greatest time of a bit.
struct Reached {
  Bandwidth best, worst = Bandwidth::BytesPerSecond(std::numeric_limits<double>::infinity());
  absl::Duration least = absl::InfiniteDuration(), greatest;
};

struct Distance {
  int hops = 0;
  int64_t paths = 0;
  std::vector<std::vector<NodeId>> levels;  // nodes that are equally far, from source to target
  Reached at_target;
};

void Extend(const Reached& from, const FabricLink& link, absl::Duration latency, Reached& to) {
  to.best = std::max(to.best, std::min(from.best, link.bandwidth));
  to.worst = std::min(to.worst, std::min(from.worst, link.bandwidth));
  to.least = std::min(to.least, from.least + link.delay + latency);
  to.greatest = std::max(to.greatest, from.greatest + link.delay + latency);
}

Distance Measure(const Routes& routes, Endpoint source, Endpoint target) {
  const Fabric& fabric = routes.fabric();
  Distance distance;
  distance.hops = routes.Hops(source, target);
  distance.paths = routes.Paths(source, target);
  if (distance.hops <= 0) return distance;
  Reached start;
  start.best = start.worst;
  start.least = absl::ZeroDuration();
  std::map<NodeId, Reached> level = {{source.host, start}};
  while (!level.contains(target.host)) {
    std::map<NodeId, Reached> next;
    distance.levels.emplace_back();
    for (const auto& [at, reached] : level) {
      distance.levels.back().push_back(at);
      absl::Span<const LinkId> links =
          at == source.host ? routes.First(source, target) : routes.Next(at, target);
      for (LinkId id : links) {
        Extend(reached, fabric.link(id), fabric.node(at).latency, next[fabric.link(id).target]);
      }
    }
    level = std::move(next);
  }
  distance.levels.push_back({target.host});
  distance.at_target = level[target.host];
  return distance;
}

std::string LevelText(const std::vector<NodeId>& nodes, const Fabric& fabric) {
  std::vector<std::string> names;
  names.reserve(nodes.size());
  for (NodeId node : nodes) names.push_back(fabric.node(node).name);
  std::string text = topology::CompressNames(names);
  return text.size() <= 60 ? text : absl::StrCat(nodes.size(), " switches");
}

}  // namespace

DistanceCommand::DistanceCommand(CLI::App& app)
    : command_(
          app.add_subcommand("distance", "Two hosts or ranks: hops, equal-cost paths, bottleneck")),
      source_(*command_) {
  command_->option_defaults()->always_capture_default();
  command_->add_option("A", from_, "Host, host/NIC, or rank")->required();
  command_->add_option("B", to_, "Host, host/NIC, or rank")->required();
  command_
      ->add_option("--ranks-per-host", ranks_per_host_,
                   "Ranks of a host, which share its NICs evenly; 0: one for each NIC")
      ->check(CLI::Range(0, 1024));
  command_->add_option("--json", json_file_, "The same for machines; - is standard output");
  command_->footer(absl::StrCat(
      FabricHelp(),
      "\nExit status: 0; 1 when there is no way, and for what cannot be read; 2 for wrong usage."));
}

absl::StatusOr<int> DistanceCommand::Run() const {
  WEFT_RETURN_IF_ERROR(CheckOutput(json_file_));
  WEFT_ASSIGN_OR_RETURN(Fabric fabric, source_.Load());
  WEFT_ASSIGN_OR_RETURN(Endpoint source, Parse(from_, ranks_per_host_, fabric));
  WEFT_ASSIGN_OR_RETURN(Endpoint target, Parse(to_, ranks_per_host_, fabric));
  WEFT_RETURN_IF_ERROR(Routes::Feasible(fabric));
  Routes routes(fabric);
  Distance distance = Measure(routes, source, target);
  nlohmann::ordered_json json = {{"from", NameOf(source, fabric)},
                                 {"to", NameOf(target, fabric)},
                                 {"reachable", distance.hops >= 0},
                                 {"hops", distance.hops},
                                 {"paths", distance.paths}};
  std::string text = absl::StrCat(NameOf(source, fabric), " to ", NameOf(target, fabric), ": ");
  const Reached& end = distance.at_target;
  if (distance.hops < 0) {
    absl::StrAppend(&text, "unreachable\n");
  } else if (distance.hops == 0) {
    absl::StrAppend(&text, "one host; no network between\n");
  } else {
    json["bottleneck_gbps"] = {{"best", end.best.gigabits_per_second()},
                               {"worst", end.worst.gigabits_per_second()}};
    json["latency_us"] = {{"least", absl::ToDoubleMicroseconds(end.least)},
                          {"greatest", absl::ToDoubleMicroseconds(end.greatest)}};
    absl::StrAppend(&text, distance.hops, " hops, ", distance.paths, " equal-cost path",
                    distance.paths == 1 ? "" : "s", "\nbottleneck  ", ToString(end.best));
    if (end.worst != end.best) absl::StrAppend(&text, "; on the worst path ", ToString(end.worst));
    absl::StrAppend(&text, "\nlatency     ", absl::FormatDuration(end.least),
                    " of an empty network");
    if (end.greatest != end.least) {
      absl::StrAppend(&text, "; on the longest path ", absl::FormatDuration(end.greatest));
    }
    std::vector<std::string> levels;
    for (const auto& level : distance.levels) levels.push_back(LevelText(level, fabric));
    json["via"] = levels;
    absl::StrAppend(&text, "\nvia         ", absl::StrJoin(levels, " -> "), "\n");
  }
  if (json_file_ != "-") absl::PrintF("%s", text);
  if (!json_file_.empty()) WEFT_RETURN_IF_ERROR(WriteJsonFile(json_file_, json));
  return distance.hops >= 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace weft::topo
