#include "tools/plan/collective_command.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/settings.h"
#include "base/status.h"
#include "base/units.h"
#include "base/write_file.h"
#include "collectives/data_type.h"
#include "collectives/planner/concurrent.h"
#include "collectives/planner/fabric_network.h"
#include "collectives/planner/forced.h"
#include "collectives/planner/group_place.h"
#include "collectives/planner/planner.h"
#include "tools/plan/collective_picture.h"
#include "tools/plan/collective_simulation.h"
#include "tools/plan/progress.h"
#include "topology/fabric/load.h"
#include "topology/host/affinity.h"
#include "topology/job/hostlist.h"
#include "topology/job/mesh_text.h"
#include "topology/order/find_hosts.h"

namespace weft::plan {
namespace {

using collectives::CollectiveKind;
using collectives::CollectiveSpec;
using nlohmann::ordered_json;
namespace planner = collectives::planner;

constexpr const char* kFooter =
    R"(Sizes are of the whole buffer, as in weft-bw; busbw is algbw times nccl-tests' factor of the collective.
Costs: --fabric for the network; for the rest the setting collective.costs, or what weft-bw --calibrate
measured on this machine, or defaults. docs/collectives.md explains them, and the settings that force algorithms.

Examples:
  weft-plan collective all_reduce --hosts 16 --ranks-per-host 8 --transport verbs --svg all_reduce.svg
  weft-plan collective all_gather --size 64MiB --fabric megascale:hosts=64 --hosts h[0-31] --transport verbs
  weft-plan collective all_reduce --mesh tp8,dp4 --hosts 4 --ranks-per-host 8 --transport verbs
  weft-plan collective all_reduce --fabric leaf-spine:leaves=4,spines=4,hosts_per_leaf=4 --transport verbs --simulate flow)";

constexpr int64_t kStep = 4;  // from one size to the next of a range
constexpr int kRanksMax = 1 << 20;

// The group that is asked about.
struct Group {
  CollectiveKind kind = CollectiveKind::kBarrier;
  int ranks = 1, hosts = 1, root = 0;
  int at_once = 1;           // groups like this one on its busiest host
  std::string name, fabric;  // the fabric's name; empty: none
  std::shared_ptr<const collectives::GroupPlace> place;
  planner::CostTable table;
  planner::Forced forced;
  size_t element = 4;
  // With a fabric: it, the hosts of the group, and what the table had for `across` without it.
  std::optional<topology::Fabric> network;
  std::vector<NodeId> nodes;
  double software_latency = 0;

  std::string Switches() const {
    if (place == nullptr || place->switches.size() < 2) return "";
    return absl::StrCat(" under ", place->switches.size(), " switches");
  }
  std::string Describe() const {
    return absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks", " on ", hosts,
                        hosts == 1 ? " host" : " hosts", Switches(), fabric.empty() ? "" : " of ",
                        fabric, ", ", table.cores, table.cores == 1 ? " core" : " cores",
                        " each; costs: ", table.source);
  }
};

// What is planned for one size.
struct Answer {
  int64_t bytes = 0;
  planner::Plan choice;
  std::vector<planner::Plan> plans;  // cheapest first
  // With --simulate, by plan: ns, or nothing where there are too many steps.
  std::vector<std::optional<int64_t>> simulated;

  std::optional<int64_t> Simulated(const planner::Plan& plan) const {
    for (size_t i = 0; i < simulated.size(); ++i) {
      if (plans[i].ToText() == plan.ToText()) return simulated[i];
    }
    return std::nullopt;
  }
  // Time of the choice over the best, both simulated; nothing where the choice is not.
  std::optional<double> Regret() const {
    const std::optional<int64_t> own = Simulated(choice);
    if (!own.has_value()) return std::nullopt;
    int64_t best = *own;
    for (const std::optional<int64_t>& one : simulated) best = std::min(best, one.value_or(best));
    return best > 0 ? static_cast<double>(*own) / static_cast<double>(best) - 1 : 0;
  }
};

// nccl-tests' factor from size over time to bus bandwidth.
double BusFactor(CollectiveKind kind, int ranks) {
  const double n = ranks;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (n - 1) / n;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return 1;
    default:
      return (n - 1) / n;
  }
}

double BusBandwidth(const Group& group, int64_t bytes, int64_t nanoseconds) {  // GB/s
  if (nanoseconds <= 0) return 0;
  return static_cast<double>(bytes) / static_cast<double>(nanoseconds) *
         BusFactor(group.kind, group.ranks);
}

CollectiveSpec SpecFor(const Group& group, int64_t bytes) {
  CollectiveSpec spec;
  spec.kind = group.kind;
  spec.size = group.ranks;
  spec.root = group.root;
  spec.count = static_cast<uint64_t>(bytes) / group.element;
  spec.chunk =
      std::max<uint64_t>(static_cast<uint64_t>(group.table.chunk_bytes) / group.element, 1);
  spec.place = group.place;
  spec.groups_at_once = group.at_once;
  const bool whole = group.kind == CollectiveKind::kAllReduce ||
                     group.kind == CollectiveKind::kBroadcast ||
                     group.kind == CollectiveKind::kReduce;
  const size_t n = static_cast<size_t>(group.ranks);
  if (!whole) spec.count /= n;
  if (group.kind != CollectiveKind::kAllGatherV && group.kind != CollectiveKind::kAllToAllV) {
    return spec;
  }
  // Equal parts.
  spec.output_counts.assign(n, spec.count);
  for (size_t r = 0; r < n; ++r) spec.output_offsets.push_back(r * spec.count);
  if (group.kind == CollectiveKind::kAllToAllV) {
    spec.input_counts = spec.output_counts;
    spec.input_offsets = spec.output_offsets;
  }
  spec.count = 0;
  return spec;
}

Answer Ask(const Group& group, int64_t bytes) {
  const CollectiveSpec spec = SpecFor(group, bytes);
  Answer answer{.bytes = bytes};
  answer.choice = planner::ChoosePlan(spec, group.element, group.table,
                                      group.forced.For(spec, group.element, group.name));
  answer.plans = planner::PlansFor(spec, group.element, group.table);
  return answer;
}

std::string Microseconds(int64_t nanoseconds) {
  return absl::StrFormat("%.1f", static_cast<double>(nanoseconds) / 1e3);
}

std::string SimulatedText(const std::optional<int64_t>& nanoseconds) {
  return nanoseconds.has_value() ? Microseconds(*nanoseconds) : "-";
}

std::string ChunkText(const Group& group, const planner::Plan& plan) {
  return ToString(Bytes(static_cast<int64_t>(plan.chunk * group.element)));
}

// The choice and its runners-up.
std::string Explanation(const Group& group, const Answer& answer, size_t count) {
  std::string text = absl::StrFormat(
      "%s of %s: %s\n\n  %-20s %12s %12s %10s %8s%s\n", ToString(group.kind),
      ToString(Bytes(answer.bytes)), answer.choice.why, "algorithm", "time (us)", "busbw (GB/s)",
      "chunk", "of best", answer.simulated.empty() ? "" : " simulated (us)");
  for (size_t i = 0; i < std::min(count, answer.plans.size()); ++i) {
    const planner::Plan& plan = answer.plans[i];
    const bool chosen = plan.ToText() == answer.choice.ToText();
    absl::StrAppendFormat(
        &text, "%s %-20s %12s %12.3f %10s %7.2fx", chosen ? "*" : " ", plan.ToText(),
        Microseconds(plan.nanoseconds), BusBandwidth(group, answer.bytes, plan.nanoseconds),
        ChunkText(group, plan),
        static_cast<double>(plan.nanoseconds) /
            static_cast<double>(std::max<int64_t>(answer.plans[0].nanoseconds, 1)));
    if (!answer.simulated.empty()) {
      absl::StrAppendFormat(&text, " %14s", SimulatedText(answer.simulated[i]));
    }
    text += '\n';
  }
  return text;
}

// How far the choices are from what the simulator finds best.
std::string RegretText(absl::Span<const Answer> answers) {
  double sum = 0, most = 0;
  int64_t at = 0;
  size_t count = 0;
  for (const Answer& answer : answers) {
    const std::optional<double> regret = answer.Regret();
    if (!regret.has_value()) continue;
    ++count;
    sum += *regret;
    if (*regret >= most) most = *regret, at = answer.bytes;
  }
  if (count == 0) return "no choice was simulated: the schedules have too many steps\n";
  return absl::StrFormat(
      "simulated: the choices take %.1f %% longer than the best, on average over %d sizes; at most "
      "%.1f %%, at %s\n",
      100 * sum / static_cast<double>(count), count, 100 * most, ToString(Bytes(at)));
}

// A line a size.
std::string Table(const Group& group, absl::Span<const Answer> answers) {
  const bool simulates = !answers.empty() && !answers[0].simulated.empty();
  std::string text =
      absl::StrFormat("%10s  %-20s %12s %12s %10s%s  %s\n", "size", "algorithm", "time (us)",
                      "busbw (GB/s)", "chunk", simulates ? " simulated (us)   regret" : "", "then");
  for (const Answer& answer : answers) {
    std::string then;
    int others = 0;
    for (const planner::Plan& plan : answer.plans) {
      if (plan.algorithm == answer.choice.algorithm || others == 2) continue;
      absl::StrAppend(&then, others++ == 0 ? "" : ", ", plan.ToText(), " ",
                      Microseconds(plan.nanoseconds));
    }
    std::string simulated;
    if (simulates) {
      const std::optional<double> regret = answer.Regret();
      simulated =
          absl::StrFormat(" %14s %8s", SimulatedText(answer.Simulated(answer.choice)),
                          regret.has_value() ? absl::StrFormat("%.1f %%", 100 * *regret) : "-");
    }
    absl::StrAppendFormat(&text, "%10s  %-20s %12s %12.3f %10s%s  %s\n",
                          ToString(Bytes(answer.bytes)), answer.choice.ToText(),
                          Microseconds(answer.choice.nanoseconds),
                          BusBandwidth(group, answer.bytes, answer.choice.nanoseconds),
                          ChunkText(group, answer.choice), simulated, then);
  }
  return text;
}

ordered_json PlanJson(const Group& group, const Answer& answer, const planner::Plan& plan) {
  ordered_json json{{"algorithm", plan.algorithm->name},
                    {"channels", plan.channels},
                    {"chunk_bytes", plan.chunk * group.element},
                    {"time_us", static_cast<double>(plan.nanoseconds) / 1e3},
                    {"busbw_gbytes_per_s", BusBandwidth(group, answer.bytes, plan.nanoseconds)}};
  if (const std::optional<int64_t> simulated = answer.Simulated(plan)) {
    json["simulated_us"] = static_cast<double>(*simulated) / 1e3;
  }
  return json;
}

ordered_json Json(const Group& group, absl::Span<const Answer> answers) {
  ordered_json json{{"collective", ToString(group.kind)},
                    {"group", group.name},
                    {"ranks", group.ranks},
                    {"hosts", group.hosts},
                    {"fabric", group.fabric},
                    {"cores", group.table.cores},
                    {"costs", group.table.source},
                    {"sizes", ordered_json::array()}};
  for (const Answer& answer : answers) {
    ordered_json plans = ordered_json::array();
    for (const planner::Plan& plan : answer.plans) {
      plans.push_back(PlanJson(group, answer, plan));
    }
    json["sizes"].push_back({{"bytes", answer.bytes},
                             {"choice", PlanJson(group, answer, answer.choice)},
                             {"why", answer.choice.why},
                             {"plans", std::move(plans)}});
    if (const std::optional<double> regret = answer.Regret()) {
      json["sizes"].back()["regret"] = *regret;
    }
  }
  return json;
}

Picture PictureOf(const Group& group, absl::Span<const Answer> answers) {
  Picture picture;
  picture.title = absl::StrCat(ToString(group.kind), ": ", group.Describe());
  for (const Answer& answer : answers) {
    if (!answer.simulated.empty()) picture.measure = "simulated";
    for (const planner::Plan& plan : answer.plans) {
      const bool chosen = plan.algorithm == answer.choice.algorithm;
      const planner::Plan& shown = chosen ? answer.choice : plan;
      const int64_t nanoseconds =
          answer.simulated.empty() ? shown.nanoseconds : answer.Simulated(shown).value_or(0);
      if (nanoseconds == 0) continue;  // not simulated
      picture.Add(plan.algorithm->name, static_cast<double>(answer.bytes),
                  BusBandwidth(group, answer.bytes, nanoseconds), chosen);
    }
  }
  return picture;
}

absl::StatusOr<std::vector<int64_t>> SizesOf(const std::vector<std::string>& single,
                                             const std::string& range) {
  std::vector<int64_t> sizes;
  for (const std::string& text : single) {
    WEFT_ASSIGN_OR_RETURN(const Bytes bytes, ParseBytes(text));
    sizes.push_back(bytes.count());
  }
  if (!sizes.empty()) return sizes;
  const std::vector<std::string> ends = absl::StrSplit(range, "..");
  if (ends.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sizes \"", range, "\" is no range, as 1KiB..256MiB"));
  }
  WEFT_ASSIGN_OR_RETURN(const Bytes first, ParseBytes(ends[0]));
  WEFT_ASSIGN_OR_RETURN(const Bytes last, ParseBytes(ends[1]));
  if (first.count() < 1 || last < first || last.count() > int64_t{1} << 50) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sizes \"", range, "\" must rise, from 1 B to at most 1 PiB"));
  }
  for (int64_t bytes = first.count(); bytes <= last.count(); bytes *= kStep) sizes.push_back(bytes);
  return sizes;
}

// The hosts of a fabric, a place each; and its delays.
absl::StatusOr<std::vector<collectives::RankPlace>> PlacesOnFabric(const std::string& name,
                                                                   const std::string& hosts,
                                                                   Group& group) {
  WEFT_ASSIGN_OR_RETURN(topology::Fabric fabric, topology::LoadFabric(name));
  std::vector<NodeId> nodes(fabric.hosts().begin(), fabric.hosts().end());
  if (size_t number = 0; absl::SimpleAtoi(hosts, &number)) {
    if (number < 1 || number > nodes.size()) {
      return absl::InvalidArgumentError(absl::StrCat("--hosts ", hosts, ": the fabric ", name,
                                                     " has 1 to ", nodes.size(), " hosts to take"));
    }
    nodes.resize(number);
  } else if (!hosts.empty()) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> wanted, topology::ExpandHostlist(hosts));
    WEFT_ASSIGN_OR_RETURN(nodes, topology::FindHosts(fabric, wanted));
  }
  WEFT_ASSIGN_OR_RETURN(const planner::FabricNetwork network, planner::NetworkOf(fabric, nodes));
  group.software_latency = group.table.across.latency;
  group.table.across.latency += absl::ToDoubleNanoseconds(network.delay);
  group.fabric = name;
  std::vector<collectives::RankPlace> places;
  for (NodeId node : nodes) {
    WEFT_ASSIGN_OR_RETURN(collectives::RankPlace place, planner::PlaceOnFabric(fabric, node));
    places.push_back(std::move(place));
  }
  group.network = std::move(fabric);
  group.nodes = std::move(nodes);
  return places;
}

absl::StatusOr<std::vector<collectives::RankPlace>> PlacesByNumber(const std::string& hosts) {
  int number = 1;
  if (!hosts.empty() && (!absl::SimpleAtoi(hosts, &number) || number < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--hosts '", hosts, "' is no number of hosts; names of hosts need --fabric"));
  }
  if (number > kRanksMax) return absl::InvalidArgumentError("--hosts: too many");
  std::vector<collectives::RankPlace> places(static_cast<size_t>(number));
  for (int h = 0; h < number; ++h) places[static_cast<size_t>(h)].host = absl::StrCat("h", h);
  return places;
}

// Sets ranks, hosts and place. `ranks_per_host` 0: a rank a NIC, or one where there are none.
absl::Status Spread(absl::Span<const collectives::RankPlace> hosts, int ranks_per_host,
                    Group& group) {
  if (ranks_per_host == 0) ranks_per_host = std::max(hosts[0].nics, 1);
  if (static_cast<int64_t>(hosts.size()) * ranks_per_host > kRanksMax) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kRanksMax, " ranks"));
  }
  std::vector<collectives::RankPlace> places;
  for (const collectives::RankPlace& host : hosts) {
    places.insert(places.end(), static_cast<size_t>(ranks_per_host), host);
  }
  group.hosts = static_cast<int>(hosts.size());
  group.ranks = static_cast<int>(places.size());
  if (group.hosts > 1) group.place = std::make_shared<const collectives::GroupPlace>(places);
  if (group.root >= 0 && group.root < group.ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--root ", group.root, " of a group of ", group.ranks, " ranks"));
}

// ---- All groups of a job at once.

// The groups along one axis, of which all are alike; and as if one of them were alone.
struct AxisAnswers {
  topology::Axis axis = topology::Axis::kTensor;
  Group group;
  std::vector<Answer> alone, shared;

  // Of the plan that a group alone would take, among the others.
  int64_t Unaware(size_t size) const {
    for (const planner::Plan& plan : shared[size].plans) {
      if (plan.ToText() == alone[size].choice.ToText()) return plan.nanoseconds;
    }
    return shared[size].choice.nanoseconds;
  }
};

// `hosts`: those of the job, whose ranks they have in their order.
absl::StatusOr<std::vector<AxisAnswers>> AskMesh(const topology::Mesh& mesh, const Group& job,
                                                 absl::Span<const collectives::RankPlace> hosts,
                                                 absl::Span<const int64_t> sizes) {
  if (mesh.ranks() != job.ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--mesh ", mesh.ToText(), " are ", mesh.ranks(), " ranks; ", job.hosts, " hosts of ",
        job.ranks / job.hosts, " are ", job.ranks, " (--hosts, --ranks-per-host)"));
  }
  const int ranks_per_host = job.ranks / job.hosts;
  auto host_of = [&](Rank rank) { return rank.value() / ranks_per_host; };
  std::vector<AxisAnswers> out;
  for (const topology::MeshAxis& axis : mesh.axes()) {
    if (axis.size == 1) continue;
    const topology::MeshGroup members = mesh.GroupOf(Rank(0), {axis.axis});
    AxisAnswers answers{.axis = axis.axis, .group = job};
    Group& group = answers.group;
    group.name = absl::StrCat(Brief(axis.axis), 0);
    std::vector<collectives::RankPlace> places;
    for (Rank rank : members.members) places.push_back(hosts[static_cast<size_t>(host_of(rank))]);
    auto place = std::make_shared<const collectives::GroupPlace>(places);
    group.ranks = axis.size;
    group.hosts = static_cast<int>(place->hosts.size());
    group.place = group.hosts > 1 ? std::move(place) : nullptr;
    if (group.root >= group.ranks) {
      return absl::InvalidArgumentError(absl::StrCat("--root ", group.root, " of ", group.ranks,
                                                     " ranks along ", ToString(axis.axis)));
    }
    for (int64_t bytes : sizes) answers.alone.push_back(Ask(group, bytes));
    group.at_once = planner::GroupsAtOnce(mesh, members.members, host_of);
    for (int64_t bytes : sizes) answers.shared.push_back(Ask(group, bytes));
    out.push_back(std::move(answers));
  }
  if (out.empty()) return absl::InvalidArgumentError("--mesh has no group of more than one rank");
  return out;
}

std::string MeshTable(const AxisAnswers& answers) {
  const Group& group = answers.group;
  std::string text = absl::StrFormat(
      "%s: groups of %d ranks on %d %s, %d at once on a host\n%10s  %-20s %12s %8s  %-20s %12s "
      "%14s\n",
      ToString(answers.axis), group.ranks, group.hosts, group.hosts == 1 ? "host" : "hosts",
      group.at_once, "size", "algorithm", "time (us)", "sharing", "alone", "time (us)",
      "unaware (us)");
  for (size_t i = 0; i < answers.shared.size(); ++i) {
    const planner::Plan &shared = answers.shared[i].choice, &alone = answers.alone[i].choice;
    absl::StrAppendFormat(
        &text, "%10s  %-20s %12s %7.2fx  %-20s %12s %14s\n",
        ToString(Bytes(answers.shared[i].bytes)), shared.ToText(), Microseconds(shared.nanoseconds),
        static_cast<double>(shared.nanoseconds) /
            static_cast<double>(std::max<int64_t>(alone.nanoseconds, 1)),
        alone.ToText(), Microseconds(alone.nanoseconds), Microseconds(answers.Unaware(i)));
  }
  return text;
}

ordered_json MeshJson(const topology::Mesh& mesh, absl::Span<const AxisAnswers> axes) {
  ordered_json json{{"mesh", mesh.ToText()}, {"axes", ordered_json::array()}};
  for (const AxisAnswers& answers : axes) {
    ordered_json axis = Json(answers.group, answers.shared);
    axis["axis"] = ToString(answers.axis);
    axis["groups_at_once"] = answers.group.at_once;
    for (size_t i = 0; i < answers.alone.size(); ++i) {
      axis["sizes"][i]["alone"] =
          PlanJson(answers.group, answers.alone[i], answers.alone[i].choice);
      axis["sizes"][i]["unaware_us"] = static_cast<double>(answers.Unaware(i)) / 1e3;
    }
    json["axes"].push_back(std::move(axis));
  }
  return json;
}

absl::Status PlanMesh(const std::string& text, const Group& job,
                      absl::Span<const collectives::RankPlace> hosts,
                      absl::Span<const int64_t> sizes, const std::string& json) {
  WEFT_ASSIGN_OR_RETURN(const topology::Mesh mesh, topology::ParseMesh(text));
  WEFT_ASSIGN_OR_RETURN(const std::vector<AxisAnswers> axes, AskMesh(mesh, job, hosts, sizes));
  if (json != "-") {
    absl::PrintF("job  %s: %s\n", mesh.Describe(), job.Describe());
    for (const AxisAnswers& answers : axes) absl::PrintF("\n%s", MeshTable(answers));
  }
  return json.empty() ? absl::OkStatus() : WriteOutput(json, MeshJson(mesh, axes).dump(2) + "\n");
}

// Every plan of every answer, with its time on the fabric of the group.
absl::Status Simulate(const Group& group, const std::string& level, const std::string& balance,
                      bool quiet, std::vector<Answer>& answers) {
  if (!group.network.has_value()) {
    return absl::InvalidArgumentError("--simulate needs the fabric to simulate: --fabric");
  }
  std::vector<topology::Endpoint> endpoints;
  const int ranks_per_host = group.ranks / group.hosts;
  for (NodeId node : group.nodes) {
    for (int i = 0; i < ranks_per_host; ++i) {
      endpoints.push_back({node, i % group.network->nics(node)});
    }
  }
  CollectiveSimulation simulation(
      *group.network, std::move(endpoints), group.table, absl::Nanoseconds(group.software_latency),
      level == "packet" ? SimulationLevel::kPacket : SimulationLevel::kFlow,
      balance == "ecmp" ? topology::LoadBalance::kEcmp : topology::LoadBalance::kSpray);
  Progress progress("weft-plan", !quiet);
  for (size_t a = 0; a < answers.size(); ++a) {
    Answer& answer = answers[a];
    const CollectiveSpec spec = SpecFor(group, answer.bytes);
    for (size_t p = 0; p < answer.plans.size(); ++p) {
      const double share = static_cast<double>(p) / static_cast<double>(answer.plans.size());
      progress.Show("simulating",
                    (static_cast<double>(a) + share) / static_cast<double>(answers.size()));
      absl::StatusOr<std::optional<int64_t>> time =
          simulation.Nanoseconds(spec, answer.plans[p], group.element);
      if (!time.ok()) return Annotate(time.status(), answer.plans[p].ToText());
      answer.simulated.push_back(*time);
    }
  }
  progress.End();
  return absl::OkStatus();
}

}  // namespace

CollectiveCommand::CollectiveCommand(CLI::App& app)
    : command_(app.add_subcommand("collective", "Which algorithm a collective takes, and why")) {
  CLI::App& command = *command_;
  command.footer(kFooter);
  command.option_defaults()->always_capture_default();
  command.add_option("KIND", kind_, planner::KindNames())->required();
  command.add_option("--size", size_, "Explains this size, with the runners-up; repeatable");
  command.add_option("--sizes", sizes_, "Without --size: a line for each of this range, by 4");
  command.add_option("-d,--datatype", type_, "Type of the elements");
  command.add_option("--root", root_, "Of broadcast, reduce, gather, scatter");
  command.add_option("--mesh", mesh_,
                     "The layout of a job, as tp8,dp4: plans the groups along each axis, which all "
                     "run at once and share their hosts' cores, memory and NICs; empty: one group "
                     "of all ranks");
  command.add_option("--fabric", fabric_, "A fabric file, or a generator, as megascale:hosts=64");
  command.add_option("--hosts", hosts_,
                     "How many; or, of a fabric, a hostlist h[0-63,70]; empty: 1, or all of them");
  command.add_option("--ranks-per-host", ranks_per_host_, "0: a rank a NIC of the fabric, else 1")
      ->check(CLI::Range(0, kRanksMax));
  command.add_option("--cores", cores_, "Of a host, for all its ranks; 0: as this machine")
      ->check(CLI::Range(0, 1 << 16));
  command.add_option("--group", group_, "Name of the group, for settings that force by group");
  command.add_option("--transport", transport_, "As the setting; empty: the setting");
  command.add_option("--set", settings_, "A setting, name=value; repeatable (see weft-settings)");
  command.add_option("--count", count_, "Algorithms to print of each --size")
      ->check(CLI::Range(1, 100));
  command
      .add_option("--simulate", simulate_,
                  "Runs every plan's schedule on --fabric, by flows or packets; empty: not")
      ->check(CLI::IsMember({"flow", "packet"}));
  command
      .add_option("--load-balance", balance_,
                  "Of --simulate. spray: no path has more than its share, as with planned ports; "
                  "ecmp: ports by chance")
      ->check(CLI::IsMember({"spray", "ecmp"}));
  command.add_option("--svg", svg_, "Picture of bus bandwidth by algorithm and size; empty: none");
  command.add_option("--json", json_, "Write the results into this file; -: print them, no tables");
}

absl::Status CollectiveCommand::Run() const {
  Settings settings(LibrarySettings());
  WEFT_RETURN_IF_ERROR(settings.SetFromEnvironment(/*strict=*/false));
  for (const std::string& pair : settings_) {
    WEFT_RETURN_IF_ERROR(settings.SetPair(pair, "--set"));
  }
  if (!transport_.empty()) {
    WEFT_RETURN_IF_ERROR(settings.Set("transport", transport_, "--transport"));
  }
  Group group{.root = root_, .name = group_};
  const std::optional<CollectiveKind> kind = planner::FindKind(kind_);
  if (!kind.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no collective '", kind_, "'; there are ", planner::KindNames()));
  }
  group.kind = *kind;
  WEFT_ASSIGN_OR_RETURN(const collectives::DataType type, collectives::ParseDataType(type_));
  group.element = collectives::SizeOf(type);
  WEFT_ASSIGN_OR_RETURN(group.forced, planner::Forced::Create(settings));
  WEFT_ASSIGN_OR_RETURN(const planner::Calibration costs, planner::LoadCalibration(settings));
  group.table = planner::TableFor(costs, settings, cores_ > 0 ? cores_ : JobCores());

  WEFT_ASSIGN_OR_RETURN(
      const std::vector<collectives::RankPlace> hosts,
      fabric_.empty() ? PlacesByNumber(hosts_) : PlacesOnFabric(fabric_, hosts_, group));
  WEFT_RETURN_IF_ERROR(Spread(hosts, ranks_per_host_, group));

  WEFT_ASSIGN_OR_RETURN(std::vector<int64_t> sizes, SizesOf(size_, sizes_));
  // What has no size that all ranks know is planned for none.
  if (group.kind == CollectiveKind::kBarrier || group.kind == CollectiveKind::kAllToAllV) {
    sizes.assign(1, 0);
  }
  if (!mesh_.empty()) {
    if (!simulate_.empty() || !svg_.empty()) {
      return absl::InvalidArgumentError("--mesh predicts: without --simulate and --svg");
    }
    return PlanMesh(mesh_, group, hosts, sizes, json_);
  }
  std::vector<Answer> answers;
  for (int64_t bytes : sizes) answers.push_back(Ask(group, bytes));
  if (!simulate_.empty()) {
    WEFT_RETURN_IF_ERROR(Simulate(group, simulate_, balance_, json_ == "-", answers));
  }
  if (json_ != "-") {
    absl::PrintF("group  %s\n\n", group.Describe());
    for (size_t i = 0; i < std::min(size_.size(), answers.size()); ++i) {
      absl::PrintF("%s%s", i > 0 ? "\n" : "",
                   Explanation(group, answers[i], static_cast<size_t>(count_)));
    }
    if (size_.empty()) absl::PrintF("%s", Table(group, answers));
    if (!simulate_.empty()) absl::PrintF("\n%s", RegretText(answers));
  }
  if (!svg_.empty()) {
    WEFT_RETURN_IF_ERROR(WriteOutput(svg_, DrawPicture(PictureOf(group, answers))));
  }
  if (json_.empty()) return absl::OkStatus();
  return WriteOutput(json_, Json(group, answers).dump(2) + "\n");
}

}  // namespace weft::plan
