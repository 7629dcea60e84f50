#include "trainer/cuda/fused_library.h"
#include "trainer/cuda/install.cuh"
#include "trainer/cuda/launch.cuh"

namespace weft::train::cuda {
namespace {

template <typename T>
void InstallTyped(kernels::TypedKernels<T>& table) {
  InstallNorms(table);
  InstallElementwise(table);
  InstallEmbeddings(table);
  InstallCrossEntropy(table);
  InstallOptimizers(table);
}

// Scratch memory stays this process's when it is free. CUDA would give it back to the driver when
// the host waits for the GPU, and map it anew in each step; and LibTorch, which keeps all that it
// was ever given, might have left none by then.
void KeepScratch() {
  int device = 0;
  cudaMemPool_t pool = nullptr;
  uint64_t kept = UINT64_MAX;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetDefaultMemPool(&pool, device) == cudaSuccess) {
    (void)cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept);
  }
  (void)cudaGetLastError();  // kernels go without that, or say what is wrong themselves
}

void Install(kernels::KernelTable* table, void* (*stream)(),
             void (*fail)(const char* kernel, const char* reason)) {
  stream_of_thread = stream;
  failed = fail;
  KeepScratch();
  table->instruction_set = "CUDA";
  InstallTyped(table->f32);
  InstallTyped(table->bf16);
  InstallTyped(table->fp16);
  InstallOptimizers(table->fp32);
}

constexpr WeftFusedLibrary kLibrary = {kWeftFusedVersion, sizeof(kernels::KernelTable), Install};

}  // namespace
}  // namespace weft::train::cuda

extern "C" __attribute__((visibility("default"))) const WeftFusedLibrary* weft_fused_library() {
  return &weft::train::cuda::kLibrary;
}
