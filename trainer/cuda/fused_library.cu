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

void Install(kernels::KernelTable* table, void* (*stream)(),
             void (*fail)(const char* kernel, const char* reason)) {
  stream_of_thread = stream;
  failed = fail;
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
