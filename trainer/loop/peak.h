// The peak that the metric mfu refers to: what this machine's matrix product reaches.
#ifndef WEFT_TRAINER_LOOP_PEAK_H_
#define WEFT_TRAINER_LOOP_PEAK_H_

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"
#include "trainer/model/product.h"

namespace weft::train {

// FLOP/s of all ranks together. Each rank counts as train.peak_tflops or, if that is 0, as
// measured: all ranks at once multiply two 1024 x 1024 matrices (on a GPU 8192 x 8192) in the
// compute type for a fifth of a second, with `libraries`. `known`: the result of an earlier call in
// this process, 0: there was none. If any rank has a `known`, all ranks return it and nothing is
// measured.
absl::StatusOr<double> PeakFlops(const TrainConfig& config, const GemmLibraries& libraries,
                                 at::Device device, double known, Group& group);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_PEAK_H_
