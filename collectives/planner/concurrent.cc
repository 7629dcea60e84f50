#include "collectives/planner/concurrent.h"

#include <algorithm>
#include <map>
#include <set>

namespace weft::collectives::planner {

int GroupsAtOnce(const topology::Mesh& mesh, absl::Span<const Rank> members,
                 absl::FunctionRef<int(Rank)> host) {
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
