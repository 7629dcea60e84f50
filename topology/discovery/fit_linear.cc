#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <utility>

#include "base/random.h"
#include "topology/discovery/fit_hash.h"

namespace weft::topology {
namespace {

constexpr int kTries = 32;           // with some of the flows, as any may have been seen wrongly
constexpr size_t kSample = 128;      // flows of such a try, at most
constexpr double kChanceMost = -3;   // logarithm, base 10
constexpr double kKnownLeast = 0.8;  // share of the flows that the map knows

TupleBits Difference(const FiveTuple& a, const FiveTuple& b) {
  TupleBits out = BitsOf(a);
  const TupleBits other = BitsOf(b);
  for (size_t i = 0; i < out.size(); ++i) out[i] ^= other[i];
  return out;
}

// Flows of one member differ by elements of a subspace, on which the map is 0; it has as many
// cosets as there are members, which get numbers.
std::optional<LinearHash> Determine(uint32_t members, absl::Span<const HashObservation> seen) {
  const int bits = std::countr_zero(members);
  std::vector<const FiveTuple*> first(members);
  std::vector<LinearHash::Row> rows;
  for (const HashObservation& one : seen) {
    const FiveTuple*& example = first[one.member];
    if (example == nullptr) {
      example = &one.tuple;
    } else {
      rows.push_back({Difference(one.tuple, *example), 0});
    }
  }
  if (std::count(first.begin(), first.end(), nullptr) > 0) return std::nullopt;
  // A flow that the subspace does not lead to begins a new half of all cosets.
  int found = 0;
  for (const FiveTuple* example : first) {
    const LinearHash map(bits, *first[0], rows);
    if (map.IndexOf(*example).has_value()) continue;
    if (found == bits) return std::nullopt;
    rows.push_back({Difference(*example, *first[0]), uint32_t{1} << found++});
  }
  if (found < bits) return std::nullopt;
  return LinearHash(bits, *first[0], rows);
}

std::optional<FittedHash> Judge(LinearHash map, uint32_t members,
                                absl::Span<const HashObservation> seen, double wrong_max) {
  std::vector<HashObservation> known;
  for (const HashObservation& one : seen) {
    if (map.IndexOf(one.tuple).has_value()) known.push_back(one);
  }
  if (static_cast<double>(known.size()) < kKnownLeast * static_cast<double>(seen.size())) {
    return std::nullopt;
  }
  const double free = static_cast<double>(map.dimensions()) + 1;
  SwitchHashOptions options;
  options.function = HashFunction::kLinear;
  options.linear = std::make_shared<const LinearHash>(std::move(map));
  auto fitted = TryHash(*SwitchHash::Create(options), members, known, wrong_max);
  if (!fitted.has_value()) return std::nullopt;
  fitted->chance_log10 = -(static_cast<double>(fitted->right) - free) * std::log10(members);
  if (fitted->chance_log10 > kChanceMost) return std::nullopt;
  return fitted;
}

}  // namespace

std::optional<FittedHash> FitLinear(uint32_t members, absl::Span<const HashObservation> seen,
                                    double wrong_max) {
  if (members < 2 || !std::has_single_bit(members)) return std::nullopt;
  std::vector<HashObservation> flows;
  for (const HashObservation& one : seen) {
    const bool is_alike = one.tuple.protocol == seen[0].tuple.protocol &&
                          one.tuple.target_port == seen[0].tuple.target_port &&
                          one.tuple.source.v6 == seen[0].tuple.source.v6;
    if (is_alike && one.member < members) flows.push_back(one);
  }
  Random random(1);
  for (int attempt = 0; attempt < kTries; ++attempt) {
    std::vector<HashObservation> some = flows;
    if (attempt > 0) {
      random.Shuffle(some);
      some.resize(std::min(some.size(), kSample));
    }
    std::optional<LinearHash> map = Determine(members, some);
    if (!map.has_value()) continue;
    auto fitted = Judge(*std::move(map), members, flows, wrong_max);
    if (fitted.has_value()) return fitted;
  }
  return std::nullopt;
}

}  // namespace weft::topology
