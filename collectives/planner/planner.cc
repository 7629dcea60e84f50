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

// Smaller chunks than these cost more in messages than they gain, but between hosts whose links are
// so slow that a message costs the cores less than the chunk's time on the link. There a chunk need
// not be longer than the longest packet of the field (an MTU of RoCE).
constexpr uint64_t kChunkBytesMin = 16384;
constexpr uint64_t kPacketBytes = 4096;
static_assert(kPacketBytes <= kChunkBytesMin);

// Costs that differ by less than one part in so many count as equal.
constexpr int64_t kMargin = 20;
// Likewise where plans differ in the number of their messages between hosts, which the model takes
// to overlap with bytes on the link.
constexpr int64_t kMessageMargin = 100;

ptrdiff_t TableIndex(const Plan& plan) {
  const auto all = Algorithms();
  return std::find(all.begin(), all.end(), plan.algorithm) - all.begin();
}

// The order of plans that cost the same.
bool IsSimpler(const Plan& a, const Plan& b) {
  return a.in_turn != b.in_turn ? a.in_turn < b.in_turn : TableIndex(a) < TableIndex(b);
}
bool HasFewerMessages(const Plan& a, const Plan& b) {
  return a.messages_across != b.messages_across ? a.messages_across < b.messages_across
                                                : IsSimpler(a, b);
}

// Where the one that ChoosePlan() takes stands in `plans`, cheapest first.
std::vector<Plan>::iterator Best(std::vector<Plan>& plans) {
  std::vector<Plan>::iterator best = plans.begin();
  const int64_t limit = best->nanoseconds + best->nanoseconds / kMargin;
  auto good = [&](const Plan& plan) { return plan.nanoseconds <= limit; };
  for (auto plan = plans.begin(); plan != plans.end(); ++plan) {
    if (good(*plan) && IsSimpler(*plan, *best)) best = plan;
  }
  const int64_t in_turn = best->in_turn + best->in_turn / kMessageMargin;
  for (auto plan = plans.begin(); plan != plans.end(); ++plan) {
    const bool alike = good(*plan) && plan->in_turn <= in_turn;
    if (alike && HasFewerMessages(*plan, *best)) best = plan;
  }
  return best;
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

bool HasHosts(const CollectiveSpec& spec) {
  return spec.place != nullptr && spec.place->hosts.size() > 1;
}

// Whether a chunk of `length` bytes is worth a message: see kChunkBytesMin.
bool IsWorthAMessage(uint64_t length, const CollectiveSpec& spec, const CostTable& table) {
  if (length >= kChunkBytesMin) return true;
  if (length < kPacketBytes || !HasHosts(spec)) return false;
  const LinkCosts across = AcrossCosts(table, spec.place.get());
  return static_cast<double>(length) * across.byte >= across.message;
}

// Chunks of the settings' size, and smaller ones for pipelines that have many stages to fill.
std::vector<uint64_t> ChunksFor(const CollectiveSpec& spec, size_t element,
                                const CostTable& table) {
  std::vector<uint64_t> chunks{spec.chunk};
  for (uint64_t chunk = spec.chunk / 4; IsWorthAMessage(chunk * element, spec, table); chunk /= 4) {
    chunks.push_back(chunk);
  }
  return chunks;
}

std::vector<int> ChannelsFor(const CollectiveSpec& spec, const Algorithm& algorithm) {
  return algorithm.channels == nullptr ? std::vector<int>{1} : algorithm.channels(spec);
}

// The cheapest of one algorithm. Between hosts a shorter chunk, and so more messages, has to gain
// more than they may cost.
Plan Cheapest(const CollectiveSpec& spec, size_t element, const CostTable& table,
              const Algorithm& algorithm) {
  Plan best;
  for (uint64_t chunk : ChunksFor(spec, element, table)) {
    const int64_t margin = HasHosts(spec) ? best.nanoseconds / kMessageMargin : 0;
    Plan shorter;
    for (int channels : ChannelsFor(spec, algorithm)) {
      Plan plan{.algorithm = &algorithm, .chunk = chunk, .channels = channels};
      CollectiveSpec planned = SpecOf(plan, spec);
      planned.count = PlannedCount(spec, element);
      const Cost cost = algorithm.cost(planned);
      const Time time = TimesOf(cost, planned, element, table);
      plan.nanoseconds = time.overlapped, plan.in_turn = time.in_turn;
      plan.messages_across = MessagesAcross(cost);
      if (shorter.algorithm == nullptr || plan.nanoseconds < shorter.nanoseconds) shorter = plan;
    }
    if (best.algorithm == nullptr || shorter.nanoseconds < best.nanoseconds - margin) {
      best = shorter;
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
  const auto first = Best(plans);
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
