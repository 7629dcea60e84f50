// How a phase's time grows with the number of ranks: t(n) = a + b n + c n^2, with coefficients that
// are not negative, fitted to a few sizes by least squares of the relative error.
#ifndef WEFT_TOOLS_INIT_MODEL_H_
#define WEFT_TOOLS_INIT_MODEL_H_

#include <array>
#include <utility>
#include <vector>

namespace weft::init {

struct Model {
  std::array<double, 3> coefficients{};  // seconds, seconds a rank, seconds a rank squared
  double operator()(double ranks) const {
    return coefficients[0] + ranks * (coefficients[1] + ranks * coefficients[2]);
  }
};

// Pairs of ranks and seconds; at least one. `terms`: 2 leaves the square out.
Model Fit(const std::vector<std::pair<double, double>>& points, int terms = 3);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_MODEL_H_
