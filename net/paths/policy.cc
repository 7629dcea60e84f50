#include "net/paths/policy.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "net/paths/penalty.h"
#include "net/paths/plb.h"
#include "net/paths/reps.h"
#include "net/paths/simple.h"

namespace weft::net {
namespace {

constexpr std::array kAll = {PolicyKind::kSingle,     PolicyKind::kRoundRobin, PolicyKind::kRandom,
                             PolicyKind::kTwoChoices, PolicyKind::kReps,       PolicyKind::kPenalty,
                             PolicyKind::kPlb,        PolicyKind::kPlanned};

// REPS freezes for so many base round trips.
constexpr int kFreezeRoundTrips = 100;

}  // namespace

absl::string_view ToString(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::kSingle:
      return "single";
    case PolicyKind::kRoundRobin:
      return "round-robin";
    case PolicyKind::kRandom:
      return "random";
    case PolicyKind::kTwoChoices:
      return "two-choices";
    case PolicyKind::kReps:
      return "reps";
    case PolicyKind::kPenalty:
      return "penalty";
    case PolicyKind::kPlb:
      return "plb";
    case PolicyKind::kPlanned:
      return "planned";
  }
  return "?";
}

absl::Span<const PolicyKind> AllPolicies() { return kAll; }

absl::StatusOr<PolicyKind> ParsePolicy(absl::string_view text) {
  for (PolicyKind kind : kAll) {
    if (ToString(kind) == text) return kind;
  }
  std::string known = absl::StrJoin(
      kAll, ", ", [](std::string* out, PolicyKind one) { absl::StrAppend(out, ToString(one)); });
  return absl::InvalidArgumentError(absl::StrCat("no path policy '", text, "'; there are ", known));
}

std::unique_ptr<PathPolicy> MakePolicy(const PolicyOptions& options, int paths) {
  switch (options.kind) {
    case PolicyKind::kSingle:
      return std::make_unique<SinglePath>(options.seed, paths);
    case PolicyKind::kRoundRobin:
      return std::make_unique<RoundRobin>(options.seed, paths);
    case PolicyKind::kRandom:
      return std::make_unique<RandomPath>(options.seed);
    case PolicyKind::kTwoChoices:
      return std::make_unique<TwoChoices>(options.seed);
    case PolicyKind::kReps: {
      auto explore = static_cast<int>(options.window / options.packet);
      return std::make_unique<Reps>(options.seed, std::max(explore, 1),
                                    kFreezeRoundTrips * options.base_rtt);
    }
    case PolicyKind::kPenalty:
      return std::make_unique<Penalty>(options.seed, paths);
    case PolicyKind::kPlb:
      return std::make_unique<Plb>(options.seed, paths, options.base_rtt);
    case PolicyKind::kPlanned:
      return std::make_unique<Planned>(options.planned, options.spare);
  }
  return nullptr;
}

}  // namespace weft::net
