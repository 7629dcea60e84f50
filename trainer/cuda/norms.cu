// LayerNorm and RMSNorm, with their gradients. A block works on one row, which it reads once where
// the row fits into its registers.
#include "trainer/cuda/install.cuh"
#include "trainer/cuda/reduce.cuh"

namespace weft::train::cuda {
namespace {

// Rows of at most kThreads * kPack<T> * kMostPacks elements stay in their block's registers.
constexpr int kMostPacks = 4;
template <typename T>
int PacksOfThread(int64_t width) {
  constexpr int64_t kOfOne = int64_t{kThreads} * kPack<T>;
  return static_cast<int>((width + kOfOne - 1) / kOfOne);
}
// The column of a thread's pack of that number.
template <typename T>
__device__ int64_t ColumnOf(int pack) {
  return (static_cast<int64_t>(pack) * kThreads + threadIdx.x) * kPack<T>;
}

template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    NormForwardPackedKernel(int64_t width, float epsilon, const T* x, const T* weight,
                            const T* bias, T* y, float* mean, float* rstd) {
  constexpr int N = kPack<T>;
  const int64_t row = blockIdx.x;
  const float count = static_cast<float>(width);
  float values[V][N];
  float m = 0, squares = 0;
  for (int v = 0; v < V; ++v) {
    const int64_t column = ColumnOf<T>(v);
    if (column >= width) continue;
    Load<N>(x + row * width + column, values[v]);
    for (int n = 0; n < N; ++n) m += values[v][n];
  }
  m = mean == nullptr ? 0.0F : OverBlock<Sum>(m) / count;
  for (int v = 0; v < V; ++v) {
    if (ColumnOf<T>(v) >= width) continue;
    for (int n = 0; n < N; ++n) squares += (values[v][n] - m) * (values[v][n] - m);
  }
  const float scale = 1.0F / sqrtf(OverBlock<Sum>(squares) / count + epsilon);
  for (int v = 0; v < V; ++v) {
    const int64_t column = ColumnOf<T>(v);
    if (column >= width) continue;
    float w[N], b[N] = {};
    Load<N>(weight + column, w);
    if (bias != nullptr) Load<N>(bias + column, b);
    for (int n = 0; n < N; ++n) values[v][n] = (values[v][n] - m) * scale * w[n] + b[n];
    Store<N>(values[v], y + row * width + column);
  }
  if (threadIdx.x == 0) {
    rstd[row] = scale;
    if (mean != nullptr) mean[row] = m;
  }
}
template <typename T>
__global__ void NormForwardKernel(int64_t width, float epsilon, const T* x, const T* weight,
                                  const T* bias, T* y, float* mean, float* rstd) {
  const int64_t row = blockIdx.x;
  const T* in = x + row * width;
  T* out = y + row * width;
  const float count = static_cast<float>(width);
  float m = 0;
  if (mean != nullptr) {
    for (int64_t i = threadIdx.x; i < width; i += kThreads) m += Get(in[i]);
    m = OverBlock<Sum>(m) / count;
  }
  float squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float centred = Get(in[i]) - m;
    squares += centred * centred;
  }
  const float scale = 1.0F / sqrtf(OverBlock<Sum>(squares) / count + epsilon);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float value = (Get(in[i]) - m) * scale * Get(weight[i]);
    Put(bias == nullptr ? value : value + Get(bias[i]), out[i]);
  }
  if (threadIdx.x == 0) {
    rstd[row] = scale;
    if (mean != nullptr) mean[row] = m;
  }
}
template <typename T>
void NormForward(int64_t rows, int64_t width, float epsilon, const T* x, const T* weight,
                 const T* bias, T* y, float* mean, float* rstd) {
  if (rows == 0) return;
  auto launch = [&](auto kernel) {
    kernel<<<BlocksOfRows(rows), kThreads, 0, Stream()>>>(width, epsilon, x, weight, bias, y, mean,
                                                          rstd);
  };
  const int packs = PacksOfThread<T>(width);
  if (packs > kMostPacks || !FitsPacks<kPack<T>>(width, x, weight, bias, y)) {
    launch(NormForwardKernel<T>);
  } else if (packs == 1) {
    launch(NormForwardPackedKernel<T, 1>);
  } else if (packs == 2) {
    launch(NormForwardPackedKernel<T, 2>);
  } else {
    launch(NormForwardPackedKernel<T, kMostPacks>);
  }
  Check("norm_forward");
}

// Both gradients in one pass: a block keeps the sums of its rows for dweight and dbias, and writes
// them to its row of partial sums; those of dbias stand behind those of dweight.
constexpr int kNormBlocksOfMultiprocessor = 4;                  // as many as have registers
constexpr int kNormBlocks = 132 * kNormBlocksOfMultiprocessor;  // of a Hopper card
template <typename T, int V>
__global__ void __launch_bounds__(kThreads, V == 1 ? kNormBlocksOfMultiprocessor : 1)
    NormBackwardPackedKernel(int64_t rows, int64_t width, const T* dy, const T* x, const T* weight,
                             const float* mean, const float* rstd, const T* residual, T* dx,
                             float* partial) {
  constexpr int N = kPack<T>;
  const float count = static_cast<float>(width);
  float w[V][N] = {}, of_weight[V][N] = {}, of_bias[V][N] = {};
  for (int v = 0; v < V; ++v) {
    if (ColumnOf<T>(v) < width) Load<N>(weight + ColumnOf<T>(v), w[v]);
  }
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float m = mean == nullptr ? 0.0F : mean[row], scale = rstd[row];
    float given[V][N] = {}, normal[V][N] = {}, sum[V][N] = {};
    float plain = 0, along = 0;
    for (int v = 0; v < V; ++v) {
      const int64_t column = ColumnOf<T>(v);
      if (column >= width) continue;
      Load<N>(dy + row * width + column, given[v]);
      Load<N>(x + row * width + column, normal[v]);
      if (residual != nullptr) Load<N>(residual + row * width + column, sum[v]);
      for (int n = 0; n < N; ++n) {
        normal[v][n] = (normal[v][n] - m) * scale;
        plain += given[v][n] * w[v][n];
        along += given[v][n] * w[v][n] * normal[v][n];
        of_weight[v][n] += given[v][n] * normal[v][n];
        of_bias[v][n] += given[v][n];
      }
    }
    SumOverBlock(plain, along);
    plain = mean == nullptr ? 0.0F : plain / count;
    along /= count;
    for (int v = 0; v < V; ++v) {
      const int64_t column = ColumnOf<T>(v);
      if (column >= width) continue;
      for (int n = 0; n < N; ++n) {
        sum[v][n] += (given[v][n] * w[v][n] - plain - normal[v][n] * along) * scale;
      }
      Store<N>(sum[v], dx + row * width + column);
    }
  }
  float* const mine = partial + 2 * width * blockIdx.x;
  for (int v = 0; v < V; ++v) {
    const int64_t column = ColumnOf<T>(v);
    if (column >= width) continue;
    for (int n = 0; n < N; ++n) {
      mine[column + n] = of_weight[v][n];
      mine[width + column + n] = of_bias[v][n];
    }
  }
}
template <typename T>
__global__ void NormInputKernel(int64_t width, const T* dy, const T* x, const T* weight,
                                const float* mean, const float* rstd, const T* residual, T* dx) {
  const int64_t at = blockIdx.x * width;
  const float m = mean == nullptr ? 0.0F : mean[blockIdx.x], scale = rstd[blockIdx.x];
  float plain = 0, along = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float weighted = Get(dy[at + i]) * Get(weight[i]);
    plain += weighted;
    along += weighted * (Get(x[at + i]) - m) * scale;
  }
  const float count = static_cast<float>(width);
  plain = mean == nullptr ? 0.0F : OverBlock<Sum>(plain) / count;
  along = OverBlock<Sum>(along) / count;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float normal = (Get(x[at + i]) - m) * scale;
    const float value = (Get(dy[at + i]) * Get(weight[i]) - plain - normal * along) * scale;
    Put(residual == nullptr ? value : value + Get(residual[at + i]), dx[at + i]);
  }
}
// A warp's lanes take neighbouring columns, its block's warps rows: sums over rows without atomics,
// the same at every run.
template <typename T>
__global__ void NormWeightKernel(int64_t rows, int64_t width, const T* dy, const T* x,
                                 const float* mean, const float* rstd, float* dweight,
                                 float* dbias) {
  __shared__ float weight_sums[kWarps][kWarp], bias_sums[kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  float of_weight = 0, of_bias = 0;
  if (column < width) {
    for (int64_t row = warp; row < rows; row += kWarps) {
      const float given = Get(dy[row * width + column]);
      const float m = mean == nullptr ? 0.0F : mean[row];
      of_weight += given * (Get(x[row * width + column]) - m) * rstd[row];
      of_bias += given;
    }
  }
  weight_sums[warp][lane] = of_weight;
  bias_sums[warp][lane] = of_bias;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  for (int other = 1; other < kWarps; ++other) {
    of_weight += weight_sums[other][lane];
    of_bias += bias_sums[other][lane];
  }
  dweight[column] = of_weight;
  if (dbias != nullptr) dbias[column] = of_bias;
}
template <typename T, int V>
void NormBackwardPacked(int64_t rows, int64_t width, const T* dy, const T* x, const T* weight,
                        const float* mean, const float* rstd, const T* residual, T* dx,
                        float* dweight, float* dbias) {
  const int blocks = static_cast<int>(std::clamp<int64_t>(rows, 1, kNormBlocks));
  const Scratch scratch(static_cast<size_t>(2 * width * blocks) * sizeof(float));
  auto* partial = scratch.As<float>();
  NormBackwardPackedKernel<T, V><<<blocks, kThreads, 0, Stream()>>>(
      rows, width, dy, x, weight, mean, rstd, residual, dx, partial);
  AddParts(blocks, width, 2 * width, partial, /*add=*/false, dweight);
  if (dbias != nullptr) AddParts(blocks, width, 2 * width, partial + width, /*add=*/false, dbias);
}
template <typename T>
void NormBackward(int64_t rows, int64_t width, const T* dy, const T* x, const T* weight,
                  const float* mean, const float* rstd, const T* residual, T* dx, float* dweight,
                  float* dbias) {
  const int packs = PacksOfThread<T>(width);
  if (packs <= kMostPacks && FitsPacks<kPack<T>>(width, dy, x, weight, residual, dx)) {
    const auto packed = packs == 1   ? NormBackwardPacked<T, 1>
                        : packs == 2 ? NormBackwardPacked<T, 2>
                                     : NormBackwardPacked<T, kMostPacks>;
    packed(rows, width, dy, x, weight, mean, rstd, residual, dx, dweight, dbias);
    Check("norm_backward");
    return;
  }
  if (rows > 0) {
    NormInputKernel<<<BlocksOfRows(rows), kThreads, 0, Stream()>>>(width, dy, x, weight, mean, rstd,
                                                                   residual, dx);
  }
  const int blocks = static_cast<int>((width + kWarp - 1) / kWarp);
  NormWeightKernel<<<blocks, kThreads, 0, Stream()>>>(rows, width, dy, x, mean, rstd, dweight,
                                                      dbias);
  Check("norm_backward");
}

}  // namespace

template <typename T>
void InstallNorms(kernels::TypedKernels<T>& table) {
  table.norm_forward = NormForward<T>;
  table.norm_backward = NormBackward<T>;
}
template void InstallNorms(kernels::TypedKernels<float>&);
template void InstallNorms(kernels::TypedKernels<Bf16>&);
template void InstallNorms(kernels::TypedKernels<Fp16>&);

}  // namespace weft::train::cuda
