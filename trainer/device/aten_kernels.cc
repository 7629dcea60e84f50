#include "trainer/device/aten_kernels.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <type_traits>

#include "base/status.h"

namespace weft::train {
namespace {

using kernels::Bf16;
using kernels::Fp16;

template <typename T>
constexpr at::ScalarType kTypeOf = std::is_same_v<T, Bf16>      ? at::kBFloat16
                                   : std::is_same_v<T, Fp16>    ? at::kHalf
                                   : std::is_same_v<T, int64_t> ? at::kLong
                                                                : at::kFloat;

// In fp32; x itself where it is that already.
at::Tensor Wide(const at::Tensor& x) { return x.to(at::kFloat); }

// x >> bits of an int64 that stands for a uint64.
at::Tensor ShiftDown(const at::Tensor& x, int64_t bits) {
  return at::__rshift__(x, bits).bitwise_and_((int64_t{1} << (64 - bits)) - 1);
}
at::Tensor Low32(const at::Tensor& x) { return x.bitwise_and(0xFFFFFFFFLL); }
// (x ^ (x >> bits)) * factor of numbers below 2^32.
at::Tensor Mix(const at::Tensor& x, int64_t bits, int64_t factor) {
  return Low32(x.bitwise_xor(at::__rshift__(x, bits)).mul_(factor));
}

// Memory of the device D as tensors.
template <c10::DeviceType D>
struct On {
  template <typename T>
  static at::Tensor View(const T* data, at::IntArrayRef shape) {
    return at::from_blob(const_cast<T*>(data), shape, at::TensorOptions(kTypeOf<T>).device(D));
  }
  static at::Tensor Count(int64_t count) { return at::arange(count, Long()); }
  static at::TensorOptions Long() { return at::TensorOptions(at::kLong).device(D); }
  static at::TensorOptions Float() { return at::TensorOptions(at::kFloat).device(D); }
};

template <c10::DeviceType D, typename T>
struct Typed : On<D> {
  using On<D>::View;

  static void NormForward(int64_t rows, int64_t width, float epsilon, const T* x, const T* weight,
                          const T* bias, T* y, float* mean, float* rstd) {
    at::Tensor centred = Wide(View(x, {rows, width}));
    if (mean != nullptr) {
      const at::Tensor means = centred.mean(1);
      View(mean, {rows}).copy_(means);
      centred = centred - means.unsqueeze(1);
    }
    const at::Tensor scale = centred.square().mean(1).add_(epsilon).rsqrt_();
    View(rstd, {rows}).copy_(scale);
    at::Tensor out = centred * scale.unsqueeze(1) * Wide(View(weight, {width}));
    if (bias != nullptr) out += View(bias, {width});
    View(y, {rows, width}).copy_(out);
  }

  static void NormBackward(int64_t rows, int64_t width, const T* dy, const T* x, const T* weight,
                           const float* mean, const float* rstd, const T* residual, T* dx,
                           float* dweight, float* dbias) {
    const at::Tensor given = Wide(View(dy, {rows, width}));
    const at::Tensor scale = View(rstd, {rows}).unsqueeze(1);
    at::Tensor normal = Wide(View(x, {rows, width}));
    if (mean != nullptr) normal = normal - View(mean, {rows}).unsqueeze(1);
    normal = normal * scale;
    const at::Tensor weighted = given * Wide(View(weight, {width}));
    at::Tensor out = weighted - normal * (weighted * normal).mean(1, true);
    if (mean != nullptr) out -= weighted.mean(1, true);
    out *= scale;
    if (residual != nullptr) out += View(residual, {rows, width});
    View(dweight, {width}).copy_((given * normal).sum(0));
    if (dbias != nullptr) View(dbias, {width}).copy_(given.sum(0));
    View(dx, {rows, width}).copy_(out);
  }

  static void GeluForward(int64_t count, const T* x, T* y) {
    View(y, {count}).copy_(at::gelu(View(x, {count}), "tanh"));
  }
  static void GeluBackward(int64_t count, const T* dy, const T* x, T* dx) {
    View(dx, {count}).copy_(at::gelu_backward(View(dy, {count}), View(x, {count}), "tanh"));
  }

  static void SwigluForward(int64_t rows, int64_t width, const T* x, T* y) {
    const at::Tensor both = Wide(View(x, {rows, 2 * width}));
    View(y, {rows, width}).copy_(at::silu(both.narrow(1, 0, width)) * both.narrow(1, width, width));
  }
  static void SwigluBackward(int64_t rows, int64_t width, const T* dy, const T* x, T* dx) {
    const at::Tensor both = Wide(View(x, {rows, 2 * width}));
    const at::Tensor given = Wide(View(dy, {rows, width}));
    const at::Tensor gate = both.narrow(1, 0, width), up = both.narrow(1, width, width);
    const at::Tensor out = View(dx, {rows, 2 * width});
    out.narrow(1, 0, width).copy_(at::silu_backward(given * up, gate));
    out.narrow(1, width, width).copy_(given * at::silu(gate));
  }

  static void Rotate(int64_t rows, int64_t sequence, int64_t heads, int64_t width, int64_t stride,
                     const float* cosine, const float* sine, bool inverse, T* x) {
    const int64_t half = width / 2;
    const at::Tensor pairs = at::from_blob(x, {rows, heads, 2, half}, {stride, width, half, 1},
                                           at::TensorOptions(kTypeOf<T>).device(D));
    const at::Tensor position = On<D>::Count(rows).remainder_(sequence);
    auto by_row = [&](const float* table) {
      return View(table, {sequence, half}).index_select(0, position).unsqueeze(1);
    };
    const at::Tensor c = by_row(cosine), s = inverse ? by_row(sine).neg() : by_row(sine);
    const at::Tensor first = Wide(pairs.select(2, 0)), second = Wide(pairs.select(2, 1));
    const at::Tensor turned = first * c - second * s;  // before `first` is overwritten
    pairs.select(2, 1).copy_(second * c + first * s);
    pairs.select(2, 0).copy_(turned);
  }

  static void EmbeddingForward(int64_t rows, int64_t width, int64_t sequence, const int64_t* tokens,
                               const T* table, const T* positions, T* y) {
    const at::Tensor ids = View(tokens, {rows});
    const int64_t known =
        rows == 0 ? 0 : std::max<int64_t>(0, ids.max().template item<int64_t>()) + 1;
    at::Tensor out = Wide(View(table, {known, width}).index_select(0, ids.clamp_min(0)));
    if (positions != nullptr) {
      out += View(positions, {sequence, width})
                 .index_select(0, On<D>::Count(rows).remainder_(sequence));
    }
    out.masked_fill_((ids < 0).unsqueeze(1), 0);
    View(y, {rows, width}).copy_(out);
  }

  // Sums in fp32, then out.
  template <typename G>
  static void SumInto(int64_t places, int64_t width, const at::Tensor& place, const at::Tensor& dy,
                      bool add, G* out) {
    const at::Tensor target = View(out, {places, width});
    at::Tensor sum = at::zeros({places, width}, On<D>::Float()).index_add_(0, place, Wide(dy));
    if (add) sum += target;
    target.copy_(sum);
  }
  template <typename G>
  static void EmbeddingBackward(int64_t rows, int64_t width, int64_t vocab, const int64_t* tokens,
                                const T* dy, bool add, G* dtable) {
    const at::Tensor ids = View(tokens, {rows});
    const at::Tensor given = View(dy, {rows, width}).masked_fill((ids < 0).unsqueeze(1), 0);
    SumInto(vocab, width, ids.clamp_min(0), given, add, dtable);
  }
  template <typename G>
  static void PositionBackward(int64_t rows, int64_t width, int64_t sequence, const T* dy, bool add,
                               G* dpositions) {
    if (sequence == 1) {  // all rows to one place: no scattered additions
      const at::Tensor target = View(dpositions, {width}),
                       sum = Wide(View(dy, {rows, width})).sum(0);
      target.copy_(add ? sum + target : sum);
      return;
    }
    SumInto(sequence, width, On<D>::Count(rows).remainder_(sequence), View(dy, {rows, width}), add,
            dpositions);
  }

  static void CrossEntropy(int64_t rows, int64_t vocab, const int64_t* targets, float scale,
                           T* logits, float* losses) {
    const at::Tensor given = View(logits, {rows, vocab}), wide = Wide(given);
    const at::Tensor target = View(targets, {rows}).unsqueeze(1);
    const at::Tensor log_sums = at::logsumexp(wide, 1, true);
    View(losses, {rows}).copy_((log_sums - wide.gather(1, target)).squeeze(1));
    if (scale != 0) given.copy_(Gradient(wide, log_sums, target, scale));
  }
  static void CrossEntropyPart(int64_t rows, int64_t vocab, const int64_t* targets, const T* logits,
                               float* parts) {
    const at::Tensor wide = Wide(View(logits, {rows, vocab}));
    const at::Tensor target = View(targets, {rows}).unsqueeze(1);
    const at::Tensor largest = wide.amax(1, true);
    const at::Tensor out = View(parts, {rows, 3});
    out.narrow(1, 0, 1).copy_(largest);
    out.narrow(1, 1, 1).copy_(at::exp(wide - largest).sum(1, true));
    out.narrow(1, 2, 1).copy_(wide.gather(1, target.clamp_min(0)).masked_fill_(target < 0, 0));
  }
  static void CrossEntropyGradient(int64_t rows, int64_t vocab, const int64_t* targets, float scale,
                                   const float* log_sums, T* logits) {
    const at::Tensor given = View(logits, {rows, vocab});
    given.copy_(Gradient(Wide(given), View(log_sums, {rows}).unsqueeze(1),
                         View(targets, {rows}).unsqueeze(1), scale));
  }
  // log_sums, target: [rows, 1]; a target below 0 is none.
  static at::Tensor Gradient(const at::Tensor& wide, const at::Tensor& log_sums,
                             const at::Tensor& target, float scale) {
    const at::Tensor one =
        at::where(target < 0, at::zeros({}, On<D>::Float()), at::full({}, -1.0F, On<D>::Float()));
    return at::exp(wide - log_sums).scatter_add_(1, target.clamp_min(0), one).mul_(scale);
  }

  // The draws of the loops of the CPU, by the same hashes.
  static void Dropout(int64_t rows, int64_t width, float probability, uint64_t seed,
                      const int64_t* row_numbers, const T* x, T* y) {
    const int64_t threshold = static_cast<uint32_t>(probability * 4294967040.0F);
    auto signed_of = [](uint64_t bits) { return static_cast<int64_t>(bits); };
    at::Tensor mixed = View(row_numbers, {rows}) * signed_of(0x9E3779B97F4A7C15ULL);
    mixed = mixed + signed_of(seed);
    mixed = mixed.bitwise_xor(ShiftDown(mixed, 30)) * signed_of(0xBF58476D1CE4E5B9ULL);
    mixed = mixed.bitwise_xor(ShiftDown(mixed, 27)) * signed_of(0x94D049BB133111EBULL);
    const at::Tensor key = Low32(mixed.bitwise_xor(ShiftDown(mixed, 32))).unsqueeze(1);
    at::Tensor hash =
        key.bitwise_xor(Low32(On<D>::Count(width) * int64_t{0x9E3779B1}).unsqueeze(0));
    hash = Mix(hash, 16, 0x85EBCA6B);
    hash = Mix(hash, 13, 0xC2B2AE35);
    hash = hash.bitwise_xor(at::__rshift__(hash, 16));
    const float scale = 1.0F / (1.0F - probability);
    View(y, {rows, width})
        .copy_((Wide(View(x, {rows, width})) * scale).masked_fill_(hash < threshold, 0));
  }

  static at::Tensor Scaled(int64_t count, const T* gradient, float scale) {
    return Wide(View(gradient, {count})) * scale;
  }
  // Moves the moments on by a gradient.
  static void Moments(const kernels::AdamW& step, const at::Tensor& g, const at::Tensor& mean,
                      const at::Tensor& variance) {
    mean.mul_(step.beta1).add_(g, 1.0F - step.beta1);
    variance.mul_(step.beta2).addcmul_(g, g, 1.0F - step.beta2);
  }
  static void AdamW(int64_t count, const kernels::AdamW& step, const T* gradient, float* parameters,
                    float* mean, float* variance) {
    const at::Tensor m = View(mean, {count}), v = View(variance, {count});
    Moments(step, Scaled(count, gradient, step.gradient_scale), m, v);
    const at::Tensor size = at::sqrt(v).div_(step.correction2_root).add_(step.epsilon);
    View(parameters, {count})
        .mul_(1.0F - step.learning_rate * step.weight_decay)
        .addcdiv_(m, size, -step.learning_rate / step.correction1);
  }
  static void Sgd(int64_t count, const kernels::Sgd& step, const T* gradient, float* parameters,
                  float* momentum) {
    const at::Tensor x = View(parameters, {count}), m = View(momentum, {count});
    const at::Tensor g = Scaled(count, gradient, step.gradient_scale).add_(x, step.weight_decay);
    m.mul_(step.momentum).add_(g);
    x.sub_(step.nesterov ? g.add(m, step.momentum) : m, step.learning_rate);
  }
  static void Lion(int64_t count, const kernels::Lion& step, const T* gradient, float* parameters,
                   float* mean) {
    const at::Tensor m = View(mean, {count});
    const at::Tensor g = Scaled(count, gradient, step.gradient_scale);
    const at::Tensor sign = (m * step.beta1).add_(g, 1.0F - step.beta1).sign_();
    m.mul_(step.beta2).add_(g, 1.0F - step.beta2);
    View(parameters, {count})
        .mul_(1.0F - step.learning_rate * step.weight_decay)
        .sub_(sign, step.learning_rate);
  }
  static void LambMeasure(int64_t count, const kernels::AdamW& step, const T* gradient,
                          const float* parameters, float* mean, float* variance, double* sums);
  static void Momentum(int64_t count, const kernels::Momentum& step, const T* gradient, float* mean,
                       float* direction) {
    const at::Tensor m = View(mean, {count});
    const at::Tensor g = Scaled(count, gradient, step.gradient_scale);
    m.mul_(step.momentum).add_(g, 1.0F - step.momentum);
    View(direction, {count})
        .copy_(step.nesterov ? (g * (1.0F - step.momentum)).add_(m, step.momentum) : m);
  }
  static double SumSquares(int64_t count, const T* x) {
    return Wide(View(x, {count})).square().sum(at::kDouble).template item<double>();
  }
  static void Accumulate(int64_t count, const T* x, bool add, float* sum) {
    const at::Tensor target = View(sum, {count});
    add ? target.add_(View(x, {count})) : target.copy_(View(x, {count}));
  }

  static kernels::TypedKernels<T> Table() {
    return {.norm_forward = NormForward,
            .norm_backward = NormBackward,
            .gelu_forward = GeluForward,
            .gelu_backward = GeluBackward,
            .swiglu_forward = SwigluForward,
            .swiglu_backward = SwigluBackward,
            .rotate = Rotate,
            .embedding_forward = EmbeddingForward,
            .embedding_backward = EmbeddingBackward<T>,
            .embedding_backward_fp32 = EmbeddingBackward<float>,
            .position_backward = PositionBackward<T>,
            .position_backward_fp32 = PositionBackward<float>,
            .cross_entropy = CrossEntropy,
            .cross_entropy_part = CrossEntropyPart,
            .cross_entropy_gradient = CrossEntropyGradient,
            .dropout = Dropout,
            .adamw = AdamW,
            .sgd = Sgd,
            .lion = Lion,
            .lamb_measure = LambMeasure,
            .momentum = Momentum,
            .sum_squares = SumSquares,
            .accumulate = Accumulate};
  }
};

template <c10::DeviceType D>
struct Fp32 : On<D> {
  using On<D>::View;

  static at::Tensor AdamDirection(const kernels::AdamW& s, const at::Tensor& x,
                                  const at::Tensor& mean, const at::Tensor& variance) {
    const at::Tensor size = at::sqrt(variance).div_(s.correction2_root).add_(s.epsilon);
    return (mean / s.correction1).div_(size).add_(x, s.weight_decay);
  }
  static void LambApply(int64_t count, const kernels::AdamW& step, float rate, const float* mean,
                        const float* variance, float* parameters) {
    const at::Tensor x = View(parameters, {count});
    x.sub_(AdamDirection(step, x, View(mean, {count}), View(variance, {count})), rate);
  }
  static void StepAlong(int64_t count, float keep, float rate, const float* direction, float* x) {
    View(x, {count}).mul_(keep).sub_(View(direction, {count}), rate);
  }
  static void Widen(int64_t count, const Bf16* x, float* y) {
    View(y, {count}).copy_(View(x, {count}));
  }
  // The draws of the loops of the CPU.
  static void RoundStochastically(int64_t count, uint64_t key, int64_t first, const float* x,
                                  Bf16* y) {
    const int64_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
    const at::Tensor number = Low32(On<D>::Count(count).add_(first));
    at::Tensor hash = Low32(number.mul(int64_t{0x9E3779B1})).bitwise_xor_(low);
    hash = Mix(hash, 16, 0x85EBCA6B);
    hash = Low32(hash.bitwise_xor(at::__rshift__(hash, 13)).bitwise_xor_(high).mul_(0xC2B2AE35));
    hash = hash.bitwise_xor(at::__rshift__(hash, 16));
    const at::Tensor given = View(x, {count});
    const at::Tensor bits = Low32(given.view(at::kInt).to(at::kLong));
    const at::Tensor drawn = Low32(bits + at::__rshift__(hash, 16)).bitwise_and_(0xFFFF0000LL);
    // A NaN stays one: LibTorch rounds it so.
    at::Tensor rounded = drawn.to(at::kInt).view(at::kFloat);
    View(y, {count}).copy_(at::where(given.isnan(), given, rounded));
  }
};

template <c10::DeviceType D, typename T>
void Typed<D, T>::LambMeasure(int64_t count, const kernels::AdamW& step, const T* gradient,
                              const float* parameters, float* mean, float* variance, double* sums) {
  const at::Tensor x = View(parameters, {count}), m = View(mean, {count}),
                   v = View(variance, {count});
  Moments(step, Scaled(count, gradient, step.gradient_scale), m, v);
  sums[0] = x.square().sum(at::kDouble).template item<double>();
  sums[1] =
      Fp32<D>::AdamDirection(step, x, m, v).square_().sum(at::kDouble).template item<double>();
}

template <c10::DeviceType D>
const kernels::KernelTable& Table() {
  static const kernels::KernelTable table = {
      "LibTorch",
      Typed<D, float>::Table(),
      Typed<D, Bf16>::Table(),
      Typed<D, Fp16>::Table(),
      {.lamb_apply = Fp32<D>::LambApply,
       .step_along = Fp32<D>::StepAlong,
       .widen = Fp32<D>::Widen,
       .round_stochastically = Fp32<D>::RoundStochastically}};
  return table;
}

}  // namespace

const kernels::KernelTable& AtenKernels(c10::DeviceType type) {
  switch (type) {
    case c10::DeviceType::CPU:
      return Table<c10::DeviceType::CPU>();
    case c10::DeviceType::CUDA:
      return Table<c10::DeviceType::CUDA>();
    default:
      WEFT_CHECK(false, "no kernels for tensors of " << c10::DeviceTypeName(type));
  }
}

}  // namespace weft::train
