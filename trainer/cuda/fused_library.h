// libweft-train-cuda.so: the loops of trainer/kernels for a GPU, each one kernel on the stream that
// computes. The preset `cuda` builds it; it is loaded where train.device = cuda (device/device.h).
// It is optional: without it LibTorch's operations do the same in several kernels.
#ifndef WEFT_TRAINER_CUDA_FUSED_LIBRARY_H_
#define WEFT_TRAINER_CUDA_FUSED_LIBRARY_H_

#include <cstdint>

#include "trainer/kernels/kernels.h"

extern "C" {

// Raised with every change of WeftFusedLibrary or of KernelTable.
inline constexpr uint32_t kWeftFusedVersion = 1;

struct WeftFusedLibrary {
  uint32_t version;     // kWeftFusedVersion
  uint32_t table_size;  // sizeof(KernelTable)
  // Puts the library's loops in place of others of the same meaning; those that it has not stay.
  // `stream` returns the cudaStream_t to launch on, of the calling thread. `fail` is called with
  // the name of a kernel that could not be launched and CUDA's reason, and may throw.
  void (*Install)(weft::train::kernels::KernelTable* table, void* (*stream)(),
                  void (*fail)(const char* kernel, const char* reason));
};

// One of the library's two symbols; the other one is in graph_table.h.
const WeftFusedLibrary* weft_fused_library();

}  // extern "C"

#endif  // WEFT_TRAINER_CUDA_FUSED_LIBRARY_H_
