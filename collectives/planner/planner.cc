#include "collectives/planner/planner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/units.h"
#include "collectives/group_place.h"

namespace weft::collectives::planner {
namespace {

// Smaller chunks than these cost more in messages than they gain.
constexpr uint64_t kChunkBytesMin = 16384;

// Costs that differ by less than one part in so many count as equal.
constexpr int64_t kMargin = 20;

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

// "8 hosts under 4 switches; "; empty: one host.
std::string PlaceText(const CollectiveSpec& spec) {
  if (spec.place == nullptr) return "";
  std::string text = absl::StrCat(spec.place->hosts.size(), " hosts");
  if (spec.place->switches.size() >= 2) {
    absl::StrAppend(&text, " under ", spec.place->switches.size(), " switches");
  }
  return text + "; ";
}

// Chunks of the settings' size, and smaller ones for pipelines that have many stages to fill.
std::vector<uint64_t> ChunksFor(const CollectiveSpec& spec, size_t element) {
  std::vector<uint64_t> chunks{spec.chunk};
  for (uint64_t chunk = spec.chunk / 4; chunk * element >= kChunkBytesMin; chunk /= 4) {
    chunks.push_back(chunk);
  }
  return chunks;
}

std::vector<int> ChannelsFor(const CollectiveSpec& spec, const Algorithm& algorithm) {
  return algorithm.channels == nullptr ? std::vector<int>{1} : algorithm.channels(spec);
}

// The cheapest of one algorithm.
Plan Cheapest(const CollectiveSpec& spec, size_t element, const CostTable& table,
              const Algorithm& algorithm) {
  Plan best;
  for (uint64_t chunk : ChunksFor(spec, element)) {
    for (int channels : ChannelsFor(spec, algorithm)) {
      Plan plan{.algorithm = &algorithm, .chunk = chunk, .channels = channels};
      CollectiveSpec planned = SpecOf(plan, spec);
      planned.count = PlannedCount(spec, element);
      const Time time = TimesOf(algorithm.cost(planned), planned, element, table);
      plan.nanoseconds = time.overlapped, plan.in_turn = time.in_turn;
      if (best.algorithm == nullptr || plan.nanoseconds < best.nanoseconds) best = plan;
    }
  }
  return best;
}

}  // namespace

uint64_t PlannedCount(const CollectiveSpec& spec, size_t element) {
  const bool unknown = spec.kind == CollectiveKind::kAllToAllV && spec.count == 0;
  return unknown ? std::max<uint64_t>(kUnknownPartBytes / element, 1) : spec.count;
}

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
    if (algorithm->fits != nullptr && !algorithm->fits(spec, element)) continue;
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
  const auto first =
      std::min_element(plans.begin(), plans.end(), [&](const Plan& a, const Plan& b) {
        const bool good_a = a.nanoseconds <= limit, good_b = b.nanoseconds <= limit;
        return good_a != good_b ? good_a : good_a && IsSimpler(a, b);
      });
  std::rotate(plans.begin(), first, first + 1);
  std::vector<std::string> others;
  for (size_t i = 1; i < std::min<size_t>(plans.size(), 4); ++i) {
    others.push_back(absl::StrCat(plans[i].ToText(), " ", TimeText(plans[i].nanoseconds)));
  }
  Plan plan = plans.front();
  plan.why = absl::StrCat(plan.ToText(), " ", TimeText(plan.nanoseconds), ", chunks of ",
                          ToString(Bytes(static_cast<int64_t>(plan.chunk * element))), "; then ",
                          absl::StrJoin(others, ", "), " (", PlaceText(spec),
                          "costs: ", table.source, ")");
  return plan;
}

}  // namespace weft::collectives::planner
