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

// One half of what the gradients of a rank's own keys take: some samples, or some heads where there
// is one sample, so that neither half adds to what the other has written.
class Half {
 public:
  Half(const AttentionInputs& inputs, bool is_last)
      : dim_(inputs.key.size(0) > 1 ? 0 : 1), units_(inputs.key.size(dim_)) {
    const int64_t middle = (units_ + 1) / 2;
    begin_ = is_last ? middle : 0;
    count_ = is_last ? units_ - middle : middle;
  }
  bool empty() const { return count_ == 0; }
  // x: [B, heads, ...]; several heads of queries may go with one of keys.
  at::Tensor Of(const at::Tensor& x) const {
    const int64_t unit = x.size(dim_) / units_;
    return x.narrow(dim_, begin_ * unit, count_ * unit);
  }
  AttentionInputs Of(const AttentionInputs& all) const {
    return {Of(all.query), Of(all.key), Of(all.value)};
  }

 private:
  const int64_t dim_, units_;
  int64_t begin_ = 0, count_ = 0;
};

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
  AttentionOutputs sum;
  AroundTheRing(axis, inputs, window,
                [&](const at::Tensor& block, const std::vector<AttentionTile>& tiles) {
                  const AttentionInputs here{inputs.query, block[0], block[1]};
                  if (sum.out.defined()) {
                    AddAttention(library, here, tiles, window, sum);
                    return;
                  }
                  sum = AttendTiles(library, here, tiles, window);
                  sum.out = sum.out.to(at::kFloat);
                });
  return {sum.out.to(inputs.query.scalar_type()), sum.logsumexp};
}

void AttendAroundBackward(const ContextAxis& axis, KernelLibrary library, const at::Tensor& dout,
                          const AttentionInputs& inputs, const AttentionOutputs& outputs,
                          int64_t window, const AttentionInputs& gradients) {
  // The gradients of this rank's own keys go nowhere: they are written where they belong, one half
  // under the first hop of the keys, the other under the last hop of the others' gradients.
  std::vector<AttentionTile> own_tiles;
  auto compute_own = [&](bool is_last) {
    const Half half(inputs, is_last);
    if (half.empty()) return;
    AttendTilesBackward(library, half.Of(dout), half.Of(inputs),
                        {half.Of(outputs.out), half.Of(outputs.logsumexp)}, own_tiles, window,
                        half.Of(gradients));
  };
  const auto fp32 = inputs.query.options().dtype(at::kFloat);
  at::Tensor dquery;  // of the others' keys
  Hop hop;            // gradients of the keys and values at hand, on their way here
  bool is_own = true;
  AroundTheRing(axis, inputs, window,
                [&](const at::Tensor& block, const std::vector<AttentionTile>& tiles) {
                  if (std::exchange(is_own, false)) {
                    own_tiles = tiles;
                    compute_own(/*is_last=*/false);
                    return;
                  }
                  const at::Tensor part = at::empty(block.sizes(), fp32);
                  const at::Tensor dquery_part = at::empty(inputs.query.sizes(), fp32);
                  AttendTilesBackward(library, dout, {inputs.query, block[0], block[1]}, outputs,
                                      tiles, window, {dquery_part, part[0], part[1]});
                  if (dquery.defined()) {
                    dquery.add_(dquery_part);
                    part.add_(FinishHop(axis, hop));
                  } else {
                    dquery = dquery_part;
                  }
                  hop = StartHop(axis, part, kGradientsTag);
                });
  compute_own(/*is_last=*/true);
  gradients.query.add_(dquery);
  const at::Tensor others = FinishHop(axis, hop);
  gradients.key.add_(others[0]);
  gradients.value.add_(others[1]);
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
