#include "trainer/model/attention_tiles.h"

#include <algorithm>
#include <limits>

#include "trainer/device/device.h"
#include "trainer/model/attention_product.h"

namespace weft::train {
namespace {

// Queries of a tile, at least, where a window cuts them: narrower products cost more a pair than
// they save in pairs.
constexpr int64_t kTileQueries = 64;

void AddTiles(const TokenSpan& queries, const TokenSpan& keys, int64_t window,
              std::vector<AttentionTile>& tiles) {
  const int64_t keys_end = keys.position + keys.length;
  // Queries that see a key of the span.
  const int64_t begin = std::max(queries.position, keys.position);
  int64_t end = queries.position + queries.length;
  if (window > 0) end = std::min(end, keys_end - 1 + window);
  const int64_t step = window > 0 ? std::max(window, kTileQueries) : end - begin;
  for (int64_t at = begin; at < end; at += step) {
    const int64_t stop = std::min(at + step, end);
    const int64_t first_key = window > 0 ? std::max(keys.position, at - window + 1) : keys.position;
    AttentionTile tile{.query = queries.at + at - queries.position,
                       .queries = stop - at,
                       .key = keys.at + first_key - keys.position,
                       .keys = std::min(keys_end, stop) - first_key,
                       .distance = at - first_key,
                       .mask = AttentionTile::kBand};
    const bool in_window = window == 0 || stop - 1 - first_key < window;
    if (in_window && tile.keys - 1 <= tile.distance) tile.mask = AttentionTile::kNone;
    if (in_window && tile.distance == 0 && tile.queries == tile.keys && tile.keys > 1) {
      tile.mask = AttentionTile::kCausal;
    }
    tiles.push_back(tile);
  }
}

// Whether rows of both lie side by side in the order of their positions, as in one sample: then a
// causal mask goes by rows.
bool IsOneStretch(absl::Span<const TokenSpan> queries, absl::Span<const TokenSpan> keys) {
  if (queries.empty() || queries.size() != keys.size()) return false;
  for (size_t i = 0; i < queries.size(); ++i) {
    const TokenSpan &query = queries[i], &key = keys[i];
    if (query.position != key.position || query.length != key.length) return false;
    if (i == 0) continue;
    const TokenSpan &query_before = queries[i - 1], &key_before = keys[i - 1];
    if (query.position < query_before.position + query_before.length ||
        query.at != query_before.at + query_before.length ||
        key.at != key_before.at + key_before.length) {
      return false;
    }
  }
  return true;
}

// Makes `tile` one with the tile before it, if no mask is in either and together they are one.
bool Join(const AttentionTile& tile, AttentionTile& before) {
  if (tile.mask != AttentionTile::kNone || before.mask != AttentionTile::kNone) return false;
  if (tile.query == before.query && tile.queries == before.queries &&
      tile.key == before.key + before.keys) {
    before.keys += tile.keys;
    return true;
  }
  if (tile.key == before.key && tile.keys == before.keys &&
      tile.query == before.query + before.queries) {
    before.queries += tile.queries;
    return true;
  }
  return false;
}

AttentionInputs Cut(const AttentionInputs& inputs, const AttentionTile& tile) {
  return {inputs.query.narrow(2, tile.query, tile.queries),
          inputs.key.narrow(2, tile.key, tile.keys), inputs.value.narrow(2, tile.key, tile.keys)};
}

// Copies all three at once, if operations are LibTorch's and `into` are the parts of each row of
// one projection.
bool CopyTogether(const AttentionInputs& from, const AttentionInputs& into) {
  const at::Tensor& query = into.query;
  const int64_t heads = query.size(1), width = query.size(3), part = heads * width;
  auto is_part = [&](const at::Tensor& x, int64_t number) {
    return x.sizes() == query.sizes() && x.strides() == query.strides() && x.is_alias_of(query) &&
           x.storage_offset() == query.storage_offset() + number * part;
  };
  if (!GoesDeviceWay(query) || query.stride(2) != 3 * part || query.stride(1) != width ||
      query.stride(0) != query.size(2) * 3 * part || !is_part(into.key, 1) ||
      !is_part(into.value, 2)) {
    return false;
  }
  at::Tensor rows = query.as_strided({query.size(0) * query.size(2), 3 * part}, {3 * part, 1});
  auto rows_of = [part](const at::Tensor& x) { return x.transpose(1, 2).reshape({-1, part}); };
  at::cat_out(rows, {rows_of(from.query), rows_of(from.key), rows_of(from.value)}, 1);
  return true;
}

void CopyAll(const AttentionInputs& from, const AttentionInputs& into) {
  if (CopyTogether(from, into)) return;
  into.query.copy_(from.query);
  into.key.copy_(from.key);
  into.value.copy_(from.value);
}

at::Tensor ZerosInFp32(const at::Tensor& like) {
  return at::zeros(like.sizes(), like.options().dtype(at::kFloat));
}

// All rows but [begin, begin + count).
void ZeroOutside(int64_t begin, int64_t count, const at::Tensor& rows) {
  const int64_t end = begin + count, all = rows.size(2);
  if (begin > 0) rows.narrow(2, 0, begin).zero_();
  if (end < all) rows.narrow(2, end, all - end).zero_();
}

// Our own loops take all of it as one.
std::vector<AttentionTile> TilesOfWhole(KernelLibrary library, const AttentionInputs& inputs,
                                        int64_t window) {
  const TokenSpan whole{0, 0, inputs.query.size(2)};
  if (!AttendsByOwnLoops(library, inputs)) return AttentionTiles({whole}, {whole}, window);
  return {{.queries = whole.length, .keys = inputs.key.size(2), .mask = AttentionTile::kBand}};
}

}  // namespace

std::vector<AttentionTile> AttentionTiles(absl::Span<const TokenSpan> queries,
                                          absl::Span<const TokenSpan> keys, int64_t window) {
  if (window == 0 && IsOneStretch(queries, keys)) {
    int64_t rows = 0;
    for (const TokenSpan& span : queries) rows += span.length;
    return {{.query = queries[0].at,
             .queries = rows,
             .key = keys[0].at,
             .keys = rows,
             .mask = rows > 1 ? AttentionTile::kCausal : AttentionTile::kNone}};
  }
  std::vector<AttentionTile> tiles;
  for (const TokenSpan& query : queries) {
    for (const TokenSpan& key : keys) AddTiles(query, key, window, tiles);
  }
  if (window > 0) return tiles;
  std::vector<AttentionTile> joined;
  for (const AttentionTile& tile : tiles) {
    if (joined.empty() || !Join(tile, joined.back())) joined.push_back(tile);
  }
  return joined;
}

AttentionOutputs EmptyAttention(const at::Tensor& query) {
  auto fp32 = query.options().dtype(at::kFloat);
  return {at::zeros(query.sizes(), fp32), at::full({query.size(0), query.size(1), query.size(2)},
                                                   -std::numeric_limits<double>::infinity(), fp32)};
}

void AddAttention(KernelLibrary library, const AttentionInputs& inputs,
                  const std::vector<AttentionTile>& tiles, int64_t window, AttentionOutputs& sum) {
  for (const AttentionTile& tile : tiles) {
    const AttentionOutputs part = AttendTile(library, Cut(inputs, tile), tile, window);
    at::Tensor out = sum.out.narrow(2, tile.query, tile.queries);
    at::Tensor before = sum.logsumexp.narrow(2, tile.query, tile.queries);
    const at::Tensor after = at::logaddexp(before, part.logsumexp);
    // The shares of both add up to 1.
    out.lerp_(part.out.to(at::kFloat), at::exp(part.logsumexp - after).unsqueeze(3));
    before.copy_(after);
  }
}

AttentionOutputs AttendTiles(KernelLibrary library, const AttentionInputs& inputs,
                             const std::vector<AttentionTile>& tiles, int64_t window) {
  if (tiles.size() == 1 && tiles[0].queries == inputs.query.size(2)) {
    return AttendTile(library, Cut(inputs, tiles[0]), tiles[0], window);
  }
  AttentionOutputs sum = EmptyAttention(inputs.query);
  AddAttention(library, inputs, tiles, window, sum);
  return sum;
}

void AddAttentionBackward(KernelLibrary library, const at::Tensor& dout,
                          const AttentionInputs& inputs, const AttentionOutputs& outputs,
                          const std::vector<AttentionTile>& tiles, int64_t window,
                          const AttentionInputs& gradients) {
  for (const AttentionTile& tile : tiles) {
    auto rows = [&tile](const at::Tensor& tensor) {
      return tensor.narrow(2, tile.query, tile.queries);
    };
    const AttentionInputs part =
        AttendTileBackward(library, rows(dout), Cut(inputs, tile),
                           {rows(outputs.out), rows(outputs.logsumexp)}, tile, window);
    const AttentionInputs target = Cut(gradients, tile);
    target.query.add_(part.query);
    target.key.add_(part.key);
    target.value.add_(part.value);
  }
}

void AttendTilesBackward(KernelLibrary library, const at::Tensor& dout,
                         const AttentionInputs& inputs, const AttentionOutputs& outputs,
                         const std::vector<AttentionTile>& tiles, int64_t window,
                         const AttentionInputs& gradients) {
  if (tiles.size() != 1) {
    const AttentionInputs sums{ZerosInFp32(inputs.query), ZerosInFp32(inputs.key),
                               ZerosInFp32(inputs.value)};
    AddAttentionBackward(library, dout, inputs, outputs, tiles, window, sums);
    CopyAll(sums, gradients);
    return;
  }
  const AttentionTile& tile = tiles[0];
  const AttentionInputs here = Cut(inputs, tile), target = Cut(gradients, tile);
  const at::Tensor dout_here = dout.narrow(2, tile.query, tile.queries);
  const AttentionOutputs outputs_here{outputs.out.narrow(2, tile.query, tile.queries),
                                      outputs.logsumexp.narrow(2, tile.query, tile.queries)};
  if (AttendsByOwnLoops(library, here) && target.query.scalar_type() == here.query.scalar_type()) {
    AttendTileBackwardInto(dout_here, here, outputs_here, tile, window, target);
  } else {
    CopyAll(AttendTileBackward(library, dout_here, here, outputs_here, tile, window), target);
  }
  ZeroOutside(tile.query, tile.queries, gradients.query);
  ZeroOutside(tile.key, tile.keys, gradients.key);
  ZeroOutside(tile.key, tile.keys, gradients.value);
}

AttentionOutputs Attend(KernelLibrary library, const AttentionInputs& inputs, int64_t window) {
  const AttentionOutputs outputs =
      AttendTiles(library, inputs, TilesOfWhole(library, inputs, window), window);
  return {outputs.out.to(inputs.query.scalar_type()), outputs.logsumexp};
}

void AttendBackward(KernelLibrary library, const at::Tensor& dout, const AttentionInputs& inputs,
                    const AttentionOutputs& outputs, int64_t window,
                    const AttentionInputs& gradients) {
  AttendTilesBackward(library, dout, inputs, outputs, TilesOfWhole(library, inputs, window), window,
                      gradients);
}

}  // namespace weft::train
