#include "trainer/rotary_base.h"

#include <cmath>
#include <cstdint>

namespace weft::train {

double RotaryBase(const ModelConfig& config) {
  const int64_t head_width = config.hidden / config.heads;
  const auto width = static_cast<double>(head_width);
  if (config.rotary_scaling != RotaryScaling::kNtk || width <= 2) return config.rotary_base;
  return config.rotary_base * std::pow(config.rotary_factor, width / (width - 2));
}

}  // namespace weft::train
