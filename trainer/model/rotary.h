// Rotary positions (Su et al., "RoFormer", 2021), with the scalings of RotaryScaling (config.h).
#ifndef WEFT_TRAINER_MODEL_ROTARY_H_
#define WEFT_TRAINER_MODEL_ROTARY_H_

#include <ATen/ATen.h>

#include <utility>

#include "trainer/config.h"

namespace weft::train {

// Radians a token by which pair i of a head is turned: double [width of a head / 2].
at::Tensor RotaryFrequencies(const ModelConfig& config);
// cos and sin of position * frequency, fp32 [sequence, width of a head / 2].
std::pair<at::Tensor, at::Tensor> RotaryTables(const ModelConfig& config);

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_ROTARY_H_
