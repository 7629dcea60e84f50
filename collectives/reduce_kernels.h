// The text of the kernels, included once by each reduce_<set>.cc and compiled there with that set's
// instructions; GCC vectorises the loops. Everything has internal linkage, and no standard
// container or algorithm is used, so that no function compiled for a newer machine can be chosen by
// the linker for an older one.
//
// Loads and stores go through memcpy, which costs nothing and asks for no alignment. `ivdep` says
// that operands are the same memory or disjoint, never shifted.
#include <cstddef>
#include <cstdint>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "collectives/reduce.h"

namespace weft::collectives::internal {
namespace {

template <typename T>
inline T Load(const std::byte* from, size_t i) {
  T value;
  __builtin_memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
inline void Store(std::byte* to, size_t i, T value) {
  __builtin_memcpy(to + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
inline constexpr bool kIsFloat = static_cast<T>(0.5) != static_cast<T>(0);

// Integers compute in an unsigned type of at least 32 bits: wrapping is defined, also of products.
template <typename T>
struct Arithmetic {
  using Type = T;
};
template <>
struct Arithmetic<uint8_t> {
  using Type = uint32_t;
};
template <>
struct Arithmetic<int8_t> {
  using Type = uint32_t;
};
template <>
struct Arithmetic<int16_t> {
  using Type = uint32_t;
};
template <>
struct Arithmetic<int32_t> {
  using Type = uint32_t;
};
template <>
struct Arithmetic<int64_t> {
  using Type = uint64_t;
};

struct Sum {
  template <typename T>
  static T Of(T a, T b) {
    using A = typename Arithmetic<T>::Type;
    return static_cast<T>(static_cast<A>(a) + static_cast<A>(b));
  }
};
struct Product {
  template <typename T>
  static T Of(T a, T b) {
    using A = typename Arithmetic<T>::Type;
    return static_cast<T>(static_cast<A>(a) * static_cast<A>(b));
  }
};
// A NaN on either side wins. Bitwise `|`: no branch.
struct Min {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (kIsFloat<T>) {
      return ((a < b) | (a != a)) ? a : b;
    } else {
      return a < b ? a : b;
    }
  }
};
struct Max {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (kIsFloat<T>) {
      return ((a > b) | (a != a)) ? a : b;
    } else {
      return a > b ? a : b;
    }
  }
};
struct BitAnd {
  template <typename T>
  static T Of(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <typename T>
  static T Of(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct BitXor {
  template <typename T>
  static T Of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

template <typename T, typename Op>
void Reduce(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
  size_t count = bytes / sizeof(T);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    Store<T>(out, i, Op::Of(Load<T>(local, i), Load<T>(incoming, i)));
  }
}

// Any value but 0 is true; what is stored is 0 or 1.
template <typename Op>
void ReduceBool(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
#pragma GCC ivdep
  for (size_t i = 0; i < bytes; ++i) {
    uint8_t a = Load<uint8_t>(local, i) != 0;
    uint8_t b = Load<uint8_t>(incoming, i) != 0;
    Store<uint8_t>(out, i, Op::Of(a, b));
  }
}

// GCC 12 joins these products and sums to fused multiply-adds even with -ffp-contract=off.
template <typename T>
inline T Rounded(T value) {
#if __has_builtin(__builtin_assoc_barrier)
  return __builtin_assoc_barrier(value);
#else
  return value;
#endif
}

template <typename T>
void ReduceComplexProduct(std::byte* out, const std::byte* local, const std::byte* incoming,
                          size_t bytes) {
  size_t count = bytes / (2 * sizeof(T));
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    T a = Load<T>(local, 2 * i), b = Load<T>(local, 2 * i + 1);
    T c = Load<T>(incoming, 2 * i), d = Load<T>(incoming, 2 * i + 1);
    Store<T>(out, 2 * i, Rounded(a * c) - Rounded(b * d));
    Store<T>(out, 2 * i + 1, Rounded(a * d) + Rounded(b * c));
  }
}

// ---- 16-bit floats: widened to float32 a block at a time, which stays in the first-level cache.

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float FloatOf(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

struct BFloat16 {
  static float Widen(uint16_t half) { return FloatOf(static_cast<uint32_t>(half) << 16); }
  static uint16_t Narrow(float value) {
    uint32_t bits = BitsOf(value);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
  }
  static void WidenBlock(const uint16_t* from, float* to, size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] = Widen(from[i]);
  }
  static void NarrowBlock(const float* from, uint16_t* to, size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] = Narrow(from[i]);
  }
};

struct Float16 {
  static float Widen(uint16_t half) {
    uint32_t sign = (half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7FFFu;
    if (magnitude >= 0x7C00u) {  // infinity, NaN (made quiet)
      uint32_t quiet = magnitude > 0x7C00u ? 0x400000u : 0u;
      return FloatOf(sign | 0x7F800000u | quiet | ((magnitude & 0x3FFu) << 13));
    }
    if (magnitude >= 0x400u) return FloatOf(sign | ((magnitude << 13) + 0x38000000u));
    float subnormal = static_cast<float>(magnitude) * 0x1p-24f;  // exact, also 0
    return FloatOf(sign | BitsOf(subnormal));
  }
  static uint16_t Narrow(float value) {
    uint32_t bits = BitsOf(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) {
      return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
    }
    if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);  // >= 2^16
    if (magnitude < 0x38800000u) {  // below 2^-14: subnormal; adding 0.5 rounds to its last place
      float shifted = FloatOf(magnitude) + 0.5f;
      return static_cast<uint16_t>(sign | (BitsOf(shifted) - 0x3F000000u));
    }
    uint32_t rebased = magnitude - 0x38000000u;
    return static_cast<uint16_t>(sign | ((rebased + 0xFFFu + ((rebased >> 13) & 1u)) >> 13));
  }
#if defined(__F16C__)
  static void WidenBlock(const uint16_t* from, float* to, size_t count) {
    for (size_t i = 0; i < count; i += 8) {
      __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(half));
    }
  }
  static void NarrowBlock(const float* from, uint16_t* to, size_t count) {
    for (size_t i = 0; i < count; i += 8) {
      __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
    }
  }
#else
  static void WidenBlock(const uint16_t* from, float* to, size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] = Widen(from[i]);
  }
  static void NarrowBlock(const float* from, uint16_t* to, size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] = Narrow(from[i]);
  }
#endif
};

inline constexpr size_t kBlock = 64;  // elements; a multiple of every vector's

template <typename Half, typename Op>
void ReduceHalf(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
  size_t count = bytes / 2;
  uint16_t a[kBlock], b[kBlock];
  float wide_a[kBlock], wide_b[kBlock];
  for (size_t done = 0; done < count; done += kBlock) {
    size_t now = count - done < kBlock ? count - done : kBlock;
    if (now < kBlock) {  // the tail computes on zeros as well, and does not store them
      __builtin_memset(a, 0, sizeof(a));
      __builtin_memset(b, 0, sizeof(b));
    }
    __builtin_memcpy(a, local + done * 2, now * 2);
    __builtin_memcpy(b, incoming + done * 2, now * 2);
    Half::WidenBlock(a, wide_a, kBlock);
    Half::WidenBlock(b, wide_b, kBlock);
    for (size_t i = 0; i < kBlock; ++i) wide_a[i] = Op::Of(wide_a[i], wide_b[i]);
    Half::NarrowBlock(wide_a, a, kBlock);
    __builtin_memcpy(out + done * 2, a, now * 2);
  }
}

template <typename Half, typename Op>
void ReduceAllHalves(std::byte* out, const std::byte* const* operands, size_t operand_count,
                     size_t bytes, int divisor) {
  size_t count = bytes / 2;
  uint16_t narrow[kBlock];
  float sums[kBlock], next[kBlock];
  for (size_t done = 0; done < count; done += kBlock) {
    size_t now = count - done < kBlock ? count - done : kBlock;
    if (now < kBlock) __builtin_memset(narrow, 0, sizeof(narrow));  // as ReduceHalf
    __builtin_memcpy(narrow, operands[0] + done * 2, now * 2);
    Half::WidenBlock(narrow, sums, kBlock);
    for (size_t o = 1; o < operand_count; ++o) {
      __builtin_memcpy(narrow, operands[o] + done * 2, now * 2);
      Half::WidenBlock(narrow, next, kBlock);
      for (size_t i = 0; i < kBlock; ++i) sums[i] = Op::Of(sums[i], next[i]);
    }
    if (divisor != 1) {
      for (size_t i = 0; i < kBlock; ++i) sums[i] = sums[i] / static_cast<float>(divisor);
    }
    Half::NarrowBlock(sums, narrow, kBlock);
    __builtin_memcpy(out + done * 2, narrow, now * 2);
  }
}

// ---- Averages

template <typename T>
void Scale(std::byte* data, size_t bytes, int divisor) {
  size_t count = bytes / sizeof(T);
  for (size_t i = 0; i < count; ++i) {
    if constexpr (sizeof(T) == 8) {
      Store<T>(data, i, Load<T>(data, i) / static_cast<T>(divisor));
    } else if constexpr (kIsFloat<T>) {
      Store<T>(data, i, Load<T>(data, i) / static_cast<float>(divisor));
    } else {  // narrow integers: a divisor beyond their range must not wrap
      Store<T>(data, i, static_cast<T>(static_cast<int64_t>(Load<T>(data, i)) / divisor));
    }
  }
}

template <typename Half>
void ScaleHalf(std::byte* data, size_t bytes, int divisor) {
  size_t count = bytes / 2;
  uint16_t block[kBlock] = {};
  float wide[kBlock];
  for (size_t done = 0; done < count; done += kBlock) {
    size_t now = count - done < kBlock ? count - done : kBlock;
    __builtin_memcpy(block, data + done * 2, now * 2);
    Half::WidenBlock(block, wide, kBlock);
    for (size_t i = 0; i < kBlock; ++i) wide[i] = wide[i] / static_cast<float>(divisor);
    Half::NarrowBlock(wide, block, kBlock);
    __builtin_memcpy(data + done * 2, block, now * 2);
  }
}

// ---- Around the cache

// `to` is at a line; whole lines.
inline void StreamLines(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__AVX512F__)
  for (size_t i = 0; i < bytes; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
#elif defined(__AVX2__)
  for (size_t i = 0; i < bytes; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
  }
#else
  __builtin_memcpy(to, from, bytes);
#endif
}

// As kReduce. Results go by a block that stays in the first-level cache to lines that are then not
// fetched, but written to memory.
template <net::ReduceFn kReduce>
void Streamed(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
  constexpr size_t kLine = 64, kStretch = 4096;
  alignas(64) std::byte block[kStretch];
  // Whole elements of all types, where `out` is at the beginning of one; else no line is streamed.
  size_t head = -reinterpret_cast<uintptr_t>(out) % kLine;
  if (head % 16 != 0 || head > bytes) head = bytes;
  kReduce(out, local, incoming, head);
  size_t at = head;
  while (bytes - at >= kLine) {
    size_t now = bytes - at < kStretch ? (bytes - at) / kLine * kLine : kStretch;
    kReduce(block, local + at, incoming + at, now);
    StreamLines(out + at, block, now);
    at += now;
  }
  kReduce(out + at, local + at, incoming + at, bytes - at);
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

// ---- The table

template <net::ReduceFn kReduce>
inline void Set(KernelTable& table, DataType type, ReduceOp op) {
  table.reduce[static_cast<int>(type)][static_cast<int>(op)] = kReduce;
  table.stream[static_cast<int>(type)][static_cast<int>(op)] = &Streamed<kReduce>;
}

template <typename T>
void FillNumber(KernelTable& table, DataType type) {
  Set<&Reduce<T, Sum>>(table, type, ReduceOp::kSum);
  Set<&Reduce<T, Min>>(table, type, ReduceOp::kMin);
  Set<&Reduce<T, Max>>(table, type, ReduceOp::kMax);
  Set<&Reduce<T, Product>>(table, type, ReduceOp::kProduct);
  table.scale[static_cast<int>(type)] = &Scale<T>;
}

template <typename T>
void FillInteger(KernelTable& table, DataType type) {
  FillNumber<T>(table, type);
  Set<&Reduce<T, BitAnd>>(table, type, ReduceOp::kBitAnd);
  Set<&Reduce<T, BitOr>>(table, type, ReduceOp::kBitOr);
  Set<&Reduce<T, BitXor>>(table, type, ReduceOp::kBitXor);
}

template <typename Half>
void FillHalf(KernelTable& table, DataType type) {
  Set<&ReduceHalf<Half, Sum>>(table, type, ReduceOp::kSum);
  Set<&ReduceHalf<Half, Min>>(table, type, ReduceOp::kMin);
  Set<&ReduceHalf<Half, Max>>(table, type, ReduceOp::kMax);
  Set<&ReduceHalf<Half, Product>>(table, type, ReduceOp::kProduct);
  table.reduce_all[static_cast<int>(type)][static_cast<int>(ReduceOp::kSum)] =
      &ReduceAllHalves<Half, Sum>;
  table.reduce_all[static_cast<int>(type)][static_cast<int>(ReduceOp::kProduct)] =
      &ReduceAllHalves<Half, Product>;
  table.scale[static_cast<int>(type)] = &ScaleHalf<Half>;
}

template <typename T>
void FillComplex(KernelTable& table, DataType type) {
  Set<&Reduce<T, Sum>>(table, type, ReduceOp::kSum);
  Set<&ReduceComplexProduct<T>>(table, type, ReduceOp::kProduct);
  table.scale[static_cast<int>(type)] = &Scale<T>;
}

void Fill(KernelTable& table) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBitOr}) {
    Set<&ReduceBool<BitOr>>(table, DataType::kBool, op);
  }
  for (ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kBitAnd}) {
    Set<&ReduceBool<BitAnd>>(table, DataType::kBool, op);
  }
  Set<&ReduceBool<BitXor>>(table, DataType::kBool, ReduceOp::kBitXor);
  FillInteger<uint8_t>(table, DataType::kUint8);
  FillInteger<int8_t>(table, DataType::kInt8);
  FillInteger<int16_t>(table, DataType::kInt16);
  FillInteger<int32_t>(table, DataType::kInt32);
  FillInteger<int64_t>(table, DataType::kInt64);
  FillHalf<Float16>(table, DataType::kFloat16);
  FillHalf<BFloat16>(table, DataType::kBFloat16);
  FillNumber<float>(table, DataType::kFloat32);
  FillNumber<double>(table, DataType::kFloat64);
  FillComplex<float>(table, DataType::kComplex64);
  FillComplex<double>(table, DataType::kComplex128);
}

}  // namespace
}  // namespace weft::collectives::internal
