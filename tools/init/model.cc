#include "tools/init/model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft::init {
namespace {

// Solves the normal equations for the powers in `mask`; false when they are singular.
bool Solve(const std::vector<std::pair<double, double>>& points, unsigned mask, Model& model) {
  std::array<std::array<double, 4>, 3> rows{};
  for (const auto& [n, t] : points) {
    double weight = 1 / std::max(t, 1e-6);
    std::array<double, 3> x = {weight, n * weight, n * n * weight};
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < 3; ++j) rows[i][j] += x[i] * x[j];
      rows[i][3] += x[i];  // the weighted time is 1
    }
  }
  for (size_t i = 0; i < 3; ++i) {
    if ((mask >> i & 1) != 0) continue;
    for (size_t j = 0; j < 3; ++j) rows[i][j] = rows[j][i] = 0;
    rows[i][i] = 1;
    rows[i][3] = 0;
  }
  for (size_t i = 0; i < 3; ++i) {
    size_t pivot = i;
    // Compared relative to the row's own size: the powers of n differ by many orders.
    for (size_t r = i + 1; r < 3; ++r) {
      if (std::abs(rows[r][i]) > std::abs(rows[pivot][i])) pivot = r;
    }
    std::swap(rows[i], rows[pivot]);
    if (std::abs(rows[i][i]) < 1e-300) return false;
    for (size_t r = 0; r < 3; ++r) {
      if (r == i) continue;
      double factor = rows[r][i] / rows[i][i];
      for (size_t c = i; c < 4; ++c) rows[r][c] -= factor * rows[i][c];
    }
  }
  for (size_t i = 0; i < 3; ++i) model.coefficients[i] = rows[i][3] / rows[i][i];
  return true;
}

double Error(const std::vector<std::pair<double, double>>& points, const Model& model) {
  double sum = 0;
  for (const auto& [n, t] : points) {
    double relative = (model(n) - t) / std::max(t, 1e-6);
    sum += relative * relative;
  }
  return sum;
}

}  // namespace

// With three unknowns, trying every subset is the whole of non-negative least squares.
Model Fit(const std::vector<std::pair<double, double>>& points, int terms) {
  Model best;
  double error = std::numeric_limits<double>::infinity();
  for (unsigned mask = 1; mask < 1U << terms; ++mask) {
    Model model;
    if (static_cast<size_t>(__builtin_popcount(mask)) > points.size()) continue;
    if (!Solve(points, mask, model)) continue;
    bool allowed = std::all_of(model.coefficients.begin(), model.coefficients.end(),
                               [](double c) { return c >= 0 && std::isfinite(c); });
    double own = Error(points, model);
    if (allowed && own < error) {
      error = own;
      best = model;
    }
  }
  return best;
}

}  // namespace weft::init
