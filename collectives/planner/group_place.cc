#include "collectives/planner/group_place.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "collectives/schedule.h"

namespace weft::collectives {
namespace {

std::vector<RankPlace> OnHosts(absl::Span<const std::string> host_names) {
  std::vector<RankPlace> places(host_names.size());
  for (size_t rank = 0; rank < places.size(); ++rank) places[rank].host = host_names[rank];
  return places;
}

// The least of what all know; 0 where one does not.
template <typename Value>
Value Least(absl::Span<const RankPlace> places, Value RankPlace::*field) {
  Value least = places.empty() ? Value() : places[0].*field;
  for (const RankPlace& place : places) least = std::min(least, place.*field);
  return std::max(least, Value());
}

// Number of each name, in the order in which names come first.
class Numbers {
 public:
  int Of(const std::string& name) {
    return numbers_.emplace(name, static_cast<int>(numbers_.size())).first->second;
  }

 private:
  std::map<std::string, int> numbers_;
};

}  // namespace

std::string ToWord(const RankPlace& place) {
  return absl::StrFormat("%d,%d,%a,%a,%a,%s", place.numa, place.nics, place.nic_rate,
                         place.host_rate, place.switch_rate,
                         absl::BytesToHexString(place.switch_name));
}

absl::StatusOr<RankPlace> RankPlaceFromWord(absl::string_view word) {
  RankPlace place;
  const std::vector<std::string> parts = absl::StrSplit(word, ',');
  bool right = parts.size() == 6 && absl::SimpleAtoi(parts[0], &place.numa) &&
               absl::SimpleAtoi(parts[1], &place.nics) && place.nics >= 0;
  double* const rates[] = {&place.nic_rate, &place.host_rate, &place.switch_rate};
  for (size_t i = 0; right && i < 3; ++i) {
    char* end = nullptr;
    *rates[i] = std::strtod(parts[i + 2].c_str(), &end);
    right = end != parts[i + 2].c_str() && *end == '\0' && *rates[i] >= 0 && *rates[i] < 1e18;
  }
  if (!right) {
    return absl::DataLossError(
        absl::StrCat("\"", absl::CHexEscape(word), "\" does not say where a rank stands"));
  }
  place.switch_name = absl::HexStringToBytes(parts[5]);
  return place;
}

GroupPlace::GroupPlace(absl::Span<const std::string> host_names)
    : GroupPlace(OnHosts(host_names)) {}

GroupPlace::GroupPlace(absl::Span<const RankPlace> places)
    : nics(Least(places, &RankPlace::nics)),
      nic_rate(Least(places, &RankPlace::nic_rate)),
      host_rate(Least(places, &RankPlace::host_rate)),
      switch_rate(Least(places, &RankPlace::switch_rate)) {
  const bool known = std::none_of(places.begin(), places.end(),
                                  [](const RankPlace& place) { return place.switch_name.empty(); });
  // Hosts in the order of their lowest ranks, then by switch; a host is where its lowest rank is.
  Numbers host_numbers, switch_numbers;
  std::vector<int> first_host;                // by rank
  std::vector<std::pair<int, int>> switched;  // switch and host
  for (const RankPlace& place : places) {
    first_host.push_back(host_numbers.Of(place.host));
    if (first_host.back() < static_cast<int>(switched.size())) continue;
    switched.emplace_back(switch_numbers.Of(known ? place.switch_name : ""), first_host.back());
  }
  std::sort(switched.begin(), switched.end());
  std::vector<int> number(switched.size());
  for (size_t h = 0; h < switched.size(); ++h) {
    number[static_cast<size_t>(switched[h].second)] = static_cast<int>(h);
    const size_t at = static_cast<size_t>(switched[h].first);
    if (at == switches.size()) switches.emplace_back();
    switches[at].push_back(static_cast<int>(h));
    switch_of.push_back(switched[h].first);
    hosts_max = std::max(hosts_max, static_cast<int>(switches[at].size()));
  }
  hosts.resize(switched.size());
  for (size_t rank = 0; rank < places.size(); ++rank) {
    host.push_back(number[static_cast<size_t>(first_host[rank])]);
    std::vector<int>& ranks = hosts[static_cast<size_t>(host.back())];
    local.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
    numa.push_back(places[rank].numa);
  }
  for (const std::vector<int>& ranks : hosts) {
    const int count = static_cast<int>(ranks.size());
    ranks_min = ranks_min == 0 ? count : std::min(ranks_min, count);
    ranks_max = std::max(ranks_max, count);
  }
}

GroupPlace GroupPlace::OfSwitches() const {
  std::vector<std::string> names;
  for (int at : switch_of) names.push_back(absl::StrCat(at));
  return GroupPlace(names);
}

GroupPlace PlaceOf(const CollectiveSpec& spec) {
  if (spec.place != nullptr) return *spec.place;
  return GroupPlace(std::vector<std::string>(static_cast<size_t>(spec.size)));
}

}  // namespace weft::collectives
