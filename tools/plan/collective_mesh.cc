#include "tools/plan/collective_mesh.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/units.h"
#include "base/write_file.h"
#include "collectives/planner/concurrent.h"
#include "tools/plan/collective_answer.h"
#include "tools/plan/collective_report.h"
#include "topology/job/mesh_text.h"

namespace weft::plan {
namespace {

using nlohmann::ordered_json;
namespace planner = collectives::planner;

// ---- All groups of a job at once.

// The groups along one axis, of which all are alike; and as if one of them were alone.
struct AxisAnswers {
  topology::Axis axis = topology::Axis::kTensor;
  CollectiveGroup group;
  std::vector<CollectiveAnswer> alone, shared;

  // The time of the plan that a group alone would take, among the others.
  int64_t Unaware(size_t size) const {
    for (const planner::Plan& plan : shared[size].plans) {
      if (plan.ToText() == alone[size].choice.ToText()) return plan.nanoseconds;
    }
    return shared[size].choice.nanoseconds;
  }
};

// `hosts`: those of the job, whose ranks they have in their order.
absl::StatusOr<std::vector<AxisAnswers>> AskMesh(const topology::Mesh& mesh,
                                                 const CollectiveGroup& job,
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
    CollectiveGroup& group = answers.group;
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
    group.others_at_once = planner::OthersAtOnce(mesh, members.members, job.axes_at_once, host_of);
    for (int64_t bytes : sizes) answers.shared.push_back(Ask(group, bytes));
    out.push_back(std::move(answers));
  }
  if (out.empty()) return absl::InvalidArgumentError("--mesh has no group of more than one rank");
  return out;
}

std::string MeshTable(const AxisAnswers& answers) {
  const CollectiveGroup& group = answers.group;
  std::string text = absl::StrFormat(
      "%s: groups of %d ranks on %d %s, %d at once on a host%s\n%10s  %-20s %12s %8s  %-20s %12s "
      "%14s\n",
      ToString(answers.axis), group.ranks, group.hosts, group.hosts == 1 ? "host" : "hosts",
      group.at_once,
      group.others_at_once > 0
          ? absl::StrCat(", and ", group.others_at_once, " along other axes at its NICs")
          : "",
      "size", "algorithm", "time (us)", "sharing", "alone", "time (us)", "unaware (us)");
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
    axis["others_at_once"] = answers.group.others_at_once;
    for (size_t i = 0; i < answers.alone.size(); ++i) {
      axis["sizes"][i]["alone"] =
          PlanJson(answers.group, answers.alone[i], answers.alone[i].choice);
      axis["sizes"][i]["unaware_us"] = static_cast<double>(answers.Unaware(i)) / 1e3;
    }
    json["axes"].push_back(std::move(axis));
  }
  return json;
}

}  // namespace

absl::Status PlanMesh(const std::string& text, const CollectiveGroup& job,
                      absl::Span<const collectives::RankPlace> hosts,
                      absl::Span<const int64_t> sizes, const std::string& json) {
  WEFT_ASSIGN_OR_RETURN(const topology::Mesh mesh, topology::ParseMesh(text));
  WEFT_ASSIGN_OR_RETURN(const std::vector<AxisAnswers> axes, AskMesh(mesh, job, hosts, sizes));
  if (json != "-") {
    absl::PrintF("job  %s: %s\n", mesh.Describe(), job.Describe());
    for (const AxisAnswers& answers : axes) absl::PrintF("\n%s", MeshTable(answers));
  }
  return json.empty() ? absl::OkStatus()
                      : WriteOutput(json, JsonText(MeshJson(mesh, axes), 2) + "\n");
}

}  // namespace weft::plan
