// Packing, and the tile of registers: what the products of gemm_loops.cc and attention_loops.cc are
// made of. Included by files that are compiled once for each instruction set.
//
// Packed, A is panels of kTileRows rows and B is panels of kTileColumns columns, each step by step
// along the common dimension, padded with zeros to whole panels. A step is one element of it, or
// two where bf16 is multiplied in pairs. (With AMX, kStepUnit steps of a row of A lie side by side,
// and panels are padded to as many: gemm_amx.h.)
#ifndef WEFT_TRAINER_KERNELS_GEMM_TILE_H_
#define WEFT_TRAINER_KERNELS_GEMM_TILE_H_

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "trainer/kernels/gemm.h"

namespace weft::train::kernels::WEFT_KERNEL_SET {
namespace {

constexpr int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr int64_t Quotient(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// WEFT_KERNELS_EMULATED: the tiles and the packing of AVX512-BF16, or with WEFT_KERNELS_AMX of AMX,
// in plain C++, for tests on CPUs that lack it (tests/trainer/kernels).
#if defined(WEFT_KERNELS_AMX)
constexpr bool kHasAmx = true;
constexpr int kLanes = 16;
constexpr int kTileRows = 32;  // 2 x 2 of AMX's tiles are sums, 2 more are of A, 2 of B
#elif defined(__AVX512F__) || defined(WEFT_KERNELS_EMULATED)
constexpr int kLanes = 16;
constexpr int kTileRows = 12;  // 24 sums, 2 vectors of B and 1 of A in 32 registers
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kTileRows = 6;  // 12 sums in 16 registers
#else
constexpr int kLanes = 4;
constexpr int kTileRows = 4;
#endif
#if !defined(WEFT_KERNELS_AMX)
constexpr bool kHasAmx = false;
#endif
constexpr int kVectors = 2;
constexpr int kTileColumns = kVectors * kLanes;

using Floats [[gnu::vector_size(kLanes * sizeof(float))]] = float;
using Quad [[gnu::vector_size(16)]] = uint32_t;
using Octet [[gnu::vector_size(16)]] = uint16_t;

// A word where values of another type may lie, at any address.
using Word32 [[gnu::may_alias, gnu::aligned(1)]] = uint32_t;

template <typename V>
[[gnu::always_inline]] inline V LoadVector(const void* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}
template <typename V>
[[gnu::always_inline]] inline void StoreVector(const V& value, void* to) {
  __builtin_memcpy(to, &value, sizeof(value));
}

// Both packed types are words of 32 bits: a float, or a pair of bf16.
#if defined(__AVX512BF16__) || defined(WEFT_KERNELS_EMULATED)
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif
template <typename T>
constexpr bool kPairs = std::is_same_v<T, Bf16>&& kHasPairs;
template <typename T>
constexpr int64_t kDepth = kPairs<T> ? 2 : 1;  // elements of the common dimension in a step
// Steps of a row that AMX takes at once.
template <typename T>
constexpr int64_t kStepUnit = kHasAmx&& kPairs<T> ? 16 : 1;
// Steps that `depth` elements of the common dimension take in a panel.
template <typename T>
constexpr int64_t StepsOf(int64_t depth) {
  return RoundUp(Quotient(depth, kDepth<T>), kStepUnit<T>);
}

// ---- Packing ----

// The word of a step: elements at `at` and, of a pair, at `at` + next; `count` of them are there.
template <typename T>
[[gnu::always_inline]] inline uint32_t Word(const T* at, int64_t next, int64_t count) {
  if constexpr (kPairs<T>) {
    const uint32_t high = count > 1 ? at[next].bits : 0;
    return at[0].bits | (high << 16);
  } else {
    return std::bit_cast<uint32_t>(Load(at[0]));
  }
}

// Four steps of a line that runs along the common dimension.
template <typename T>
[[gnu::always_inline]] inline Quad FourSteps(const T* at) {
  if constexpr (std::is_same_v<T, Bf16> && !kPairs<T>) {
    return Quad{at[0].bits, at[1].bits, at[2].bits, at[3].bits} << 16;
  } else {
    return LoadVector<Quad>(at);
  }
}

using Words [[gnu::vector_size(kLanes * sizeof(uint32_t))]] = uint32_t;

// Lines run along the common dimension: a transpose of words, four by four.
template <typename T, int kPanel>
void PackAlong(const T* data, int64_t stride, int64_t lines, int64_t depth, uint32_t* out) {
  constexpr int64_t kQuadDepth = 4 * kDepth<T>;
  const int64_t steps = (depth + kDepth<T> - 1) / kDepth<T>;
  const int64_t whole = lines == kPanel ? depth / kQuadDepth * 4 : 0;
  for (int64_t step = 0; step < whole; step += 4) {
    const T* at = data + step * kDepth<T>;
    for (int line = 0; line + 4 <= kPanel; line += 4) {
      const Quad r0 = FourSteps<T>(at + line * stride);
      const Quad r1 = FourSteps<T>(at + (line + 1) * stride);
      const Quad r2 = FourSteps<T>(at + (line + 2) * stride);
      const Quad r3 = FourSteps<T>(at + (line + 3) * stride);
      const Quad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
      const Quad high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
      const Quad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
      const Quad high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
      uint32_t* to = out + step * kPanel + line;
      StoreVector(__builtin_shufflevector(low01, low23, 0, 1, 4, 5), to);
      StoreVector(__builtin_shufflevector(low01, low23, 2, 3, 6, 7), to + kPanel);
      StoreVector(__builtin_shufflevector(high01, high23, 0, 1, 4, 5), to + 2 * kPanel);
      StoreVector(__builtin_shufflevector(high01, high23, 2, 3, 6, 7), to + 3 * kPanel);
    }
    for (int line = kPanel / 4 * 4; line < kPanel; ++line) {
      for (int64_t s = step; s < step + 4; ++s) {
        out[s * kPanel + line] = Word(data + line * stride + s * kDepth<T>, 1, kDepth<T>);
      }
    }
  }
  for (int64_t step = whole; step < steps; ++step) {
    for (int64_t line = 0; line < kPanel; ++line) {
      const int64_t at = step * kDepth<T>;
      out[step * kPanel + line] = line < lines ? Word(data + line * stride + at, 1, depth - at) : 0;
    }
  }
}

// Lines run across it: rows of a panel are copied, in pairs interleaved.
template <typename T, int kPanel>
void PackAcross(const T* data, int64_t stride, int64_t lines, int64_t depth, uint32_t* out) {
  const int64_t steps = (depth + kDepth<T> - 1) / kDepth<T>;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t at = step * kDepth<T>;
    const T* row = data + at * stride;
    const int64_t count = std::min(kDepth<T>, depth - at);
    uint32_t* to = out + step * kPanel;
    if (lines == kPanel && count == kDepth<T>) {
      for (int line = 0; line < kPanel; ++line) to[line] = Word(row + line, stride, kDepth<T>);
      continue;
    }
    for (int64_t line = 0; line < kPanel; ++line) {
      to[line] = line < lines ? Word(row + line, stride, count) : 0;
    }
  }
}

// Panel number `panel` of `lines` in all, elements [first, first + depth) of the common dimension.
template <typename T, int kPanel>
void PackPanel(const GemmOperand<T>& x, bool along, int64_t panel, int64_t lines, int64_t first,
               int64_t depth, uint32_t* out) {
  const int64_t line = panel * kPanel;
  const int64_t count = std::min<int64_t>(kPanel, lines - line);
  if (along) {
    PackAlong<T, kPanel>(x.data + line * x.stride + first, x.stride, count, depth, out);
  } else {
    PackAcross<T, kPanel>(x.data + first * x.stride + line, x.stride, count, depth, out);
  }
}

// The same of B, all of its StepsOf(depth) steps.
template <typename T>
void PackRight(const GemmOperand<T>& b, int64_t panel, int64_t lines, int64_t first, int64_t depth,
               uint32_t* out) {
  PackPanel<T, kTileColumns>(b, b.transposed, panel, lines, first, depth, out);
  std::fill(out + Quotient(depth, kDepth<T>) * kTileColumns, out + StepsOf<T>(depth) * kTileColumns,
            0);
}

// ---- A tile ----

template <typename T>
[[gnu::always_inline]] inline Floats MultiplyAdd(uint32_t a, const Floats& b, const Floats& sum) {
#if defined(__AVX512BF16__)
  if constexpr (kPairs<T>) {
    return reinterpret_cast<Floats>(
        _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                         reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a))),
                         reinterpret_cast<__m512bh>(b)));
  }
#elif defined(WEFT_KERNELS_EMULATED)
  if constexpr (kPairs<T>) {
    const Words words = reinterpret_cast<Words>(b);
    return sum + std::bit_cast<float>(a << 16) * reinterpret_cast<Floats>(words << 16) +
           std::bit_cast<float>(a & 0xFFFF0000U) * reinterpret_cast<Floats>(words & 0xFFFF0000U);
  }
#endif
  return sum + std::bit_cast<float>(a) * b;
}

struct Tile {
  Floats sums[kTileRows][kVectors];
};

// One step: rows of A, of which `word(row)` gives each its word, times a row of B's panel.
template <typename T, typename WordOfRow>
[[gnu::always_inline]] inline void AddStep(WordOfRow word, const uint32_t* b,
                                           Floats (&sums)[kTileRows][kVectors]) {
  Floats right[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) right[v] = LoadVector<Floats>(b + v * kLanes);
#pragma GCC unroll 16
  for (int row = 0; row < kTileRows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[row][v] = MultiplyAdd<T>(word(row), right[v], sums[row][v]);
    }
  }
}

[[gnu::always_inline]] inline void Keep(const Floats (&sums)[kTileRows][kVectors], Tile& tile) {
#pragma GCC unroll 16
  for (int row = 0; row < kTileRows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) tile.sums[row][v] = sums[row][v];
  }
}

// A's words of a step lie side by side, those of the next step `a_step` further: kTileRows where A
// is packed. Without kAdvances all steps are the first one.
template <typename T, bool kAdvances = true>
[[gnu::always_inline]] inline void Sum(int64_t steps, const Word32* a, int64_t a_step,
                                       const uint32_t* b, Tile& tile) {
  Floats sums[kTileRows][kVectors] = {};
  for (int64_t step = 0; step < steps; ++step) {
    AddStep<T>([a](int row) { return a[row]; }, b, sums);
    if constexpr (kAdvances) {
      a += a_step;
      b += kTileColumns;
    } else {
      // The compiler is not to take loads out of the loop and run out of registers.
      asm volatile("" : "+r"(a), "+r"(b));
    }
  }
  Keep(sums, tile);
}

// A is not packed: the words of a row lie side by side, those of the next row `stride` further. Of
// the tile's rows there are `count`; what is summed of the others means nothing.
template <typename T>
[[gnu::always_inline]] inline void SumRows(int64_t steps, const Word32* a, int64_t stride,
                                           int64_t count, const uint32_t* b, Tile& tile) {
  const Word32* rows[kTileRows];
#pragma GCC unroll 16
  for (int row = 0; row < kTileRows; ++row) {
    rows[row] = a + std::min<int64_t>(row, count - 1) * stride;
  }
  Floats sums[kTileRows][kVectors] = {};
  for (int64_t step = 0; step < steps; ++step) {
    AddStep<T>([&rows, step](int row) { return rows[row][step]; }, b + step * kTileColumns, sums);
  }
  Keep(sums, tile);
}

[[gnu::always_inline]] inline Floats LoadLanes(const float* x) { return LoadVector<Floats>(x); }
[[gnu::always_inline]] inline void StoreLanes(const Floats& value, float* x) {
  StoreVector(value, x);
}
[[gnu::always_inline]] inline Floats LoadLanes(const Bf16* x) {
  Floats value;
  for (int i = 0; i < kLanes; ++i) value[i] = Load(x[i]);
  return value;
}
[[gnu::always_inline]] inline void StoreLanes(const Floats& value, Bf16* x) {
#if defined(__AVX512BF16__)
  const __m256bh rounded = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(value));
  __builtin_memcpy(static_cast<void*>(x), &rounded, sizeof(rounded));
#else
  for (int i = 0; i < kLanes; ++i) Store(value[i], x[i]);
#endif
}

// Where a tile goes, and what is added to it first.
template <typename C, typename T>
struct Place {
  C* c = nullptr;
  int64_t stride = 0;
  bool add = false;             // to what is at c
  const T* bias = nullptr;      // of the tile's columns
  const float* sums = nullptr;  // of earlier passes, in rows of sums_stride
  int64_t sums_stride = 0;
};

template <typename C, typename T>
[[gnu::always_inline]] inline void Write(const Tile& tile, int64_t rows, int64_t columns,
                                         const Place<C, T>& place) {
  if (rows == kTileRows && columns == kTileColumns) {
    if (place.sums == nullptr && !place.add && place.bias == nullptr) {
      for (int row = 0; row < kTileRows; ++row) {
        for (int v = 0; v < kVectors; ++v) {
          StoreLanes(tile.sums[row][v], place.c + row * place.stride + v * kLanes);
        }
      }
      return;
    }
    for (int row = 0; row < kTileRows; ++row) {
      for (int v = 0; v < kVectors; ++v) {
        Floats value = tile.sums[row][v];
        C* to = place.c + row * place.stride + v * kLanes;
        if (place.sums != nullptr) {
          value += LoadLanes(place.sums + row * place.sums_stride + v * kLanes);
        }
        if (place.add) value += LoadLanes(to);
        if (place.bias != nullptr) value += LoadLanes(place.bias + v * kLanes);
        StoreLanes(value, to);
      }
    }
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      float value = tile.sums[row][column / kLanes][column % kLanes];
      C& to = place.c[row * place.stride + column];
      if (place.sums != nullptr) value += place.sums[row * place.sums_stride + column];
      if (place.add) value += Load(to);
      if (place.bias != nullptr) value += Load(place.bias[column]);
      Store(value, to);
    }
  }
}

}  // namespace
}  // namespace weft::train::kernels::WEFT_KERNEL_SET

#endif  // WEFT_TRAINER_KERNELS_GEMM_TILE_H_
