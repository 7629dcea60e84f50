#include "collectives/planner/concurrent.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "topology/job/mesh_text.h"

namespace weft::collectives::planner {
namespace {

// The axes along which the group of `members` lies; empty where they are not all of its ranks.
topology::AxisSet AxesOf(const topology::Mesh& mesh, absl::Span<const Rank> members) {
  topology::AxisSet axes;
  for (const topology::MeshAxis& axis : mesh.axes()) {
    const int first = mesh.CoordinateOf(members[0], axis.axis);
    const bool differ = std::any_of(members.begin(), members.end(), [&](Rank member) {
      return mesh.CoordinateOf(member, axis.axis) != first;
    });
    if (differ) axes.Add(axis.axis);
  }
  const bool whole = !axes.empty() && static_cast<int>(members.size()) == mesh.GroupSize(axes);
  return whole ? axes : topology::AxisSet();
}

}  // namespace

std::optional<topology::Mesh> SuggestedLayout(absl::Span<const Rank> members, int ranks) {
  std::vector<int> sorted;
  for (Rank member : members) sorted.push_back(member.value());
  std::sort(sorted.begin(), sorted.end());
  const int n = static_cast<int>(sorted.size());
  if (n < 2 || n >= ranks) return std::nullopt;
  const int stride = sorted[1] - sorted[0];
  if (stride < 1 || ranks % (n * stride) != 0 || sorted[0] % (n * stride) >= stride) {
    return std::nullopt;
  }
  for (int i = 1; i < n; ++i) {
    if (sorted[static_cast<size_t>(i)] - sorted[static_cast<size_t>(i) - 1] != stride) {
      return std::nullopt;
    }
  }
  auto mesh = topology::Mesh::Create({{topology::Axis::kTensor, stride},
                                      {topology::Axis::kData, n},
                                      {topology::Axis::kPipeline, ranks / (n * stride)}});
  return mesh.ok() ? std::optional(*std::move(mesh)) : std::nullopt;
}

int GroupsAtOnce(const topology::Mesh& mesh, absl::Span<const Rank> members,
                 absl::FunctionRef<int(Rank)> host) {
  const auto axes_of_ranks =
      std::count_if(mesh.axes().begin(), mesh.axes().end(),
                    [&](const topology::MeshAxis& axis) { return mesh.Size(axis.axis) > 1; });
  if (axes_of_ranks == 1) {
    const auto suggested = SuggestedLayout(members, mesh.ranks());
    return suggested.has_value() ? GroupsAtOnce(*suggested, members, host) : 1;
  }
  const topology::AxisSet axes = AxesOf(mesh, members);
  if (axes.empty()) return 1;
  std::map<int, std::set<int>> groups;  // by host of a member
  for (Rank member : members) groups[host(member)];
  for (int r = 0; r < mesh.ranks(); ++r) {
    const auto found = groups.find(host(Rank(r)));
    if (found != groups.end()) found->second.insert(mesh.GroupIndexOf(Rank(r), axes));
  }
  size_t most = 1;
  for (const auto& [_, here] : groups) most = std::max(most, here.size());
  return static_cast<int>(most);
}

absl::StatusOr<topology::AxisSet> ParseAxesAtOnce(absl::string_view text) {
  topology::AxisSet all;
  for (int a = 0; a < topology::kAxisCount; ++a) all.Add(static_cast<topology::Axis>(a));
  if (text == "none") return topology::AxisSet();
  if (text == "all") return all;
  absl::StatusOr<topology::AxisSet> axes = topology::ParseAxes(text, ",");
  if (axes.ok()) return axes;
  return absl::InvalidArgumentError(
      absl::StrCat("collective.axes_at_once \"", text,
                   "\" is neither none nor all nor a list of axes: ", axes.status().message()));
}

int OthersAtOnce(const topology::Mesh& mesh, absl::Span<const Rank> members,
                 const topology::AxisSet& at_once, absl::FunctionRef<int(Rank)> host) {
  if (at_once.empty()) return 0;
  const topology::AxisSet own = AxesOf(mesh, members);
  std::vector<topology::Axis> others;
  for (const topology::MeshAxis& axis : mesh.axes()) {
    if (axis.size == 1) continue;
    if (!own.Has(axis.axis) && at_once.Has(axis.axis)) others.push_back(axis.axis);
    if (own.Has(axis.axis) && !at_once.Has(axis.axis)) return 0;
  }
  if (own.empty()) return 0;
  std::set<int> own_hosts;
  for (Rank member : members) own_hosts.insert(host(member));
  std::map<int, int> sharing;  // by host: groups of ranks on it and on others
  for (topology::Axis axis : others) {
    std::map<int, std::set<int>> hosts;  // by group
    for (int r = 0; r < mesh.ranks(); ++r) {
      hosts[mesh.GroupIndexOf(Rank(r), {axis})].insert(host(Rank(r)));
    }
    for (const auto& [_, there] : hosts) {
      if (there.size() == 1) continue;
      for (int one : there) ++sharing[one];
    }
  }
  int most = 0;
  for (int one : own_hosts) {
    const auto found = sharing.find(one);
    if (found != sharing.end()) most = std::max(most, found->second);
  }
  return most;
}

}  // namespace weft::collectives::planner
