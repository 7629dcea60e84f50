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

AttentionInputs Cut(const AttentionInputs& inputs, const AttentionTile& tile) {
  return {inputs.query.narrow(2, tile.query, tile.queries),
          inputs.key.narrow(2, tile.key, tile.keys), inputs.value.narrow(2, tile.key, tile.keys)};
}

std::vector<AttentionTile> TilesOfWhole(const AttentionInputs& inputs, int64_t window) {
  const TokenSpan whole{0, 0, inputs.query.size(2)};
  return AttentionTiles({whole}, {whole}, window);
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

// All of it as one.
AttentionTile WholeTile(const AttentionInputs& inputs) {
  return {
      .queries = inputs.query.size(2), .keys = inputs.key.size(2), .mask = AttentionTile::kBand};
}

}  // namespace

std::vector<AttentionTile> AttentionTiles(absl::Span<const TokenSpan> queries,
                                          absl::Span<const TokenSpan> keys, int64_t window) {
  std::vector<AttentionTile> tiles;
  for (const TokenSpan& query : queries) {
    for (const TokenSpan& key : keys) AddTiles(query, key, window, tiles);
  }
  return tiles;
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
    out.mul_(at::exp(before - after).unsqueeze(3));
    out.addcmul_(part.out.to(at::kFloat), at::exp(part.logsumexp - after).unsqueeze(3));
    before.copy_(after);
  }
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

AttentionOutputs Attend(KernelLibrary library, const AttentionInputs& inputs, int64_t window) {
  if (AttendsByOwnLoops(library, inputs)) {
    return AttendTile(library, inputs, WholeTile(inputs), window);
  }
  const std::vector<AttentionTile> tiles = TilesOfWhole(inputs, window);
  if (tiles.size() == 1) return AttendTile(library, inputs, tiles[0], window);
  AttentionOutputs sum = EmptyAttention(inputs.query);
  AddAttention(library, inputs, tiles, window, sum);
  return {sum.out.to(inputs.query.scalar_type()), sum.logsumexp};
}

void AttendBackward(KernelLibrary library, const at::Tensor& dout, const AttentionInputs& inputs,
                    const AttentionOutputs& outputs, int64_t window,
                    const AttentionInputs& gradients) {
  if (AttendsByOwnLoops(library, inputs)) {
    AttendTileBackwardInto(dout, inputs, outputs, WholeTile(inputs), window, gradients);
    return;
  }
  const std::vector<AttentionTile> tiles = TilesOfWhole(inputs, window);
  auto copy = [&gradients](const AttentionInputs& from) {
    if (CopyTogether(from, gradients)) return;
    gradients.query.copy_(from.query);
    gradients.key.copy_(from.key);
    gradients.value.copy_(from.value);
  };
  if (tiles.size() == 1) {
    copy(AttendTileBackward(library, dout, inputs, outputs, tiles[0], window));
    return;
  }
  auto zeros = [](const at::Tensor& like) {
    return at::zeros(like.sizes(), like.options().dtype(at::kFloat));
  };
  const AttentionInputs sums{zeros(inputs.query), zeros(inputs.key), zeros(inputs.value)};
  AddAttentionBackward(library, dout, inputs, outputs, tiles, window, sums);
  copy(sums);
}

}  // namespace weft::train
