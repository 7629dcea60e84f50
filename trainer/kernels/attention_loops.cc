// The loops of attention.h. Compiled once for each instruction set, as gemm_loops.cc is.
//
// Keys and values of a head are packed once (gemm_tile.h), for all tiles of queries of the heads
// that they serve. Of a tile of scores only what some query of a panel of rows sees is computed:
// with a causal mask little more than half.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trainer/kernels/attention.h"
#include "trainer/kernels/attention_tile.h"
#include "trainer/kernels/exponential.h"
#include "trainer/kernels/gemm_tile.h"
#include "trainer/kernels/scratch_memory.h"

namespace weft::train::kernels::WEFT_KERNEL_SET {
namespace {

// ---- Forward ----

// Keys and values of a head as the products of the forward pass read them.
template <typename T>
struct PackedForward {
  Panels keys, values;  // [width, keys], [keys, width]
  static int64_t Words(const AttentionShape& shape) {
    return WordsOf(PanelsOf<T>(shape.keys, shape.width)) +
           WordsOf(PanelsOf<T>(shape.width, shape.keys));
  }
  PackedForward(const AttentionShape& shape, uint32_t* words)
      : keys(PanelsOf<T>(shape.keys, shape.width)), values(PanelsOf<T>(shape.width, shape.keys)) {
    keys.words = words;
    values.words = words + WordsOf(keys);
  }
  void Fill(const AttentionShape& shape, const AttentionInputRows<T>& in, int64_t sample,
            int64_t head, const Share& share) const {
    Pack(in.key.At(sample, head, 0), in.key.row, shape.keys, shape.width, true, keys, share);
    Pack(in.value.At(sample, head, 0), in.value.row, shape.keys, shape.width, false, values, share);
  }
};

// One tile of queries of one head.
template <typename T>
void ForwardTile(const AttentionShape& shape, const AttentionInputRows<T>& in,
                 const PackedForward<T>& packed, const HeadRows<T>& out, float* logsumexp,
                 int64_t sample, int64_t head, const QueryTile& tile) {
  static thread_local ScratchMemory memory;
  const TileRegisters registers;
  const int64_t queries = tile.queries.size(), width = shape.width;
  const int64_t columns = packed.values.count * kTileColumns;
  Scratch<T> scratch(memory.Take<float>(Scratch<T>::FloatsOf(width, columns, false)), width,
                     columns, false);
  float largest[kTileQueries], sums[kTileQueries];
  Fill(largest, queries, kMinusInfinity);
  Fill(sums, queries, 0);
  Fill(scratch.rows, kTileQueries * columns, 0);
  const Rows query = PackRows(in.query.At(sample, head, tile.queries.begin), in.query.row, queries,
                              width, scratch.query, Share{});
  for (Range keys{tile.keys.begin, 0}; keys.begin < tile.keys.end; keys.begin = keys.end) {
    keys.end = std::min(keys.begin + kTileKeys, tile.keys.end);
    for (int64_t i = 0; i * kTileRows < queries; ++i) {
      scratch.panels[i] = PanelsSeen(shape, tile.queries, i, keys);
    }
    MultiplySeen<T>(query, packed.keys, keys.begin, scratch.panels, scratch.scores, Share{});
    for (int64_t i = 0; i < queries; ++i) {
      float* const scores = scratch.scores + i * kTileKeys;
      const Range seen = Seen(shape, tile.queries.begin + i, keys);
      const Range& panels = scratch.panels[i / kTileRows];
      if (panels.size() <= 0) continue;
      const Range all{panels.begin * kTileColumns, panels.end * kTileColumns};
      float top = kMinusInfinity;
#pragma omp simd reduction(max : top)
      for (int64_t j = seen.begin; j < seen.end; ++j) top = std::max(top, scores[j]);
      const float before = largest[i];
      if (seen.size() > 0) largest[i] = std::max(before, top * shape.scale);
      if (largest[i] > before && before != kMinusInfinity) {
        const float shrink = Exp(before - largest[i]);
        sums[i] *= shrink;
        float* const row = scratch.rows + i * columns;
#pragma omp simd
        for (int64_t e = 0; e < width; ++e) row[e] *= shrink;
      }
      sums[i] += Exponentials(scores, all, seen, shape.scale, largest[i]);
      if constexpr (kPairs<T>) {
        Round(scores + all.begin, all.size(), scratch.rounded + i * kTileKeys + all.begin);
      }
    }
    AddRows<T>(scratch.scores, scratch.rounded, packed.values, keys, queries, scratch.panels,
               scratch.rows, Share{});
  }
  for (int64_t i = 0; i < queries; ++i) {
    const float inverse = sums[i] > 0 ? 1 / sums[i] : 0;
    const float* const row = scratch.rows + i * columns;
    T* const to = out.At(sample, head, tile.queries.begin + i);
#pragma omp simd
    for (int64_t e = 0; e < width; ++e) Store(row[e] * inverse, to[e]);
    logsumexp[(sample * shape.heads + head) * shape.queries + tile.queries.begin + i] =
        sums[i] > 0 ? largest[i] + std::log(sums[i]) : kMinusInfinity;
  }
}

// Whether each thread takes whole heads of keys and values; else all threads share each.
bool TakesWholeHeads(int64_t heads) {
  const int64_t threads = omp_get_max_threads();
  return heads % threads == 0 || heads >= 4 * threads;
}

template <typename T>
void Forward(const AttentionShape& shape, const AttentionInputRows<T>& in, const HeadRows<T>& out,
             float* logsumexp) {
  static thread_local ScratchMemory memory;
  const int64_t kv_heads = shape.batch * shape.kv_heads, group = shape.heads / shape.kv_heads;
  const int64_t tiles = TilesOf(shape), words = PackedForward<T>::Words(shape);
  auto compute = [&](int64_t kv_head, int64_t in_group, int64_t tile,
                     const PackedForward<T>& packed) {
    ForwardTile(shape, in, packed, out, logsumexp, kv_head / shape.kv_heads,
                kv_head % shape.kv_heads * group + in_group, TileOf(shape, tile));
  };
  if (TakesWholeHeads(kv_heads)) {
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      const PackedForward<T> packed(shape, memory.Take<uint32_t>(words));
      packed.Fill(shape, in, kv_head / shape.kv_heads, kv_head % shape.kv_heads, Share{});
      for (int64_t task = 0; task < tiles * group; ++task) {
        compute(kv_head, task / tiles, task % tiles, packed);
      }
    }
    return;
  }
  uint32_t* const all = memory.Take<uint32_t>(kv_heads * words);
#pragma omp parallel
  {
    const Share share{omp_get_thread_num(), omp_get_num_threads()};
    for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      PackedForward<T>(shape, all + kv_head * words)
          .Fill(shape, in, kv_head / shape.kv_heads, kv_head % shape.kv_heads, share);
    }
    share.Wait();
    // The last queries see the most keys: first, so that no thread ends with them alone.
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < tiles * group * kv_heads; ++task) {
      const int64_t kv_head = task % kv_heads, of_head = task / kv_heads;
      compute(kv_head, of_head % group, tiles - 1 - of_head / group,
              PackedForward<T>(shape, all + kv_head * words));
    }
  }
}

// ---- Backward ----

// Keys and values of a head as the products of the backward pass read them, and the sums of their
// gradients over all queries: [keys, columns], with room for a whole panel
// at the end.
template <typename T>
struct BackwardHead {
  Panels keys, values, key_rows;  // [width, keys] twice, [keys, width]
  int64_t columns = 0;            // of whole panels of `width`
  float *dkey = nullptr, *dvalue = nullptr;

  static int64_t SumsOf(const AttentionShape& shape) {
    return (shape.keys + kTileRows) * RoundUp(shape.width, kTileColumns);
  }
  static int64_t Words(const AttentionShape& shape) {
    return 2 * WordsOf(PanelsOf<T>(shape.keys, shape.width)) +
           WordsOf(PanelsOf<T>(shape.width, shape.keys)) + 2 * SumsOf(shape);
  }
  BackwardHead(const AttentionShape& shape, uint32_t* words)
      : keys(PanelsOf<T>(shape.keys, shape.width)),
        values(keys),
        key_rows(PanelsOf<T>(shape.width, shape.keys)),
        columns(key_rows.count * kTileColumns) {
    keys.words = words;
    values.words = keys.words + WordsOf(keys);
    key_rows.words = values.words + WordsOf(values);
    dkey = reinterpret_cast<float*>(key_rows.words + WordsOf(key_rows));
    dvalue = dkey + SumsOf(shape);
  }
  void Begin(const AttentionShape& shape, const AttentionInputRows<T>& in, int64_t sample,
             int64_t head, const Share& share) const {
    const T* const key = in.key.At(sample, head, 0);
    Pack(key, in.key.row, shape.keys, shape.width, true, keys, share);
    Pack(key, in.key.row, shape.keys, shape.width, false, key_rows, share);
    Pack(in.value.At(sample, head, 0), in.value.row, shape.keys, shape.width, true, values, share);
    const int64_t part = Quotient(2 * SumsOf(shape), share.of);  // dvalue is behind dkey
    const int64_t begin = std::min(share.number * part, 2 * SumsOf(shape));
    Fill(dkey + begin, std::min(part, 2 * SumsOf(shape) - begin), 0);
  }
};

template <typename T>
struct BackwardArguments {
  const AttentionShape& shape;
  const HeadRows<const T>& dout;
  const AttentionInputRows<T>& in;
  const HeadRows<const T>& out;
  const float* logsumexp;
  const HeadRows<T>&dquery, &dkey, &dvalue;
};

// A tile of queries of one head.
template <typename T>
struct BackwardQueries {
  int64_t sample = 0, head = 0;
  Range range;
  Rows query, dout;
  Panels query_panels, dout_panels;  // [queries, width]
};

// Scores of a share's queries become probabilities, and dscores their gradients; both are 0 where
// they are not seen, over whole panels of the left operands.
template <typename T>
void ScoreGradients(const BackwardArguments<T>& p, const BackwardQueries<T>& tile,
                    const Range& keys, const Scratch<T>& scratch, const Share& share) {
  const AttentionShape& shape = p.shape;
  const Range all{0, RoundUp(keys.size(), kKeyUnit)};
  for (int64_t i = 0; i < tile.range.size(); ++i) {
    if (i / kTileRows % share.of != share.number) continue;
    const int64_t query = tile.range.begin + i;
    float* const scores = scratch.scores + i * kTileKeys;
    float* const dscores = scratch.dscores + i * kTileKeys;
    const T* const dout = p.dout.At(tile.sample, tile.head, query);
    const T* const out = p.out.At(tile.sample, tile.head, query);
    float delta = 0;
#pragma omp simd reduction(+ : delta)
    for (int64_t e = 0; e < shape.width; ++e) delta += Load(dout[e]) * Load(out[e]);
    const Range seen = Seen(shape, query, keys);
    Exponentials(scores, all, seen, shape.scale,
                 p.logsumexp[(tile.sample * shape.heads + tile.head) * shape.queries + query]);
    Fill(dscores, seen.begin, 0);
#pragma omp simd
    for (int64_t j = seen.begin; j < seen.end; ++j) {
      dscores[j] = scores[j] * (dscores[j] - delta) * shape.scale;
    }
    Fill(dscores + seen.end, all.end - seen.end, 0);
    if constexpr (kPairs<T>) {
      Round(scores, all.end, scratch.rounded + i * kTileKeys);
      Round(dscores, all.end, scratch.gradients + i * kTileKeys);
    }
  }
}

// sums += values^T * panels, of the keys of a panel of them: values [queries, kTileKeys], panels
// [queries, width]. Queries before `first` see none of these keys.
template <typename T>
void AddTransposed(const float* values, const T* rounded, int64_t key, int64_t first,
                   int64_t queries, const Panels& panels, float* sums) {
  const int64_t stride = panels.count * kTileColumns;
  // Values of queries before `first` are zeros.
  const int64_t step = first / (kDepth<T> * kStepUnit<T>)*kStepUnit<T>;
  const int64_t depth = queries - step * kDepth<T>;
  alignas(64) uint32_t packed[kPairs<T> ? kTileRows * kTileQueries / 2 : 1];
  const Word32* a = reinterpret_cast<const Word32*>(values + step * kTileKeys + key);
  int64_t a_step = kTileKeys;
  if constexpr (kPairs<T>) {
    PackLeft<T>({rounded + step * kDepth<T> * kTileKeys + key, kTileKeys, true}, 0, kTileRows, 0,
                depth, packed);
    a = packed;
    a_step = kTileRows;
  }
  for (int64_t j = 0; j < panels.count; ++j) {
    AddProduct<T>(StepsOf<T>(depth), a, a_step, panels.At(j, step), sums + j * kTileColumns,
                  stride);
  }
}

// One tile of queries: its dquery, and its part of the sums of dkey and dvalue.
template <typename T>
void BackwardTile(const BackwardArguments<T>& p, const BackwardHead<T>& head,
                  const BackwardQueries<T>& tile, const Range& seen_keys, Scratch<T>& scratch,
                  const Share& share) {
  const TileRegisters registers;
  const AttentionShape& shape = p.shape;
  const int64_t queries = tile.range.size();
  for (int64_t i = 0; i < queries; ++i) {
    if (i / kTileRows % share.of != share.number) continue;
    Fill(scratch.rows + i * head.columns, head.columns, 0);
  }
  for (Range keys{seen_keys.begin, 0}; keys.begin < seen_keys.end; keys.begin = keys.end) {
    keys.end = std::min(keys.begin + kTileKeys, seen_keys.end);
    for (int64_t i = share.number; i * kTileRows < queries; i += share.of) {
      scratch.panels[i] = PanelsSeen(shape, tile.range, i, keys);
    }
    MultiplySeen<T>(tile.query, head.keys, keys.begin, scratch.panels, scratch.scores, share);
    MultiplySeen<T>(tile.dout, head.values, keys.begin, scratch.panels, scratch.dscores, share);
    ScoreGradients(p, tile, keys, scratch, share);
    AddRows<T>(scratch.dscores, scratch.gradients, head.key_rows, keys, queries, scratch.panels,
               scratch.rows, share);
    share.Wait();
    for (int64_t panel = share.number; panel * kTileRows < keys.size(); panel += share.of) {
      const int64_t key = panel * kTileRows;
      // The first query at the place of the panel's first key.
      const int64_t first =
          std::clamp(keys.begin + key - shape.distance - tile.range.begin, int64_t{0}, queries);
      if (first == queries) continue;
      const int64_t at = (keys.begin + key) * head.columns;
      AddTransposed<T>(scratch.scores, scratch.rounded, key, first, queries, tile.dout_panels,
                       head.dvalue + at);
      AddTransposed<T>(scratch.dscores, scratch.gradients, key, first, queries, tile.query_panels,
                       head.dkey + at);
    }
    share.Wait();
  }
  for (int64_t i = 0; i < queries; ++i) {
    if (i / kTileRows % share.of != share.number) continue;
    Round(scratch.rows + i * head.columns, shape.width,
          p.dquery.At(tile.sample, tile.head, tile.range.begin + i));
  }
}

// One head of keys and values, and all heads of queries that it serves. `memory`: BackwardWords.
template <typename T>
int64_t BackwardWords(const AttentionShape& shape) {
  const int64_t columns = RoundUp(shape.width, kTileColumns);
  return BackwardHead<T>::Words(shape) + Scratch<T>::FloatsOf(shape.width, columns, true) +
         2 * WordsOf(PanelsOf<T>(shape.width, kTileQueries));
}
template <typename T>
void BackwardOfHead(const BackwardArguments<T>& p, int64_t sample, int64_t kv_head,
                    uint32_t* memory, const Share& share) {
  const AttentionShape& shape = p.shape;
  const BackwardHead<T> head(shape, memory);
  float* const floats = reinterpret_cast<float*>(memory + BackwardHead<T>::Words(shape));
  Scratch<T> scratch(floats, shape.width, head.columns, true);
  uint32_t* const query_words =
      reinterpret_cast<uint32_t*>(floats + Scratch<T>::FloatsOf(shape.width, head.columns, true));
  head.Begin(shape, p.in, sample, kv_head, share);
  const int64_t group = shape.heads / shape.kv_heads, tiles = TilesOf(shape);
  for (int64_t task = 0; task < group * tiles; ++task) {
    const QueryTile tile = TileOf(shape, task % tiles);
    BackwardQueries<T> queries;
    queries.sample = sample;
    queries.head = kv_head * group + task / tiles;
    queries.range = tile.queries;
    const int64_t count = tile.queries.size();
    const T* const query = p.in.query.At(sample, queries.head, tile.queries.begin);
    const T* const dout = p.dout.At(sample, queries.head, tile.queries.begin);
    queries.query = PackRows(query, p.in.query.row, count, shape.width, scratch.query, share);
    queries.dout = PackRows(dout, p.dout.row, count, shape.width, scratch.dout, share);
    queries.query_panels = queries.dout_panels = PanelsOf<T>(shape.width, count);
    queries.query_panels.words = query_words;
    queries.dout_panels.words = query_words + WordsOf(queries.query_panels);
    Pack(query, p.in.query.row, count, shape.width, false, queries.query_panels, share);
    Pack(dout, p.dout.row, count, shape.width, false, queries.dout_panels, share);
    share.Wait();
    BackwardTile(p, head, queries, tile.keys, scratch, share);
  }
  share.Wait();
  for (int64_t row = share.number; row < shape.keys; row += share.of) {
    Round(head.dkey + row * head.columns, shape.width, p.dkey.At(sample, kv_head, row));
    Round(head.dvalue + row * head.columns, shape.width, p.dvalue.At(sample, kv_head, row));
  }
  share.Wait();
}

template <typename T>
void Backward(const AttentionShape& shape, const HeadRows<const T>& dout,
              const AttentionInputRows<T>& in, const HeadRows<const T>& out, const float* logsumexp,
              const HeadRows<T>& dquery, const HeadRows<T>& dkey, const HeadRows<T>& dvalue) {
  static thread_local ScratchMemory memory;
  const BackwardArguments<T> arguments{shape, dout, in, out, logsumexp, dquery, dkey, dvalue};
  const int64_t heads = shape.batch * shape.kv_heads, words = BackwardWords<T>(shape);
  if (TakesWholeHeads(heads)) {
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t head = 0; head < heads; ++head) {
      BackwardOfHead(arguments, head / shape.kv_heads, head % shape.kv_heads,
                     memory.Take<uint32_t>(words), Share{});
    }
    return;
  }
  uint32_t* const shared = memory.Take<uint32_t>(words);
#pragma omp parallel
  {
    const Share share{omp_get_thread_num(), omp_get_num_threads()};
    for (int64_t head = 0; head < heads; ++head) {
      BackwardOfHead(arguments, head / shape.kv_heads, head % shape.kv_heads, shared, share);
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
#if !defined(WEFT_KERNELS_AMX)  // which multiplies no floats
  table.f32 = KernelsOf<float>();
#endif
  table.bf16 = KernelsOf<Bf16>();
  return table;
}

}  // namespace weft::train::kernels::WEFT_KERNEL_SET
