// Products of bf16 by AMX (Intel's architecture instruction set extensions, chapter 3): a tile of
// sums is 2 x 2 of its tiles of 16 x 16 floats. TDPBF16PS multiplies 16 rows of 16 pairs of A by 16
// pairs of 16 columns of B; sums are in fp32, of denormal numbers as of zeros.
//
// A panel of A is blocks of kStepUnit steps, each of kTileRows rows whose steps lie side by side. A
// panel of B is as gemm_tile.h has it. The names are those of gemm_vectors.h, which this replaces.
#ifndef WEFT_TRAINER_KERNELS_GEMM_AMX_H_
#define WEFT_TRAINER_KERNELS_GEMM_AMX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "trainer/kernels/gemm_tile.h"

namespace weft::train::kernels::WEFT_KERNEL_SET {
namespace {

constexpr int64_t kUnitSteps = kStepUnit<Bf16>;
constexpr int64_t kUnitDepth = kUnitSteps * kDepth<Bf16>;
constexpr int64_t kUnitWords = kTileRows * kUnitSteps;  // a block of A
static_assert(kLanes == kUnitSteps && kTileRows == 2 * kLanes && kTileColumns == 2 * kLanes);

// The shapes of the tiles, which a thread has while this lives.
class TileRegisters {
 public:
#if defined(__AMX_BF16__)
  TileRegisters() {
    struct alignas(64) Shapes {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    for (int tile = 0; tile < 8; ++tile) shapes.row_bytes[tile] = 64, shapes.rows[tile] = 16;
    // GCC before 12.4 and 13.3 takes _tile_loadconfig for a load of 8 bytes and no more.
    asm volatile("" : : "r"(&shapes) : "memory");
    _tile_loadconfig(&shapes);
  }
  ~TileRegisters() { _tile_release(); }
#else
  TileRegisters() {}
#endif
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

// A step of a transpose by blocks: each pair of vectors `kDistance` apart exchanges its blocks of
// `kDistance` lanes that lie off the diagonal.
template <int kDistance, int... kLane>
[[gnu::always_inline]] inline void SwapBlocks(Words (&rows)[kLanes],
                                              std::integer_sequence<int, kLane...> /*lanes*/) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kDistance) != 0) continue;
    const Words low = rows[i], high = rows[i + kDistance];
    rows[i] = __builtin_shufflevector(
        low, high, ((kLane & kDistance) != 0 ? kLanes + kLane - kDistance : kLane)...);
    rows[i + kDistance] = __builtin_shufflevector(
        low, high, ((kLane & kDistance) != 0 ? kLanes + kLane : kLane + kDistance)...);
  }
}
[[gnu::always_inline]] inline void Transpose(Words (&rows)[kLanes]) {
  constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
  SwapBlocks<8>(rows, kAll);
  SwapBlocks<4>(rows, kAll);
  SwapBlocks<2>(rows, kAll);
  SwapBlocks<1>(rows, kAll);
}

// Rows of A that run along the common dimension.
inline void PackRowsAlong(const Bf16* data, int64_t stride, int64_t lines, int64_t depth,
                          uint32_t* out) {
  for (int64_t at = 0; at < depth; at += kUnitDepth, out += kUnitWords) {
    const int64_t here = std::min(kUnitDepth, depth - at);
    for (int64_t line = 0; line < kTileRows; ++line) {
      uint32_t* const to = out + line * kUnitSteps;
      if (line < lines && here == kUnitDepth) {
        StoreVector(LoadVector<Words>(data + line * stride + at), to);
        continue;
      }
      Bf16 row[kUnitDepth] = {};
      if (line < lines) std::copy_n(data + line * stride + at, here, row);
      StoreVector(LoadVector<Words>(row), to);
    }
  }
}

// Rows of A that run across it: the steps of 16 rows are transposed.
inline void PackRowsAcross(const Bf16* data, int64_t stride, int64_t lines, int64_t depth,
                           uint32_t* out) {
  using Halves [[gnu::vector_size(kLanes * sizeof(uint16_t))]] = uint16_t;
  for (int64_t at = 0; at < depth; at += kUnitDepth, out += kUnitWords) {
    const bool is_whole = lines == kTileRows && depth - at >= kUnitDepth;
    for (int64_t line = 0; line < kTileRows; line += kLanes) {
      Words steps[kLanes];
      for (int64_t step = 0; step < kUnitSteps; ++step) {
        const Bf16* const from = data + (at + step * 2) * stride + line;
        if (is_whole) {
          const Words low = __builtin_convertvector(LoadVector<Halves>(from), Words);
          const Words high = __builtin_convertvector(LoadVector<Halves>(from + stride), Words);
          steps[step] = low | (high << 16);
          continue;
        }
        const int64_t count = std::clamp<int64_t>(depth - at - step * 2, 0, 2);
        for (int64_t i = 0; i < kLanes; ++i) {
          steps[step][i] = line + i < lines && count > 0 ? Word(from + i, stride, count) : 0;
        }
      }
      Transpose(steps);
      for (int64_t row = 0; row < kLanes; ++row) {
        StoreVector(steps[row], out + (line + row) * kUnitSteps);
      }
    }
  }
}

template <typename T>
void PackLeft(const GemmOperand<T>& a, int64_t panel, int64_t lines, int64_t first, int64_t depth,
              uint32_t* out) {
  const int64_t line = panel * kTileRows, count = std::min<int64_t>(kTileRows, lines - line);
  if (a.transposed) {
    PackRowsAcross(a.data + first * a.stride + line, a.stride, count, depth, out);
  } else {
    PackRowsAlong(a.data + line * a.stride + first, a.stride, count, depth, out);
  }
}

// Where 32 rows of A lie: words from one row to the next, and from one block of steps to the next.
struct Left {
  const Word32* at = nullptr;
  int64_t row = kUnitSteps, unit = kUnitWords;  // of a packed panel
};
inline Left PackedLeft(const uint32_t* panel) { return {.at = panel}; }

// Where 32 x 32 sums lie in memory: rows of `stride` floats.
struct Sums {
  float* at = nullptr;
  int64_t stride = 0;
};

// `units` blocks of A times as many of a panel of B into `sums`, to which they are added or not;
// without kAdvances, all are the first.
template <bool kAdvances = true>
[[gnu::always_inline]] inline void SumUnits(int64_t units, Left a, const uint32_t* b, bool add,
                                            const Sums& sums) {
#if defined(__AMX_BF16__)
  constexpr int64_t kStride = kTileColumns * sizeof(uint32_t);
  const int64_t a_stride = a.row * static_cast<int64_t>(sizeof(uint32_t));
  const int64_t stride = sums.stride * static_cast<int64_t>(sizeof(float));
  const Word32* lower_a = a.at + kLanes * a.row;
  float* const lower = sums.at + kLanes * sums.stride;
  asm volatile("" : : : "memory");  // the compiler does not know what a tile is loaded from
  if (add) {
    _tile_loadd(0, sums.at, stride);
    _tile_loadd(1, sums.at + kLanes, stride);
    _tile_loadd(2, lower, stride);
    _tile_loadd(3, lower + kLanes, stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t unit = 0; unit < units; ++unit) {
    _tile_loadd(4, a.at, a_stride);
    _tile_loadd(6, b, kStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kLanes, kStride);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower_a, a_stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    if constexpr (kAdvances) {
      a.at += a.unit;
      lower_a += a.unit;
      b += kUnitSteps * kTileColumns;
    }
  }
  _tile_stored(0, sums.at, stride);
  _tile_stored(1, sums.at + kLanes, stride);
  _tile_stored(2, lower, stride);
  _tile_stored(3, lower + kLanes, stride);
#else
  Floats all[kTileRows][kVectors] = {};
  for (int row = 0; add && row < kTileRows; ++row) {
    for (int v = 0; v < kVectors; ++v) {
      all[row][v] = LoadLanes(sums.at + row * sums.stride + v * kLanes);
    }
  }
  for (int64_t step = 0; step < units * kUnitSteps; ++step) {
    const int64_t at = kAdvances ? step : step % kUnitSteps;
    const Word32* const block = a.at + at / kUnitSteps * a.unit + at % kUnitSteps;
    AddStep<Bf16>([block, &a](int row) { return block[row * a.row]; }, b + at * kTileColumns, all);
  }
  for (int row = 0; row < kTileRows; ++row) {
    for (int v = 0; v < kVectors; ++v) {
      StoreLanes(all[row][v], sums.at + row * sums.stride + v * kLanes);
    }
  }
#endif
}

// A panel of A times one of B into the first `rows` rows and `columns` columns of `sums`, which
// begin with what is there where `add`. A sum has the same bits in a part of a tile as in a whole
// one.
[[gnu::always_inline]] inline void SumInPlace(int64_t units, const uint32_t* a, const uint32_t* b,
                                              bool add, int64_t rows, int64_t columns,
                                              const Sums& sums) {
  if (rows == kTileRows && columns == kTileColumns) {
    return SumUnits(units, PackedLeft(a), b, add, sums);
  }
  alignas(64) float tile[kTileRows * kTileColumns] = {};
  const size_t bytes = static_cast<size_t>(columns) * sizeof(float);
  for (int64_t row = 0; add && row < rows; ++row) {
    __builtin_memcpy(tile + row * kTileColumns, sums.at + row * sums.stride, bytes);
  }
  SumUnits(units, PackedLeft(a), b, add, {tile, kTileColumns});
  for (int64_t row = 0; row < rows; ++row) {
    __builtin_memcpy(sums.at + row * sums.stride, tile + row * kTileColumns, bytes);
  }
}

template <typename T>
[[gnu::always_inline]] inline void SumPanels(int64_t steps, const uint32_t* a, const uint32_t* b,
                                             Tile& tile) {
  SumUnits(steps / kUnitSteps, PackedLeft(a), b, false,
           {reinterpret_cast<float*>(&tile), kTileColumns});
}
template <typename T>
[[gnu::always_inline]] inline void SumAgain(int64_t steps, const uint32_t* a, const uint32_t* b,
                                            Tile& tile) {
  SumUnits<false>(steps / kUnitSteps, PackedLeft(a), b, false,
                  {reinterpret_cast<float*>(&tile), kTileColumns});
}
template <typename T>
[[gnu::always_inline]] inline void StoreProduct(int64_t steps, const uint32_t* a, const uint32_t* b,
                                                float* c, int64_t stride) {
  SumUnits(steps / kUnitSteps, PackedLeft(a), b, false, {c, stride});
}
template <typename T>
[[gnu::always_inline]] inline void AddProduct(int64_t steps, const uint32_t* a, int64_t /*a_step*/,
                                              const uint32_t* b, float* c, int64_t stride) {
  SumUnits(steps / kUnitSteps, PackedLeft(a), b, true, {c, stride});
}
// Rows of A have zeros from `depth` to the next whole block.
template <typename T>
[[gnu::always_inline]] inline void AddProductOfRows(int64_t depth, const T* a, int64_t a_stride,
                                                    int64_t /*count*/, const uint32_t* b, float* c,
                                                    int64_t stride) {
  const Left left{reinterpret_cast<const Word32*>(a), a_stride / kDepth<T>, kUnitSteps};
  SumUnits(Quotient(depth, kUnitDepth), left, b, true, {c, stride});
}

}  // namespace
}  // namespace weft::train::kernels::WEFT_KERNEL_SET

#endif  // WEFT_TRAINER_KERNELS_GEMM_AMX_H_
