// Two orders cut by cut.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "tools/plan/report.h"

namespace weft::plan {
namespace {

using nlohmann::ordered_json;
using topology::CutBound;
using topology::CutLoad;

// By group, its fuller direction.
std::map<int, CutLoad> FullerLoads(const Placed& placed, size_t traffic) {
  std::map<int, CutLoad> loads;
  const size_t all = 2 * static_cast<size_t>(placed.model.tree().groups());
  for (const CutLoad& load : placed.model.WorstCuts(placed.placement, traffic, all)) {
    loads.try_emplace(load.group, load);  // the worst of a group comes first
  }
  return loads;
}

bool IsAbove(const CutLoad& load, const CutBound& bound) { return load.time > bound.time; }

ordered_json LoadJson(int64_t flows, Bytes bytes, absl::Duration time) {
  return {
      {"flows", flows}, {"bytes", bytes.count()}, {"time_ms", absl::ToDoubleMilliseconds(time)}};
}

}  // namespace

absl::StatusOr<std::vector<CutComparison>> CompareCuts(const Input& input, const Candidate& a,
                                                       const Candidate& b) {
  WEFT_ASSIGN_OR_RETURN(const Placed placed_a, Place(input, a.order));
  WEFT_ASSIGN_OR_RETURN(const Placed placed_b, Place(input, b.order));
  std::vector<CutComparison> cuts;
  for (size_t i = 0; i < input.job.traffic.size(); ++i) {
    const std::map<int, CutLoad> in_a = FullerLoads(placed_a, i), in_b = FullerLoads(placed_b, i);
    const auto begin = static_cast<ptrdiff_t>(cuts.size());
    for (const CutBound& bound : CutBounds(placed_b.model, i)) {
      const auto load_a = in_a.find(bound.group), load_b = in_b.find(bound.group);
      if (load_a == in_a.end() && load_b == in_b.end()) continue;
      cuts.push_back({input.job.traffic[i].name, input.tree->cut(bound.group).links,
                      input.tree->Name(bound.group),
                      load_a == in_a.end() ? CutLoad() : load_a->second,
                      load_b == in_b.end() ? CutLoad() : load_b->second, bound});
    }
    std::stable_sort(cuts.begin() + begin, cuts.end(),
                     [](const CutComparison& x, const CutComparison& y) {
                       return std::pair(x.a.time, x.b.time) > std::pair(y.a.time, y.b.time);
                     });
  }
  return cuts;
}

std::string CutComparisonTable(absl::Span<const CutComparison> cuts, size_t count) {
  std::string text =
      absl::StrFormat("%-24s %-20s %7s %9s %9s %9s %9s %9s %9s\n", "cut by cut", "", "cables",
                      "A flows", "time", "B flows", "time", "at least", "time");
  for (size_t i = 0; i < cuts.size();) {
    size_t end = i;
    int above_a = 0, above_b = 0;
    for (; end < cuts.size() && cuts[end].traffic == cuts[i].traffic; ++end) {
      above_a += IsAbove(cuts[end].a, cuts[end].bound) ? 1 : 0;
      above_b += IsAbove(cuts[end].b, cuts[end].bound) ? 1 : 0;
    }
    absl::StrAppendFormat(&text, "%s: %d cuts carry some; above their bound: %d in A, %d in B\n",
                          cuts[i].traffic, static_cast<int>(end - i), above_a, above_b);
    for (size_t row = i; row < std::min(end, i + count); ++row) {
      const CutComparison& cut = cuts[row];
      absl::StrAppendFormat(&text, "%-24s %-20s %7d %9d %9s %9d %9s %9d %9s\n", "", cut.cut,
                            cut.links, cut.a.flows, TimeText(cut.a.time), cut.b.flows,
                            TimeText(cut.b.time), cut.bound.flows, TimeText(cut.bound.time));
    }
    i = end;
  }
  return text;
}

ordered_json CutComparisonJson(absl::Span<const CutComparison> cuts) {
  ordered_json rows = ordered_json::array();
  for (const CutComparison& cut : cuts) {
    rows.push_back({{"traffic", cut.traffic},
                    {"cut", cut.cut},
                    {"links", cut.links},
                    {"a", LoadJson(cut.a.flows, cut.a.bytes, cut.a.time)},
                    {"b", LoadJson(cut.b.flows, cut.b.bytes, cut.b.time)},
                    {"bound", LoadJson(cut.bound.flows, cut.bound.bytes, cut.bound.time)}});
  }
  return rows;
}

}  // namespace weft::plan
