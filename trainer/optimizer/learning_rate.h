// What every optimizer has in common from step to step: the learning rate, and the scale that clips
// the gradient.
#ifndef WEFT_TRAINER_OPTIMIZER_LEARNING_RATE_H_
#define WEFT_TRAINER_OPTIMIZER_LEARNING_RATE_H_

#include <cstdint>

#include "trainer/config.h"

namespace weft::train {

// The rate of step 1, 2, ...: a function of the step alone. It rises linearly from 0, which step 0
// would have, to learning_rate at warmup_steps; what follows is config.schedule's.
double LearningRate(const OptimizerConfig& config, int64_t step);

// min(1, clip / norm), 1 where clip is 0: Pascanu, Mikolov, Bengio, ICML 2013.
double ClipScale(const OptimizerConfig& config, double gradient_norm);

}  // namespace weft::train

#endif  // WEFT_TRAINER_OPTIMIZER_LEARNING_RATE_H_
