#include "tools/plan/collective_command.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/json_text.h"
#include "base/settings.h"
#include "base/status.h"
#include "base/units.h"
#include "base/write_file.h"
#include "collectives/data_type.h"
#include "collectives/planner/concurrent.h"
#include "collectives/planner/forced.h"
#include "collectives/planner/planner.h"
#include "collectives/reduce.h"
#include "tools/command_line.h"
#include "tools/plan/collective_answer.h"
#include "tools/plan/collective_group.h"
#include "tools/plan/collective_mesh.h"
#include "tools/plan/collective_nccl.h"
#include "tools/plan/collective_picture.h"
#include "tools/plan/collective_report.h"
#include "tools/plan/collective_simulation.h"
#include "tools/plan/progress.h"
#include "topology/host/affinity.h"

namespace weft::plan {
namespace {

using collectives::CollectiveKind;
using collectives::CollectiveSpec;
namespace planner = collectives::planner;

constexpr const char* kFooter =
    R"(Sizes are of the whole buffer, as in weft-bw, less what elements and ranks do not divide;
busbw is algbw times nccl-tests' factor of the collective.
Costs: --fabric for the network; for the rest the setting collective.costs, or what weft-bw --calibrate
measured on this machine, or defaults. docs/collectives.md explains them, and the settings that force algorithms.

Examples:
  weft-plan collective all_reduce --hosts 16 --ranks-per-host 8 --transport verbs --svg all_reduce.svg
  weft-plan collective all_gather --size 64MiB --fabric megascale:hosts=64 --hosts h[0-31] --transport verbs
  weft-plan collective all_reduce --mesh tp8,dp4 --hosts 4 --ranks-per-host 8 --transport verbs
  weft-plan collective all_reduce --fabric leaf-spine:leaves=4,spines=4,hosts_per_leaf=4 --transport verbs --simulate flow
  weft-plan collective all_reduce --fabric megascale:hosts=64 --nccl
  weft-plan collective all_reduce --fabric leaf-spine:leaves=1,spines=1,hosts_per_leaf=8 --fabric megascale:hosts=64 --svg two.svg)";

constexpr int64_t kStep = 4;                  // from one size to the next of a range
constexpr Bytes kSizeMost{int64_t{1} << 50};  // of a buffer

absl::StatusOr<std::vector<int64_t>> SizesOf(const std::vector<std::string>& single,
                                             const std::string& range) {
  std::vector<int64_t> sizes;
  for (const std::string& text : single) {
    Bytes bytes;
    WEFT_RETURN_IF_ERROR(TakeBytes("--size", text, bytes));
    if (bytes > kSizeMost) {
      return absl::InvalidArgumentError(absl::StrCat("--size ", text, " is above 1 PiB"));
    }
    sizes.push_back(bytes.count());
  }
  if (!sizes.empty()) return sizes;
  const std::vector<std::string> ends = absl::StrSplit(range, "..");
  if (ends.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sizes \"", range, "\" is no range, as 1KiB..256MiB"));
  }
  Bytes first, last;
  WEFT_RETURN_IF_ERROR(TakeBytes("--sizes", ends[0], first));
  WEFT_RETURN_IF_ERROR(TakeBytes("--sizes", ends[1], last));
  if (first.count() < 1 || last < first || last > kSizeMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sizes \"", range, "\" must rise, from 1 B to at most 1 PiB"));
  }
  for (int64_t bytes = first.count(); bytes <= last.count(); bytes *= kStep) sizes.push_back(bytes);
  return sizes;
}

// Every plan of every answer, with its time on the fabric of the group.
absl::Status Simulate(const CollectiveGroup& group, const std::string& level,
                      const std::string& balance, int64_t steps_most, bool quiet,
                      std::vector<CollectiveAnswer>& answers) {
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
      balance == "ecmp" ? topology::LoadBalance::kEcmp : topology::LoadBalance::kSpray, steps_most);
  Progress progress("weft-plan", !quiet);
  for (size_t a = 0; a < answers.size(); ++a) {
    CollectiveAnswer& answer = answers[a];
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
  auto* size =
      command.add_option("--size", size_, "Explains this size, with the runners-up; repeatable");
  command.add_option("--sizes", sizes_, "Without --size: a line for each of this range, by 4")
      ->excludes(size);
  command.add_option("-d,--datatype", type_, "Type of the elements");
  command.add_option("--root", root_, "Root rank of broadcast, reduce, gather and scatter");
  command.add_option("--mesh", mesh_,
                     "The layout of a job, as tp8,dp4: plans the groups along each axis, which all "
                     "run at once and share their hosts' cores, memory and NICs; empty: one group "
                     "of all ranks");
  command
      .add_option(
          "--fabric", fabrics_,
          "A fabric file, or a generator, as megascale:hosts=64; repeatable: a group, and a "
          "panel of --svg, on each")
      ->allow_extra_args(false);
  command.add_option("--hosts", hosts_,
                     "Number of hosts; with --fabric also a hostlist, h[0-63,70]; empty: 1, or all "
                     "hosts of the fabric");
  command
      .add_option("--ranks-per-host", ranks_per_host_,
                  "Ranks of each host; 0: one for each NIC of the fabric, without --fabric 1")
      ->check(CLI::Range(0, kRanksMax));
  command
      .add_option("--cores", cores_,
                  "Cores of a host, for all its ranks; 0: as many as this machine has")
      ->check(CLI::Range(0, 1 << 16));
  command.add_option("--group", group_, "Name of the group, for settings that force by group");
  command.add_option("--transport", transport_, "As the setting; empty: the setting");
  command.add_option("--set", settings_, "A setting, name=value; repeatable (see weft-settings)");
  command.add_option("--count", count_, "Algorithms to print of each --size")
      ->check(CLI::Range(1, 100))
      ->needs(size);
  auto* simulate =
      command
          .add_option("--simulate", simulate_,
                      "Runs every plan's schedule on --fabric, by flows or packets; empty: not")
          ->check(CLI::IsMember({"flow", "packet"}));
  command
      .add_option("--load-balance", balance_,
                  "Of --simulate. spray: no path has more than its share, as with planned ports; "
                  "ecmp: ports by chance")
      ->check(CLI::IsMember({"spray", "ecmp"}))
      ->needs(simulate);
  command
      .add_option(
          "--steps", steps_most_,
          "Of --simulate: plans whose schedules have more steps, of all ranks together, are "
          "not run; a million take some 400 MiB")
      ->check(CLI::Range(int64_t{1}, int64_t{20'000'000}))
      ->needs(simulate);
  command.add_flag("--nccl", nccl_,
                   "Of NCCL's own algorithms and protocols on --fabric: what the tuner of the NCCL "
                   "plugin asks for, with the times of all");
  command.add_option("--svg", svg_, "Picture of bus bandwidth by algorithm and size; empty: none");
  command.add_option("--json", json_, "Write the results into this file; -: print them, no tables");
}

absl::Status CollectiveCommand::Run() const {
  WEFT_RETURN_IF_ERROR(CheckOutput(json_));
  WEFT_RETURN_IF_ERROR(CheckOutput(svg_));
  Settings settings(LibrarySettings());
  WEFT_RETURN_IF_ERROR(settings.SetFromEnvironment(/*strict=*/false));
  for (const std::string& pair : settings_) {
    WEFT_RETURN_IF_ERROR(settings.SetPair(pair, "--set"));
  }
  if (!transport_.empty()) {
    WEFT_RETURN_IF_ERROR(settings.Set("transport", transport_, "--transport"));
  }
  CollectiveGroup group{.root = root_, .name = group_};
  const std::optional<CollectiveKind> kind = planner::FindKind(kind_);
  if (!kind.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no collective '", kind_, "'; there are ", planner::KindNames()));
  }
  group.kind = *kind;
  WEFT_ASSIGN_OR_RETURN(const collectives::DataType type, collectives::ParseDataType(type_));
  group.element = collectives::SizeOf(type);
  group.sums_are_wide = collectives::ReduceAllFor(type, collectives::ReduceOp::kSum) != nullptr;
  WEFT_ASSIGN_OR_RETURN(group.forced, planner::Forced::Create(settings));
  WEFT_ASSIGN_OR_RETURN(group.axes_at_once,
                        planner::ParseAxesAtOnce(settings.Text("collective.axes_at_once")));
  WEFT_RETURN_IF_ERROR(planner::CheckAlgorithm(settings, {group.kind}));
  WEFT_ASSIGN_OR_RETURN(group.table,
                        planner::LoadTable(settings, cores_ > 0 ? cores_ : JobCores()));

  WEFT_ASSIGN_OR_RETURN(std::vector<int64_t> sizes, SizesOf(size_, sizes_));
  if (group.kind == CollectiveKind::kBarrier) sizes.assign(1, 0);  // has no size
  if (!mesh_.empty()) {
    if (nccl_ || !simulate_.empty() || !svg_.empty() || fabrics_.size() > 1) {
      return absl::InvalidArgumentError(
          "--mesh predicts on one fabric: without --nccl, --simulate, --svg and a second --fabric");
    }
    WEFT_ASSIGN_OR_RETURN(const std::vector<collectives::RankPlace> hosts,
                          Place(fabrics_.empty() ? "" : fabrics_[0], group));
    return PlanMesh(mesh_, group, hosts, sizes, json_);
  }
  if (nccl_) {
    if (!simulate_.empty() || !svg_.empty() || fabrics_.size() > 1) {
      return absl::InvalidArgumentError(
          "--nccl predicts on one fabric: without --simulate, --svg and a second --fabric");
    }
    WEFT_RETURN_IF_ERROR(Place(fabrics_.empty() ? "" : fabrics_[0], group).status());
    return PlanNccl(group, sizes, json_);
  }
  std::vector<Picture> pictures;
  std::vector<nlohmann::ordered_json> results;
  // Each fabric has a group of its own; without any there is one.
  for (size_t f = 0; f < std::max<size_t>(fabrics_.size(), 1); ++f) {
    CollectiveGroup here = group;
    WEFT_RETURN_IF_ERROR(Place(fabrics_.empty() ? "" : fabrics_[f], here).status());
    if (here.ranks < 2) {
      return absl::InvalidArgumentError(
          "a collective needs at least two ranks: --hosts N, --ranks-per-host N, --mesh or "
          "--fabric say which; this is one");
    }
    std::vector<CollectiveAnswer> answers;
    for (int64_t bytes : sizes) answers.push_back(Ask(here, bytes));
    if (!simulate_.empty()) {
      WEFT_RETURN_IF_ERROR(Simulate(here, simulate_, balance_, steps_most_, json_ == "-", answers));
    }
    if (json_ != "-") Print(here, answers, f > 0);
    pictures.push_back(PictureOf(here, answers));
    results.push_back(Json(here, answers));
  }
  if (!svg_.empty()) WEFT_RETURN_IF_ERROR(WriteOutput(svg_, DrawPictures(pictures)));
  if (json_.empty()) return absl::OkStatus();
  const nlohmann::ordered_json all =
      results.size() == 1 ? results[0] : nlohmann::ordered_json{{"fabrics", results}};
  return WriteOutput(json_, JsonText(all, 2) + "\n");
}

absl::StatusOr<std::vector<collectives::RankPlace>> CollectiveCommand::Place(
    const std::string& fabric, CollectiveGroup& group) const {
  WEFT_ASSIGN_OR_RETURN(
      std::vector<collectives::RankPlace> hosts,
      fabric.empty() ? PlacesByNumber(hosts_) : PlacesOnFabric(fabric, hosts_, group));
  WEFT_RETURN_IF_ERROR(Spread(hosts, ranks_per_host_, group));
  return hosts;
}

void CollectiveCommand::Print(const CollectiveGroup& group,
                              const std::vector<CollectiveAnswer>& answers, bool follows) const {
  absl::PrintF("%sgroup  %s\n\n", follows ? "\n" : "", group.Describe());
  for (size_t i = 0; i < std::min(size_.size(), answers.size()); ++i) {
    absl::PrintF("%s%s", i > 0 ? "\n" : "",
                 Explanation(group, answers[i], static_cast<size_t>(count_)));
  }
  if (size_.empty()) absl::PrintF("%s", Table(group, answers));
  if (!simulate_.empty()) absl::PrintF("\n%s", RegretText(answers));
}

}  // namespace weft::plan
