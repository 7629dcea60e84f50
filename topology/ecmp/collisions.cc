#include "topology/ecmp/collisions.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::topology {
namespace {

absl::Status Check(int flows, int paths) {
  if (flows < 1 || flows > 4096 || paths < 1 || paths > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat("collisions of ", flows, " flows on ", paths,
                     " paths: flows are in 1..4096, paths in 1..65536"));
  }
  return absl::OkStatus();
}

// The coefficient of x^N in (sum_{j<=k} x^j/j!)^M, times N! M^-N. With p = sum x^j/j! and q = p^M,
// p q' = M p' q gives q's coefficients one by one: n q_n = sum_j (M j - (n - j)) p_j q_{n-j}. The
// terms change sign and cancel for large N, so the power is taken by squaring instead, on
// coefficients that are scaled into probabilities: with X ~ Poisson(N/M) cut at k, q_N is
// P(sum of M such = N), and the scale is undone by P(Poisson(N) = N).
double ProbabilityMaxAtMost(int flows, int paths, int k) {
  auto size = static_cast<size_t>(flows) + 1;
  double mean = static_cast<double>(flows) / paths;
  std::vector<double> base(size, 0.0);
  for (size_t j = 0; j < size && j <= static_cast<size_t>(k); ++j) {
    double x = static_cast<double>(j);
    base[j] = std::exp(x * std::log(mean) - mean - std::lgamma(x + 1));
  }
  auto multiply = [size](const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> out(size, 0.0);
    for (size_t i = 0; i < size; ++i) {
      if (a[i] < 1e-300) continue;
      for (size_t j = 0; i + j < size; ++j) out[i + j] += a[i] * b[j];
    }
    return out;
  };
  std::vector<double> power(size, 0.0);
  power[0] = 1;
  for (int left = paths; left > 0; left /= 2) {
    if (left % 2 == 1) power = multiply(power, base);
    if (left > 1) base = multiply(base, base);
  }
  double n = flows;
  return std::min(1.0, power[size - 1] / std::exp(n * std::log(n) - n - std::lgamma(n + 1)));
}

}  // namespace

absl::StatusOr<std::vector<double>> MaxLoadDistribution(int flows, int paths) {
  WEFT_RETURN_IF_ERROR(Check(flows, paths));
  std::vector<double> out(static_cast<size_t>(flows) + 1, 1.0);
  int least = (flows + paths - 1) / paths;  // pigeonhole
  for (int k = 0; k <= flows; ++k) {
    auto i = static_cast<size_t>(k);
    out[i] = k < least ? 0 : ProbabilityMaxAtMost(flows, paths, k);
    if (out[i] > 1 - 1e-13) break;  // the rest is 1
  }
  return out;
}

absl::StatusOr<Collisions> ExpectedCollisions(int flows, int paths, int cap) {
  if (cap < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a path carries ", cap, " flows; at least 1"));
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<double> at_most, MaxLoadDistribution(flows, paths));
  Collisions out;
  for (double p : at_most) out.max_mean += 1 - p;
  auto reached = std::find_if(at_most.begin(), at_most.end(), [](double p) { return p >= 0.99; });
  out.max_p99 = static_cast<int>(reached - at_most.begin());
  out.slowdown = out.max_mean / cap;

  double n = flows, m = paths;
  out.idle = std::pow(1 - 1 / m, n);
  // Binomial(N-1, 1/M) term by term, in logarithms; M = 1 puts all on one path.
  for (int b = 0; b < flows; ++b) {
    double probability = paths == 1
                             ? (b == flows - 1 ? 1.0 : 0.0)
                             : std::exp(std::lgamma(n) - std::lgamma(b + 1.0) - std::lgamma(n - b) -
                                        b * std::log(m) + (n - 1 - b) * std::log1p(-1 / m));
    out.share += probability * std::min(1.0, static_cast<double>(cap) / (1 + b));
  }
  out.none = 0;
  if (flows <= paths) {
    out.none = 1;
    for (int i = 1; i < flows; ++i) out.none *= 1 - i / m;
  }
  return out;
}

}  // namespace weft::topology
