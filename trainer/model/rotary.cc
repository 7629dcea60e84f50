#include "trainer/model/rotary.h"

#include <cmath>
#include <numbers>

#include "trainer/rotary_base.h"

namespace weft::train {
namespace {

// Wavelengths in parts of the original sequence between which Llama 3.1 blends: at 1 and longer the
// frequency is divided by the factor, below 1/4 it stays.
constexpr double kLongWave = 1, kShortWave = 4;

at::Tensor AsLlama3(const at::Tensor& frequency, const ModelConfig& config) {
  const at::Tensor waves =
      frequency * (static_cast<double>(config.rotary_original) / (2 * std::numbers::pi));
  const at::Tensor kept = ((waves - kLongWave) / (kShortWave - kLongWave)).clamp(0, 1);
  return frequency * kept + frequency / config.rotary_factor * (1 - kept);
}

}  // namespace

at::Tensor RotaryFrequencies(const ModelConfig& config) {
  const int64_t half = config.hidden / config.heads / 2;
  const at::Tensor exponent = at::arange(half, at::kDouble) / static_cast<double>(-half);
  const at::Tensor frequency = at::pow(RotaryBase(config), exponent);
  if (config.rotary_scaling == RotaryScaling::kLinear) return frequency / config.rotary_factor;
  if (config.rotary_scaling == RotaryScaling::kLlama3) return AsLlama3(frequency, config);
  return frequency;
}

std::pair<at::Tensor, at::Tensor> RotaryTables(const ModelConfig& config) {
  const at::Tensor angle =
      at::outer(at::arange(config.sequence, at::kDouble), RotaryFrequencies(config));
  return {at::cos(angle).to(at::kFloat), at::sin(angle).to(at::kFloat)};
}

}  // namespace weft::train
