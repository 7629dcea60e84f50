#include "collectives/planner/planner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "collectives/planner/group_place.h"

namespace weft::collectives::planner {
namespace {

// Smaller chunks than these cost more in messages than they gain.
constexpr uint64_t kChunkBytesMin = 16384;
constexpr int kChannelsMax = 4;

// Costs that differ by less than one part in so many count as equal.
constexpr int64_t kMargin = 20;

// What an all-to-all of which everything is under way at once takes on a fabric of several switches
// above its best time, which the model knows nothing of: measured 1.1 to 1.3 where its flows have
// planned ports and share all links evenly (docs/benchmarks/paths.md). A pairwise one whose steps
// are planned may take so much longer by the model.
constexpr double kExchangeAtOnce = 1.3;

// The pairwise all-to-all where ports are planned for its steps, unless its turns take too long.
bool IsPlannedExchange(const Plan& plan, const CollectiveSpec& spec, int64_t cheapest) {
  return spec.place != nullptr && spec.place->has_planned_exchange &&
         plan.algorithm == &kPairwise &&
         static_cast<double>(plan.nanoseconds) <= kExchangeAtOnce * static_cast<double>(cheapest);
}

ptrdiff_t TableIndex(const Plan& plan) {
  const auto all = Algorithms();
  return std::find(all.begin(), all.end(), plan.algorithm) - all.begin();
}

// The order of plans that cost the same.
bool IsSimpler(const Plan& a, const Plan& b) {
  return a.in_turn != b.in_turn ? a.in_turn < b.in_turn : TableIndex(a) < TableIndex(b);
}

std::string TimeText(int64_t nanoseconds) {
  return absl::StrFormat("%.3g us", static_cast<double>(nanoseconds) / 1e3);
}

// Chunks of the settings' size, and smaller ones for pipelines that have many stages to fill.
std::vector<uint64_t> ChunksFor(const CollectiveSpec& spec, size_t element) {
  std::vector<uint64_t> chunks{spec.chunk};
  for (uint64_t chunk = spec.chunk / 4; chunk * element >= kChunkBytesMin; chunk /= 4) {
    chunks.push_back(chunk);
  }
  return chunks;
}

// Rings leave each host by as many ranks as there are channels.
std::vector<int> ChannelsFor(const CollectiveSpec& spec, const Algorithm& algorithm) {
  std::vector<int> channels{1};
  if (&algorithm == &kPairwise && spec.place != nullptr && spec.place->has_planned_exchange) {
    return {kPlannedExchangesAtOnce};
  }
  if (&algorithm != &kRing || spec.place == nullptr) return channels;
  int most = std::min(kChannelsMax, spec.place->ranks_min);
  if (spec.place->nics > 0) most = std::min(most, spec.place->nics);
  for (int c = 2; c <= most; c *= 2) channels.push_back(c);
  return channels;
}

// The cheapest of one algorithm.
Plan Cheapest(const CollectiveSpec& spec, size_t element, const CostTable& table,
              const Algorithm& algorithm) {
  Plan best;
  for (uint64_t chunk : ChunksFor(spec, element)) {
    for (int channels : ChannelsFor(spec, algorithm)) {
      Plan plan{.algorithm = &algorithm, .chunk = chunk, .channels = channels};
      const CollectiveSpec planned = SpecOf(plan, spec);
      const Time time = TimesOf(algorithm.cost(planned), planned, element, table);
      plan.nanoseconds = time.overlapped, plan.in_turn = time.in_turn;
      if (best.algorithm == nullptr || plan.nanoseconds < best.nanoseconds) best = plan;
    }
  }
  return best;
}

}  // namespace

std::string Plan::ToText() const {
  return channels > 1 ? absl::StrCat(algorithm->name, " x", channels) : algorithm->name;
}

CollectiveSpec SpecOf(const Plan& plan, CollectiveSpec spec) {
  spec.chunk = plan.chunk;
  spec.channels = plan.channels;
  return spec;
}

std::vector<Plan> PlansFor(const CollectiveSpec& spec, size_t element, const CostTable& table) {
  std::vector<Plan> plans;
  for (const Algorithm* algorithm : Algorithms()) {
    // On one host its stages are those of direct.
    if (algorithm == &kHierarchical && spec.place == nullptr) continue;
    const bool one_switch = spec.place == nullptr || spec.place->switches.size() < 2;
    if (algorithm == &kThreeLevel && one_switch) continue;
    if (algorithm->has(spec.kind)) plans.push_back(Cheapest(spec, element, table, *algorithm));
  }
  std::stable_sort(plans.begin(), plans.end(),
                   [](const Plan& a, const Plan& b) { return a.nanoseconds < b.nanoseconds; });
  return plans;
}

Plan ChoosePlan(const CollectiveSpec& spec, size_t element, const CostTable& table,
                absl::string_view forced) {
  if (const Algorithm* algorithm = FindAlgorithm(forced, spec.kind); algorithm != nullptr) {
    Plan plan = Cheapest(spec, element, table, *algorithm);
    plan.why = absl::StrCat(plan.ToText(), " by the settings");
    return plan;
  }
  std::vector<Plan> plans = PlansFor(spec, element, table);
  WEFT_CHECK(!plans.empty(), "no algorithm for " << ToString(spec.kind));
  const int64_t limit = plans[0].nanoseconds + plans[0].nanoseconds / kMargin;
  const auto exchange = std::find_if(plans.begin(), plans.end(), [&](const Plan& plan) {
    return IsPlannedExchange(plan, spec, plans[0].nanoseconds);
  });
  const bool follows = exchange != plans.end();
  const auto simplest =
      std::min_element(plans.begin(), plans.end(), [&](const Plan& a, const Plan& b) {
        const bool good_a = a.nanoseconds <= limit, good_b = b.nanoseconds <= limit;
        return good_a != good_b ? good_a : good_a && IsSimpler(a, b);
      });
  const auto first = follows ? exchange : simplest;
  std::rotate(plans.begin(), first, first + 1);
  std::vector<std::string> others;
  for (size_t i = 1; i < std::min<size_t>(plans.size(), 4); ++i) {
    others.push_back(absl::StrCat(plans[i].ToText(), " ", TimeText(plans[i].nanoseconds)));
  }
  Plan plan = plans.front();
  plan.why = absl::StrCat(plan.ToText(), follows ? " along the plan's steps " : " ",
                          TimeText(plan.nanoseconds), ", chunks of ", plan.chunk, "; then ",
                          absl::StrJoin(others, ", "), " (costs: ", table.source, ")");
  return plan;
}

}  // namespace weft::collectives::planner
