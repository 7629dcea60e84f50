#include "tools/plan/paths_command.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/random.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/plan/plan_files.h"
#include "tools/plan/rank_flows.h"
#include "tools/plan/report.h"
#include "topology/discovery/learn_box.h"
#include "topology/ecmp/fingerprint.h"
#include "topology/ecmp/hash_file.h"
#include "topology/fabric/file.h"
#include "topology/paths/draw_plan.h"
#include "topology/paths/path_planner.h"
#include "topology/paths/plan_text.h"
#include "topology/plan/connection_plan.h"

namespace weft::plan {
namespace {

using nlohmann::ordered_json;
using topology::PathPlan;
using topology::TrafficFlow;

// The time that detours take is that of a small plan for each switch.
constexpr int kDetourSwitchesMost = 64;

absl::StatusOr<std::vector<size_t>> Kinds(const Input& input,
                                          const std::vector<std::string>& only) {
  std::set<std::string> wanted(only.begin(), only.end());
  std::vector<size_t> kinds;
  std::string names;
  for (size_t i = 0; i < input.job.traffic.size(); ++i) {
    const std::string& name = input.job.traffic[i].name;
    if (wanted.erase(name) > 0 || only.empty()) kinds.push_back(i);
    absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  if (wanted.empty()) return kinds;
  return absl::InvalidArgumentError(
      absl::StrCat("--only ", *wanted.begin(), ": the job has no such traffic; it has ", names));
}

// In the form of the setting tcp.source_ports: "RANK PEER PORT ...", a line a link.
std::string PortsText(const RankFlows& flows, const PathPlan& plan) {
  std::map<std::pair<int, int>, std::string> lines;
  for (const topology::PlannedPath& path : plan.paths) {
    if (!path.open) absl::StrAppend(&lines[flows.ranks[path.flow]], " ", path.source_port);
  }
  std::string text = "# rank peer source port of each socket\n";
  for (const auto& [ranks, ports] : lines) {
    absl::StrAppend(&text, ranks.first, " ", ranks.second, ports, "\n");
  }
  return text;
}

struct KnownHashes {
  topology::HashFile file;        // with the addresses of all NICs
  topology::FabricHashes hashes;  // that are planned with
  bool has_addresses = false;     // that somebody gave
};

absl::StatusOr<KnownHashes> Hashes(const topology::Fabric& fabric, const std::string& hash,
                                   const std::string& addresses, uint32_t seed) {
  topology::HashFile file;
  if (!hash.empty()) {
    WEFT_ASSIGN_OR_RETURN(file, topology::LoadHashFile(hash));
  }
  if (!addresses.empty()) {
    WEFT_ASSIGN_OR_RETURN(topology::HashFile other, topology::LoadHashFile(addresses));
    file.addresses = std::move(other.addresses);
  }
  absl::StatusOr<topology::FabricHashes> hashes =
      hash.empty() && file.addresses.empty()
          ? topology::FabricHashes::Create(fabric, seed)
          : topology::MakeHashes(fabric, file, addresses.empty() ? hash : addresses);
  if (!hashes.ok()) return hashes.status();
  const bool has_addresses = !file.addresses.empty();
  for (topology::Endpoint endpoint : fabric.Endpoints()) {
    file.addresses[{fabric.node(endpoint.host).name, endpoint.nic}] = hashes->address(endpoint);
  }
  return KnownHashes{std::move(file), *std::move(hashes), has_addresses};
}

// What is learned of the switches of `known`, from what they do, takes the place of what they hash.
absl::Status LearnFrom(const Input& input, const topology::Routes& routes, KnownHashes& known) {
  WEFT_ASSIGN_OR_RETURN(topology::LearnedBox learned, topology::LearnBox(routes, known.hashes, {}));
  const topology::HashFile before = std::move(known.file);
  known.file = std::move(learned.known);
  known.file.addresses = before.addresses;
  WEFT_ASSIGN_OR_RETURN(known.hashes,
                        topology::MakeHashes(*input.fabric, known.file, "what was learned"));
  if (!input.tables) return absl::OkStatus();
  const int unknown = static_cast<int>(known.file.unknown.size());
  absl::PrintF(
      "learned %d of %d switches with a choice from %d flows: %d by the form of their hash, "
      "%d by a linear map, %d by tables of flows; %d are unknown\n",
      learned.switches - unknown, learned.switches, learned.flows,
      learned.switches - unknown - learned.linear - learned.tables, learned.linear, learned.tables,
      unknown);
  return absl::OkStatus();
}

// Ports that nobody has chosen for subflows of which nothing is known.
void DrawOpenPorts(const topology::PathPlannerOptions& options, PathPlan& plan) {
  Random random(2);
  for (topology::PlannedPath& path : plan.paths) {
    if (!path.open) continue;
    path.open = false;
    path.source_port = static_cast<uint16_t>(
        options.port_first + random.Below(options.port_last - options.port_first + 1u));
  }
}

// A few of the names.
std::string NamesText(const std::set<std::string>& names) {
  std::string text;
  size_t named = 0;
  for (const std::string& name : names) {
    if (++named > 4) break;
    absl::StrAppend(&text, named == 1 ? "" : ", ", name);
  }
  return names.size() > 4 ? absl::StrCat(text, " and ", names.size() - 4, " more") : text;
}

// Whether `file` says what each switch hashes that chooses on a way of the plan: a model in its
// place would send flows another way than the switch does.
absl::Status CheckSaid(const topology::HashFile& file, const std::string& path,
                       const topology::ConnectionPlanText& text) {
  if (file.hashes.count("*") > 0) return absl::OkStatus();
  std::set<std::string> lacking;
  for (const auto& [name, _] : text.hashes) {
    if (file.hashes.count(name) == 0 && file.unknown.count(name) == 0) lacking.insert(name);
  }
  if (lacking.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, " does not say what ", NamesText(lacking), lacking.size() == 1 ? " hashes" : " hash",
      ", over which flows have several ways: run weft-topo learn-hash over these hosts, or add "
      "lines \"hash ",
      *lacking.begin(), " linux:seed=1000\" or \"unknown ", *lacking.begin(),
      "\"; for a model's hashes and the file's addresses give --addresses ", path,
      " without --hash"));
}

// Before: ports as drawn by chance, one for each subflow that is planned.
absl::Status DrawPaths(const Input& input, const std::string& order, const std::string& file,
                       const topology::PathPlanner& judge, absl::Span<const TrafficFlow> flows,
                       const PathPlan& plan) {
  std::vector<topology::PlannedPath> drawn = plan.paths;
  Random random(1);
  for (topology::PlannedPath& path : drawn) {
    path.source_port = static_cast<uint16_t>(0xC000 + random.Below(0x4000));
  }
  WEFT_ASSIGN_OR_RETURN(PathPlan before, judge.Evaluate(flows, std::move(drawn)));
  topology::DrawPlanOptions options;
  options.title = absl::StrCat("Paths of order ", order, ": ", input.Describe());
  return WriteOutput(file, topology::DrawPlan(*input.fabric, before.paths, plan.paths, options));
}

// Every port by the hashes of all switches on its way, and by the choices that transports read.
// Internal: one does not take the path that is planned for it.
absl::Status CheckPorts(const topology::Routes& routes, const topology::FabricHashes& hashes,
                        const topology::PathPlannerOptions& options, const PathPlan& plan,
                        const topology::ConnectionPlanText& text) {
  const topology::ConnectionPlan connections(text, "the plan");
  const topology::Fabric& fabric = routes.fabric();
  for (size_t i = 0; i < plan.paths.size(); ++i) {
    const topology::PlannedPath& path = plan.paths[i];
    if (path.open) continue;
    const topology::FiveTuple tuple = hashes.Tuple(path.source, path.target, path.source_port,
                                                   options.target_port, options.protocol);
    WEFT_ASSIGN_OR_RETURN(std::vector<LinkId> links,
                          hashes.Path(routes, path.source, path.target, tuple));
    if (links == path.links && connections.Takes(text.flows[i].way, tuple)) continue;
    return absl::InternalError(
        absl::StrCat("port ", path.source_port, " from ", fabric.node(path.source.host).name,
                     " to ", fabric.node(path.target.host).name, " does not take the way ",
                     text.flows[i].way.ToString(), " that is planned for it"));
  }
  return absl::OkStatus();
}

// What the flows carry, as htsim's traffic lists say it: all from the beginning on.
std::string TrafficText(const topology::Fabric& fabric, const PathPlan& plan) {
  std::string text =
      absl::StrCat("Nodes ", fabric.endpoints(), "\nConnections ", plan.paths.size(), "\n");
  for (size_t i = 0; i < plan.paths.size(); ++i) {
    const topology::PlannedPath& path = plan.paths[i];
    absl::StrAppend(&text, fabric.IndexOf(path.source), "->", fabric.IndexOf(path.target), " id ",
                    i + 1, " start 0 size ", path.bytes.count(), "\n");
  }
  return text;
}

double PeakMebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

std::string RowTable(absl::Span<const TrafficRow> rows) {
  std::string text = absl::StrFormat("%-24s %8s %9s %11s %11s %11s %8s  %s\n", "traffic", "flows",
                                     "subflows", "before", "after", "bound", "x bound", "bound by");
  for (const TrafficRow& row : rows) {
    absl::StrAppendFormat(&text, "%-24s %8d %9d %11s %11s %11s %8.3f  %s\n", row.name, row.flows,
                          row.subflows, TimeText(absl::Seconds(row.before)),
                          TimeText(absl::Seconds(row.after)), TimeText(absl::Seconds(row.bound)),
                          row.bound > 0 ? row.after / row.bound : 1, row.bound_reason);
  }
  return text;
}

double Sum(absl::Span<const TrafficRow> rows, double TrafficRow::*field) {
  double sum = 0;
  for (const TrafficRow& row : rows) sum += row.*field;
  return sum;
}

}  // namespace

absl::Status PathsCommand::WriteDirectory(const Input& input, const Candidate& candidate,
                                          const std::string& text, const std::string& fabric,
                                          const std::string& hashes,
                                          const std::string& traffic) const {
  const std::filesystem::path folder(out_);
  const std::string paths = (folder / std::string(topology::kConnectionPlanFile)).string();
  // The first to go and the last to come, so that a directory with it is whole.
  std::error_code error;
  std::filesystem::remove(paths, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("remove ", paths));
  // Multipath would take it for this plan's.
  const std::string controller = (folder / std::string(topology::kPlanControllerFile)).string();
  if (std::filesystem::remove(controller, error)) {
    absl::FPrintF(stderr,
                  "weft-plan: removed %s, which was tuned for the plan before; weft-cc tune --plan "
                  "%s makes another\n",
                  controller, out_);
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("remove ", controller));
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> files,
                        WriteOrderFiles(input, candidate, {}, out_));
  WEFT_RETURN_IF_ERROR(WriteOutput((folder / "fabric.toml").string(), fabric));
  WEFT_RETURN_IF_ERROR(WriteOutput((folder / "hashes.txt").string(), hashes));
  WEFT_RETURN_IF_ERROR(
      WriteOutput((folder / std::string(topology::kPlanTrafficFile)).string(), traffic));
  WEFT_RETURN_IF_ERROR(WriteOutput(paths, text));
  if (input.tables) {
    absl::PrintF("\n%d files in %s\n\n%s", static_cast<int>(files.size()) + 4, out_,
                 LaunchLines(input, candidate, out_));
  }
  return absl::OkStatus();
}

PathsCommand::PathsCommand(CLI::App& app)
    : command_(app.add_subcommand("paths", "Choose source ports for the flows of an order")) {
  command_->footer(
      "Without --hash, what switches hash is a model: each switch a hash of its own, from "
      "--hash-seed.\n--out makes a plan directory: the files of the order (weft-plan order), "
      "fabric.toml, hashes.txt, and\npaths.txt, which every transport reads that is started with "
      "WEFT_PLAN=DIR or by weft-run --plan DIR.\nThe port file of --ports is what the setting "
      "tcp.source_ports reads.");
  words_.Declare(*command_);
  command_->add_option("--order", order_,
                       "A rank file, or as-allocated, random, block (Slurm's) or planned");
  command_->add_option("--only", only_, "Traffic to plan for, by name; none: all");
  command_->add_flag("--at-once", at_once_,
                     "All traffic flows at the same time, as that of groups which overlap; "
                     "without it each kind has the fabric to itself");
  command_->add_option("--hash", hash_,
                       "What switches hash: a file (weft-topo learn-hash writes it), or for all "
                       "linux:seed=1000, crc16:seed=7,offset=3, ...; empty: --hash-seed");
  command_->add_option("--addresses", addresses_,
                       "File with the NICs' addresses (weft-topo discover writes it); empty: those "
                       "of --hash, else 10.0.0.0/8 in the order of the fabric");
  command_
      ->add_option("--transport", transport_,
                   "Whose source ports: verbs and multipath over UDP, or tcp")
      ->check(CLI::IsMember({"verbs", "multipath", "tcp"}));
  command_->add_flag("--black-box", black_box_,
                     "Take --hash (or --hash-seed) as what the switches do and nobody knows: learn "
                     "it from flows, plan by what was learned, and judge by what they do");
  command_->add_option("--svg", svg_,
                       "Draw the cables' loads before and after, and the flows; empty: none");
  command_->add_option("-o,--out", out_, "Folder for the plan; empty: none");
  command_->add_option("--hash-seed", hash_seed_, "Seed of the modelled switches' hashes");
  command_->add_option("--subflows", subflows_, "Queue pairs of a flow, at most")
      ->check(CLI::Range(1, 64));
  command_->add_option("--ports", ports_, "File for the ports, RANK PEER PORT ... a line");
}

absl::Status PathsCommand::Run() const {
  const absl::Time begin = SystemClock().Now();
  WEFT_RETURN_IF_ERROR(CheckOutput(svg_));
  WEFT_RETURN_IF_ERROR(CheckOutputBeside(out_, ports_));
  WEFT_ASSIGN_OR_RETURN(Input input, LoadInput(words_, out_));
  WEFT_ASSIGN_OR_RETURN(std::vector<size_t> kinds, Kinds(input, only_));
  WEFT_ASSIGN_OR_RETURN(Candidate candidate, MakeCandidate(input, order_));
  WEFT_ASSIGN_OR_RETURN(Placed placed, Place(input, candidate.order));
  WEFT_RETURN_IF_ERROR(topology::Routes::Feasible(*input.fabric));
  topology::Routes routes(*input.fabric);
  WEFT_ASSIGN_OR_RETURN(KnownHashes known, Hashes(*input.fabric, hash_, addresses_, hash_seed_));
  const topology::FabricHashes box = known.hashes;
  if (black_box_) WEFT_RETURN_IF_ERROR(LearnFrom(input, routes, known));
  const topology::FabricHashes& hashes = known.hashes;
  topology::PathPlannerOptions options;
  options.subflows_max = subflows_;
  if (transport_ == "tcp") {
    options.protocol = topology::kProtocolTcp;
    std::tie(options.port_first, options.port_last) = topology::kTcpPlanPorts;
  }
  topology::PathPlanner planner(routes, hashes, options);
  WEFT_ASSIGN_OR_RETURN(PlannedFlows planned, PlanFlows(planner, placed, kinds, at_once_));
  const RankFlows& flows = planned.flows;
  PathPlan& plan = planned.plan;
  const int open = plan.open;
  const auto has_choice =
      std::count_if(plan.paths.begin(), plan.paths.end(), [&](const topology::PlannedPath& path) {
        return routes.Paths(path.source, path.target) > 1;
      });
  if (!black_box_ && open > 0 && open == has_choice) {
    return absl::FailedPreconditionError(absl::StrCat(
        "nothing can be planned: every flow that passes a switch with a choice passes one that is "
        "not known (",
        NamesText(known.file.unknown),
        ") or whose table has none of its ports; run weft-topo learn-hash over these hosts, or "
        "give "
        "--hash"));
  }
  const PathPlan made = plan;  // as the transports get it
  if (black_box_) {
    DrawOpenPorts(options, plan);
    topology::PathPlanner judge(routes, box, options);
    WEFT_ASSIGN_OR_RETURN(PathPlan judged, judge.Evaluate(flows.flows, std::move(plan.paths)));
    // Before: with ports that nobody has chosen, not with these.
    judged.seconds_before = plan.seconds_before;
    for (size_t i = 0; i < judged.phases.size() && i < plan.phases.size(); ++i) {
      judged.phases[i].before = plan.phases[i].before;
    }
    plan = std::move(judged);
  }
  if (!svg_.empty()) {
    const topology::PathPlanner judge(routes, box, options);
    WEFT_RETURN_IF_ERROR(DrawPaths(input, candidate.name, svg_, judge, flows.flows, plan));
  }
  const std::vector<TrafficRow> rows = TrafficRows(input, planned, at_once_);
  if (input.tables) {
    absl::PrintF(
        "job    %s, order %s\n\n%s\nfullest link, all together: before %s, after %s, "
        "bound %s; %d ports of %d not as wanted\n",
        input.Describe(), candidate.name, RowTable(rows),
        TimeText(absl::Seconds(Sum(rows, &TrafficRow::before))),
        TimeText(absl::Seconds(Sum(rows, &TrafficRow::after))),
        TimeText(absl::Seconds(Sum(rows, &TrafficRow::bound))), made.unmet,
        static_cast<int>(plan.paths.size()));
    if (open > 0) {
      absl::PrintF(
          "%d of %d subflows have ports that nobody chose, as a switch on their way is not "
          "known (%s) or its table lacks them; %s\n",
          open, static_cast<int>(plan.paths.size()), NamesText(known.file.unknown),
          black_box_ ? "they are judged by what the switches do" : "no load above counts them");
    }
  }
  topology::PlanTextOptions text_options;
  text_options.hosts = input.hosts;
  text_options.ranks = input.job.mesh.ranks();
  const std::string fabric = topology::WriteFabric(*input.fabric);
  const std::string hash_text = topology::HashFileText(known.file);
  text_options.fingerprint = topology::Fingerprint(absl::StrCat(fabric, hash_text));
  text_options.routers = known.file.routers;
  topology::ConnectionPlanText text = MakePlanText(routes, hashes, made, flows.ranks, text_options);
  if (!out_.empty()) {
    WEFT_ASSIGN_OR_RETURN(const int switches, AddDetours(routes, hashes, options, flows.flows, made,
                                                         kDetourSwitchesMost, text));
    if (switches > kDetourSwitchesMost && input.tables) {
      absl::PrintF(
          "no detours: flows pass %d switches that may be lost; detours are planned for %d "
          "at most\n",
          switches, kDetourSwitchesMost);
    }
  }
  if (!hash_.empty() && !black_box_) WEFT_RETURN_IF_ERROR(CheckSaid(known.file, hash_, text));
  WEFT_RETURN_IF_ERROR(CheckPorts(routes, hashes, options, made, text));
  if (input.tables) {
    absl::PrintF("%d ports%s; %.1f s, %.0f MiB at most\n", plan.paths.size(),
                 black_box_ ? ", each checked against what was learned of the switches on its way"
                            : ", each checked against the hashes of all switches on its way",
                 absl::ToDoubleSeconds(SystemClock().Now() - begin), PeakMebibytes());
  }
  if (!out_.empty()) {
    if (!known.has_addresses) {
      absl::FPrintF(stderr,
                    "weft-plan: without --addresses the plan is for a model's addresses, which no "
                    "job has\n");
    }
    WEFT_RETURN_IF_ERROR(WriteDirectory(input, candidate, ConnectionPlanFileText(text), fabric,
                                        hash_text, TrafficText(*input.fabric, made)));
  }
  if (!ports_.empty()) WEFT_RETURN_IF_ERROR(WriteOutput(ports_, PortsText(flows, made)));
  if (words_.json.empty()) return absl::OkStatus();
  ordered_json json;
  json["job"] = input.Describe();
  json["order"] = candidate.name;
  json["before_ms"] = Sum(rows, &TrafficRow::before) * 1e3;
  json["after_ms"] = Sum(rows, &TrafficRow::after) * 1e3;
  json["bound_ms"] = Sum(rows, &TrafficRow::bound) * 1e3;
  json["unmet"] = made.unmet;
  json["open"] = open;
  json["phases"] = ordered_json::array();
  for (const TrafficRow& row : rows) {
    json["phases"].push_back({{"traffic", row.name},
                              {"flows", row.flows},
                              {"subflows", row.subflows},
                              {"before_ms", row.before * 1e3},
                              {"after_ms", row.after * 1e3},
                              {"mean_ms", row.mean * 1e3},
                              {"bound_ms", row.bound * 1e3},
                              {"bound_by", row.bound_reason}});
  }
  return WriteOutput(words_.json, JsonText(json, 2) + "\n");
}

}  // namespace weft::plan
