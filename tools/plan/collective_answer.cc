#include "tools/plan/collective_answer.h"

#include <algorithm>

namespace weft::plan {
namespace {

using collectives::CollectiveKind;
using collectives::CollectiveSpec;
namespace planner = collectives::planner;

// Whether a rank's count is of the whole buffer, and not of its part.
bool CountsWhole(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBroadcast ||
         kind == CollectiveKind::kReduce;
}

// Bytes of the whole buffer of `spec`.
int64_t BytesOf(const CollectiveSpec& spec, const CollectiveGroup& group) {
  const uint64_t count = spec.output_counts.empty() ? spec.count : spec.output_counts[0];
  const uint64_t parts = CountsWhole(group.kind) ? 1 : static_cast<uint64_t>(group.ranks);
  return static_cast<int64_t>(count * parts * group.element);
}

// nccl-tests' factor from size over time to bus bandwidth.
double BusFactor(CollectiveKind kind, int ranks) {
  const double n = ranks;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (n - 1) / n;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return 1;
    default:
      return (n - 1) / n;
  }
}

}  // namespace

std::optional<int64_t> CollectiveAnswer::Simulated(const planner::Plan& plan) const {
  for (size_t i = 0; i < simulated.size(); ++i) {
    if (plans[i].ToText() == plan.ToText()) return simulated[i];
  }
  return std::nullopt;
}

std::optional<double> CollectiveAnswer::Regret() const {
  const std::optional<int64_t> own = Simulated(choice);
  if (!own.has_value()) return std::nullopt;
  int64_t best = *own;
  for (const std::optional<int64_t>& one : simulated) best = std::min(best, one.value_or(best));
  return best > 0 ? static_cast<double>(*own) / static_cast<double>(best) - 1 : 0;
}

double BusBandwidth(const CollectiveGroup& group, int64_t bytes, int64_t nanoseconds) {
  if (nanoseconds <= 0) return 0;
  return static_cast<double>(bytes) / static_cast<double>(nanoseconds) *
         BusFactor(group.kind, group.ranks);
}

CollectiveSpec SpecFor(const CollectiveGroup& group, int64_t bytes) {
  CollectiveSpec spec;
  spec.kind = group.kind;
  spec.size = group.ranks;
  spec.root = group.root;
  spec.count = static_cast<uint64_t>(bytes) / group.element;
  spec.chunk =
      std::max<uint64_t>(static_cast<uint64_t>(group.table.chunk_bytes) / group.element, 1);
  spec.place = group.place;
  spec.groups_at_once = group.at_once;
  spec.others_at_once = group.others_at_once;
  spec.rounds_once = collectives::Reduces(group.kind) && group.sums_are_wide;
  const size_t n = static_cast<size_t>(group.ranks);
  if (!CountsWhole(group.kind)) spec.count /= n;
  if (group.kind != CollectiveKind::kAllGatherV && group.kind != CollectiveKind::kAllToAllV) {
    return spec;
  }
  // Equal parts.
  spec.output_counts.assign(n, spec.count);
  for (size_t r = 0; r < n; ++r) spec.output_offsets.push_back(r * spec.count);
  if (group.kind == CollectiveKind::kAllToAllV) {
    spec.input_counts = spec.output_counts;
    spec.input_offsets = spec.output_offsets;
  } else {
    spec.count = 0;
  }
  return spec;
}

CollectiveAnswer Ask(const CollectiveGroup& group, int64_t bytes) {
  const CollectiveSpec spec = SpecFor(group, bytes);
  CollectiveAnswer answer{.bytes = BytesOf(spec, group)};
  answer.choice = planner::ChoosePlan(spec, group.element, group.table,
                                      group.forced.For(spec, group.element, group.name));
  answer.plans = planner::PlansFor(spec, group.element, group.table);
  return answer;
}

}  // namespace weft::plan
