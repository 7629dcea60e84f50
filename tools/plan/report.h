// What weft-plan prints of orders: tables for people, and the same as JSON.
#ifndef WEFT_TOOLS_PLAN_REPORT_H_
#define WEFT_TOOLS_PLAN_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tools/plan/input.h"
#include "topology/order/bound.h"

namespace weft::plan {

// Exposed communication of a step by kind of traffic, a column a candidate; the bound last.
std::string CostTable(const Input& input, absl::Span<const Candidate> candidates);

// By kind of traffic that matters: how many flows leave their leaf and their pod, the fullest cut,
// and how much longer than its NICs it takes, in `before` and in `after`.
std::string WhyText(const Input& input, const Candidate& before, const Candidate& after);

// The fullest cuts of a candidate, with the groups on them.
struct HotCut {
  std::string traffic;
  std::string cut;  // "leaf3 up"
  topology::CutLoad load;
  int links = 0;
  double times_floor = 0;  // of what the NICs take
  std::vector<int32_t> groups;
};
absl::StatusOr<std::vector<HotCut>> HotCuts(const Input& input, const Candidate& candidate,
                                            size_t count);
std::string HotCutTable(absl::Span<const HotCut> cuts);

// Two orders on one cut, each in its fuller direction, and what no order has less of there.
struct CutComparison {
  std::string traffic;
  int links = 0;
  std::string cut;  // "leaf3"
  topology::CutLoad a, b;
  topology::CutBound bound;
};
// Every cut that carries something in one of them; of each kind of traffic the longest in A first.
absl::StatusOr<std::vector<CutComparison>> CompareCuts(const Input& input, const Candidate& a,
                                                       const Candidate& b);
// The first `count` of each kind of traffic, after how many there are and how many are above their
// bound.
std::string CutComparisonTable(absl::Span<const CutComparison> cuts, size_t count);
nlohmann::ordered_json CutComparisonJson(absl::Span<const CutComparison> cuts);

// The links with the longest transmission in a step, in the mean over hashes.
struct HotLink {
  LinkId link;
  double bytes = 0, seconds = 0;
};
// `seconds` of every link, [link].
absl::StatusOr<std::vector<double>> LinkSeconds(const Input& input, const Candidate& candidate);
std::vector<HotLink> HottestLinks(const Input& input, absl::Span<const double> seconds,
                                  size_t count);

nlohmann::ordered_json CandidateJson(const Input& input, const Candidate& candidate);
nlohmann::ordered_json HotCutsJson(absl::Span<const HotCut> cuts);

// "12.3 ms", "1.24 s"; three figures.
std::string TimeText(absl::Duration time);

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_REPORT_H_
