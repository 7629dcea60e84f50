#include "trainer/rotary_base.h"

#include <cmath>

namespace weft::train {

double RotaryBase(const ModelConfig& config) {
  const double width = static_cast<double>(config.hidden / config.heads);
  if (config.rotary_scaling != RotaryScaling::kNtk || width <= 2) return config.rotary_base;
  return config.rotary_base * std::pow(config.rotary_factor, width / (width - 2));
}

}  // namespace weft::train
