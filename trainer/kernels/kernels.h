// The loops that LibTorch does in several passes, each in one: norms, activations, rotary
// positions, embedding, cross-entropy with its gradient, optimizers. Plain pointers, row-major, no
// allocation. A KernelTable is what a device computes with: Kernels() is the CPU's, and
// trainer/device has those of the others.
//
// Number types: float, and Bf16 and Fp16 with all arithmetic in fp32. Each loop is compiled for
// several instruction sets; Kernels() gives the best that this CPU has. OpenMP threads, as many as
// at::set_num_threads set; results depend on the number of threads only where a sum over rows is
// split (norm_backward), and never on timing.
//
// tests/trainer/kernels compares each, on every instruction set that the CPU has, with a naive
// reference.
#ifndef WEFT_TRAINER_KERNELS_KERNELS_H_
#define WEFT_TRAINER_KERNELS_KERNELS_H_

#include <bit>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace weft::train::kernels {

// The upper half of a float.
struct Bf16 {
  uint16_t bits = 0;
};

// IEEE 754's binary16.
struct Fp16 {
  uint16_t bits = 0;
};

struct AdamW {
  float learning_rate = 0;
  float beta1 = 0;
  float beta2 = 0;
  float epsilon = 0;
  float weight_decay = 0;
  float correction1 = 1;       // 1 - beta1^t
  float correction2_root = 1;  // sqrt(1 - beta2^t)
  float gradient_scale = 1;    // clipping
};

struct Sgd {
  float learning_rate = 0;
  float momentum = 0;
  float weight_decay = 0;
  float gradient_scale = 1;
  bool nesterov = false;
};

struct Lion {
  float learning_rate = 0;
  float beta1 = 0;
  float beta2 = 0;
  float weight_decay = 0;
  float gradient_scale = 1;
};

struct Momentum {
  float momentum = 0;
  float gradient_scale = 1;
  bool nesterov = false;
};

template <typename T>
struct TypedKernels {
  // y = (x - mean) * rstd * weight + bias for each of `rows` rows of `width`. `mean` null: RMSNorm,
  // nothing is subtracted. bias may be null. mean, rstd: [rows], kept for the backward pass.
  void (*norm_forward)(int64_t rows, int64_t width, float epsilon, const T* x, const T* weight,
                       const T* bias, T* y, float* mean, float* rstd);
  // dweight, dbias (may be null): [width], overwritten. `residual` (may be null) is added to dx.
  void (*norm_backward)(int64_t rows, int64_t width, const T* dy, const T* x, const T* weight,
                        const float* mean, const float* rstd, const T* residual, T* dx,
                        float* dweight, float* dbias);

  // GPT-2's form: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
  void (*gelu_forward)(int64_t count, const T* x, T* y);
  void (*gelu_backward)(int64_t count, const T* dy, const T* x, T* dx);
  // x: [rows, 2 * width], gate then up; y = silu(gate) * up: [rows, width].
  void (*swiglu_forward)(int64_t rows, int64_t width, const T* x, T* y);
  void (*swiglu_backward)(int64_t rows, int64_t width, const T* dy, const T* x, T* dx);

  // Rotates `heads` vectors of `width` at the beginning of each row of `stride` elements, in place:
  // pairs (i, i + width/2) by angle position * base^(-2i/width), position = row % sequence.
  // cosine, sine: [sequence, width/2]. `inverse` rotates back, which is the backward pass.
  void (*rotate)(int64_t rows, int64_t sequence, int64_t heads, int64_t width, int64_t stride,
                 const float* cosine, const float* sine, bool inverse, T* x);

  // y[row] = table[tokens[row]] + positions[row % sequence]; positions may be null. The row of a
  // token below 0 is 0, positions or not.
  void (*embedding_forward)(int64_t rows, int64_t width, int64_t sequence, const int64_t* tokens,
                            const T* table, const T* positions, T* y);

  // dtable[token] = (or +=) sum of dy[row] over the rows with that token, summed in fp32; rows of
  // `dtable` without a token become 0 (or stay). Tokens below 0 are no row's. Gradients are
  // of type T, or fp32.
  void (*embedding_backward)(int64_t rows, int64_t width, int64_t vocab, const int64_t* tokens,
                             const T* dy, bool add, T* dtable);
  void (*embedding_backward_fp32)(int64_t rows, int64_t width, int64_t vocab, const int64_t* tokens,
                                  const T* dy, bool add, float* dtable);
  // dpositions[p] = (or +=) sum of dy[row] over rows with row % sequence == p.
  void (*position_backward)(int64_t rows, int64_t width, int64_t sequence, const T* dy, bool add,
                            T* dpositions);
  void (*position_backward_fp32)(int64_t rows, int64_t width, int64_t sequence, const T* dy,
                                 bool add, float* dpositions);

  // losses[row] = -log softmax(logits[row])[targets[row]]. With `scale` != 0 logits become their
  // gradient: (softmax - onehot) * scale.
  void (*cross_entropy)(int64_t rows, int64_t vocab, const int64_t* targets, float scale, T* logits,
                        float* losses);
  // The same where a row's logits are split over ranks, this one having `vocab` of them; a target
  // below 0 is another rank's. parts[3 * row ...]: the largest logit, sum of exp(logit - largest),
  // the target's logit or 0.
  void (*cross_entropy_part)(int64_t rows, int64_t vocab, const int64_t* targets, const T* logits,
                             float* parts);
  // logits become (exp(logit - log_sums[row]) - onehot) * scale.
  void (*cross_entropy_gradient)(int64_t rows, int64_t vocab, const int64_t* targets, float scale,
                                 const float* log_sums, T* logits);

  // y = x / (1 - probability), or 0 with that probability: drawn for an element from seed,
  // row_numbers[row] and column by hashing (no state, the same on every instruction set).
  void (*dropout)(int64_t rows, int64_t width, float probability, uint64_t seed,
                  const int64_t* row_numbers, const T* x, T* y);

  // One step of an optimizer on [0, count); T is the gradient's type.
  void (*adamw)(int64_t count, const AdamW& step, const T* gradient, float* parameters, float* mean,
                float* variance);
  void (*sgd)(int64_t count, const Sgd& step, const T* gradient, float* parameters,
              float* momentum);
  void (*lion)(int64_t count, const Lion& step, const T* gradient, float* parameters, float* mean);
  // LAMB up to its norms: moves mean and variance on; sums[0] gets the squares of the parameters,
  // sums[1] those of AdamDirection(). Partial sums over fixed blocks, then in order.
  void (*lamb_measure)(int64_t count, const AdamW& step, const T* gradient, const float* parameters,
                       float* mean, float* variance, double* sums);
  // m = momentum m + (1 - momentum) g; direction = m, or (1 - momentum) g + momentum m (Nesterov).
  void (*momentum)(int64_t count, const Momentum& step, const T* gradient, float* mean,
                   float* direction);
  // Partial sums over fixed blocks, then in order: the same for every number of threads.
  double (*sum_squares)(int64_t count, const T* x);
  // sum += x, or sum = x.
  void (*accumulate)(int64_t count, const T* x, bool add, float* sum);
};

// Loops on fp32 alone, and between it and bf16.
struct Fp32Kernels {
  // parameters -= rate * direction, direction = mean^ / (sqrt(variance^) + epsilon) + weight_decay
  // * parameters, ^ for the corrections of `step`.
  void (*lamb_apply)(int64_t count, const AdamW& step, float rate, const float* mean,
                     const float* variance, float* parameters);
  // x = keep * x - rate * direction.
  void (*step_along)(int64_t count, float keep, float rate, const float* direction, float* x);
  void (*widen)(int64_t count, const Bf16* x, float* y);
  // Rounds up or down, each with the probability that makes the mean of the results x. The draw
  // depends on key and on the element's number, `first` for x[0].
  void (*round_stochastically)(int64_t count, uint64_t key, int64_t first, const float* x, Bf16* y);
};

// By the type of the gradient.
template <typename T, typename G>
void EmbeddingBackward(const TypedKernels<T>& kernels, int64_t rows, int64_t width, int64_t vocab,
                       const int64_t* tokens, const T* dy, bool add, G* dtable) {
  if constexpr (std::is_same_v<G, float>) {
    kernels.embedding_backward_fp32(rows, width, vocab, tokens, dy, add, dtable);
  } else {
    kernels.embedding_backward(rows, width, vocab, tokens, dy, add, dtable);
  }
}
template <typename T, typename G>
void PositionBackward(const TypedKernels<T>& kernels, int64_t rows, int64_t width, int64_t sequence,
                      const T* dy, bool add, G* dpositions) {
  if constexpr (std::is_same_v<G, float>) {
    kernels.position_backward_fp32(rows, width, sequence, dy, add, dpositions);
  } else {
    kernels.position_backward(rows, width, sequence, dy, add, dpositions);
  }
}

// What a device computes with. Pointers are of the device's memory, but for the sums that are
// returned or written in double: those are of the host's.
struct KernelTable {
  const char* instruction_set = "";
  TypedKernels<float> f32;
  TypedKernels<Bf16> bf16;
  TypedKernels<Fp16> fp16;
  Fp32Kernels fp32;
  template <typename T>
  const TypedKernels<T>& Of() const;
};
template <>
inline const TypedKernels<float>& KernelTable::Of<float>() const {
  return f32;
}
template <>
inline const TypedKernels<Bf16>& KernelTable::Of<Bf16>() const {
  return bf16;
}

template <>
inline const TypedKernels<Fp16>& KernelTable::Of<Fp16>() const {
  return fp16;
}

// The best that this CPU has.
const KernelTable& Kernels();
// All that it can run, the best first.
std::vector<KernelTable> KernelTables();

[[gnu::always_inline]] inline float Load(float x) { return x; }
[[gnu::always_inline]] inline float Load(Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
[[gnu::always_inline]] inline float Load(Fp16 x) {
  const uint32_t low = static_cast<uint32_t>(x.bits) & 0x7FFFU;
  // The exponent's bias differs by 112; an infinity or a NaN stays one.
  const float scaled = std::bit_cast<float>(low << 13) * 0x1p112F;
  const uint32_t finite = std::bit_cast<uint32_t>(scaled);
  const uint32_t bits = low >= 0x7C00U ? (low << 13) | 0x7F800000U : finite;
  return std::bit_cast<float>(bits | (static_cast<uint32_t>(x.bits & 0x8000U) << 16));
}
[[gnu::always_inline]] inline void Store(float value, float& x) { x = value; }
// Round to nearest, ties to even; a NaN stays one.
[[gnu::always_inline]] inline void Store(float value, Bf16& x) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  x.bits = static_cast<uint16_t>((value == value ? rounded : (bits | 0x400000U)) >> 16);
}

// The same; what is above 65,504 by half a unit or more becomes infinite.
[[gnu::always_inline]] inline void Store(float value, Fp16& x) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t size = bits & 0x7FFFFFFFU;
  // Normal: another bias, and 13 bits less, ties to even. Below 2^-14: adding 2^-1 in fp32 rounds
  // to multiples of 2^-24, which are the results.
  const uint32_t normal = (size - 0x38000000U + 0xFFFU + ((size >> 13) & 1U)) >> 13;
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5F) - 0x3F000000U;
  const uint32_t finite = size < 0x38800000U ? small : normal;
  const uint32_t large = size > 0x7F800000U ? 0x7E00U : 0x7C00U;
  const uint32_t result = size >= 0x477FF000U ? large : finite;
  x.bits = static_cast<uint16_t>(result | ((bits >> 16) & 0x8000U));
}

}  // namespace weft::train::kernels

#endif  // WEFT_TRAINER_KERNELS_KERNELS_H_
