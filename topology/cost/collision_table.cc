#include "topology/cost/collision_table.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "topology/ecmp/collisions.h"

namespace weft::topology {
namespace {

double PoissonMaxLoad(double flows, double paths) {
  double mean = flows / paths;
  double term = std::exp(-mean), below = term, expected = 0;
  // Sum over k of P(max > k); far below the mean that is 1.
  if (term < 1e-280) {  // too many flows a path for the direct sum: the normal tail
    return mean + std::sqrt(2 * mean * std::log(paths));
  }
  for (int k = 0;; ++k) {
    double above = -std::expm1(paths * std::log(std::min(1.0, below)));
    expected += above;
    if (k > mean && above < 1e-9) break;
    term *= mean / (k + 1);
    below += term;
  }
  return expected;
}

}  // namespace

CollisionTable::CollisionTable(int paths, int64_t flows_most) : paths_(paths) {
  if (paths_ == 1) return;
  direct_.push_back(0);
  int exact = static_cast<int>(std::min<int64_t>(flows_most, kExactFlows));
  // Exact values cost O(N^2): every one up to 16, then every eighth, as the curve is smooth.
  std::vector<int> points;
  for (int n = 1; n <= exact; n += n < 16 ? 1 : 8) points.push_back(n);
  if (points.empty() || points.back() != exact) points.push_back(std::max(exact, 1));
  flows_.push_back(0);
  load_.push_back(0);
  for (int n : points) {
    absl::StatusOr<Collisions> exact_load = ExpectedCollisions(n, paths);
    flows_.push_back(n);
    load_.push_back(exact_load.ok() ? exact_load->max_mean : PoissonMaxLoad(n, paths));
  }
  for (double n = exact * 1.1; flows_.back() < static_cast<double>(flows_most); n *= 1.1) {
    flows_.push_back(n);
    load_.push_back(std::max(load_.back(), PoissonMaxLoad(n, paths)));
  }
  // Whole numbers of flows are what is asked for: looked up without a search.
  size_t count = static_cast<size_t>(std::min<int64_t>(flows_most + 1, 1 << 14));
  while (direct_.size() < count) {
    double n = static_cast<double>(direct_.size());
    size_t upper =
        static_cast<size_t>(std::lower_bound(flows_.begin(), flows_.end(), n) - flows_.begin());
    double share = (n - flows_[upper - 1]) / (flows_[upper] - flows_[upper - 1]);
    direct_.push_back(load_[upper - 1] + share * (load_[upper] - load_[upper - 1]));
  }
}

double CollisionTable::MaxLoad(double flows) const {
  if (paths_ == 1 || flows <= 0) return std::max(flows, 0.0);
  if (flows + 1 < static_cast<double>(direct_.size())) {
    auto whole = static_cast<size_t>(flows);
    double part = flows - static_cast<double>(whole);
    return direct_[whole] + part * (direct_[whole + 1] - direct_[whole]);
  }
  if (flows >= flows_.back()) return load_.back() * flows / flows_.back();
  size_t upper =
      static_cast<size_t>(std::upper_bound(flows_.begin(), flows_.end(), flows) - flows_.begin());
  double share = (flows - flows_[upper - 1]) / (flows_[upper] - flows_[upper - 1]);
  return load_[upper - 1] + share * (load_[upper] - load_[upper - 1]);
}

}  // namespace weft::topology
