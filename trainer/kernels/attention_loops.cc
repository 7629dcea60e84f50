// The loops of attention.h. Compiled once for each instruction set, as gemm_loops.cc is.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "trainer/kernels/attention.h"
#include "trainer/kernels/exponential.h"
#include "trainer/kernels/gemm.h"
#include "trainer/kernels/scratch_memory.h"

namespace weft::train::kernels::WEFT_KERNEL_SET {

GemmTable Gemm();

namespace {

// A tile of scores is [kTileQueries, kTileKeys] in half of a second-level cache at most.
constexpr int64_t kTileQueries = 64;
constexpr int64_t kTileKeys = 512;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// The keys that a query sees.
Range KeysOf(const AttentionShape& shape, int64_t query) {
  const int64_t position = shape.distance + query;
  const int64_t begin = shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
  const int64_t end = std::clamp<int64_t>(position + 1, begin, std::max(begin, shape.keys));
  return {std::min(begin, shape.keys), std::min(end, shape.keys)};
}

// Queries of a tile, and the keys that any of them sees.
struct QueryTile {
  Range queries, keys;
};
QueryTile TileOf(const AttentionShape& shape, int64_t number) {
  const Range queries{number * kTileQueries, std::min((number + 1) * kTileQueries, shape.queries)};
  return {queries, {KeysOf(shape, queries.begin).begin, KeysOf(shape, queries.end - 1).end}};
}
int64_t TilesOf(const AttentionShape& shape) {
  return (shape.queries + kTileQueries - 1) / kTileQueries;
}

// c = a * b or c += a * b; c in rows of `stride`.
template <typename T>
void Product(int64_t m, int64_t n, int64_t k, const GemmOperand<T>& a, const GemmOperand<T>& b,
             float* c, int64_t stride, bool add) {
  static const GemmTable table = Gemm();
  const GemmProblem<T, float> problem{
      .m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .stride = stride, .add = add};
  if constexpr (std::is_same_v<T, float>) {
    table.f32(problem);
  } else {
    table.bf16_to_fp32(problem);
  }
}

// What a thread works in. Of fp32 the scores themselves are the operands of products.
template <typename T>
struct Scratch {
  float *scores = nullptr, *dscores = nullptr;       // of a tile
  T *probabilities = nullptr, *gradients = nullptr;  // the same in the type of the products
  float* rows = nullptr;                             // [kTileQueries, width]
  float *dkey = nullptr, *dvalue = nullptr;          // [keys, width], where asked for
  float largest[kTileQueries], sums[kTileQueries], delta[kTileQueries];

  Scratch(int64_t width, int64_t keys) {
    static thread_local ScratchMemory memory;
    constexpr int64_t kTile = kTileQueries * kTileKeys;
    constexpr bool kRounds = !std::is_same_v<T, float>;
    const int64_t floats = 2 * kTile + kTileQueries * width + 2 * keys * width;
    scores = memory.Take<float>(floats + (kRounds ? kTile : 0));
    dscores = scores + kTile;
    rows = dscores + kTile;
    dkey = rows + kTileQueries * width;
    dvalue = dkey + keys * width;
    if constexpr (kRounds) {
      probabilities = reinterpret_cast<T*>(scores + floats);
      gradients = probabilities + kTile;
    } else {
      probabilities = scores;
      gradients = dscores;
    }
  }
};

void Fill(float* to, int64_t count, float value) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = value;
}

template <typename T>
void Round(const float* from, int64_t count, T* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) Store(from[i], to[i]);
}

// The part of a query's keys that lies in a tile of them, relative to the tile.
Range Seen(const AttentionShape& shape, int64_t query, const Range& tile) {
  const Range keys = KeysOf(shape, query);
  const int64_t begin = std::clamp(keys.begin, tile.begin, tile.end);
  return {begin - tile.begin, std::clamp(keys.end, begin, tile.end) - tile.begin};
}

// Scores become exp(scale * score - largest), 0 where the query does not see the key; returns their
// sum.
float Exponentials(float* scores, int64_t count, const Range& seen, float scale, float largest) {
  float sum = 0;
  Fill(scores, seen.begin, 0);
#pragma omp simd reduction(+ : sum)
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    scores[j] = Exp(scores[j] * scale - largest);
    sum += scores[j];
  }
  Fill(scores + seen.end, count - seen.end, 0);
  return sum;
}

// One tile of queries of one head.
template <typename T>
void ForwardTile(const AttentionShape& shape, const AttentionInputRows<T>& in,
                 const HeadRows<T>& out, float* logsumexp, int64_t sample, int64_t head,
                 const QueryTile& tile) {
  Scratch<T> scratch(shape.width, /*keys=*/0);
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const int64_t queries = tile.queries.size(), width = shape.width;
  Fill(scratch.largest, queries, kMinusInfinity);
  Fill(scratch.sums, queries, 0);
  Fill(scratch.rows, queries * width, 0);
  const GemmOperand<T> query{in.query.At(sample, head, tile.queries.begin), in.query.row, false};
  for (Range keys{tile.keys.begin, 0}; keys.begin < tile.keys.end; keys.begin = keys.end) {
    keys.end = std::min(keys.begin + kTileKeys, tile.keys.end);
    const int64_t count = keys.size();
    Product<T>(queries, count, width, query,
               {in.key.At(sample, kv_head, keys.begin), in.key.row, true}, scratch.scores,
               kTileKeys, false);
    for (int64_t i = 0; i < queries; ++i) {
      float* const scores = scratch.scores + i * kTileKeys;
      const Range seen = Seen(shape, tile.queries.begin + i, keys);
      float top = kMinusInfinity;
#pragma omp simd reduction(max : top)
      for (int64_t j = seen.begin; j < seen.end; ++j) top = std::max(top, scores[j]);
      const float before = scratch.largest[i];
      const float largest = std::max(before, top * shape.scale);
      if (seen.size() > 0 && largest > before && before != kMinusInfinity) {
        const float shrink = Exp(before - largest);
        scratch.sums[i] *= shrink;
        float* const row = scratch.rows + i * width;
#pragma omp simd
        for (int64_t e = 0; e < width; ++e) row[e] *= shrink;
      }
      if (seen.size() > 0) scratch.largest[i] = largest;
      scratch.sums[i] += Exponentials(scores, count, seen, shape.scale, scratch.largest[i]);
      if constexpr (!std::is_same_v<T, float>) {
        Round(scores, count, scratch.probabilities + i * kTileKeys);
      }
    }
    Product<T>(queries, width, count, {scratch.probabilities, kTileKeys, false},
               {in.value.At(sample, kv_head, keys.begin), in.value.row, false}, scratch.rows, width,
               true);
  }
  for (int64_t i = 0; i < queries; ++i) {
    const float sum = scratch.sums[i];
    const float inverse = sum > 0 ? 1 / sum : 0;
    const float* const row = scratch.rows + i * width;
    T* const to = out.At(sample, head, tile.queries.begin + i);
#pragma omp simd
    for (int64_t e = 0; e < width; ++e) Store(row[e] * inverse, to[e]);
    logsumexp[(sample * shape.heads + head) * shape.queries + tile.queries.begin + i] =
        sum > 0 ? scratch.largest[i] + std::log(sum) : kMinusInfinity;
  }
}

template <typename T>
void Forward(const AttentionShape& shape, const AttentionInputRows<T>& in, const HeadRows<T>& out,
             float* logsumexp) {
  const int64_t tiles = TilesOf(shape), tasks = tiles * shape.batch * shape.heads;
#pragma omp parallel for schedule(dynamic, 1) if (tasks >= omp_get_max_threads())
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t sequence = task % (shape.batch * shape.heads);
    // The last queries see the most keys: first, so that no thread ends with them alone.
    const int64_t tile = tiles - 1 - task / (shape.batch * shape.heads);
    ForwardTile(shape, in, out, logsumexp, sequence / shape.heads, sequence % shape.heads,
                TileOf(shape, tile));
  }
}

template <typename T>
struct BackwardArguments {
  const AttentionShape& shape;
  const HeadRows<const T>& dout;
  const AttentionInputRows<T>& in;
  const HeadRows<const T>& out;
  const float* logsumexp;
  const HeadRows<T>& dquery;
};

// One tile of queries of one head: its dquery, and its part of the sums of dkey and dvalue.
template <typename T>
void BackwardTile(const BackwardArguments<T>& p, int64_t sample, int64_t head,
                  const QueryTile& tile, Scratch<T>& scratch) {
  const AttentionShape& shape = p.shape;
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const int64_t queries = tile.queries.size(), width = shape.width;
  const int64_t first = tile.queries.begin;
  const float* const logsumexp =
      p.logsumexp + (sample * shape.heads + head) * shape.queries + first;
  for (int64_t i = 0; i < queries; ++i) {
    const T* const dout = p.dout.At(sample, head, first + i);
    const T* const out = p.out.At(sample, head, first + i);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < width; ++e) sum += Load(dout[e]) * Load(out[e]);
    scratch.delta[i] = sum;
  }
  const GemmOperand<T> query{p.in.query.At(sample, head, first), p.in.query.row, false};
  const GemmOperand<T> dout{p.dout.At(sample, head, first), p.dout.row, false};
  Fill(scratch.rows, queries * width, 0);
  for (Range keys{tile.keys.begin, 0}; keys.begin < tile.keys.end; keys.begin = keys.end) {
    keys.end = std::min(keys.begin + kTileKeys, tile.keys.end);
    const int64_t count = keys.size();
    const T* const key = p.in.key.At(sample, kv_head, keys.begin);
    Product<T>(queries, count, width, query, {key, p.in.key.row, true}, scratch.scores, kTileKeys,
               false);
    Product<T>(queries, count, width, dout,
               {p.in.value.At(sample, kv_head, keys.begin), p.in.value.row, true}, scratch.dscores,
               kTileKeys, false);
    for (int64_t i = 0; i < queries; ++i) {
      float* const scores = scratch.scores + i * kTileKeys;
      float* const dscores = scratch.dscores + i * kTileKeys;
      Exponentials(scores, count, Seen(shape, first + i, keys), shape.scale, logsumexp[i]);
      const float delta = scratch.delta[i];
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) {
        dscores[j] = scores[j] * (dscores[j] - delta) * shape.scale;
      }
      if constexpr (!std::is_same_v<T, float>) {
        Round(scores, count, scratch.probabilities + i * kTileKeys);
        Round(dscores, count, scratch.gradients + i * kTileKeys);
      }
    }
    Product<T>(count, width, queries, {scratch.probabilities, kTileKeys, true}, dout,
               scratch.dvalue + keys.begin * width, width, true);
    Product<T>(count, width, queries, {scratch.gradients, kTileKeys, true}, query,
               scratch.dkey + keys.begin * width, width, true);
    Product<T>(queries, width, count, {scratch.gradients, kTileKeys, false},
               {key, p.in.key.row, false}, scratch.rows, width, true);
  }
  for (int64_t i = 0; i < queries; ++i) {
    Round(scratch.rows + i * width, width, p.dquery.At(sample, head, first + i));
  }
}

template <typename T>
void Backward(const AttentionShape& shape, const HeadRows<const T>& dout,
              const AttentionInputRows<T>& in, const HeadRows<const T>& out, const float* logsumexp,
              const HeadRows<T>& dquery, const HeadRows<T>& dkey, const HeadRows<T>& dvalue) {
  const BackwardArguments<T> arguments{shape, dout, in, out, logsumexp, dquery};
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t tasks = shape.batch * shape.kv_heads;
#pragma omp parallel for schedule(dynamic, 1) if (tasks >= omp_get_max_threads())
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t sample = task / shape.kv_heads, kv_head = task % shape.kv_heads;
    Scratch<T> scratch(shape.width, shape.keys);
    Fill(scratch.dkey, 2 * shape.keys * shape.width, 0);  // and dvalue, which is behind it
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int64_t tile = 0; tile < TilesOf(shape); ++tile) {
        BackwardTile(arguments, sample, head, TileOf(shape, tile), scratch);
      }
    }
    for (int64_t row = 0; row < shape.keys; ++row) {
      Round(scratch.dkey + row * shape.width, shape.width, dkey.At(sample, kv_head, row));
      Round(scratch.dvalue + row * shape.width, shape.width, dvalue.At(sample, kv_head, row));
    }
  }
}

template <typename T>
AttentionKernels<T> KernelsOf() {
  return {.forward = &Forward<T>, .backward = &Backward<T>};
}

}  // namespace

AttentionTable Attention() {
  AttentionTable table;
  table.f32 = KernelsOf<float>();
  table.bf16 = KernelsOf<Bf16>();
  return table;
}

}  // namespace weft::train::kernels::WEFT_KERNEL_SET
