// The loops of gemm.h. Compiled once for each instruction set, as decode_loops.cc is.
//
// Packed, A is panels of kTileRows rows and B is panels of kTileColumns columns, each step by step
// along the common dimension, padded with zeros to whole panels. A step is one element of it, or
// two where bf16 is multiplied in pairs.
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <type_traits>

#include "trainer/kernels/gemm.h"
#include "trainer/kernels/scratch_memory.h"

namespace weft::train::kernels::WEFT_KERNEL_SET {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kTileRows = 12;  // 24 sums, 2 vectors of B and 1 of A in 32 registers
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kTileRows = 6;  // 12 sums in 16 registers
#else
constexpr int kLanes = 4;
constexpr int kTileRows = 4;
#endif
constexpr int kVectors = 2;
constexpr int kTileColumns = kVectors * kLanes;

// Steps of a pass: as many as keep the panels of a tile near (kTileColumns * 4 bytes a step in B,
// half of the first-level cache; A's rows stream from the second), and the result is not read and
// written too often.
constexpr int64_t kPassSteps = 384;
// Rows that a thread takes at once: a block of A in half of a second-level cache.
constexpr int64_t kBlockRows = kTileRows * (kLanes == 16 ? 12 : 16);
// Rows and columns that are packed at once.
constexpr int64_t kPackedRows = kBlockRows * 12;
constexpr int64_t kPackedColumns = 3072;

using Floats [[gnu::vector_size(kLanes * sizeof(float))]] = float;
using Quad [[gnu::vector_size(16)]] = uint32_t;
using Octet [[gnu::vector_size(16)]] = uint16_t;

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
#if defined(__AVX512BF16__)
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif
template <typename T>
constexpr bool kPairs = std::is_same_v<T, Bf16>&& kHasPairs;
template <typename T>
constexpr int64_t kDepth = kPairs<T> ? 2 : 1;  // elements of the common dimension in a step

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
#endif
  return sum + std::bit_cast<float>(a) * b;
}

struct Tile {
  Floats sums[kTileRows][kVectors];
};

// With kAdvance 0 all steps are the first one.
template <typename T, int kAdvance = 1>
[[gnu::always_inline]] inline void Sum(int64_t steps, const uint32_t* a, const uint32_t* b,
                                       Tile& tile) {
  Floats sums[kTileRows][kVectors] = {};
  for (int64_t step = 0; step < steps; ++step) {
    Floats right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = LoadVector<Floats>(b + v * kLanes);
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[row][v] = MultiplyAdd<T>(a[row], right[v], sums[row][v]);
      }
    }
    a += kAdvance * kTileRows;
    b += kAdvance * kTileColumns;
    // The compiler is not to take loads out of the loop and run out of registers.
    if constexpr (kAdvance == 0) asm volatile("" : "+r"(a), "+r"(b));
  }
#pragma GCC unroll 16
  for (int row = 0; row < kTileRows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) tile.sums[row][v] = sums[row][v];
  }
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

// ---- Blocks ----

constexpr int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr int64_t Quotient(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

template <typename T, typename C>
void Multiply(const GemmProblem<T, C>& p) {
  static thread_local ScratchMemory a_memory, b_memory, sums_memory;
  const int64_t steps = Quotient(p.k, kDepth<T>);
  const int64_t passes = std::max<int64_t>(1, Quotient(steps, kPassSteps));
  const int64_t pass_steps = RoundUp(Quotient(steps, passes), 4);
  const int64_t row_panels = Quotient(std::min(p.m, kPackedRows), kTileRows);
  const int64_t column_panels = Quotient(std::min(p.n, kPackedColumns), kTileColumns);
  uint32_t* const a = a_memory.Take<uint32_t>(row_panels * kTileRows * pass_steps);
  uint32_t* const b = b_memory.Take<uint32_t>(column_panels * kTileColumns * pass_steps);
  // Sums of passes but the last, where the result itself cannot hold them.
  const bool apart = passes > 1 && !std::is_same_v<C, float>;
  float* const sums =
      apart ? sums_memory.Take<float>(p.m * std::min(p.n, kPackedColumns)) : nullptr;
  const int threads = omp_get_max_threads();

#pragma omp parallel num_threads(threads) if (p.m * p.n * p.k > (1 << 18))
  for (int64_t jc = 0; jc < p.n; jc += kPackedColumns) {
    const int64_t columns = std::min(kPackedColumns, p.n - jc);
    const int64_t b_panels = Quotient(columns, kTileColumns);
    const GemmOperand<T> right{p.b.transposed ? p.b.data + jc * p.b.stride : p.b.data + jc,
                               p.b.stride, p.b.transposed};
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t first = pass * pass_steps * kDepth<T>;
      const int64_t depth = std::min(pass_steps * kDepth<T>, p.k - first);
      const int64_t here = Quotient(depth, kDepth<T>);
#pragma omp for schedule(dynamic, 4)
      for (int64_t panel = 0; panel < b_panels; ++panel) {
        PackPanel<T, kTileColumns>(right, right.transposed, panel, columns, first, depth,
                                   b + panel * kTileColumns * here);
      }
      for (int64_t ic = 0; ic < p.m; ic += kPackedRows) {
        const int64_t rows = std::min(kPackedRows, p.m - ic);
        const int64_t a_panels = Quotient(rows, kTileRows);
        const GemmOperand<T> left{p.a.transposed ? p.a.data + ic : p.a.data + ic * p.a.stride,
                                  p.a.stride, p.a.transposed};
#pragma omp for schedule(dynamic, 4)
        for (int64_t panel = 0; panel < a_panels; ++panel) {
          PackPanel<T, kTileRows>(left, !left.transposed, panel, rows, first, depth,
                                  a + panel * kTileRows * here);
        }
        // Tasks of a block of rows and a part of the columns: several for each thread.
        const int64_t block = kBlockRows / kTileRows;
        const int64_t blocks = Quotient(a_panels, block);
        const int64_t parts =
            threads == 1 ? 1 : std::min(b_panels, Quotient(int64_t{4} * threads, blocks));
        const int64_t part = Quotient(b_panels, parts);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < blocks * parts; ++task) {
          const int64_t i_begin = task / parts * block;
          const int64_t i_end = std::min(i_begin + block, a_panels);
          const int64_t j_begin = task % parts * part;
          const int64_t j_end = std::min(j_begin + part, b_panels);
          for (int64_t j = j_begin; j < j_end; ++j) {
            const int64_t column = j * kTileColumns;
            for (int64_t i = i_begin; i < i_end; ++i) {
              const int64_t row = i * kTileRows;
              Tile tile;
              Sum<T>(here, a + row * here, b + column * here, tile);
              const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - row);
              const int64_t tile_columns = std::min<int64_t>(kTileColumns, columns - column);
              const bool is_first = pass == 0, is_last = pass == passes - 1;
              float* const kept = apart ? sums + (ic + row) * columns + column : nullptr;
              if (apart && !is_last) {
                Write(tile, tile_rows, tile_columns,
                      Place<float, T>{.c = kept, .stride = columns, .add = !is_first});
                continue;
              }
              const bool brings_bias = p.bias != nullptr && (apart ? is_last : is_first);
              Write(tile, tile_rows, tile_columns,
                    Place<C, T>{.c = p.c + (ic + row) * p.stride + jc + column,
                                .stride = p.stride,
                                .add = p.add || (!apart && !is_first),
                                .bias = brings_bias ? p.bias + jc + column : nullptr,
                                .sums = kept,
                                .sums_stride = columns});
            }
          }
        }
      }
    }
  }
}

// A tile's sums over one step again and again, whose operands stay in the first-level cache.
template <typename T>
double Peak(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSteps = 20000;
  constexpr double kFlops = 2.0 * kSteps * kTileRows * kTileColumns * kDepth<T>;
  const uint32_t a[kTileRows] = {}, b[kTileColumns] = {};
  double best = 0;
  const Clock::time_point start = Clock::now();
  for (Clock::time_point last = start; last - start < std::chrono::duration<double>(seconds);) {
    Tile tile;
    Sum<T, 0>(kSteps, a, b, tile);
    asm volatile("" : : "r"(&tile), "r"(a), "r"(b) : "memory");
    const Clock::time_point now = Clock::now();
    best = std::max(best, kFlops / std::chrono::duration<double>(now - last).count());
    last = now;
  }
  return best;
}

double RegisterPeak(bool bf16, double seconds) {
  return bf16 ? Peak<Bf16>(seconds) : Peak<float>(seconds);
}

}  // namespace

GemmTable Gemm() {
  GemmTable table;
  table.f32 = &Multiply<float, float>;
  table.bf16 = &Multiply<Bf16, Bf16>;
  table.bf16_to_fp32 = &Multiply<Bf16, float>;
  table.has_bf16 = kHasPairs;
  table.register_peak = &RegisterPeak;
  return table;
}

}  // namespace weft::train::kernels::WEFT_KERNEL_SET
