#include "collectives/planner/concurrent.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace weft::collectives::planner {

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
  topology::AxisSet axes;
  for (const topology::MeshAxis& axis : mesh.axes()) {
    const int first = mesh.CoordinateOf(members[0], axis.axis);
    const bool differ = std::any_of(members.begin(), members.end(), [&](Rank member) {
      return mesh.CoordinateOf(member, axis.axis) != first;
    });
    if (differ) axes.Add(axis.axis);
  }
  if (axes.empty() || static_cast<int>(members.size()) != mesh.GroupSize(axes)) return 1;
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

}  // namespace weft::collectives::planner
