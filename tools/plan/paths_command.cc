#include "tools/plan/paths_command.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/plan/report.h"
#include "topology/paths/path_planner.h"

namespace weft::plan {
namespace {

using nlohmann::ordered_json;
using topology::PathPlan;
using topology::SlotFlow;
using topology::TrafficFlow;

// Flows between ranks, each pair and rail once: in the phase of the traffic that it sends most of.
struct RankFlows {
  std::vector<TrafficFlow> flows;
  std::vector<std::pair<int, int>> ranks;  // [flow] source, target
};

RankFlows FlowsOf(const Placed& placed, const std::vector<size_t>& kinds) {
  struct Key {
    int source, target, source_nic, target_nic;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, TrafficFlow> flows;
  const topology::RankBlocks& blocks = placed.model.blocks();
  for (size_t kind : kinds) {
    for (const SlotFlow& flow : placed.model.flows(kind).flows) {
      auto rank = [&](int32_t slot, int16_t gpu) {
        return blocks.rank_at[static_cast<size_t>(slot) * static_cast<size_t>(blocks.gpus) +
                              static_cast<size_t>(gpu)];
      };
      auto end = [&](int32_t slot, int nic) {
        int32_t host = placed.placement[static_cast<size_t>(slot)];
        return topology::Endpoint{placed.model.hosts()[static_cast<size_t>(host)], nic};
      };
      TrafficFlow one{end(flow.source, flow.source_nic), end(flow.target, flow.target_nic),
                      Bytes(flow.bytes), static_cast<uint32_t>(kind)};
      Key key{rank(flow.source, flow.source_gpu), rank(flow.target, flow.target_gpu),
              flow.source_nic, flow.target_nic};
      auto [at, is_new] = flows.try_emplace(key, one);
      if (!is_new && one.bytes > at->second.bytes) at->second = one;
    }
  }
  RankFlows all;
  for (const auto& [key, flow] : flows) {
    all.flows.push_back(flow);
    all.ranks.emplace_back(key.source, key.target);
  }
  return all;
}

absl::StatusOr<std::vector<size_t>> Kinds(const Input& input,
                                          const std::vector<std::string>& only) {
  std::vector<size_t> kinds;
  for (size_t i = 0; i < input.job.traffic.size(); ++i) {
    const std::string& name = input.job.traffic[i].name;
    if (only.empty() || std::find(only.begin(), only.end(), name) != only.end()) kinds.push_back(i);
  }
  if (!kinds.empty() && kinds.size() >= only.size()) return kinds;
  std::string names;
  for (const topology::Traffic& one : input.job.traffic) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", one.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--only names traffic that the job does not have; it has ", names));
}

// In the form of the setting tcp.source_ports: "RANK PEER PORT ...", a line a link.
std::string PortsText(const RankFlows& flows, const PathPlan& plan) {
  std::map<std::pair<int, int>, std::string> lines;
  for (const topology::PlannedPath& path : plan.paths) {
    absl::StrAppend(&lines[flows.ranks[path.flow]], " ", path.source_port);
  }
  std::string text = "# rank peer source port of each socket\n";
  for (const auto& [ranks, ports] : lines) {
    absl::StrAppend(&text, ranks.first, " ", ranks.second, ports, "\n");
  }
  return text;
}

std::string PhaseTable(const Input& input, const PathPlan& plan) {
  std::string text = absl::StrFormat("%-24s %8s %9s %11s %11s %11s %8s  %s\n", "traffic", "flows",
                                     "subflows", "before", "after", "bound", "x bound", "bound by");
  for (const topology::PhaseReport& phase : plan.phases) {
    absl::StrAppendFormat(
        &text, "%-24s %8d %9d %11s %11s %11s %8.3f  %s\n", input.job.traffic[phase.phase].name,
        phase.flows, phase.subflows, TimeText(absl::Seconds(phase.before.worst)),
        TimeText(absl::Seconds(phase.after.worst)), TimeText(absl::Seconds(phase.bound)),
        phase.bound > 0 ? phase.after.worst / phase.bound : 1, phase.bound_reason);
  }
  return text;
}

}  // namespace

PathsCommand::PathsCommand(CLI::App& app)
    : command_(app.add_subcommand("paths", "Choose source ports for the flows of an order")) {
  command_->footer(
      "What switches hash is the fabric's model: each switch a hash of its own, from --hash-seed. "
      "The\nport file is what the setting tcp.source_ports reads.");
  words_.Declare(*command_);
  command_->add_option("--order", order_,
                       "A rank file, or as-allocated, random, block (Slurm's) or planned");
  command_->add_option("--only", only_, "Traffic to plan for, by name; none: all");
  command_->add_option("--hash-seed", hash_seed_, "Of the switches' hashes");
  command_->add_option("--subflows", subflows_, "Queue pairs of a flow, at most")
      ->check(CLI::Range(1, 64));
  command_->add_option("--ports", ports_, "File for the ports, RANK PEER PORT ... a line");
}

absl::Status PathsCommand::Run() const {
  WEFT_ASSIGN_OR_RETURN(Input input, LoadInput(words_));
  WEFT_ASSIGN_OR_RETURN(std::vector<size_t> kinds, Kinds(input, only_));
  WEFT_ASSIGN_OR_RETURN(Candidate candidate, MakeCandidate(input, order_));
  WEFT_ASSIGN_OR_RETURN(Placed placed, Place(input, candidate.order));
  RankFlows flows = FlowsOf(placed, kinds);
  WEFT_RETURN_IF_ERROR(topology::Routes::Feasible(*input.fabric));
  topology::Routes routes(*input.fabric);
  WEFT_ASSIGN_OR_RETURN(topology::FabricHashes hashes,
                        topology::FabricHashes::Create(*input.fabric, hash_seed_));
  topology::PathPlannerOptions options;
  options.subflows_max = subflows_;
  topology::PathPlanner planner(routes, hashes, options);
  WEFT_ASSIGN_OR_RETURN(PathPlan plan, planner.Plan(flows.flows));
  if (input.tables) {
    absl::PrintF(
        "job    %s, order %s\n\n%s\nfullest link, all together: before %s, after %s, "
        "bound %s; %d ports of %d not as wanted\n",
        input.Describe(), candidate.name, PhaseTable(input, plan),
        TimeText(absl::Seconds(plan.seconds_before)), TimeText(absl::Seconds(plan.seconds_after)),
        TimeText(absl::Seconds(plan.seconds_bound)), plan.unmet,
        static_cast<int>(plan.paths.size()));
  }
  if (!ports_.empty()) WEFT_RETURN_IF_ERROR(WriteOutput(ports_, PortsText(flows, plan)));
  if (words_.json.empty()) return absl::OkStatus();
  ordered_json json;
  json["job"] = input.Describe();
  json["order"] = candidate.name;
  json["before_ms"] = plan.seconds_before * 1e3;
  json["after_ms"] = plan.seconds_after * 1e3;
  json["bound_ms"] = plan.seconds_bound * 1e3;
  json["unmet"] = plan.unmet;
  json["phases"] = ordered_json::array();
  for (const topology::PhaseReport& phase : plan.phases) {
    json["phases"].push_back({{"traffic", input.job.traffic[phase.phase].name},
                              {"flows", phase.flows},
                              {"subflows", phase.subflows},
                              {"before_ms", phase.before.worst * 1e3},
                              {"after_ms", phase.after.worst * 1e3},
                              {"mean_ms", phase.after.mean * 1e3},
                              {"bound_ms", phase.bound * 1e3},
                              {"bound_by", phase.bound_reason}});
  }
  return WriteOutput(words_.json, json.dump(2) + "\n");
}

}  // namespace weft::plan
