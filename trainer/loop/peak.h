// The peak that the metric mfu refers to: what this machine's matrix product reaches.
#ifndef WEFT_TRAINER_LOOP_PEAK_H_
#define WEFT_TRAINER_LOOP_PEAK_H_

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"
#include "trainer/model/product.h"

namespace weft::train {

// FLOP/s of all ranks together: train.peak_tflops each, or measured, a product of two 1024 x 1024
// matrices (on a GPU 8192 x 8192) in the compute type, repeated by `library` for a fifth of a
// second on all ranks at once. `known`: what an earlier call in this process has returned, 0: there
// was none; where a rank knows it, a new one included that others tell it, nothing is measured.
absl::StatusOr<double> PeakFlops(const TrainConfig& config, const GemmLibraries& libraries,
                                 at::Device device, double known, Group& group);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_PEAK_H_
