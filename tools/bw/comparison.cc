#include "tools/bw/comparison.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/planner/forced.h"
#include "collectives/reduce.h"

namespace weft::bw {
namespace {

using collectives::Algorithm;
using collectives::CollectiveKind;
using collectives::CollectiveSpec;
using collectives::Communicator;
using collectives::Endpoint;
namespace planner = collectives::planner;

std::string GroupOf(const Algorithm& algorithm) { return absl::StrCat("compare-", algorithm.name); }

}  // namespace

CollectiveSpec SpecFor(const Case& what, const Endpoint& endpoint) {
  const OperationInfo& info = InfoOf(what.operation);
  CollectiveSpec spec{.kind = *info.kind, .size = endpoint.world_size(), .root = what.root};
  spec.count = what.count;
  if (what.operation == Operation::kAllGatherV || what.operation == Operation::kAllToAllV) {
    const Parts parts = PartsOf(what, spec.size);
    spec.output_counts.assign(parts.counts.begin(), parts.counts.end());
    spec.output_offsets.assign(parts.offsets.begin(), parts.offsets.end());
    if (what.operation == Operation::kAllToAllV) {
      spec.input_counts = spec.output_counts, spec.input_offsets = spec.output_offsets;
    } else {
      spec.count = 0;
    }
  }
  spec.average = info.reduces() && what.op == collectives::ReduceOp::kAverage;
  spec.rounds_once = info.reduces() && collectives::ReduceAllFor(what.type, what.op) != nullptr;
  spec.in_place = what.in_place;
  spec.chunk = static_cast<uint64_t>(endpoint.costs().chunk_bytes) / collectives::SizeOf(what.type);
  std::vector<Rank> ranks;
  for (int r = 0; r < spec.size; ++r) ranks.emplace_back(r);
  spec.place = endpoint.PlaceOf(ranks);
  spec.multicast_bytes = endpoint.MulticastBytes(ranks);
  return spec;
}

absl::StatusOr<planner::Plan> ChoiceFor(const Case& what, const Endpoint& endpoint) {
  WEFT_ASSIGN_OR_RETURN(const auto forced, planner::Forced::Create(endpoint.settings()));
  const CollectiveSpec spec = SpecFor(what, endpoint);
  const size_t element = collectives::SizeOf(what.type);
  return planner::ChoosePlan(spec, element, endpoint.costs(), forced.For(spec, element, "world"));
}

absl::Status Comparison::AddRules(Settings& settings) {
  std::string rules = settings.Text("collective.algorithm_by_kind");
  for (const Algorithm* algorithm : collectives::Algorithms()) {
    for (int k = 0; k < collectives::kCollectiveKindCount; ++k) {
      const CollectiveKind kind = static_cast<CollectiveKind>(k);
      if (!algorithm->has(kind)) continue;
      absl::StrAppend(&rules, rules.empty() ? "" : ",", ToString(kind), "@", GroupOf(*algorithm),
                      "=", algorithm->name);
    }
  }
  return settings.Set("collective.algorithm_by_kind", rules, "--compare");
}

absl::StatusOr<Comparison> Comparison::Create(job::Joined& job) {
  Comparison comparison;
  comparison.endpoint_ = job.endpoint;
  std::vector<Rank> everybody;
  for (int r = 0; r < job.endpoint->world_size(); ++r) everybody.emplace_back(r);
  for (const Algorithm* algorithm : collectives::Algorithms()) {
    WEFT_ASSIGN_OR_RETURN(comparison.groups_[algorithm->name],
                          Communicator::Create(job.endpoint, GroupOf(*algorithm), everybody));
  }
  return comparison;
}

absl::StatusOr<std::vector<Comparison::Candidate>> Comparison::For(const Case& what) const {
  std::vector<Candidate> candidates;
  if (!InfoOf(what.operation).kind.has_value()) return candidates;
  WEFT_ASSIGN_OR_RETURN(const planner::Plan choice, ChoiceFor(what, *endpoint_));
  for (const planner::Plan& plan : planner::PlansFor(
           SpecFor(what, *endpoint_), collectives::SizeOf(what.type), endpoint_->costs())) {
    candidates.push_back({plan.algorithm->name, groups_.at(plan.algorithm->name).get(),
                          plan.algorithm == choice.algorithm});
  }
  return candidates;
}

}  // namespace weft::bw
