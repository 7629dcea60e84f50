// What memory this process takes: tensors, counted as LibTorch allocates and frees them, and what
// the kernel says.
#ifndef WEFT_TRAINER_MEMORY_MEMORY_H_
#define WEFT_TRAINER_MEMORY_MEMORY_H_

#include <cstdint>

#include "base/units.h"

namespace weft::train {

// From now on every tensor's memory is counted, and that of tensors of 64 KiB and more is kept for
// the next ones when they go (memory_pool.h). Call it before the first tensor is made; a second
// call does nothing.
void CountTensorMemory();
// How often memory for tensors was asked of the kernel so far: not at all in a step like those
// before it.
int64_t TensorMappings();
// Gives the pages of memory that no tensor has back to the kernel: at the end of training.
void GiveBackFreeMemory();
// All tensors' memory: now, and the most since the last ForgetTensorPeak. 0 unless it is counted.
// Thread-safe.
Bytes TensorMemory();
Bytes PeakTensorMemory();
void ForgetTensorPeak();
// For a tensor whose memory LibTorch did not allocate: its bytes, and the same below 0 when it
// goes. Thread-safe.
void AddTensorMemory(int64_t bytes);

// From the kernel; 0 where /proc does not say. Of this process: what is resident, the most that
// was, and what is resident and no file's.
Bytes ResidentMemory();
Bytes PeakResidentMemory();
Bytes AnonymousMemory();
// Pages that the kernel gave this process so far without reading a file: what each new piece of
// memory costs when it is touched first.
int64_t MinorFaults();
// What this machine, or this process's control group, has left without swapping.
Bytes AvailableMemory();
// The memory of this machine, or of this process's control group, where that has less.
Bytes MachineMemory();

}  // namespace weft::train

#endif  // WEFT_TRAINER_MEMORY_MEMORY_H_
