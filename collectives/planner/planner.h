// Which algorithm a collective takes, with which chunk and how many channels: the one whose time by
// the table of costs is least. From data alone that all ranks have in common (the spec without rank
// and memory, the place, rank 0's table), so that all ranks choose alike without a message.
#ifndef WEFT_COLLECTIVES_PLANNER_PLANNER_H_
#define WEFT_COLLECTIVES_PLANNER_PLANNER_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/planner/cost.h"

namespace weft::collectives::planner {

// A part of an all-to-all with counts of whose sizes the ranks know nothing in common is planned as
// one of so many bytes: where latencies count little. The form that is best for large parts loses
// some microseconds with small ones, and the other way round it loses a part of the bandwidth.
inline constexpr uint64_t kUnknownPartBytes = 1 << 20;
// The spec's count; of an all-to-all with counts that has none, that of kUnknownPartBytes.
uint64_t PlannedCount(const CollectiveSpec& spec, size_t element);

struct Plan {
  const Algorithm* algorithm = nullptr;
  uint64_t chunk = 1;  // elements
  int channels = 1;
  int64_t nanoseconds = 0;      // by the table
  int64_t in_turn = 0;          // likewise, if nothing overlapped (cost.h)
  int64_t messages_across = 0;  // of the busiest rank, between hosts
  std::string why;              // of the choice, for people: one line

  std::string ToText() const;  // "ring", "ring x2"
};

// All that can be done, cheapest first. `spec`: its chunk is that of the settings. `element` in
// bytes.
std::vector<Plan> PlansFor(const CollectiveSpec& spec, size_t element, const CostTable& table);

// The model is exact to some 5 %: of the plans that cost no more than that above the cheapest, it
// is the one that would cost least if nothing overlapped. What hides behind a copy, say, still
// counts, for a caller may spare us the copy; and so do bytes on cables between switches that have
// room, for other jobs use them. Of those that cost the same to one part in a hundred
// either way, it is the one with the fewest messages between hosts, which wait and share the NICs
// more than the model knows; of these the first in the table.
// Or, where `forced` names an algorithm that has the kind, the cheapest plan of that.
Plan ChoosePlan(const CollectiveSpec& spec, size_t element, const CostTable& table,
                absl::string_view forced);

// `spec` as the plan's algorithm shall build it.
CollectiveSpec SpecOf(const Plan& plan, CollectiveSpec spec);

}  // namespace weft::collectives::planner

#endif  // WEFT_COLLECTIVES_PLANNER_PLANNER_H_
