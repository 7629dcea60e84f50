// Panels of A, and the sums of a tile, where vectors multiply: the products of gemm_loops.cc and
// attention_loops.cc.
#ifndef WEFT_TRAINER_KERNELS_GEMM_VECTORS_H_
#define WEFT_TRAINER_KERNELS_GEMM_VECTORS_H_

#include <cstdint>

#include "trainer/kernels/gemm_tile.h"

namespace weft::train::kernels::WEFT_KERNEL_SET {
namespace {

// What a thread has to set up before it multiplies: nothing.
struct TileRegisters {
  TileRegisters() {}
};

// Panel number `panel` of the `lines` rows of A, elements [first, first + depth) of the common
// dimension.
template <typename T>
void PackLeft(const GemmOperand<T>& a, int64_t panel, int64_t lines, int64_t first, int64_t depth,
              uint32_t* out) {
  PackPanel<T, kTileRows>(a, !a.transposed, panel, lines, first, depth, out);
}

// The sums of a panel of A times one of B.
template <typename T>
[[gnu::always_inline]] inline void SumPanels(int64_t steps, const uint32_t* a, const uint32_t* b,
                                             Tile& tile) {
  Sum<T>(steps, a, kTileRows, b, tile);
}
// The same, where all steps are the first kStepUnit.
template <typename T>
[[gnu::always_inline]] inline void SumAgain(int64_t steps, const uint32_t* a, const uint32_t* b,
                                            Tile& tile) {
  Sum<T, false>(steps, a, 0, b, tile);
}

// A whole tile, to memory that has room for it: rows of `stride` floats.
[[gnu::always_inline]] inline void StoreTile(const Tile& tile, float* c, int64_t stride) {
  for (int row = 0; row < kTileRows; ++row) {
    for (int v = 0; v < kVectors; ++v) {
      StoreLanes(tile.sums[row][v], c + row * stride + v * kLanes);
    }
  }
}
[[gnu::always_inline]] inline void AddTile(const Tile& tile, float* c, int64_t stride) {
  for (int row = 0; row < kTileRows; ++row) {
    for (int v = 0; v < kVectors; ++v) {
      float* const to = c + row * stride + v * kLanes;
      StoreLanes(LoadLanes(to) + tile.sums[row][v], to);
    }
  }
}

// c = the sums of a panel of A times one of B.
template <typename T>
[[gnu::always_inline]] inline void StoreProduct(int64_t steps, const uint32_t* a, const uint32_t* b,
                                                float* c, int64_t stride) {
  Tile tile;
  SumPanels<T>(steps, a, b, tile);
  StoreTile(tile, c, stride);
}
// c += the same, where words of a step of A lie `a_step` behind those of the step before:
// kTileRows where A is packed.
template <typename T>
[[gnu::always_inline]] inline void AddProduct(int64_t steps, const Word32* a, int64_t a_step,
                                              const uint32_t* b, float* c, int64_t stride) {
  Tile tile;
  Sum<T>(steps, a, a_step, b, tile);
  AddTile(tile, c, stride);
}
// c += `count` rows of A, of `depth` elements, as they lie in memory, times a panel of B. What is
// added to the tile's other rows means nothing.
template <typename T, typename Element>
[[gnu::always_inline]] inline void AddProductOfRows(int64_t depth, const Element* a,
                                                    int64_t a_stride, int64_t count,
                                                    const uint32_t* b, float* c, int64_t stride) {
  Tile tile;
  SumRows<T>(Quotient(depth, kDepth<T>), reinterpret_cast<const Word32*>(a), a_stride / kDepth<T>,
             count, b, tile);
  AddTile(tile, c, stride);
}

}  // namespace
}  // namespace weft::train::kernels::WEFT_KERNEL_SET

#endif  // WEFT_TRAINER_KERNELS_GEMM_VECTORS_H_
