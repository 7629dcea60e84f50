#include "trainer/optimizer/learning_rate.h"

#include <cmath>
#include <numbers>

namespace weft::train {

double LearningRate(const OptimizerConfig& config, int64_t step) {
  if (step < config.warmup_steps) {
    return config.learning_rate * static_cast<double>(step) /
           static_cast<double>(config.warmup_steps);
  }
  if (config.schedule == ScheduleKind::kConstant) return config.learning_rate;
  if (step >= config.decay_steps) return config.min_learning_rate;
  double part = static_cast<double>(step - config.warmup_steps) /
                static_cast<double>(config.decay_steps - config.warmup_steps);
  return config.min_learning_rate + (config.learning_rate - config.min_learning_rate) * 0.5 *
                                        (1.0 + std::cos(std::numbers::pi * part));
}

double ClipScale(const OptimizerConfig& config, double gradient_norm) {
  if (config.clip <= 0 || gradient_norm <= config.clip) return 1.0;
  return config.clip / gradient_norm;
}

}  // namespace weft::train
