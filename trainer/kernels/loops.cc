// The loops of kernels.h. Compiled once for each instruction set: WEFT_KERNEL_SET names the
// namespace, the compiler's flags do the rest. Written for the auto-vectoriser: simple inner loops,
// sums marked with `omp simd reduction`, an exp of its own. No inline function with a symbol of its
// own may be called here (std::vector's, say): the linker would keep one copy for all CPUs.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "trainer/kernels/activation.h"
#include "trainer/kernels/exponential.h"
#include "trainer/kernels/kernels.h"

namespace weft::train::kernels::WEFT_KERNEL_SET {
namespace {

// Elements below which a loop is not worth a second thread.
constexpr int64_t kGrain = 1 << 15;

template <typename T>
void NormForward(int64_t rows, int64_t width, float epsilon, const T* x, const T* weight,
                 const T* bias, T* y, float* mean, float* rstd) {
#pragma omp parallel for schedule(static) if (rows * width > kGrain)
  for (int64_t row = 0; row < rows; ++row) {
    const T* in = x + row * width;
    T* out = y + row * width;
    float center = 0;
    if (mean != nullptr) {
#pragma omp simd reduction(+ : center)
      for (int64_t i = 0; i < width; ++i) center += Load(in[i]);
      center /= static_cast<float>(width);
      mean[row] = center;
    }
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) {
      float d = Load(in[i]) - center;
      squares += d * d;
    }
    float scale = 1.0F / std::sqrt(squares / static_cast<float>(width) + epsilon);
    rstd[row] = scale;
    if (bias != nullptr) {
      for (int64_t i = 0; i < width; ++i) {
        Store((Load(in[i]) - center) * scale * Load(weight[i]) + Load(bias[i]), out[i]);
      }
    } else {
      for (int64_t i = 0; i < width; ++i) {
        Store((Load(in[i]) - center) * scale * Load(weight[i]), out[i]);
      }
    }
  }
}

// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy * weight; without mean(g) for RMSNorm.
template <typename T>
void NormBackwardRow(int64_t width, const T* dy, const T* x, const T* weight, float center,
                     float scale, bool centered, const T* residual, T* dx, float* dweight,
                     float* dbias) {
  float sum = 0;
  float dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int64_t i = 0; i < width; ++i) {
    float hat = (Load(x[i]) - center) * scale;
    float g = Load(dy[i]) * Load(weight[i]);
    sum += g;
    dot += g * hat;
  }
  sum = centered ? sum / static_cast<float>(width) : 0.0F;
  dot /= static_cast<float>(width);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    float hat = (Load(x[i]) - center) * scale;
    float d = Load(dy[i]);
    float value = scale * (d * Load(weight[i]) - sum - hat * dot);
    dweight[i] += d * hat;
    dbias[i] += d;
    Store(residual == nullptr ? value : value + Load(residual[i]), dx[i]);
  }
}

template <typename T>
void NormBackward(int64_t rows, int64_t width, const T* dy, const T* x, const T* weight,
                  const float* mean, const float* rstd, const T* residual, T* dx, float* dweight,
                  float* dbias) {
  int threads = rows * width > kGrain ? omp_get_max_threads() : 1;
  std::unique_ptr<float[]> partial(new float[static_cast<size_t>(threads * 2 * width)]());
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; ++t) {
    float* sums = partial.get() + static_cast<int64_t>(t) * 2 * width;
    for (int64_t row = rows * t / threads; row < rows * (t + 1) / threads; ++row) {
      int64_t at = row * width;
      NormBackwardRow(width, dy + at, x + at, weight, mean == nullptr ? 0.0F : mean[row], rstd[row],
                      mean != nullptr, residual == nullptr ? nullptr : residual + at, dx + at, sums,
                      sums + width);
    }
  }
  for (int64_t i = 0; i < width; ++i) {
    float weight_sum = 0;
    float bias_sum = 0;
    for (int t = 0; t < threads; ++t) {
      weight_sum += partial[static_cast<size_t>((2 * t) * width + i)];
      bias_sum += partial[static_cast<size_t>((2 * t + 1) * width + i)];
    }
    dweight[i] = weight_sum;
    if (dbias != nullptr) dbias[i] = bias_sum;
  }
}

template <typename T>
void GeluForward(int64_t count, const T* x, T* y) {
#pragma omp parallel for simd schedule(static) if (count > kGrain)
  for (int64_t i = 0; i < count; ++i) Store(Gelu(Load(x[i])), y[i]);
}

template <typename T>
void GeluBackward(int64_t count, const T* dy, const T* x, T* dx) {
#pragma omp parallel for simd schedule(static) if (count > kGrain)
  for (int64_t i = 0; i < count; ++i) Store(Load(dy[i]) * GeluSlope(Load(x[i])), dx[i]);
}

template <typename T>
void SwigluForward(int64_t rows, int64_t width, const T* x, T* y) {
#pragma omp parallel for schedule(static) if (rows * width > kGrain)
  for (int64_t row = 0; row < rows; ++row) {
    const T* gate = x + row * 2 * width;
    const T* up = gate + width;
    T* out = y + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) Store(Swiglu(Load(gate[i]), Load(up[i])), out[i]);
  }
}

template <typename T>
void SwigluBackward(int64_t rows, int64_t width, const T* dy, const T* x, T* dx) {
#pragma omp parallel for schedule(static) if (rows * width > kGrain)
  for (int64_t row = 0; row < rows; ++row) {
    const T* gate = x + row * 2 * width;
    const T* up = gate + width;
    const T* d = dy + row * width;
    T* dgate = dx + row * 2 * width;
    T* dup = dgate + width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const GateAndUp gradient = SwigluGradient(Load(d[i]), Load(gate[i]), Load(up[i]));
      Store(gradient.gate, dgate[i]);
      Store(gradient.up, dup[i]);
    }
  }
}

template <typename T>
void Rotate(int64_t rows, int64_t sequence, int64_t heads, int64_t width, int64_t stride,
            const float* cosine, const float* sine, bool inverse, T* x) {
  int64_t half = width / 2;
  float sign = inverse ? -1.0F : 1.0F;
#pragma omp parallel for schedule(static) if (rows * heads * width > kGrain)
  for (int64_t row = 0; row < rows; ++row) {
    const float* c = cosine + (row % sequence) * half;
    const float* s = sine + (row % sequence) * half;
    for (int64_t head = 0; head < heads; ++head) {
      T* first = x + row * stride + head * width;
      T* second = first + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        float a = Load(first[i]);
        float b = Load(second[i]);
        Store(a * c[i] - b * sign * s[i], first[i]);
        Store(b * c[i] + a * sign * s[i], second[i]);
      }
    }
  }
}

template <typename T>
void EmbeddingForward(int64_t rows, int64_t width, int64_t sequence, const int64_t* tokens,
                      const T* table, const T* positions, T* y) {
#pragma omp parallel for schedule(static) if (rows * width > kGrain)
  for (int64_t row = 0; row < rows; ++row) {
    T* out = y + row * width;
    if (tokens[row] < 0) {
      std::fill(out, out + width, T{});
      continue;
    }
    const T* word = table + tokens[row] * width;
    if (positions == nullptr) {
      std::copy(word, word + width, out);
      continue;
    }
    const T* position = positions + (row % sequence) * width;
    for (int64_t i = 0; i < width; ++i) Store(Load(word[i]) + Load(position[i]), out[i]);
  }
}

template <typename T>
void CrossEntropy(int64_t rows, int64_t vocab, const int64_t* targets, float scale, T* logits,
                  float* losses) {
#pragma omp parallel if (rows * vocab > kGrain)
  {
    std::unique_ptr<float[]> powers(new float[static_cast<size_t>(vocab)]);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
      T* in = logits + row * vocab;
      float largest = Load(in[0]);
#pragma omp simd reduction(max : largest)
      for (int64_t i = 0; i < vocab; ++i) largest = std::max(largest, Load(in[i]));
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < vocab; ++i) {
        powers[static_cast<size_t>(i)] = Exp(Load(in[i]) - largest);
        sum += powers[static_cast<size_t>(i)];
      }
      losses[row] = std::log(sum) + largest - Load(in[targets[row]]);
      if (scale == 0.0F) continue;
      float factor = scale / sum;
#pragma omp simd
      for (int64_t i = 0; i < vocab; ++i) Store(powers[static_cast<size_t>(i)] * factor, in[i]);
      Store(powers[static_cast<size_t>(targets[row])] * factor - scale, in[targets[row]]);
    }
  }
}

template <typename T>
void CrossEntropyPart(int64_t rows, int64_t vocab, const int64_t* targets, const T* logits,
                      float* parts) {
#pragma omp parallel for schedule(static) if (rows * vocab > kGrain)
  for (int64_t row = 0; row < rows; ++row) {
    const T* in = logits + row * vocab;
    float largest = Load(in[0]);
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < vocab; ++i) largest = std::max(largest, Load(in[i]));
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < vocab; ++i) sum += Exp(Load(in[i]) - largest);
    float* part = parts + 3 * row;
    part[0] = largest;
    part[1] = sum;
    part[2] = targets[row] < 0 ? 0.0F : Load(in[targets[row]]);
  }
}

template <typename T>
void CrossEntropyGradient(int64_t rows, int64_t vocab, const int64_t* targets, float scale,
                          const float* log_sums, T* logits) {
#pragma omp parallel for schedule(static) if (rows * vocab > kGrain)
  for (int64_t row = 0; row < rows; ++row) {
    T* in = logits + row * vocab;
    const float log_sum = log_sums[row];
    const float target =
        targets[row] < 0 ? 0.0F : Exp(Load(in[targets[row]]) - log_sum) * scale - scale;
#pragma omp simd
    for (int64_t i = 0; i < vocab; ++i) Store(Exp(Load(in[i]) - log_sum) * scale, in[i]);
    if (targets[row] >= 0) Store(target, in[targets[row]]);
  }
}

template <typename T>
void Dropout(int64_t rows, int64_t width, float probability, uint64_t seed,
             const int64_t* row_numbers, const T* x, T* y) {
  const float scale = 1.0F / (1.0F - probability);
  const uint32_t threshold = static_cast<uint32_t>(probability * 4294967040.0F);
#pragma omp parallel for schedule(static) if (rows * width > kGrain)
  for (int64_t row = 0; row < rows; ++row) {
    // SplitMix64's mixing of seed and row, then MurmurHash3's finalizer (Appleby) of the column.
    uint64_t mixed = seed + static_cast<uint64_t>(row_numbers[row]) * 0x9E3779B97F4A7C15ULL;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
    const uint32_t key = static_cast<uint32_t>(mixed ^ (mixed >> 32));
    const T* in = x + row * width;
    T* out = y + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      uint32_t hash = key ^ (static_cast<uint32_t>(i) * 0x9E3779B1U);
      hash = (hash ^ (hash >> 16)) * 0x85EBCA6BU;
      hash = (hash ^ (hash >> 13)) * 0xC2B2AE35U;
      hash ^= hash >> 16;
      Store(hash < threshold ? 0.0F : Load(in[i]) * scale, out[i]);
    }
  }
}

// Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019, Algorithm 2, with the
// learning rate in front of the decay, as PyTorch has it.
template <typename T>
void AdamWUpdate(int64_t count, const AdamW& step, const T* gradient, float* parameters,
                 float* mean, float* variance) {
  const AdamW s = step;
  const float keep = 1.0F - s.learning_rate * s.weight_decay;
  const float rate = s.learning_rate / s.correction1;
  const float root = 1.0F / s.correction2_root;
#pragma omp parallel for simd schedule(static) if (count > kGrain)
  for (int64_t i = 0; i < count; ++i) {
    float g = Load(gradient[i]) * s.gradient_scale;
    float m = s.beta1 * mean[i] + (1.0F - s.beta1) * g;
    float v = s.beta2 * variance[i] + (1.0F - s.beta2) * g * g;
    mean[i] = m;
    variance[i] = v;
    parameters[i] = parameters[i] * keep - rate * m / (std::sqrt(v) * root + s.epsilon);
  }
}

// As torch.optim.SGD without dampening: the decay is added to the gradient.
template <typename T>
void SgdUpdate(int64_t count, const Sgd& step, const T* gradient, float* parameters,
               float* momentum) {
  const Sgd s = step;
  const float from_gradient = s.nesterov ? 1.0F : 0.0F;
  const float from_momentum = s.nesterov ? s.momentum : 1.0F;
#pragma omp parallel for simd schedule(static) if (count > kGrain)
  for (int64_t i = 0; i < count; ++i) {
    float g = Load(gradient[i]) * s.gradient_scale + s.weight_decay * parameters[i];
    float m = s.momentum * momentum[i] + g;
    momentum[i] = m;
    parameters[i] -= s.learning_rate * (from_gradient * g + from_momentum * m);
  }
}

// Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, Algorithm 2.
template <typename T>
void LionUpdate(int64_t count, const Lion& step, const T* gradient, float* parameters,
                float* mean) {
  const Lion s = step;
  const float keep = 1.0F - s.learning_rate * s.weight_decay;
#pragma omp parallel for simd schedule(static) if (count > kGrain)
  for (int64_t i = 0; i < count; ++i) {
    float g = Load(gradient[i]) * s.gradient_scale;
    float c = s.beta1 * mean[i] + (1.0F - s.beta1) * g;
    float sign = c > 0.0F ? 1.0F : (c < 0.0F ? -1.0F : 0.0F);
    mean[i] = s.beta2 * mean[i] + (1.0F - s.beta2) * g;
    parameters[i] = parameters[i] * keep - s.learning_rate * sign;
  }
}

constexpr int64_t kSumBlock = 1 << 14;  // elements of a partial sum

inline float AdamDirection(const AdamW& s, float parameter, float mean, float variance) {
  return mean / s.correction1 / (std::sqrt(variance) / s.correction2_root + s.epsilon) +
         s.weight_decay * parameter;
}

// You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020,
// Algorithm 2.
template <typename T>
void LambMeasure(int64_t count, const AdamW& step, const T* gradient, const float* parameters,
                 float* mean, float* variance, double* sums) {
  const AdamW s = step;
  const int64_t blocks = (count + kSumBlock - 1) / kSumBlock;
  std::unique_ptr<double[]> partial(new double[static_cast<size_t>(2 * blocks)]);
#pragma omp parallel for schedule(static) if (count > kGrain)
  for (int64_t block = 0; block < blocks; ++block) {
    float of_parameters = 0, of_direction = 0;
    const int64_t end = std::min(count, (block + 1) * kSumBlock);
#pragma omp simd reduction(+ : of_parameters, of_direction)
    for (int64_t i = block * kSumBlock; i < end; ++i) {
      float g = Load(gradient[i]) * s.gradient_scale;
      float m = s.beta1 * mean[i] + (1.0F - s.beta1) * g;
      float v = s.beta2 * variance[i] + (1.0F - s.beta2) * g * g;
      mean[i] = m;
      variance[i] = v;
      float direction = AdamDirection(s, parameters[i], m, v);
      of_parameters += parameters[i] * parameters[i];
      of_direction += direction * direction;
    }
    partial[static_cast<size_t>(2 * block)] = static_cast<double>(of_parameters);
    partial[static_cast<size_t>(2 * block + 1)] = static_cast<double>(of_direction);
  }
  sums[0] = sums[1] = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    sums[0] += partial[static_cast<size_t>(2 * block)];
    sums[1] += partial[static_cast<size_t>(2 * block + 1)];
  }
}

void LambApply(int64_t count, const AdamW& step, float rate, const float* mean,
               const float* variance, float* parameters) {
  const AdamW s = step;
#pragma omp parallel for simd schedule(static) if (count > kGrain)
  for (int64_t i = 0; i < count; ++i) {
    parameters[i] -= rate * AdamDirection(s, parameters[i], mean[i], variance[i]);
  }
}

template <typename T>
void MomentumDirection(int64_t count, const Momentum& step, const T* gradient, float* mean,
                       float* direction) {
  const Momentum s = step;
#pragma omp parallel for simd schedule(static) if (count > kGrain)
  for (int64_t i = 0; i < count; ++i) {
    float g = Load(gradient[i]) * s.gradient_scale;
    float m = s.momentum * mean[i] + (1.0F - s.momentum) * g;
    mean[i] = m;
    direction[i] = s.nesterov ? (1.0F - s.momentum) * g + s.momentum * m : m;
  }
}

void StepAlong(int64_t count, float keep, float rate, const float* direction, float* x) {
#pragma omp parallel for simd schedule(static) if (count > kGrain)
  for (int64_t i = 0; i < count; ++i) x[i] = keep * x[i] - rate * direction[i];
}

void Widen(int64_t count, const Bf16* x, float* y) {
#pragma omp parallel for simd schedule(static) if (count > kGrain)
  for (int64_t i = 0; i < count; ++i) y[i] = Load(x[i]);
}

void RoundStochastically(int64_t count, uint64_t key, int64_t first, const float* x, Bf16* y) {
  const uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
#pragma omp parallel for simd schedule(static) if (count > kGrain)
  for (int64_t i = 0; i < count; ++i) {
    // MurmurHash3's finalizer (Appleby) of the element's number.
    uint32_t hash = low ^ (static_cast<uint32_t>(first + i) * 0x9E3779B1U);
    hash = (hash ^ (hash >> 16)) * 0x85EBCA6BU;
    hash = (hash ^ high ^ (hash >> 13)) * 0xC2B2AE35U;
    hash ^= hash >> 16;
    // What is cut off is below 2^16; adding a uniform draw from [0, 2^16) carries with the right
    // probability. Infinities stay, since nothing of theirs is cut off.
    uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    uint32_t drawn = bits + (hash >> 16);
    y[i].bits = static_cast<uint16_t>((x[i] == x[i] ? drawn : (bits | 0x400000U)) >> 16);
  }
}

template <typename T>
double SumSquares(int64_t count, const T* x) {
  int64_t blocks = (count + kSumBlock - 1) / kSumBlock;
  std::unique_ptr<double[]> sums(new double[static_cast<size_t>(blocks)]);
#pragma omp parallel for schedule(static) if (count > kGrain)
  for (int64_t block = 0; block < blocks; ++block) {
    float sum = 0;
    int64_t end = std::min(count, (block + 1) * kSumBlock);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = block * kSumBlock; i < end; ++i) sum += Load(x[i]) * Load(x[i]);
    sums[static_cast<size_t>(block)] = static_cast<double>(sum);
  }
  double total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += sums[static_cast<size_t>(block)];
  return total;
}

template <typename T>
void Accumulate(int64_t count, const T* x, bool add, float* sum) {
#pragma omp parallel for simd schedule(static) if (count > kGrain)
  for (int64_t i = 0; i < count; ++i) sum[i] = (add ? sum[i] : 0.0F) + Load(x[i]);
}

template <typename T>
TypedKernels<T> Typed() {
  return {.norm_forward = NormForward<T>,
          .norm_backward = NormBackward<T>,
          .gelu_forward = GeluForward<T>,
          .gelu_backward = GeluBackward<T>,
          .swiglu_forward = SwigluForward<T>,
          .swiglu_backward = SwigluBackward<T>,
          .rotate = Rotate<T>,
          .embedding_forward = EmbeddingForward<T>,
          .embedding_backward = nullptr,  // these four: kernels.cc
          .embedding_backward_fp32 = nullptr,
          .position_backward = nullptr,
          .position_backward_fp32 = nullptr,
          .cross_entropy = CrossEntropy<T>,
          .cross_entropy_part = CrossEntropyPart<T>,
          .cross_entropy_gradient = CrossEntropyGradient<T>,
          .dropout = Dropout<T>,
          .adamw = AdamWUpdate<T>,
          .sgd = SgdUpdate<T>,
          .lion = LionUpdate<T>,
          .lamb_measure = LambMeasure<T>,
          .momentum = MomentumDirection<T>,
          .sum_squares = SumSquares<T>,
          .accumulate = Accumulate<T>};
}

}  // namespace

KernelTable Table();
KernelTable Table() {
  return {"",
          Typed<float>(),
          Typed<Bf16>(),
          Typed<Fp16>(),
          {.lamb_apply = LambApply,
           .step_along = StepAlong,
           .widen = Widen,
           .round_stochastically = RoundStochastically}};
}

}  // namespace weft::train::kernels::WEFT_KERNEL_SET
