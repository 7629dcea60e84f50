// Schedules of all ranks of a collective, for tests: every kind, odd counts, roots, places.
#ifndef WEFT_TESTS_COLLECTIVES_SCHEDULE_CASES_H_
#define WEFT_TESTS_COLLECTIVES_SCHEDULE_CASES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/group_place.h"
#include "collectives/schedule.h"

namespace weft::collectives {

struct Case {
  std::vector<CollectiveSpec> specs;
  std::vector<RankSchedule> schedules;
  std::string text;
};

// What all ranks have in common. `salt` draws counts per rank and who is in place.
struct CaseOptions {
  uint64_t count = 0;
  uint64_t chunk = 1000000;
  int root = 0;
  int channels = 1;
  int hosts = 1;     // above 1: of unlike sizes, their ranks not in one stretch
  int switches = 1;  // that the hosts are under in turn
  bool average = false, rounds_once = false;
  enum { kNobody, kEverybody, kSome } in_place = kNobody;
  uint64_t salt = 0;
};

inline std::shared_ptr<const GroupPlace> PlaceFor(int n, int hosts, int switches = 1) {
  if (hosts == 1) return nullptr;
  std::vector<RankPlace> places(static_cast<size_t>(n));
  for (int r = 0; r < n; ++r) {
    const int host = r % 3 == 1 ? r / 2 % hosts : r % hosts;
    places[static_cast<size_t>(r)].host = absl::StrCat(host);
    places[static_cast<size_t>(r)].switch_name = absl::StrCat("s", host % switches);
  }
  return std::make_shared<const GroupPlace>(places);
}

inline Case BuildCase(const Algorithm& algorithm, CollectiveKind kind, int n,
                      const CaseOptions& options) {
  Case built;
  built.text =
      absl::StrCat(algorithm.name, " ", ToString(kind), " n ", n, " count ", options.count,
                   " chunk ", options.chunk, " root ", options.root, " channels ", options.channels,
                   " hosts ", options.hosts, " switches ", options.switches, " in place ",
                   static_cast<int>(options.in_place), " salt ", options.salt);
  auto piece = [&](int a, int b) {
    Random random(options.salt, static_cast<uint64_t>(a * n + b));
    return random.Below(4) * ((options.count + 1) / 2);
  };
  const auto place = PlaceFor(n, options.hosts, options.switches);
  for (int r = 0; r < n; ++r) {
    CollectiveSpec spec{.kind = kind, .size = n, .rank = r, .count = options.count};
    spec.root = options.root % n;
    spec.chunk = options.chunk;
    spec.channels = options.channels;
    spec.place = place;
    spec.average = Reduces(kind) && options.average;
    spec.rounds_once = Reduces(kind) && options.rounds_once;
    const bool draws = Random(options.salt, static_cast<uint64_t>(r)).Below(2) == 1;
    spec.in_place =
        kind != CollectiveKind::kBarrier && (options.in_place == CaseOptions::kEverybody ||
                                             (options.in_place == CaseOptions::kSome && draws));
    if (kind == CollectiveKind::kAllGatherV) {
      spec.count = 0;
      uint64_t offset = 0;
      for (int s = 0; s < n; ++s) {
        spec.output_counts.push_back(piece(s, 0));
        spec.output_offsets.push_back(offset);
        offset += piece(s, 0) + 2;
      }
    }
    if (kind == CollectiveKind::kAllToAllV) {
      spec.count = 0;
      uint64_t in = 0, out = 0;
      for (int s = 0; s < n; ++s) {
        spec.input_counts.push_back(piece(r, s));
        spec.input_offsets.push_back(in);
        spec.output_counts.push_back(piece(s, r));
        spec.output_offsets.push_back(out);
        in += piece(r, s), out += piece(s, r) + 1;
      }
    }
    built.schedules.push_back(algorithm.build(spec));
    built.specs.push_back(std::move(spec));
  }
  return built;
}

// Calls `visit` with each algorithm and each kind that it has.
template <typename Visit>
void ForEachAlgorithm(const Visit& visit) {
  for (const Algorithm* algorithm : Algorithms()) {
    for (int k = 0; k < kCollectiveKindCount; ++k) {
      const CollectiveKind kind = static_cast<CollectiveKind>(k);
      if (algorithm->has(kind)) visit(*algorithm, kind);
    }
  }
}

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_SCHEDULE_CASES_H_
