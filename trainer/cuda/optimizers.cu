// Optimizers over flat buffers, and what goes with their step: sums of gradients and of squares,
// and the rounding of parameters.
#include "trainer/cuda/install.cuh"
#include "trainer/cuda/reduce.cuh"

namespace weft::train::cuda {
namespace {

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

}  // namespace

template <typename T>
void InstallOptimizers(kernels::TypedKernels<T>& table) {
  table.adamw = AdamW<T>;
  table.sgd = Sgd<T>;
  table.lion = Lion<T>;
  table.lamb_measure = LambMeasure<T>;
  table.momentum = Momentum<T>;
  table.sum_squares = SumSquares<T>;
  table.accumulate = Accumulate<T>;
}
template void InstallOptimizers(kernels::TypedKernels<float>&);
template void InstallOptimizers(kernels::TypedKernels<Bf16>&);
template void InstallOptimizers(kernels::TypedKernels<Fp16>&);

void InstallOptimizers(kernels::Fp32Kernels& table) {
  table = {LambApply, StepAlong, Widen, RoundStochastically};
}

}  // namespace weft::train::cuda
