// What bounds decoding at batch 1: how fast this machine's threads read memory.
#ifndef WEFT_TRAINER_KERNEL_CHOICE_READ_BANDWIDTH_H_
#define WEFT_TRAINER_KERNEL_CHOICE_READ_BANDWIDTH_H_

#include "base/units.h"

namespace weft::train {

// The rate at which all threads of this process read a buffer of `size`, on huge pages where the
// kernel gives them: the best of passes over a third of a second. A buffer that fits a cache is
// read from there, as weights of that size are.
Bandwidth ReadBandwidth(Bytes size);

}  // namespace weft::train

#endif  // WEFT_TRAINER_KERNEL_CHOICE_READ_BANDWIDTH_H_
