// The kernels of libweft-train-cuda.so. Each has the meaning of the loop of the same name in
// trainer/kernels/kernels.h, arithmetic in fp32. A block works on one row where a row is reduced;
// else threads take elements, a grid's width apart. tests/trainer/device compares each with the
// CPU's loop.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "trainer/cuda/fused_library.h"

namespace weft::train {
namespace {

using kernels::Bf16;
using kernels::Fp16;

constexpr int kThreads = 256;  // of a block: 8 warps
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr int64_t kMostBlocks = 4096;  // enough for every multiprocessor, several times

void* (*stream_of_thread)() = nullptr;
void (*failed)(const char*, const char*) = nullptr;

cudaStream_t Stream() { return static_cast<cudaStream_t>(stream_of_thread()); }

void Check(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) failed(kernel, cudaGetErrorString(error));
}

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
template <typename Reduce>
__device__ float OverBlock(float value) {
  __shared__ float of_warp[kWarps];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = Reduce::Of(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  }
  __syncthreads();  // of_warp may still be read from the call before
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = Reduce::kNone;
  for (int warp = 0; warp < kWarps; ++warp) value = Reduce::Of(value, of_warp[warp]);
  return value;
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
  NormForwardKernel<<<BlocksOfRows(rows), kThreads, 0, Stream()>>>(width, epsilon, x, weight, bias,
                                                                   y, mean, rstd);
  Check("norm_forward");
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
template <typename T>
void NormBackward(int64_t rows, int64_t width, const T* dy, const T* x, const T* weight,
                  const float* mean, const float* rstd, const T* residual, T* dx, float* dweight,
                  float* dbias) {
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

template <typename T>
__global__ void GeluForwardKernel(int64_t count, const T* x, T* y) {
  for (int64_t i = First(); i < count; i += Step()) {
    const float v = Get(x[i]);
    Put(0.5F * v * (1.0F + tanhf(kGeluA * (v + kGeluB * v * v * v))), y[i]);
  }
}
template <typename T>
void GeluForward(int64_t count, const T* x, T* y) {
  GeluForwardKernel<<<BlocksFor(count), kThreads, 0, Stream()>>>(count, x, y);
  Check("gelu_forward");
}
template <typename T>
__global__ void GeluBackwardKernel(int64_t count, const T* dy, const T* x, T* dx) {
  for (int64_t i = First(); i < count; i += Step()) {
    const float v = Get(x[i]);
    const float t = tanhf(kGeluA * (v + kGeluB * v * v * v));
    const float slope = kGeluA * (1.0F + 3.0F * kGeluB * v * v);
    Put(Get(dy[i]) * 0.5F * (1.0F + t + v * (1.0F - t * t) * slope), dx[i]);
  }
}
template <typename T>
void GeluBackward(int64_t count, const T* dy, const T* x, T* dx) {
  GeluBackwardKernel<<<BlocksFor(count), kThreads, 0, Stream()>>>(count, dy, x, dx);
  Check("gelu_backward");
}

__device__ float Sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

template <typename T>
__global__ void SwigluForwardKernel(int64_t count, int64_t width, const T* x, T* y) {
  for (int64_t i = First(); i < count; i += Step()) {
    const int64_t at = i / width * 2 * width + i % width;
    const float gate = Get(x[at]);
    Put(gate * Sigmoid(gate) * Get(x[at + width]), y[i]);
  }
}
template <typename T>
void SwigluForward(int64_t rows, int64_t width, const T* x, T* y) {
  SwigluForwardKernel<<<BlocksFor(rows * width), kThreads, 0, Stream()>>>(rows * width, width, x,
                                                                          y);
  Check("swiglu_forward");
}
template <typename T>
__global__ void SwigluBackwardKernel(int64_t count, int64_t width, const T* dy, const T* x, T* dx) {
  for (int64_t i = First(); i < count; i += Step()) {
    const int64_t at = i / width * 2 * width + i % width;
    const float gate = Get(x[at]), up = Get(x[at + width]), given = Get(dy[i]);
    const float sigmoid = Sigmoid(gate);
    Put(given * up * sigmoid * (1.0F + gate * (1.0F - sigmoid)), dx[at]);
    Put(given * gate * sigmoid, dx[at + width]);
  }
}
template <typename T>
void SwigluBackward(int64_t rows, int64_t width, const T* dy, const T* x, T* dx) {
  SwigluBackwardKernel<<<BlocksFor(rows * width), kThreads, 0, Stream()>>>(rows * width, width, dy,
                                                                           x, dx);
  Check("swiglu_backward");
}

template <typename T>
__global__ void RotateKernel(int64_t pairs, int64_t sequence, int64_t heads, int64_t half,
                             int64_t stride, const float* cosine, const float* sine, float sign,
                             T* x) {
  for (int64_t i = First(); i < pairs; i += Step()) {
    const int64_t within = i % half, head = i / half % heads, row = i / half / heads;
    const int64_t angle = row % sequence * half + within;
    T* at = x + row * stride + head * 2 * half + within;
    const float c = cosine[angle], s = sine[angle] * sign;
    const float first = Get(at[0]), second = Get(at[half]);
    Put(first * c - second * s, at[0]);
    Put(second * c + first * s, at[half]);
  }
}
template <typename T>
void Rotate(int64_t rows, int64_t sequence, int64_t heads, int64_t width, int64_t stride,
            const float* cosine, const float* sine, bool inverse, T* x) {
  const int64_t pairs = rows * heads * (width / 2);
  RotateKernel<<<BlocksFor(pairs), kThreads, 0, Stream()>>>(
      pairs, sequence, heads, width / 2, stride, cosine, sine, inverse ? -1.0F : 1.0F, x);
  Check("rotate");
}

template <typename T>
__global__ void EmbeddingForwardKernel(int64_t count, int64_t width, int64_t sequence,
                                       const int64_t* tokens, const T* table, const T* positions,
                                       T* y) {
  for (int64_t i = First(); i < count; i += Step()) {
    const int64_t row = i / width, column = i % width, token = tokens[row];
    float value = token < 0 ? 0.0F : Get(table[token * width + column]);
    if (positions != nullptr) value += Get(positions[row % sequence * width + column]);
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

// (exp(logit - log_sum) - onehot) * scale, in place, for the row of the block.
template <typename T>
__device__ void GradientOfRow(int64_t vocab, int64_t target, float scale, float log_sum, T* row) {
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
    const float softmax = expf(Get(row[i]) - log_sum);
    Put((i == target ? softmax - 1.0F : softmax) * scale, row[i]);
  }
}
template <typename T>
__global__ void CrossEntropyKernel(int64_t vocab, const int64_t* targets, float scale, T* logits,
                                   float* losses) {
  T* row = logits + static_cast<int64_t>(blockIdx.x) * vocab;
  const int64_t target = targets[blockIdx.x];
  float largest = Largest::kNone;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
    largest = Largest::Of(largest, Get(row[i]));
  }
  largest = OverBlock<Largest>(largest);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) sum += expf(Get(row[i]) - largest);
  const float log_sum = largest + logf(OverBlock<Sum>(sum));
  // Read before any thread overwrites it.
  if (threadIdx.x == 0) losses[blockIdx.x] = log_sum - Get(row[target]);
  __syncthreads();
  if (scale != 0) GradientOfRow(vocab, target, scale, log_sum, row);
}
template <typename T>
void CrossEntropy(int64_t rows, int64_t vocab, const int64_t* targets, float scale, T* logits,
                  float* losses) {
  if (rows == 0) return;
  CrossEntropyKernel<<<BlocksOfRows(rows), kThreads, 0, Stream()>>>(vocab, targets, scale, logits,
                                                                    losses);
  Check("cross_entropy");
}
template <typename T>
__global__ void CrossEntropyPartKernel(int64_t vocab, const int64_t* targets, const T* logits,
                                       float* parts) {
  const T* row = logits + static_cast<int64_t>(blockIdx.x) * vocab;
  float largest = Largest::kNone;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
    largest = Largest::Of(largest, Get(row[i]));
  }
  largest = OverBlock<Largest>(largest);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) sum += expf(Get(row[i]) - largest);
  sum = OverBlock<Sum>(sum);
  if (threadIdx.x != 0) return;
  const int64_t target = targets[blockIdx.x];
  float* part = parts + 3 * static_cast<int64_t>(blockIdx.x);
  part[0] = largest;
  part[1] = sum;
  part[2] = target < 0 ? 0.0F : Get(row[target]);
}
template <typename T>
void CrossEntropyPart(int64_t rows, int64_t vocab, const int64_t* targets, const T* logits,
                      float* parts) {
  if (rows == 0) return;
  CrossEntropyPartKernel<<<BlocksOfRows(rows), kThreads, 0, Stream()>>>(vocab, targets, logits,
                                                                        parts);
  Check("cross_entropy_part");
}
template <typename T>
__global__ void CrossEntropyGradientKernel(int64_t vocab, const int64_t* targets, float scale,
                                           const float* log_sums, T* logits) {
  GradientOfRow(vocab, targets[blockIdx.x], scale, log_sums[blockIdx.x],
                logits + static_cast<int64_t>(blockIdx.x) * vocab);
}
template <typename T>
void CrossEntropyGradient(int64_t rows, int64_t vocab, const int64_t* targets, float scale,
                          const float* log_sums, T* logits) {
  if (rows == 0) return;
  CrossEntropyGradientKernel<<<BlocksOfRows(rows), kThreads, 0, Stream()>>>(vocab, targets, scale,
                                                                            log_sums, logits);
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
template <typename T>
__global__ void AdamWKernel(int64_t count, kernels::AdamW s, const T* gradient, float* parameters,
                            float* mean, float* variance) {
  const float keep = 1.0F - s.learning_rate * s.weight_decay;
  const float rate = s.learning_rate / s.correction1, root = 1.0F / s.correction2_root;
  for (int64_t i = First(); i < count; i += Step()) {
    Moments(s, Get(gradient[i]) * s.gradient_scale, mean[i], variance[i]);
    parameters[i] = parameters[i] * keep - rate * mean[i] / (sqrtf(variance[i]) * root + s.epsilon);
  }
}
template <typename T>
void AdamW(int64_t count, const kernels::AdamW& step, const T* gradient, float* parameters,
           float* mean, float* variance) {
  AdamWKernel<<<BlocksFor(count), kThreads, 0, Stream()>>>(count, step, gradient, parameters, mean,
                                                           variance);
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
__global__ void LambApplyKernel(int64_t count, kernels::AdamW s, float rate, const float* mean,
                                const float* variance, float* parameters) {
  for (int64_t i = First(); i < count; i += Step()) {
    const float direction =
        mean[i] / s.correction1 / (sqrtf(variance[i]) / s.correction2_root + s.epsilon) +
        s.weight_decay * parameters[i];
    parameters[i] -= rate * direction;
  }
}
void LambApply(int64_t count, const kernels::AdamW& step, float rate, const float* mean,
               const float* variance, float* parameters) {
  LambApplyKernel<<<BlocksFor(count), kThreads, 0, Stream()>>>(count, step, rate, mean, variance,
                                                               parameters);
  Check("lamb_apply");
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
  table.cross_entropy = CrossEntropy<T>;
  table.cross_entropy_part = CrossEntropyPart<T>;
  table.cross_entropy_gradient = CrossEntropyGradient<T>;
  table.dropout = Dropout<T>;
  table.adamw = AdamW<T>;
  table.sgd = Sgd<T>;
  table.lion = Lion<T>;
}

void Install(kernels::KernelTable* table, void* (*stream)(),
             void (*fail)(const char*, const char*)) {
  stream_of_thread = stream;
  failed = fail;
  table->instruction_set = "CUDA";
  InstallTyped(table->f32);
  InstallTyped(table->bf16);
  InstallTyped(table->fp16);
  table->fp32.lamb_apply = LambApply;
}

constexpr WeftFusedLibrary kLibrary = {kWeftFusedVersion, sizeof(kernels::KernelTable), Install};

}  // namespace
}  // namespace weft::train

extern "C" __attribute__((visibility("default"))) const WeftFusedLibrary* weft_fused_library() {
  return &weft::train::kLibrary;
}
