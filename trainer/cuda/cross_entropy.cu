// Cross-entropy of rows of logits, whole or split over ranks, with its gradient in place.
#include "trainer/cuda/install.cuh"
#include "trainer/cuda/reduce.cuh"

namespace weft::train::cuda {
namespace {

// The largest logit of the block's row and the sum of exp(logit - largest), in one pass: a thread
// corrects its sum whenever it meets a larger one.
struct RowSum {
  float largest = Largest::kNone, sum = 0;
};
__device__ float RatioOfSums(float from, float to) { return from == to ? 1.0F : __expf(from - to); }
template <int N, typename T>
__device__ RowSum SumOfRow(int64_t vocab, const T* row) {
  RowSum mine;
  for (int64_t i = threadIdx.x * N; i < vocab; i += kManyThreads * N) {
    float values[N];
    Load<N>(row + i, values);
    float largest = mine.largest;
    for (float value : values) largest = Largest::Of(largest, value);
    mine.sum *= RatioOfSums(mine.largest, largest);
    for (float value : values) mine.sum += RatioOfSums(value, largest);
    mine.largest = largest;
  }
  RowSum all;
  all.largest = OverBlock<Largest, kManyThreads>(mine.largest);
  all.sum = OverBlock<Sum, kManyThreads>(mine.sum * RatioOfSums(mine.largest, all.largest));
  return all;
}
// (exp(logit - log_sum) - onehot) * scale, in place, for the row of the block.
template <int N, typename T>
__device__ void GradientOfRow(int64_t vocab, int64_t target, float scale, float log_sum, T* row) {
  for (int64_t i = threadIdx.x * N; i < vocab; i += kManyThreads * N) {
    float values[N];
    Load<N>(row + i, values);
    for (int n = 0; n < N; ++n) {
      const float softmax = __expf(values[n] - log_sum);
      values[n] = (i + n == target ? softmax - 1.0F : softmax) * scale;
    }
    Store<N>(values, row + i);
  }
}
template <int N, typename T>
__global__ void __launch_bounds__(kManyThreads)
    CrossEntropyKernel(int64_t vocab, const int64_t* targets, float scale, T* logits,
                       float* losses) {
  T* row = logits + static_cast<int64_t>(blockIdx.x) * vocab;
  const int64_t target = targets[blockIdx.x];
  const RowSum all = SumOfRow<N>(vocab, row);
  const float log_sum = all.largest + logf(all.sum);
  // Read before any thread overwrites it.
  if (threadIdx.x == 0) losses[blockIdx.x] = log_sum - Get(row[target]);
  __syncthreads();
  if (scale != 0) GradientOfRow<N>(vocab, target, scale, log_sum, row);
}
template <typename T>
void CrossEntropy(int64_t rows, int64_t vocab, const int64_t* targets, float scale, T* logits,
                  float* losses) {
  if (rows == 0) return;
  WithPacks<kPack<T>>(
      [&](auto size) {
        CrossEntropyKernel<decltype(size)::value>
            <<<BlocksOfRows(rows), kManyThreads, 0, Stream()>>>(vocab, targets, scale, logits,
                                                                losses);
      },
      vocab, logits);
  Check("cross_entropy");
}
template <int N, typename T>
__global__ void __launch_bounds__(kManyThreads)
    CrossEntropyPartKernel(int64_t vocab, const int64_t* targets, const T* logits, float* parts) {
  const T* row = logits + static_cast<int64_t>(blockIdx.x) * vocab;
  const RowSum all = SumOfRow<N>(vocab, row);
  if (threadIdx.x != 0) return;
  const int64_t target = targets[blockIdx.x];
  float* part = parts + 3 * static_cast<int64_t>(blockIdx.x);
  part[0] = all.largest;
  part[1] = all.sum;
  part[2] = target < 0 ? 0.0F : Get(row[target]);
}
template <typename T>
void CrossEntropyPart(int64_t rows, int64_t vocab, const int64_t* targets, const T* logits,
                      float* parts) {
  if (rows == 0) return;
  WithPacks<kPack<T>>(
      [&](auto size) {
        CrossEntropyPartKernel<decltype(size)::value>
            <<<BlocksOfRows(rows), kManyThreads, 0, Stream()>>>(vocab, targets, logits, parts);
      },
      vocab, logits);
  Check("cross_entropy_part");
}
template <int N, typename T>
__global__ void __launch_bounds__(kManyThreads)
    CrossEntropyGradientKernel(int64_t vocab, const int64_t* targets, float scale,
                               const float* log_sums, T* logits) {
  GradientOfRow<N>(vocab, targets[blockIdx.x], scale, log_sums[blockIdx.x],
                   logits + static_cast<int64_t>(blockIdx.x) * vocab);
}
template <typename T>
void CrossEntropyGradient(int64_t rows, int64_t vocab, const int64_t* targets, float scale,
                          const float* log_sums, T* logits) {
  if (rows == 0) return;
  WithPacks<kPack<T>>(
      [&](auto size) {
        CrossEntropyGradientKernel<decltype(size)::value>
            <<<BlocksOfRows(rows), kManyThreads, 0, Stream()>>>(vocab, targets, scale, log_sums,
                                                                logits);
      },
      vocab, logits);
  Check("cross_entropy_gradient");
}

}  // namespace

template <typename T>
void InstallCrossEntropy(kernels::TypedKernels<T>& table) {
  table.cross_entropy = CrossEntropy<T>;
  table.cross_entropy_part = CrossEntropyPart<T>;
  table.cross_entropy_gradient = CrossEntropyGradient<T>;
}
template void InstallCrossEntropy(kernels::TypedKernels<float>&);
template void InstallCrossEntropy(kernels::TypedKernels<Bf16>&);
template void InstallCrossEntropy(kernels::TypedKernels<Fp16>&);

}  // namespace weft::train::cuda
