// Sums and maxima over a block, over all blocks, and over rows; each in a fixed order, so that two
// runs agree to the bit.
#ifndef WEFT_TRAINER_CUDA_REDUCE_CUH_
#define WEFT_TRAINER_CUDA_REDUCE_CUH_

#include "trainer/cuda/launch.cuh"

namespace weft::train::cuda {

struct Sum {
  __device__ static float Of(float a, float b) { return a + b; }
  static constexpr float kNone = 0;
};
struct Largest {
  // A NaN wins, so that it reaches the loss.
  __device__ static float Of(float a, float b) { return a != a ? a : (b != b ? b : fmaxf(a, b)); }
  static constexpr float kNone = -INFINITY;
};
// Of all threads of the block, in each of them.
template <typename Reduce, int kBlock = kThreads>
inline __device__ float OverBlock(float value) {
  __shared__ float of_warp[kBlock / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = Reduce::Of(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  }
  __syncthreads();  // of_warp may still be read from the call before
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = Reduce::kNone;
  for (int warp = 0; warp < kBlock / kWarp; ++warp) value = Reduce::Of(value, of_warp[warp]);
  return value;
}
// The sums of both over all threads of the block, in each of them.
inline __device__ void SumOverBlock(float& a, float& b) {
  __shared__ float2 of_warp[kWarps];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    a += __shfl_xor_sync(0xFFFFFFFFU, a, offset);
    b += __shfl_xor_sync(0xFFFFFFFFU, b, offset);
  }
  __syncthreads();  // of_warp may still be read from the call before
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = {a, b};
  __syncthreads();
  a = b = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    a += of_warp[warp].x;
    b += of_warp[warp].y;
  }
}

// Sums of as many numbers as a call likes, in a fixed order: a block has one partial sum of each,
// and a last block adds them up.
constexpr int kSumBlocks = 1024;
inline __device__ double OverBlock(double value) {
  __shared__ double of_thread[kThreads];
  __syncthreads();  // may still be read from the call before
  of_thread[threadIdx.x] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) of_thread[threadIdx.x] += of_thread[threadIdx.x + half];
  }
  __syncthreads();
  return of_thread[0];
}
template <int N>
inline __device__ void PutPartialSums(const float (&mine)[N], double* partial) {
  for (int n = 0; n < N; ++n) {
    const double sum = OverBlock(static_cast<double>(mine[n]));
    if (threadIdx.x == 0) partial[blockIdx.x * N + n] = sum;
  }
}
template <int N>
__global__ void AddUpKernel(const double* partial, double* sums) {
  for (int n = 0; n < N; ++n) {
    double mine = 0;
    for (int block = threadIdx.x; block < kSumBlocks; block += kThreads) {
      mine += partial[block * N + n];
    }
    mine = OverBlock(mine);
    if (threadIdx.x == 0) sums[n] = mine;
  }
}
// Calls launch(partial), which fills the partial sums on kSumBlocks blocks, and waits for `sums`.
template <int N, typename Launch>
void TakeSums(const char* name, Launch launch, double* sums) {
  const Scratch scratch((kSumBlocks + 1) * N * sizeof(double));
  auto* total = scratch.As<double>();
  launch(total + N);
  AddUpKernel<N><<<1, kThreads, 0, Stream()>>>(total + N, total);
  Check(name);
  (void)cudaMemcpyAsync(sums, total, N * sizeof(double), cudaMemcpyDeviceToHost, Stream());
  (void)cudaStreamSynchronize(Stream());
  Check(name);
}

// Sums over rows come in two steps, without atomics and so the same at every run: blocks write the
// sums over the rows that they took, `parts` rows of fp32 of which each begins `stride` after the
// one before, and this adds those up. A warp's lanes take neighbouring columns, the block's warps
// parts.
template <typename G>
__global__ void __launch_bounds__(kManyThreads)
    AddPartsKernel(int parts, int64_t width, int64_t stride, const float* partial, bool add,
                   G* sums) {
  __shared__ float of_warp[kManyThreads / kWarp][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  float sum = 0;
  if (column < width) {
    for (int part = warp; part < parts; part += kManyThreads / kWarp) {
      sum += partial[part * stride + column];
    }
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  for (int other = 1; other < kManyThreads / kWarp; ++other) sum += of_warp[other][lane];
  Put(add ? Get(sums[column]) + sum : sum, sums[column]);
}
template <typename G>
void AddParts(int parts, int64_t width, int64_t stride, const float* partial, bool add, G* sums) {
  const int blocks = static_cast<int>((width + kWarp - 1) / kWarp);
  AddPartsKernel<<<blocks, kManyThreads, 0, Stream()>>>(parts, width, stride, partial, add, sums);
}

}  // namespace weft::train::cuda

#endif  // WEFT_TRAINER_CUDA_REDUCE_CUH_
