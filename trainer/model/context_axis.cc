#include "trainer/model/context_axis.h"

#include <utility>

#include "base/status.h"
#include "trainer/groups/status_error.h"

namespace weft::train {
namespace {

// Messages of the ring, told apart by tag.
constexpr uint32_t kKeysTag = 1, kGradientsTag = 2;

// A block on its way to the next rank, and the one that comes from the rank before.
struct Hop {
  at::Tensor incoming;
  Group::Shifted shifted;
};

void WaitFor(const ContextAxis& axis, Hop& hop) {
  ThrowIfError(axis.group().Wait(hop.shifted.received));
  ThrowIfError(axis.group().Wait(hop.shifted.sent));
}

Hop StartHop(const ContextAxis& axis, const at::Tensor& block, uint32_t tag) {
  const int next = (axis.rank() + 1) % axis.size();
  const int before = (axis.rank() + axis.size() - 1) % axis.size();
  Hop hop;
  hop.incoming = at::empty_like(block);
  hop.shifted = ValueOrThrow(axis.group().Shift(hop.incoming, before, block, next, tag));
  if (!axis.group().overlaps()) WaitFor(axis, hop);
  return hop;
}

at::Tensor FinishHop(const ContextAxis& axis, Hop& hop) {
  WaitFor(axis, hop);
  return std::move(hop.incoming);
}

// Calls body(keys and values [2, B, heads, rows, width], tiles) for the keys of every rank, this
// rank's own first. The next rank's are under way meanwhile.
template <typename Body>
void AroundTheRing(const ContextAxis& axis, const AttentionInputs& inputs, int64_t window,
                   Body body) {
  const int64_t length = inputs.query.size(2) * axis.size();
  const std::vector<TokenSpan> queries = axis.SpansOf(axis.rank(), length);
  at::Tensor block = at::stack({inputs.key, inputs.value});
  for (int step = 0; step < axis.size(); ++step) {
    const int owner = (axis.rank() + axis.size() - step) % axis.size();
    const bool is_last = step + 1 == axis.size();
    Hop hop;
    if (!is_last) hop = StartHop(axis, block, kKeysTag);
    body(block, AttentionTiles(queries, axis.SpansOf(owner, length), window));
    if (!is_last) block = FinishHop(axis, hop);
  }
}

at::Tensor ZerosInFp32(const at::Tensor& like) {
  return at::zeros(like.sizes(), like.options().dtype(at::kFloat));
}

// [ranks, B, heads, rows, width], part i to and from rank i.
at::Tensor ExchangeParts(const ContextAxis& axis, const at::Tensor& parts) {
  at::Tensor received = at::empty_like(parts);
  Pending pending = ValueOrThrow(axis.group().AllToAll(received, parts));
  ThrowIfError(axis.group().Wait(pending));
  return received;
}

}  // namespace

std::vector<TokenSpan> ContextAxis::SpansOf(int rank, int64_t length) const {
  const int64_t unit = UnitOf(method_, size());
  WEFT_CHECK(length % unit == 0, length << " tokens in " << unit << " stretches");
  const int64_t stretch = length / unit;
  if (method_ == ContextMethod::kUlysses) return {{0, rank * stretch, stretch}};
  return {{0, rank * stretch, stretch}, {stretch, (unit - 1 - rank) * stretch, stretch}};
}

at::Tensor ContextAxis::PositionsOf(int rank, int64_t length) const {
  std::vector<at::Tensor> positions;
  for (const TokenSpan& span : SpansOf(rank, length)) {
    positions.push_back(at::arange(span.position, span.position + span.length, at::kLong));
  }
  return at::cat(positions);
}

AttentionOutputs AttendAround(const ContextAxis& axis, KernelLibrary library,
                              const AttentionInputs& inputs, int64_t window) {
  AttentionOutputs sum = EmptyAttention(inputs.query);
  AroundTheRing(axis, inputs, window,
                [&](const at::Tensor& block, const std::vector<AttentionTile>& tiles) {
                  AddAttention(library, {inputs.query, block[0], block[1]}, tiles, window, sum);
                });
  return {sum.out.to(inputs.query.scalar_type()), sum.logsumexp};
}

void AttendAroundBackward(const ContextAxis& axis, KernelLibrary library, const at::Tensor& dout,
                          const AttentionInputs& inputs, const AttentionOutputs& outputs,
                          int64_t window, const AttentionInputs& gradients) {
  const at::Tensor dquery = ZerosInFp32(inputs.query);
  auto gradients_of = [&](const at::Tensor& block, const std::vector<AttentionTile>& tiles) {
    at::Tensor part = ZerosInFp32(block);
    AddAttentionBackward(library, dout, {inputs.query, block[0], block[1]}, outputs, tiles, window,
                         {dquery, part[0], part[1]});
    return part;
  };
  Hop hop;  // gradients of the keys and values at hand, on their way here
  // Some tiles of this rank's own keys are computed first, under the first hop of the keys, and the
  // others last, under the last hop of the gradients.
  at::Tensor own_block;
  std::vector<AttentionTile> own_last;
  AroundTheRing(axis, inputs, window,
                [&](const at::Tensor& block, std::vector<AttentionTile> tiles) {
                  const bool is_own = !own_block.defined();
                  if (is_own) {
                    const auto middle = tiles.begin() + static_cast<int64_t>(tiles.size()) / 2;
                    own_block = block;
                    own_last.assign(middle, tiles.end());
                    tiles.erase(middle, tiles.end());
                  }
                  at::Tensor part = gradients_of(block, tiles);
                  if (!is_own) part.add_(FinishHop(axis, hop));
                  hop = StartHop(axis, part, kGradientsTag);
                });
  at::Tensor own = gradients_of(own_block, own_last);
  own.add_(FinishHop(axis, hop));
  gradients.query.copy_(dquery);
  gradients.key.copy_(own[0]);
  gradients.value.copy_(own[1]);
}

std::vector<at::Tensor> ToHeads(const ContextAxis& axis, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  std::vector<int64_t> heads;
  for (const at::Tensor& tensor : tensors) {
    heads.push_back(tensor.size(1) / axis.size());
    parts.push_back(tensor.unflatten(1, {axis.size(), heads.back()}));
  }
  const at::Tensor received = ExchangeParts(axis, at::cat(parts, 2).transpose(0, 1).contiguous());
  // [ranks, B, heads, rows, width] to [B, heads, ranks * rows, width].
  return received.permute({1, 2, 0, 3, 4}).flatten(2, 3).split_with_sizes(heads, 1);
}

std::vector<at::Tensor> ToRows(const ContextAxis& axis, const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> heads;
  for (const at::Tensor& tensor : tensors) heads.push_back(tensor.size(1));
  const at::Tensor rows = at::cat(tensors, 1);
  const at::Tensor received =
      ExchangeParts(axis, rows.unflatten(2, {axis.size(), rows.size(2) / axis.size()})
                              .permute({2, 0, 1, 3, 4})
                              .contiguous());
  std::vector<at::Tensor> results;
  for (const at::Tensor& part : received.split_with_sizes(heads, 2)) {
    results.push_back(part.transpose(0, 1).flatten(1, 2));
  }
  return results;
}

int64_t RepeatsOfHeads(int64_t heads, int64_t kv_heads, int size) {
  int64_t repeats = 1;
  while (heads / kv_heads % repeats != 0 || kv_heads * repeats % size != 0) ++repeats;
  return repeats;
}

}  // namespace weft::train
