// kernels/kernels.h by LibTorch's operations: what a device computes with that has no loops of its
// own for them. On a GPU each is several launches on the current stream; the loops of cuda/ take
// their places where the library of CUDA code is loaded. On the CPU it is how that way is tested.
#ifndef WEFT_TRAINER_DEVICE_ATEN_KERNELS_H_
#define WEFT_TRAINER_DEVICE_ATEN_KERNELS_H_

#include <c10/core/DeviceType.h>

#include "trainer/kernels/kernels.h"

namespace weft::train {

// The kernels of `type`, the CPU or CUDA. Pointers are of memory of that device.
const kernels::KernelTable& AtenKernels(c10::DeviceType type);

}  // namespace weft::train

#endif  // WEFT_TRAINER_DEVICE_ATEN_KERNELS_H_
