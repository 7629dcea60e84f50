// A tile of scores of the loops of attention.h: which scores are seen, and the products that make
// and use them. Included by files that are compiled once for each instruction set.
#ifndef WEFT_TRAINER_KERNELS_ATTENTION_TILE_H_
#define WEFT_TRAINER_KERNELS_ATTENTION_TILE_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

#include "trainer/kernels/attention.h"
#include "trainer/kernels/exponential.h"
#include "trainer/kernels/gemm_tile.h"
#if defined(WEFT_KERNELS_AMX)
#include "trainer/kernels/gemm_amx.h"
#else
#include "trainer/kernels/gemm_vectors.h"
#endif

namespace weft::train::kernels::WEFT_KERNEL_SET {
namespace {

// A tile of scores is [kTileQueries, kTileKeys] in a quarter of a second-level cache at most; whole
// panels of rows and of columns, whichever of both is the left operand of a product.
constexpr int64_t kTileQueries = RoundUp(64, kTileRows);
constexpr int64_t kKeyUnit = std::lcm(kTileRows, kTileColumns);
constexpr int64_t kTileKeys = RoundUp(256, kKeyUnit);
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// The keys that a query sees.
inline Range KeysOf(const AttentionShape& shape, int64_t query) {
  const int64_t position = shape.distance + query;
  const int64_t begin = shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
  const int64_t end = std::clamp<int64_t>(position + 1, begin, std::max(begin, shape.keys));
  return {std::min(begin, shape.keys), std::min(end, shape.keys)};
}

// Queries of a tile, and the keys that any of them sees; these begin with a whole panel.
struct QueryTile {
  Range queries, keys;
};
inline QueryTile TileOf(const AttentionShape& shape, int64_t number) {
  const Range queries{number * kTileQueries, std::min((number + 1) * kTileQueries, shape.queries)};
  const int64_t begin = KeysOf(shape, queries.begin).begin;
  return {queries, {begin / kTileColumns * kTileColumns, KeysOf(shape, queries.end - 1).end}};
}
inline int64_t TilesOf(const AttentionShape& shape) {
  return (shape.queries + kTileQueries - 1) / kTileQueries;
}

// The part of a loop that a thread has, of those that go through it together.
struct Share {
  int number = 0, of = 1;
  // Until all of them are here.
  void Wait() const {
    if (of > 1) {
#pragma omp barrier
    }
  }
};

// ---- Operands ----

// The right operand of products: panels of kTileColumns columns.
struct Panels {
  uint32_t* words = nullptr;
  int64_t count = 0, steps = 0;
  const uint32_t* At(int64_t panel, int64_t step) const {
    return words + (panel * steps + step) * kTileColumns;
  }
};
template <typename T>
Panels PanelsOf(int64_t columns, int64_t depth) {
  return {nullptr, Quotient(columns, kTileColumns), StepsOf<T>(depth)};
}
inline int64_t WordsOf(const Panels& panels) { return panels.count * panels.steps * kTileColumns; }

// x: [rows, width]; as it is, or transposed.
template <typename T>
void Pack(const T* x, int64_t stride, int64_t rows, int64_t width, bool transposed,
          const Panels& panels, const Share& share) {
  const GemmOperand<T> operand{x, stride, transposed};
  for (int64_t panel = share.number; panel < panels.count; panel += share.of) {
    PackRight(operand, panel, transposed ? rows : width, 0, transposed ? width : rows,
              panels.words + panel * panels.steps * kTileColumns);
  }
}

// The left operand of products: panels of kTileRows rows. Rows of a head lie so far apart that they
// would throw each other out of the first-level cache if they were read in place.
struct Rows {
  const uint32_t* words = nullptr;
  int64_t count = 0, steps = 0;
  const uint32_t* At(int64_t panel) const { return words + panel * kTileRows * steps; }
};
template <typename T>
int64_t WordsOfRows(int64_t width) {
  return kTileQueries * StepsOf<T>(width);
}
// `words` has room for WordsOfRows; each thread of `share` packs the panels that it multiplies.
template <typename T>
Rows PackRows(const T* x, int64_t stride, int64_t count, int64_t width, uint32_t* words,
              const Share& share) {
  const int64_t steps = StepsOf<T>(width);
  for (int64_t panel = share.number; panel * kTileRows < count; panel += share.of) {
    PackLeft<T>({x, stride, false}, panel, count, 0, width, words + panel * kTileRows * steps);
  }
  return {words, count, steps};
}

// ---- A tile of scores ----

inline void Fill(float* to, int64_t count, float value) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = value;
}

template <typename T>
void Round(const float* from, int64_t count, T* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) Store(from[i], to[i]);
}

// The part of a query's keys that lies in a tile of them, relative to the tile.
inline Range Seen(const AttentionShape& shape, int64_t query, const Range& tile) {
  const Range keys = KeysOf(shape, query);
  const int64_t begin = std::clamp(keys.begin, tile.begin, tile.end);
  return {begin - tile.begin, std::clamp(keys.end, begin, tile.end) - tile.begin};
}

// The panels of keys of a tile that some query of a panel of them sees.
inline Range PanelsSeen(const AttentionShape& shape, const Range& queries, int64_t panel,
                        const Range& keys) {
  const int64_t first = queries.begin + panel * kTileRows;
  const int64_t last = std::min<int64_t>(first + kTileRows, queries.end) - 1;
  const Range seen{Seen(shape, first, keys).begin, Seen(shape, last, keys).end};
  if (seen.end <= seen.begin) return {};
  return {seen.begin / kTileColumns, Quotient(seen.end, kTileColumns)};
}

// Scores become exp(scale * score - largest), those of [begin, end) that are not seen 0; returns
// their sum.
inline float Exponentials(float* scores, const Range& all, const Range& seen, float scale,
                          float largest) {
  float sum = 0;
  Fill(scores + all.begin, seen.begin - all.begin, 0);
#pragma omp simd reduction(+ : sum)
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    scores[j] = Exp(scores[j] * scale - largest);
    sum += scores[j];
  }
  Fill(scores + seen.end, all.end - seen.end, 0);
  return sum;
}

// What the threads of a share work in. `rounded` and `gradients` are probabilities and the scores'
// gradients in the type of the products, where that multiplies pairs; else these are in fp32.
template <typename T>
struct Scratch {
  static constexpr int64_t kTile = kTileQueries * kTileKeys;
  float *scores = nullptr, *dscores = nullptr;  // of a tile
  T *rounded = nullptr, *gradients = nullptr;
  float* rows = nullptr;                       // [kTileQueries, columns]
  uint32_t *query = nullptr, *dout = nullptr;  // WordsOfRows
  Range panels[kTileQueries / kTileRows];      // of keys, that a panel of queries sees

  static int64_t FloatsOf(int64_t width, int64_t columns, bool is_backward) {
    const int64_t tiles = is_backward ? 2 : 1;
    return kTile * tiles * (kPairs<T> ? 2 : 1) + kTileQueries * columns +
           tiles * WordsOfRows<T>(width);
  }
  Scratch(float* memory, int64_t width, int64_t columns, bool is_backward) {
    auto take = [&memory](int64_t count) { return std::exchange(memory, memory + count); };
    scores = take(kTile);
    if (is_backward) dscores = take(kTile);
    if (kPairs<T>) rounded = reinterpret_cast<T*>(take(kTile));
    if (kPairs<T> && is_backward) gradients = reinterpret_cast<T*>(take(kTile));
    rows = take(kTileQueries * columns);
    query = reinterpret_cast<uint32_t*>(take(WordsOfRows<T>(width)));
    if (is_backward) dout = reinterpret_cast<uint32_t*>(take(WordsOfRows<T>(width)));
  }
};

// scores = rows * panels^T where they are seen. A thread has whole panels of rows.
template <typename T>
void MultiplySeen(const Rows& rows, const Panels& columns, int64_t first_key,
                  const Range* panels_seen, float* scores, const Share& share) {
  const int64_t row_panels = Quotient(rows.count, kTileRows);
  Range all{std::numeric_limits<int64_t>::max(), 0};
  for (int64_t i = share.number; i < row_panels; i += share.of) {
    if (panels_seen[i].size() <= 0) continue;
    all = {std::min(all.begin, panels_seen[i].begin), std::max(all.end, panels_seen[i].end)};
  }
  for (int64_t j = all.begin; j < all.end; ++j) {
    const uint32_t* const b = columns.At(first_key / kTileColumns + j, 0);
    for (int64_t i = share.number; i < row_panels; i += share.of) {
      if (j < panels_seen[i].begin || j >= panels_seen[i].end) continue;
      StoreProduct<T>(rows.steps, rows.At(i), b,
                      scores + i * kTileRows * kTileKeys + j * kTileColumns, kTileKeys);
    }
  }
}

// sums += probabilities * panels: [kTileQueries, columns] of a tile of keys.
template <typename T>
void AddRows(const float* values, const T* rounded, const Panels& panels, const Range& keys,
             int64_t queries, const Range* panels_seen, float* sums, const Share& share) {
  const int64_t stride = panels.count * kTileColumns;
  for (int64_t j = 0; j < panels.count; ++j) {
    for (int64_t i = share.number; i * kTileRows < queries; i += share.of) {
      if (panels_seen[i].size() <= 0) continue;
      const int64_t begin = panels_seen[i].begin * kTileColumns;
      const int64_t end = std::min(panels_seen[i].end * kTileColumns, keys.size());
      const int64_t at = i * kTileRows * kTileKeys + begin;
      const uint32_t* const b = panels.At(j, (keys.begin + begin) / kDepth<T>);
      float* const to = sums + i * kTileRows * stride + j * kTileColumns;
      if constexpr (kPairs<T>) {
        AddProductOfRows<T>(end - begin, rounded + at, kTileKeys, queries - i * kTileRows, b, to,
                            stride);
      } else {
        AddProductOfRows<T>(end - begin, values + at, kTileKeys, queries - i * kTileRows, b, to,
                            stride);
      }
    }
  }
}

}  // namespace
}  // namespace weft::train::kernels::WEFT_KERNEL_SET

#endif  // WEFT_TRAINER_KERNELS_ATTENTION_TILE_H_
