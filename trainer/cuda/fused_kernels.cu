// The kernels of libweft-train-cuda.so. Each has the meaning of the loop of the same name in
// trainer/kernels/kernels.h, arithmetic in fp32. A block works on one row where a row is reduced;
// else threads take elements, a grid's width apart. All are bound by memory: a thread takes 16
// bytes at a time where addresses and sizes allow it, and a row is read once where it fits into its
// block's registers. tests/trainer/device compares each with the CPU's loop.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "trainer/cuda/fused_library.h"

namespace weft::train {
namespace {

using kernels::Bf16;
using kernels::Fp16;

constexpr int kThreads = 256;  // of a block: 8 warps
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr int kManyThreads = 1024;     // of a block that has a multiprocessor's half for itself
constexpr int64_t kMostBlocks = 4096;  // enough for every multiprocessor, several times

void* (*stream_of_thread)() = nullptr;
void (*failed)(const char*, const char*) = nullptr;

cudaStream_t Stream() { return static_cast<cudaStream_t>(stream_of_thread()); }

void Check(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) failed(kernel, cudaGetErrorString(error));
}

// Memory of the device for one call, in the order of the stream. Null, and told to `failed`, where
// there is none.
class Scratch {
 public:
  explicit Scratch(size_t bytes) {
    if (cudaMallocAsync(&memory_, bytes, Stream()) != cudaSuccess) Check("scratch memory");
  }
  ~Scratch() {
    if (memory_ != nullptr) (void)cudaFreeAsync(memory_, Stream());
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <typename T>
  T* As() const {
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_ = nullptr;
};

int BlocksFor(int64_t elements) {
  return static_cast<int>(
      std::clamp<int64_t>((elements + kThreads - 1) / kThreads, 1, kMostBlocks));
}
int BlocksOfRows(int64_t rows) {
  return static_cast<int>(std::clamp<int64_t>(rows, 1, int64_t{1} << 30));
}

__device__ float Get(float x) { return x; }
__device__ float Get(Bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ float Get(Fp16 x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ void Put(float value, float& x) { x = value; }
__device__ void Put(float value, Bf16& x) {
  x.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
__device__ void Put(float value, Fp16& x) { x.bits = __half_as_ushort(__float2half_rn(value)); }

// Elements that lie together and are loaded and stored at once.
template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {
  T elements[N];
};
template <typename T>
constexpr int kPack = 16 / sizeof(T);
template <int N, typename T>
__device__ void Load(const T* from, float (&to)[N]) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(from);
  for (int n = 0; n < N; ++n) to[n] = Get(pack.elements[n]);
}
template <int N, typename T>
__device__ void Store(const float (&from)[N], T* to) {
  Pack<T, N> pack;
  for (int n = 0; n < N; ++n) Put(from[n], pack.elements[n]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}
// Whether packs of N elements can be taken of `size` elements, or of rows of that many, at each of
// the addresses; null is none.
template <int N, typename... T>
bool FitsPacks(int64_t size, const T*... addresses) {
  return size % N == 0 && ((reinterpret_cast<uintptr_t>(addresses) % (N * sizeof(T)) == 0) && ...);
}
template <int N>
struct PackSize {
  static constexpr int value = N;
};
// Calls launch(PackSize<N>) with the elements that a thread takes at a time: N, or 1.
template <int N, typename Launch, typename... T>
void WithPacks(Launch launch, int64_t size, const T*... addresses) {
  if (FitsPacks<N>(size, addresses...)) {
    launch(PackSize<N>{});
  } else {
    launch(PackSize<1>{});
  }
}

// The first element and the step of a thread.
__device__ int64_t First() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ int64_t Step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

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
__device__ float OverBlock(float value) {
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
__device__ void SumOverBlock(float& a, float& b) {
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
__device__ double OverBlock(double value) {
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
__device__ void PutPartialSums(const float (&mine)[N], double* partial) {
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
__global__ void AddPartsKernel(int parts, int64_t width, int64_t stride, const float* partial,
                               bool add, G* sums) {
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

constexpr float kGeluA = 0.7978845608F;  // sqrt(2 / pi)
constexpr float kGeluB = 0.044715F;

// tanh to some 1e-6: 1 - 2 / (1 + exp(2 x)). CUDA's own takes several times as long.
__device__ float FastTanh(float x) { return 1.0F - __fdividef(2.0F, 1.0F + __expf(2.0F * x)); }

template <int N, typename T>
__global__ void GeluForwardKernel(int64_t packs, const T* x, T* y) {
  for (int64_t i = First(); i < packs; i += Step()) {
    float values[N];
    Load<N>(x + i * N, values);
    for (float& v : values) v = 0.5F * v * (1.0F + FastTanh(kGeluA * (v + kGeluB * v * v * v)));
    Store<N>(values, y + i * N);
  }
}
template <typename T>
void GeluForward(int64_t count, const T* x, T* y) {
  WithPacks<kPack<T>>(
      [&](auto size) {
        constexpr int N = decltype(size)::value;
        GeluForwardKernel<N><<<BlocksFor(count / N), kThreads, 0, Stream()>>>(count / N, x, y);
      },
      count, x, y);
  Check("gelu_forward");
}
template <int N, typename T>
__global__ void GeluBackwardKernel(int64_t packs, const T* dy, const T* x, T* dx) {
  for (int64_t i = First(); i < packs; i += Step()) {
    float values[N], given[N];
    Load<N>(x + i * N, values);
    Load<N>(dy + i * N, given);
    for (int n = 0; n < N; ++n) {
      const float v = values[n];
      const float t = FastTanh(kGeluA * (v + kGeluB * v * v * v));
      const float slope = kGeluA * (1.0F + 3.0F * kGeluB * v * v);
      given[n] *= 0.5F * (1.0F + t + v * (1.0F - t * t) * slope);
    }
    Store<N>(given, dx + i * N);
  }
}
template <typename T>
void GeluBackward(int64_t count, const T* dy, const T* x, T* dx) {
  WithPacks<kPack<T>>(
      [&](auto size) {
        constexpr int N = decltype(size)::value;
        GeluBackwardKernel<N>
            <<<BlocksFor(count / N), kThreads, 0, Stream()>>>(count / N, dy, x, dx);
      },
      count, dy, x, dx);
  Check("gelu_backward");
}

__device__ float Sigmoid(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }

template <int N, typename T>
__global__ void SwigluForwardKernel(int64_t packs, int64_t width, const T* x, T* y) {
  for (int64_t i = First(); i < packs; i += Step()) {
    const int64_t row = i * N / width, at = row * 2 * width + (i * N - row * width);
    float gate[N], up[N];
    Load<N>(x + at, gate);
    Load<N>(x + at + width, up);
    for (int n = 0; n < N; ++n) up[n] *= gate[n] * Sigmoid(gate[n]);
    Store<N>(up, y + i * N);
  }
}
template <typename T>
void SwigluForward(int64_t rows, int64_t width, const T* x, T* y) {
  WithPacks<kPack<T>>(
      [&](auto size) {
        constexpr int N = decltype(size)::value;
        const int64_t packs = rows * width / N;
        SwigluForwardKernel<N><<<BlocksFor(packs), kThreads, 0, Stream()>>>(packs, width, x, y);
      },
      width, x, y);
  Check("swiglu_forward");
}
template <int N, typename T>
__global__ void SwigluBackwardKernel(int64_t packs, int64_t width, const T* dy, const T* x, T* dx) {
  for (int64_t i = First(); i < packs; i += Step()) {
    const int64_t row = i * N / width, at = row * 2 * width + (i * N - row * width);
    float gates[N], ups[N], given[N];
    Load<N>(x + at, gates);
    Load<N>(x + at + width, ups);
    Load<N>(dy + i * N, given);
    for (int n = 0; n < N; ++n) {
      const float gate = gates[n], sigmoid = Sigmoid(gate);
      gates[n] = given[n] * ups[n] * sigmoid * (1.0F + gate * (1.0F - sigmoid));
      ups[n] = given[n] * gate * sigmoid;
    }
    Store<N>(gates, dx + at);
    Store<N>(ups, dx + at + width);
  }
}
template <typename T>
void SwigluBackward(int64_t rows, int64_t width, const T* dy, const T* x, T* dx) {
  WithPacks<kPack<T>>(
      [&](auto size) {
        constexpr int N = decltype(size)::value;
        const int64_t packs = rows * width / N;
        SwigluBackwardKernel<N>
            <<<BlocksFor(packs), kThreads, 0, Stream()>>>(packs, width, dy, x, dx);
      },
      width, dy, x, dx);
  Check("swiglu_backward");
}

// A thread turns N pairs that lie together. cosine and sine are read as they are.
template <int N, typename T>
__global__ void RotateKernel(int64_t packs, int64_t sequence, int64_t heads, int64_t half,
                             int64_t stride, const float* cosine, const float* sine, float sign,
                             T* x) {
  const int64_t of_head = half / N;
  for (int64_t i = First(); i < packs; i += Step()) {
    const int64_t within = i % of_head * N, head = i / of_head % heads, row = i / of_head / heads;
    const int64_t angle = row % sequence * half + within;
    T* at = x + row * stride + head * 2 * half + within;
    float first[N], second[N];
    Load<N>(at, first);
    Load<N>(at + half, second);
    for (int n = 0; n < N; ++n) {
      const float c = cosine[angle + n], s = sine[angle + n] * sign, before = first[n];
      first[n] = before * c - second[n] * s;
      second[n] = second[n] * c + before * s;
    }
    Store<N>(first, at);
    Store<N>(second, at + half);
  }
}
template <typename T>
void Rotate(int64_t rows, int64_t sequence, int64_t heads, int64_t width, int64_t stride,
            const float* cosine, const float* sine, bool inverse, T* x) {
  const int64_t half = width / 2;
  auto launch = [&](auto size) {
    constexpr int N = decltype(size)::value;
    const int64_t packs = rows * heads * half / N;
    RotateKernel<N><<<BlocksFor(packs), kThreads, 0, Stream()>>>(
        packs, sequence, heads, half, stride, cosine, sine, inverse ? -1.0F : 1.0F, x);
  };
  if (stride % kPack<T> == 0) {
    WithPacks<kPack<T>>(launch, half, x);
  } else {
    launch(PackSize<1>{});
  }
  Check("rotate");
}

template <typename T>
__global__ void EmbeddingForwardKernel(int64_t count, int64_t width, int64_t sequence,
                                       const int64_t* tokens, const T* table, const T* positions,
                                       T* y) {
  for (int64_t i = First(); i < count; i += Step()) {
    const int64_t row = i / width, column = i % width, token = tokens[row];
    float value = 0;
    if (token >= 0) {
      value = Get(table[token * width + column]);
      if (positions != nullptr) value += Get(positions[row % sequence * width + column]);
    }
    Put(value, y[i]);
  }
}
template <typename T>
void EmbeddingForward(int64_t rows, int64_t width, int64_t sequence, const int64_t* tokens,
                      const T* table, const T* positions, T* y) {
  EmbeddingForwardKernel<<<BlocksFor(rows * width), kThreads, 0, Stream()>>>(
      rows * width, width, sequence, tokens, table, positions, y);
  Check("embedding_forward");
}

// For each row: its token, or `vocab` where it has none, and the row's number.
__global__ void TokenRowsKernel(int64_t rows, int vocab, const int64_t* tokens, int* keys,
                                int* numbers) {
  for (int64_t row = First(); row < rows; row += Step()) {
    keys[row] = tokens[row] < 0 ? vocab : static_cast<int>(tokens[row]);
    numbers[row] = static_cast<int>(row);
  }
}
// A block for each place in the order of tokens; that of a token's first row adds up all of them.
template <typename T, typename G>
__global__ void EmbeddingBackwardKernel(int64_t rows, int64_t width, int vocab, const int* keys,
                                        const int* numbers, const T* dy, bool add, G* dtable) {
  const int64_t first = blockIdx.x;
  const int token = keys[first];
  if (token == vocab || (first > 0 && keys[first - 1] == token)) return;
  for (int64_t column = threadIdx.x; column < width; column += kThreads) {
    G& target = dtable[token * width + column];
    float sum = add ? Get(target) : 0.0F;
    for (int64_t i = first; i < rows && keys[i] == token; ++i) {
      sum += Get(dy[numbers[i] * width + column]);
    }
    Put(sum, target);
  }
}
// The rows in the order of their tokens, by a stable sort: sums are the same at every run.
template <typename T, typename G>
void EmbeddingBackward(int64_t rows, int64_t width, int64_t vocab, const int64_t* tokens,
                       const T* dy, bool add, G* dtable) {
  if (!add) {
    (void)cudaMemsetAsync(dtable, 0, static_cast<size_t>(vocab * width) * sizeof(G), Stream());
  }
  if (rows == 0) return;
  const int count = static_cast<int>(rows), words = static_cast<int>(vocab);
  int bits = 1;
  while ((int64_t{1} << bits) <= vocab) ++bits;
  const Scratch lists(4 * static_cast<size_t>(rows) * sizeof(int));
  int* keys = lists.As<int>();
  int *numbers = keys + rows, *sorted = numbers + rows, *order = sorted + rows;
  TokenRowsKernel<<<BlocksFor(rows), kThreads, 0, Stream()>>>(rows, words, tokens, keys, numbers);
  size_t bytes = 0;
  (void)cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted, numbers, order, count, 0,
                                        bits, Stream());
  const Scratch memory(bytes);
  (void)cub::DeviceRadixSort::SortPairs(memory.As<void>(), bytes, keys, sorted, numbers, order,
                                        count, 0, bits, Stream());
  EmbeddingBackwardKernel<<<BlocksOfRows(rows), kThreads, 0, Stream()>>>(rows, width, words, sorted,
                                                                         order, dy, add, dtable);
  Check("embedding_backward");
}

template <typename T, typename G>
__global__ void PositionBackwardKernel(int64_t rows, int64_t width, int64_t sequence, const T* dy,
                                       bool add, G* dpositions) {
  for (int64_t i = First(); i < sequence * width; i += Step()) {
    float sum = add ? Get(dpositions[i]) : 0.0F;
    for (int64_t at = i; at < rows * width; at += sequence * width) sum += Get(dy[at]);
    Put(sum, dpositions[i]);
  }
}
// The sums of all rows: a thread has N columns, a block of the y axis every gridDim.y-th row.
template <int N, typename T>
__global__ void ColumnSumsKernel(int64_t rows, int64_t width, const T* dy, float* partial) {
  const int64_t column = First() * N;
  if (column >= width) return;
  float sums[N] = {};
  constexpr int kTogether = 4;  // loads under way
  const int64_t step = gridDim.y;
  int64_t row = blockIdx.y;
  for (; row + (kTogether - 1) * step < rows; row += kTogether * step) {
    float values[kTogether][N];
    for (int k = 0; k < kTogether; ++k) Load<N>(dy + (row + k * step) * width + column, values[k]);
    for (int n = 0; n < N; ++n) {
      for (int k = 0; k < kTogether; ++k) sums[n] += values[k][n];
    }
  }
  for (; row < rows; row += step) {
    float values[N];
    Load<N>(dy + row * width + column, values);
    for (int n = 0; n < N; ++n) sums[n] += values[n];
  }
  for (int n = 0; n < N; ++n) partial[blockIdx.y * width + column + n] = sums[n];
}
template <typename T, typename G>
void ColumnSums(int64_t rows, int64_t width, const T* dy, bool add, G* sums) {
  WithPacks<kPack<T>>(
      [&](auto size) {
        constexpr int N = decltype(size)::value;
        constexpr int64_t kBlocks = 1024, kRowsOfBlock = 16;
        const int64_t across = (width / N + kThreads - 1) / kThreads;
        const int parts = static_cast<int>(
            std::clamp<int64_t>(rows / kRowsOfBlock, 1, std::max<int64_t>(1, kBlocks / across)));
        const Scratch scratch(static_cast<size_t>(parts * width) * sizeof(float));
        const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(parts));
        ColumnSumsKernel<N><<<grid, kThreads, 0, Stream()>>>(rows, width, dy, scratch.As<float>());
        AddParts(parts, width, width, scratch.As<float>(), add, sums);
      },
      width, dy);
}
template <typename T, typename G>
void PositionBackward(int64_t rows, int64_t width, int64_t sequence, const T* dy, bool add,
                      G* dpositions) {
  if (sequence == 1) {
    ColumnSums(rows, width, dy, add, dpositions);
  } else {
    PositionBackwardKernel<<<BlocksFor(sequence * width), kThreads, 0, Stream()>>>(
        rows, width, sequence, dy, add, dpositions);
  }
  Check("position_backward");
}

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
__global__ void CrossEntropyKernel(int64_t vocab, const int64_t* targets, float scale, T* logits,
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
__global__ void CrossEntropyPartKernel(int64_t vocab, const int64_t* targets, const T* logits,
                                       float* parts) {
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
__global__ void CrossEntropyGradientKernel(int64_t vocab, const int64_t* targets, float scale,
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

// The hashes of the CPU's loop (loops.cc): the same elements are dropped.
template <typename T>
__global__ void DropoutKernel(int64_t count, int64_t width, float scale, uint32_t threshold,
                              uint64_t seed, const int64_t* row_numbers, const T* x, T* y) {
  for (int64_t i = First(); i < count; i += Step()) {
    uint64_t mixed = seed + static_cast<uint64_t>(row_numbers[i / width]) * 0x9E3779B97F4A7C15ULL;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
    uint32_t hash = static_cast<uint32_t>(mixed ^ (mixed >> 32)) ^
                    (static_cast<uint32_t>(i % width) * 0x9E3779B1U);
    hash = (hash ^ (hash >> 16)) * 0x85EBCA6BU;
    hash = (hash ^ (hash >> 13)) * 0xC2B2AE35U;
    hash ^= hash >> 16;
    Put(hash < threshold ? 0.0F : Get(x[i]) * scale, y[i]);
  }
}
template <typename T>
void Dropout(int64_t rows, int64_t width, float probability, uint64_t seed,
             const int64_t* row_numbers, const T* x, T* y) {
  DropoutKernel<<<BlocksFor(rows * width), kThreads, 0, Stream()>>>(
      rows * width, width, 1.0F / (1.0F - probability),
      static_cast<uint32_t>(probability * 4294967040.0F), seed, row_numbers, x, y);
  Check("dropout");
}

// Moves the moments on by a gradient.
__device__ void Moments(const kernels::AdamW& s, float g, float& mean, float& variance) {
  mean = s.beta1 * mean + (1.0F - s.beta1) * g;
  variance = s.beta2 * variance + (1.0F - s.beta2) * g * g;
}
constexpr int kStatePack = kPack<float>;  // of an optimizer's states, which are fp32
template <int N, typename T>
__global__ void AdamWKernel(int64_t packs, kernels::AdamW s, const T* gradient, float* parameters,
                            float* mean, float* variance) {
  const float keep = 1.0F - s.learning_rate * s.weight_decay;
  const float rate = s.learning_rate / s.correction1, root = 1.0F / s.correction2_root;
  for (int64_t i = First(); i < packs; i += Step()) {
    float g[N], x[N], m[N], v[N];
    Load<N>(gradient + i * N, g);
    Load<N>(parameters + i * N, x);
    Load<N>(mean + i * N, m);
    Load<N>(variance + i * N, v);
    for (int n = 0; n < N; ++n) {
      Moments(s, g[n] * s.gradient_scale, m[n], v[n]);
      x[n] = x[n] * keep - rate * m[n] / (sqrtf(v[n]) * root + s.epsilon);
    }
    Store<N>(x, parameters + i * N);
    Store<N>(m, mean + i * N);
    Store<N>(v, variance + i * N);
  }
}
template <typename T>
void AdamW(int64_t count, const kernels::AdamW& step, const T* gradient, float* parameters,
           float* mean, float* variance) {
  WithPacks<kStatePack>(
      [&](auto size) {
        constexpr int N = decltype(size)::value;
        AdamWKernel<N><<<BlocksFor(count / N), kThreads, 0, Stream()>>>(count / N, step, gradient,
                                                                        parameters, mean, variance);
      },
      count, gradient, parameters, mean, variance);
  Check("adamw");
}
template <typename T>
__global__ void SgdKernel(int64_t count, kernels::Sgd s, const T* gradient, float* parameters,
                          float* momentum) {
  for (int64_t i = First(); i < count; i += Step()) {
    const float g = Get(gradient[i]) * s.gradient_scale + s.weight_decay * parameters[i];
    const float m = s.momentum * momentum[i] + g;
    momentum[i] = m;
    parameters[i] -= s.learning_rate * (s.nesterov ? g + s.momentum * m : m);
  }
}
template <typename T>
void Sgd(int64_t count, const kernels::Sgd& step, const T* gradient, float* parameters,
         float* momentum) {
  SgdKernel<<<BlocksFor(count), kThreads, 0, Stream()>>>(count, step, gradient, parameters,
                                                         momentum);
  Check("sgd");
}
template <typename T>
__global__ void LionKernel(int64_t count, kernels::Lion s, const T* gradient, float* parameters,
                           float* mean) {
  const float keep = 1.0F - s.learning_rate * s.weight_decay;
  for (int64_t i = First(); i < count; i += Step()) {
    const float g = Get(gradient[i]) * s.gradient_scale;
    const float c = s.beta1 * mean[i] + (1.0F - s.beta1) * g;
    const float sign = c > 0.0F ? 1.0F : (c < 0.0F ? -1.0F : 0.0F);
    mean[i] = s.beta2 * mean[i] + (1.0F - s.beta2) * g;
    parameters[i] = parameters[i] * keep - s.learning_rate * sign;
  }
}
template <typename T>
void Lion(int64_t count, const kernels::Lion& step, const T* gradient, float* parameters,
          float* mean) {
  LionKernel<<<BlocksFor(count), kThreads, 0, Stream()>>>(count, step, gradient, parameters, mean);
  Check("lion");
}
// The step of Adam, with its weight decay, before the learning rate.
__device__ float AdamDirection(const kernels::AdamW& s, float x, float mean, float variance) {
  return mean / s.correction1 / (sqrtf(variance) / s.correction2_root + s.epsilon) +
         s.weight_decay * x;
}
template <typename T>
__global__ void LambMeasureKernel(int64_t count, kernels::AdamW s, const T* gradient,
                                  const float* parameters, float* mean, float* variance,
                                  double* partial) {
  float sums[2] = {0, 0};
  for (int64_t i = First(); i < count; i += Step()) {
    Moments(s, Get(gradient[i]) * s.gradient_scale, mean[i], variance[i]);
    const float direction = AdamDirection(s, parameters[i], mean[i], variance[i]);
    sums[0] += parameters[i] * parameters[i];
    sums[1] += direction * direction;
  }
  PutPartialSums(sums, partial);
}
template <typename T>
void LambMeasure(int64_t count, const kernels::AdamW& step, const T* gradient,
                 const float* parameters, float* mean, float* variance, double* sums) {
  TakeSums<2>(
      "lamb_measure",
      [&](double* partial) {
        LambMeasureKernel<<<kSumBlocks, kThreads, 0, Stream()>>>(count, step, gradient, parameters,
                                                                 mean, variance, partial);
      },
      sums);
}
__global__ void LambApplyKernel(int64_t count, kernels::AdamW s, float rate, const float* mean,
                                const float* variance, float* parameters) {
  for (int64_t i = First(); i < count; i += Step()) {
    parameters[i] -= rate * AdamDirection(s, parameters[i], mean[i], variance[i]);
  }
}
void LambApply(int64_t count, const kernels::AdamW& step, float rate, const float* mean,
               const float* variance, float* parameters) {
  LambApplyKernel<<<BlocksFor(count), kThreads, 0, Stream()>>>(count, step, rate, mean, variance,
                                                               parameters);
  Check("lamb_apply");
}

template <typename T>
__global__ void MomentumKernel(int64_t count, kernels::Momentum s, const T* gradient, float* mean,
                               float* direction) {
  for (int64_t i = First(); i < count; i += Step()) {
    const float g = Get(gradient[i]) * s.gradient_scale;
    const float m = s.momentum * mean[i] + (1.0F - s.momentum) * g;
    mean[i] = m;
    direction[i] = s.nesterov ? (1.0F - s.momentum) * g + s.momentum * m : m;
  }
}
template <typename T>
void Momentum(int64_t count, const kernels::Momentum& step, const T* gradient, float* mean,
              float* direction) {
  MomentumKernel<<<BlocksFor(count), kThreads, 0, Stream()>>>(count, step, gradient, mean,
                                                              direction);
  Check("momentum");
}
__global__ void StepAlongKernel(int64_t count, float keep, float rate, const float* direction,
                                float* x) {
  for (int64_t i = First(); i < count; i += Step()) x[i] = keep * x[i] - rate * direction[i];
}
void StepAlong(int64_t count, float keep, float rate, const float* direction, float* x) {
  StepAlongKernel<<<BlocksFor(count), kThreads, 0, Stream()>>>(count, keep, rate, direction, x);
  Check("step_along");
}

template <typename T>
__global__ void SumSquaresKernel(int64_t count, const T* x, double* partial) {
  float sums[1] = {0};
  for (int64_t i = First(); i < count; i += Step()) sums[0] += Get(x[i]) * Get(x[i]);
  PutPartialSums(sums, partial);
}
template <typename T>
double SumSquares(int64_t count, const T* x) {
  double sum = 0;
  TakeSums<1>(
      "sum_squares",
      [&](double* partial) {
        SumSquaresKernel<<<kSumBlocks, kThreads, 0, Stream()>>>(count, x, partial);
      },
      &sum);
  return sum;
}
template <int N, typename T>
__global__ void AccumulateKernel(int64_t packs, const T* x, bool add, float* sum) {
  for (int64_t i = First(); i < packs; i += Step()) {
    float values[N], before[N] = {};
    Load<N>(x + i * N, values);
    if (add) Load<N>(sum + i * N, before);
    for (int n = 0; n < N; ++n) values[n] += before[n];
    Store<N>(values, sum + i * N);
  }
}
template <typename T>
void Accumulate(int64_t count, const T* x, bool add, float* sum) {
  WithPacks<kStatePack>(
      [&](auto size) {
        constexpr int N = decltype(size)::value;
        AccumulateKernel<N>
            <<<BlocksFor(count / N), kThreads, 0, Stream()>>>(count / N, x, add, sum);
      },
      count, x, sum);
  Check("accumulate");
}
void Widen(int64_t count, const Bf16* x, float* y) { Accumulate(count, x, false, y); }

// The draws of the CPU's loop (loops.cc), which says how they work.
__global__ void RoundStochasticallyKernel(int64_t count, uint32_t low, uint32_t high, int64_t first,
                                          const float* x, Bf16* y) {
  for (int64_t i = First(); i < count; i += Step()) {
    uint32_t hash = low ^ (static_cast<uint32_t>(first + i) * 0x9E3779B1U);
    hash = (hash ^ (hash >> 16)) * 0x85EBCA6BU;
    hash = (hash ^ high ^ (hash >> 13)) * 0xC2B2AE35U;
    hash ^= hash >> 16;
    const uint32_t bits = __float_as_uint(x[i]);
    y[i].bits =
        static_cast<uint16_t>((x[i] == x[i] ? bits + (hash >> 16) : (bits | 0x400000U)) >> 16);
  }
}
void RoundStochastically(int64_t count, uint64_t key, int64_t first, const float* x, Bf16* y) {
  RoundStochasticallyKernel<<<BlocksFor(count), kThreads, 0, Stream()>>>(
      count, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), first, x, y);
  Check("round_stochastically");
}

template <typename T>
void InstallTyped(kernels::TypedKernels<T>& table) {
  table.norm_forward = NormForward<T>;
  table.norm_backward = NormBackward<T>;
  table.gelu_forward = GeluForward<T>;
  table.gelu_backward = GeluBackward<T>;
  table.swiglu_forward = SwigluForward<T>;
  table.swiglu_backward = SwigluBackward<T>;
  table.rotate = Rotate<T>;
  table.embedding_forward = EmbeddingForward<T>;
  table.embedding_backward = EmbeddingBackward<T, T>;
  table.embedding_backward_fp32 = EmbeddingBackward<T, float>;
  table.position_backward = PositionBackward<T, T>;
  table.position_backward_fp32 = PositionBackward<T, float>;
  table.cross_entropy = CrossEntropy<T>;
  table.cross_entropy_part = CrossEntropyPart<T>;
  table.cross_entropy_gradient = CrossEntropyGradient<T>;
  table.dropout = Dropout<T>;
  table.adamw = AdamW<T>;
  table.sgd = Sgd<T>;
  table.lion = Lion<T>;
  table.lamb_measure = LambMeasure<T>;
  table.momentum = Momentum<T>;
  table.sum_squares = SumSquares<T>;
  table.accumulate = Accumulate<T>;
}

void Install(kernels::KernelTable* table, void* (*stream)(),
             void (*fail)(const char*, const char*)) {
  stream_of_thread = stream;
  failed = fail;
  table->instruction_set = "CUDA";
  InstallTyped(table->f32);
  InstallTyped(table->bf16);
  InstallTyped(table->fp16);
  table->fp32 = {LambApply, StepAlong, Widen, RoundStochastically};
}

constexpr WeftFusedLibrary kLibrary = {kWeftFusedVersion, sizeof(kernels::KernelTable), Install};

}  // namespace
}  // namespace weft::train

extern "C" __attribute__((visibility("default"))) const WeftFusedLibrary* weft_fused_library() {
  return &weft::train::kLibrary;
}
