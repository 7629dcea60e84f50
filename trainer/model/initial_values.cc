// InitializeParameter of parameters.h: apart from it, as it needs OpenMP.
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "base/random.h"
#include "trainer/model/parameters.h"

namespace weft::train {

void InitializeParameter(const ParameterSpec& spec, uint64_t seed, absl::Span<float> values) {
  // The draws come one after another; what is made of them, which takes far longer, by all threads.
  constexpr size_t kPairs = size_t{1} << 16;
  constexpr size_t kFewPairs = 1024;  // not worth a thread
  Random random(seed, HashName(spec.name));
  std::vector<std::pair<double, double>> draws;
  for (size_t begin = 0; begin < values.size(); begin += 2 * kPairs) {
    const absl::Span<float> block = values.subspan(begin, 2 * kPairs);
    draws.resize((block.size() + 1) / 2);
    for (auto& [first, second] : draws) {
      first = random.Uniform();
      second = random.Uniform();
    }
#pragma omp parallel for schedule(static) if (draws.size() > kFewPairs)
    for (size_t i = 0; i < draws.size(); ++i) {
      // Box and Muller, 1958.
      const double radius = std::sqrt(-2.0 * std::log(1.0 - draws[i].first)) * spec.deviation;
      const double angle = 2.0 * std::numbers::pi * draws[i].second;
      block[2 * i] = static_cast<float>(spec.mean + radius * std::cos(angle));
      if (2 * i + 1 < block.size()) {
        block[2 * i + 1] = static_cast<float>(spec.mean + radius * std::sin(angle));
      }
    }
  }
}

}  // namespace weft::train
