// The loops of decode.h. Compiled once for each instruction set, as loops.cc is, whose first lines
// hold here as well; but with vectors written out (the compiler's own type for them), so that
// several rows and vectors share each load.
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>

#include "trainer/kernels/decode.h"
#include "trainer/kernels/exponential.h"

namespace weft::train::kernels::WEFT_KERNEL_SET {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kTile = 8;  // vectors that share the load of a weight: 16 sums in 32 registers
// The forms without a mask make GCC 12 warn of a variable of theirs.
constexpr __mmask16 kAllLanes = 0xFFFF;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kTile = 4;  // 8 sums in 16 registers
#else
constexpr int kLanes = 4;
constexpr int kTile = 4;
#endif

// Elements of a matrix or cache below which a loop is not worth a second thread.
constexpr int64_t kGrain = 1 << 14;
// Bytes that a thread takes at once, where it is free to: few enough that none waits long for the
// last, as many as keep taking them cheap and the hardware's prefetching going.
constexpr int64_t kBlockBytes = 128 << 10;
// Bytes ahead of the read that are asked for: past the page's end, where the hardware stops.
constexpr int64_t kAheadBytes = 2048;
constexpr int64_t kCacheLine = 64;

using Floats [[gnu::vector_size(kLanes * sizeof(float))]] = float;
using Words [[gnu::vector_size(kLanes * sizeof(uint32_t))]] = uint32_t;
using Halves [[gnu::vector_size(kLanes * sizeof(uint16_t))]] = uint16_t;

template <typename V, typename T>
[[gnu::always_inline]] inline V Bits(const T* x) {
  V value;
  __builtin_memcpy(&value, x, sizeof(value));
  return value;
}
[[gnu::always_inline]] inline Floats LoadLanes(const float* x) { return Bits<Floats>(x); }
// kLanes of 16 bits, each in a word of its own. By the instruction where there is one: the
// compiler takes several for its own conversion.
[[gnu::always_inline]] inline Words Spread(const void* x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(
      _mm512_maskz_cvtepu16_epi32(kAllLanes, _mm256_loadu_si256(static_cast<const __m256i*>(x))));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(x))));
#else
  return __builtin_convertvector(Bits<Halves>(x), Words);
#endif
}
[[gnu::always_inline]] inline Floats LoadLanes(const Bf16* x) {
  return reinterpret_cast<Floats>(Spread(x) << 16);
}
[[gnu::always_inline]] inline Floats LoadLanes(const Fp16* x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(
      _mm512_maskz_cvtph_ps(kAllLanes, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))));
#else
  // As Load() of kernels.h.
  const Words bits = Spread(x);
  const Words low = bits & 0x7FFFU;
  const Words finite = reinterpret_cast<Words>(reinterpret_cast<Floats>(low << 13) * 0x1p112F);
  const Words is_infinite = reinterpret_cast<Words>(low >= 0x7C00U);
  const Words infinite = (low << 13) | 0x7F800000U;
  return reinterpret_cast<Floats>((finite & ~is_infinite) | (infinite & is_infinite) |
                                  ((bits & 0x8000U) << 16));
#endif
}

// The sum of the lanes: halves are added up until four are left.
using Quad [[gnu::vector_size(4 * sizeof(float))]] = float;
[[gnu::always_inline]] inline float SumLanes(Floats x) {
#if defined(__AVX512F__)
  const auto half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  const auto half = x;
#endif
#if defined(__AVX2__)
  const Quad quad = __builtin_shufflevector(half, half, 0, 1, 2, 3) +
                    __builtin_shufflevector(half, half, 4, 5, 6, 7);
#else
  const Quad quad = half;
#endif
  const Quad pairs = quad + __builtin_shufflevector(quad, quad, 2, 3, 0, 1);
  return pairs[0] + pairs[1];
}

// Asks for the lines that lie ahead of the next `kCount` elements.
template <int64_t kCount, typename T>
[[gnu::always_inline]] inline void Prefetch(const T* x) {
  constexpr int64_t kBytes = kCount * static_cast<int64_t>(sizeof(T));
#pragma GCC unroll 4
  for (int64_t at = 0; at < kBytes; at += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(x) + at + kAheadBytes, 0, 3);
  }
}

// sums[v] = a row of the weights times vector v. Every sum is added up in the same order, whatever
// the tile: in two chains, as one is slower than a core reads. A row at a time, so that a thread
// reads one stream: of two rows in turns the hardware follows neither to the end of the next ones.
template <int kVectors, typename T>
[[gnu::always_inline]] inline void Products(int64_t inputs, const float* x, const T* row,
                                            float (&sums)[kVectors]) {
  Floats even[kVectors] = {}, odd[kVectors] = {};
  int64_t k = 0;
  for (; k + 2 * kLanes <= inputs; k += 2 * kLanes) {
    Prefetch<2 * kLanes>(row + k);
    const Floats first = LoadLanes(row + k), second = LoadLanes(row + k + kLanes);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      even[v] += first * LoadLanes(x + v * inputs + k);
      odd[v] += second * LoadLanes(x + v * inputs + k + kLanes);
    }
  }
  for (; k + kLanes <= inputs; k += kLanes) {
    const Floats only = LoadLanes(row + k);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) even[v] += only * LoadLanes(x + v * inputs + k);
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) sums[v] = SumLanes(even[v] + odd[v]);
  for (; k < inputs; ++k) {
    const float w = Load(row[k]);
    for (int v = 0; v < kVectors; ++v) sums[v] += w * x[v * inputs + k];
  }
}

// What vectors are multiplied in.
template <typename T>
struct Input {
  using Type = float;
};
#if defined(__AVX512BF16__)
template <>
struct Input<Bf16> {
  using Type = Bf16;
};

// acc + the sums of pairs of products of 2 kLanes numbers. Those too small for a normal bf16 count
// as 0.
[[gnu::always_inline]] inline Floats AddPairs(Floats acc, const Bf16* a, const Bf16* b) {
  return reinterpret_cast<Floats>(
      _mm512_dpbf16_ps(reinterpret_cast<__m512>(acc), Bits<__m512bh>(a), Bits<__m512bh>(b)));
}

// The same without making the numbers wider.
template <int kVectors>
[[gnu::always_inline]] inline void Products(int64_t inputs, const Bf16* x, const Bf16* row,
                                            float (&sums)[kVectors]) {
  constexpr int64_t kPairs = 2 * kLanes;
  Floats even[kVectors] = {}, odd[kVectors] = {};
  int64_t k = 0;
  for (; k + 2 * kPairs <= inputs; k += 2 * kPairs) {
    Prefetch<2 * kPairs>(row + k);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      even[v] = AddPairs(even[v], x + v * inputs + k, row + k);
      odd[v] = AddPairs(odd[v], x + v * inputs + k + kPairs, row + k + kPairs);
    }
  }
  for (; k + kPairs <= inputs; k += kPairs) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) even[v] = AddPairs(even[v], x + v * inputs + k, row + k);
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) sums[v] = SumLanes(even[v] + odd[v]);
  for (; k < inputs; ++k) {
    const float w = Load(row[k]);
    for (int v = 0; v < kVectors; ++v) sums[v] += w * Load(x[v * inputs + k]);
  }
}
#endif

// Output `row` of kVectors vectors.
template <int kVectors, typename X, typename T, typename Y>
[[gnu::always_inline]] inline void Tile(int64_t outputs, int64_t inputs, int64_t row, const X* x,
                                        const T* weight, const T* bias, Y* y) {
  float sums[kVectors];
  Products<kVectors>(inputs, x, weight + row * inputs, sums);
  const float base = bias == nullptr ? 0.0F : Load(bias[row]);
  for (int v = 0; v < kVectors; ++v) Store(sums[v] + base, y[v * outputs + row]);
}

template <typename X, typename T, typename Y>
[[gnu::always_inline]] inline void Row(int64_t vectors, int64_t outputs, int64_t inputs,
                                       int64_t row, const X* x, const T* weight, const T* bias,
                                       Y* y) {
  int64_t v = 0;
  for (; v + kTile <= vectors; v += kTile) {
    Tile<kTile>(outputs, inputs, row, x + v * inputs, weight, bias, y + v * outputs);
  }
  if (v + kTile / 2 <= vectors) {
    Tile<kTile / 2>(outputs, inputs, row, x + v * inputs, weight, bias, y + v * outputs);
    v += kTile / 2;
  }
  for (; v < vectors; ++v) {
    Tile<1>(outputs, inputs, row, x + v * inputs, weight, bias, y + v * outputs);
  }
}

// x as it is multiplied: itself, or a copy in fp32 in `owner`.
template <typename T>
const typename Input<T>::Type* AsInput(int64_t count, const T* x, std::unique_ptr<float[]>& owner) {
  if constexpr (std::is_same_v<T, typename Input<T>::Type>) {
    return x;
  } else {
    owner.reset(new float[static_cast<size_t>(count)]);
    for (int64_t i = 0; i < count; ++i) owner[static_cast<size_t>(i)] = Load(x[i]);
    return owner.get();
  }
}

template <typename T, typename Y>
void MultiplyInto(int64_t vectors, int64_t outputs, int64_t inputs, const T* x, const T* weight,
                  const T* bias, Y* y) {
  std::unique_ptr<float[]> owner;
  const typename Input<T>::Type* in = AsInput(vectors * inputs, x, owner);
  const int64_t row_bytes = std::max<int64_t>(1, inputs * static_cast<int64_t>(sizeof(T)));
  const int64_t block = std::max<int64_t>(1, kBlockBytes / row_bytes);
  const int64_t blocks = (outputs + block - 1) / block;
#pragma omp parallel for schedule(dynamic) if (outputs * inputs > kGrain)
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t end = std::min(outputs, (b + 1) * block);
    for (int64_t row = b * block; row < end; ++row) {
      Row(vectors, outputs, inputs, row, in, weight, bias, y);
    }
  }
}

template <typename T>
void Multiply(int64_t vectors, int64_t outputs, int64_t inputs, const T* x, const T* weight,
              const T* bias, T* y) {
  MultiplyInto(vectors, outputs, inputs, x, weight, bias, y);
}
template <typename T>
void MultiplyFp32(int64_t vectors, int64_t outputs, int64_t inputs, const T* x, const T* weight,
                  float* y) {
  MultiplyInto(vectors, outputs, inputs, x, weight, static_cast<const T*>(nullptr), y);
}

// scores become their softmax; query: fp32 [width].
template <typename T>
void Weigh(int64_t count, int64_t width, const float* query, const T* keys, float* scores) {
  float largest = -INFINITY;
  for (int64_t i = 0; i < count; ++i) {
    float score[1];
    Products<1>(width, query, keys + i * width, score);
    scores[i] = score[0];
    largest = std::max(largest, scores[i]);
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    scores[i] = Exp(scores[i] - largest);
    sum += scores[i];
  }
  const float scale = 1.0F / sum;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) scores[i] *= scale;
}

// Columns [column, column + kVectors * kLanes) of the weighted sum of values.
template <int kVectors, typename T>
[[gnu::always_inline]] inline void SumColumns(int64_t count, int64_t width, int64_t column,
                                              const float* weights, const T* values, T* out) {
  Floats sums[kVectors] = {};
  for (int64_t i = 0; i < count; ++i) {
    const T* value = values + i * width + column;
    const Floats weight = weights[i] - Floats{};
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[v] += weight * LoadLanes(value + v * kLanes);
  }
  for (int v = 0; v < kVectors; ++v) {
    float lanes[kLanes];
    __builtin_memcpy(lanes, &sums[v], sizeof(lanes));
    for (int i = 0; i < kLanes; ++i) Store(lanes[i], out[column + v * kLanes + i]);
  }
}

template <typename T>
void SumValues(int64_t count, int64_t width, const float* weights, const T* values, T* out) {
  int64_t column = 0;
  for (; column + 4 * kLanes <= width; column += 4 * kLanes) {
    SumColumns<4>(count, width, column, weights, values, out);
  }
  for (; column + kLanes <= width; column += kLanes) {
    SumColumns<1>(count, width, column, weights, values, out);
  }
  for (; column < width; ++column) {
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += weights[i] * Load(values[i * width + column]);
    Store(sum, out[column]);
  }
}

template <typename T>
void Attend(int64_t sequences, int64_t heads, int64_t kv_heads, int64_t width,
            const CachedAttention<T>* what) {
  const int64_t group = heads / kv_heads;
  const float scale = 1.0F / std::sqrt(static_cast<float>(width));
  int64_t most = 0;
  int64_t all = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    most = std::max(most, what[s].count);
    all += what[s].count;
  }
#pragma omp parallel if (all * heads * width > kGrain)
  {
    std::unique_ptr<float[]> scratch(new float[static_cast<size_t>(most + width)]);
    float* scores = scratch.get();
    float* query = scores + most;
#pragma omp for schedule(dynamic)
    for (int64_t job = 0; job < sequences * kv_heads; ++job) {
      const CachedAttention<T>& one = what[job / kv_heads];
      const int64_t kv_head = job % kv_heads;
      const T* keys = one.keys + kv_head * one.stride;
      const T* values = one.values + kv_head * one.stride;
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        for (int64_t i = 0; i < width; ++i) query[i] = Load(one.query[head * width + i]) * scale;
        Weigh(one.count, width, query, keys, scores);
        SumValues(one.count, width, scores, values, one.out + head * width);
      }
    }
  }
}

uint32_t Read(int64_t bytes, const std::byte* data) {
  constexpr int kSums = 4;
  constexpr int64_t kStep = kSums * static_cast<int64_t>(sizeof(Words));
  const int64_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  uint32_t result = 0;
#pragma omp parallel for schedule(dynamic) reduction(^ : result) if (bytes > kBlockBytes)
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t end = std::min(bytes, (b + 1) * kBlockBytes);
    int64_t at = b * kBlockBytes;
    Words sums[kSums] = {};
    for (; at + kStep <= end; at += kStep) {
#pragma GCC unroll 4
      for (int i = 0; i < kSums; ++i) {
        const std::byte* from = data + at + i * static_cast<int64_t>(sizeof(Words));
        Prefetch<sizeof(Words)>(from);
        sums[i] ^= Bits<Words>(from);
      }
    }
    const Words sum = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
    for (int i = 0; i < kLanes; ++i) result ^= sum[i];
    for (; at < end; ++at) result ^= static_cast<uint32_t>(data[at]);
  }
  return result;
}

template <typename T>
DecodeKernels<T> Typed() {
  return {.multiply = Multiply<T>, .multiply_fp32 = MultiplyFp32<T>, .attend = Attend<T>};
}

}  // namespace

DecodeTable Decode();
DecodeTable Decode() { return {"", Typed<float>(), Typed<Bf16>(), Typed<Fp16>(), Read}; }

}  // namespace weft::train::kernels::WEFT_KERNEL_SET
