// The base of rotary positions, which programs without LibTorch ask for, too (model/rotary.h has
// the rest).
#ifndef WEFT_TRAINER_ROTARY_BASE_H_
#define WEFT_TRAINER_ROTARY_BASE_H_

#include "trainer/config.h"

namespace weft::train {

// model.rotary_base, raised by the scaling kNtk.
double RotaryBase(const ModelConfig& config);

}  // namespace weft::train

#endif  // WEFT_TRAINER_ROTARY_BASE_H_
