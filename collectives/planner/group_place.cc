#include "collectives/planner/group_place.h"

#include <algorithm>
#include <map>

#include "collectives/schedule.h"

namespace weft::collectives {

GroupPlace::GroupPlace(absl::Span<const std::string> host_names) {
  std::map<std::string, int> numbers;
  for (size_t rank = 0; rank < host_names.size(); ++rank) {
    const auto [at, is_new] = numbers.emplace(host_names[rank], static_cast<int>(hosts.size()));
    if (is_new) hosts.emplace_back();
    std::vector<int>& ranks = hosts[static_cast<size_t>(at->second)];
    host.push_back(at->second);
    local.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
  }
  for (const std::vector<int>& ranks : hosts) {
    const int count = static_cast<int>(ranks.size());
    ranks_min = ranks_min == 0 ? count : std::min(ranks_min, count);
    ranks_max = std::max(ranks_max, count);
  }
}

GroupPlace PlaceOf(const CollectiveSpec& spec) {
  if (spec.place != nullptr) return *spec.place;
  return GroupPlace(std::vector<std::string>(static_cast<size_t>(spec.size)));
}

}  // namespace weft::collectives
