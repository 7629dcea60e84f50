// The kernels of libweft-train-cuda.so. Each has the meaning of the loop of the same name in
// trainer/kernels/kernels.h, arithmetic in fp32; tests/trainer/device compares each with it. All are
// bound by memory: a thread takes 16 bytes at a time where addresses and sizes allow it, and threads
// take elements a grid's width apart, or a block a row where a row is reduced. Each file puts its
// kernels into a table of loops.
#ifndef WEFT_TRAINER_CUDA_INSTALL_CUH_
#define WEFT_TRAINER_CUDA_INSTALL_CUH_

#include "trainer/kernels/kernels.h"

namespace weft::train::cuda {

template <typename T>
void InstallNorms(kernels::TypedKernels<T>& table);
template <typename T>
void InstallElementwise(kernels::TypedKernels<T>& table);
template <typename T>
void InstallEmbeddings(kernels::TypedKernels<T>& table);
template <typename T>
void InstallCrossEntropy(kernels::TypedKernels<T>& table);
template <typename T>
void InstallOptimizers(kernels::TypedKernels<T>& table);
void InstallOptimizers(kernels::Fp32Kernels& table);

}  // namespace weft::train::cuda

#endif  // WEFT_TRAINER_CUDA_INSTALL_CUH_
