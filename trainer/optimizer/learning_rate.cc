#include "trainer/optimizer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft::train {

// In the formulas: t the step, W warmup_steps, T decay_steps, h learning_rate, l min_learning_rate,
// and p(t, a) = (t - a) / (T - a), the part of the way from step a to T. All begin with
//   t < W: h t / W.
double LearningRate(const OptimizerConfig& config, int64_t step) {
  const double high = config.learning_rate, low = config.min_learning_rate;
  const int64_t warmup = config.warmup_steps, end = config.decay_steps;
  if (step < warmup) return high * static_cast<double>(step) / static_cast<double>(warmup);
  const auto part = [step, end](int64_t from) {
    return static_cast<double>(step - from) / static_cast<double>(end - from);
  };
  switch (config.schedule) {
    case ScheduleKind::kConstant:
      return high;
    case ScheduleKind::kCosine:
      // l + (h - l) (1 + cos(pi p(t, W))) / 2 (Loshchilov, Hutter, "SGDR", ICLR 2017, equation 5,
      // without restarts); t >= T: l.
      if (step >= end) return low;
      return low + (high - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * part(warmup)));
    case ScheduleKind::kLinear:
      // h - (h - l) p(t, W); t >= T: l.
      if (step >= end) return low;
      return high - (high - low) * part(warmup);
    case ScheduleKind::kWsd: {
      // Warm-up, stable, decay (Hu et al., "MiniCPM", 2024, arXiv 2404.06395, section 4). With D
      // wsd_steps and S = T - D: t <= S: h; then h - (h - l) sqrt(p(t, S)), the decay "1 - sqrt" of
      // Haegele et al. (2024, arXiv 2405.18392), who found it better than a linear one, in place of
      // MiniCPM's exponential one; t >= T: l.
      const int64_t stable = end - config.wsd_steps;
      if (step >= end) return low;
      return step <= stable ? high : high - (high - low) * std::sqrt(part(stable));
    }
    case ScheduleKind::kInverseSqrt:
      // h sqrt(W / t), and at least l (Vaswani et al., "Attention is all you need", NeurIPS 2017,
      // section 5.3, equation 3, where h is 1 / sqrt(width x W)). T means nothing.
      return std::max(low, high * std::sqrt(static_cast<double>(warmup) /
                                            static_cast<double>(std::max<int64_t>(1, step))));
  }
  return high;
}

double ClipScale(const OptimizerConfig& config, double gradient_norm) {
  if (config.clip <= 0 || gradient_norm <= config.clip) return 1.0;
  return config.clip / gradient_norm;
}

}  // namespace weft::train
