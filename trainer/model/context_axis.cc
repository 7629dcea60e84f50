#include "trainer/model/context_axis.h"

#include <utility>

#include "base/status.h"
#include "trainer/groups/status_error.h"
#include "trainer/model/tensor_axis.h"

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

// An exchange of heads for rows under way.
struct Exchange {
  at::Tensor received;  // [ranks, ...], part i from rank i
  Pending pending;
};

// sent: [ranks, ...], contiguous, part i to rank i.
Exchange StartExchange(const ContextAxis& axis, const at::Tensor& sent) {
  Exchange exchange;
  exchange.received = at::empty(sent.sizes(), sent.options());
  exchange.pending = ValueOrThrow(axis.group().AllToAll(exchange.received, sent));
  return exchange;
}

at::Tensor FinishExchange(const ContextAxis& axis, Exchange& exchange) {
  ThrowIfError(axis.group().Wait(exchange.pending));
  return std::move(exchange.received);
}

// Neighbours among the heads that a rank has in attention.
struct Heads {
  int64_t begin = 0, count = 0;
};
// Heads of a piece: of queries, keys and values.
using PieceHeads = std::vector<Heads>;

std::vector<PieceHeads> CutHeads(const ContextAxis& axis, int64_t heads, int64_t kv_heads) {
  const int64_t queries = heads / kv_heads;  // of each key-value head
  const std::vector<int64_t> edges = HeadEdges(kv_heads / axis.size(), axis.group().overlaps());
  std::vector<PieceHeads> pieces;
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    const Heads keys{edges[i], edges[i + 1] - edges[i]};
    pieces.push_back({{keys.begin * queries, keys.count * queries}, keys, keys});
  }
  return pieces;
}

// x: [B, heads of all ranks, rows, width]. Returns [ranks, B, heads, rows, width], a view.
at::Tensor OfEachRank(const ContextAxis& axis, const at::Tensor& x, const Heads& heads) {
  return x.unflatten(1, {axis.size(), x.size(1) / axis.size()})
      .narrow(2, heads.begin, heads.count)
      .transpose(0, 1);
}

// Rows held of a piece, to the ranks that have its heads: `heads[i]` of each rank of tensors[i].
Exchange StartToHeads(const ContextAxis& axis, const std::vector<at::Tensor>& tensors,
                      const PieceHeads& heads) {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    parts.push_back(OfEachRank(axis, tensors[i], heads[i]));
  }
  return StartExchange(axis, at::cat(parts, 2).contiguous());
}
// [B, heads, all rows, width], the heads of one tensor behind those of another.
at::Tensor FinishToHeads(const ContextAxis& axis, Exchange& exchange) {
  return FinishExchange(axis, exchange).permute({1, 2, 0, 3, 4}).flatten(2, 3);
}

// All rows of a piece, [B, all rows, heads, width], to the ranks that hold them.
Exchange StartToRows(const ContextAxis& axis, const at::Tensor& x) {
  return StartExchange(
      axis, x.unflatten(1, {axis.size(), x.size(1) / axis.size()}).transpose(0, 1).contiguous());
}
// Into tensors [B, heads of all ranks, rows, width]: `heads[i]` of each rank of tensors[i].
void FinishToRows(const ContextAxis& axis, Exchange& exchange,
                  const std::vector<at::Tensor>& tensors, const PieceHeads& heads) {
  const at::Tensor received = FinishExchange(axis, exchange);  // [ranks, B, rows, heads, width]
  int64_t begin = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor part = received.narrow(3, begin, heads[i].count);
    OfEachRank(axis, tensors[i], heads[i]).copy_(part.transpose(2, 3));
    begin += heads[i].count;
  }
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

AttendedHeads AttendByHeads(const ContextAxis& axis, KernelLibrary library,
                            const AttentionInputs& inputs, int64_t window) {
  const at::Tensor& query = inputs.query;
  const int64_t repeats = RepeatsOfHeads(query.size(1), inputs.key.size(1), axis.size());
  const auto repeated = [repeats](const at::Tensor& x) {
    return repeats == 1 ? x : x.repeat_interleave(repeats, 1);
  };
  const std::vector<at::Tensor> sent{query, repeated(inputs.key), repeated(inputs.value)};
  const std::vector<PieceHeads> cuts = CutHeads(axis, query.size(1), sent[1].size(1));
  std::vector<Exchange> to_heads, to_rows;
  for (const PieceHeads& cut : cuts) to_heads.push_back(StartToHeads(axis, sent, cut));
  AttendedHeads result;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const std::vector<at::Tensor> parts =
        FinishToHeads(axis, to_heads[i])
            .split_with_sizes({cuts[i][0].count, cuts[i][1].count, cuts[i][2].count}, 1);
    AttentionPiece piece{{parts[0], parts[1], parts[2]}, {}};
    piece.outputs = Attend(library, piece.inputs, window);
    to_rows.push_back(StartToRows(axis, piece.outputs.out.transpose(1, 2)));
    result.pieces.push_back(std::move(piece));
  }
  // A row's heads side by side, as the output projection reads them.
  result.out =
      at::empty({query.size(0), query.size(2), query.size(1), query.size(3)}, query.options())
          .transpose(1, 2);
  for (size_t i = 0; i < cuts.size(); ++i) {
    FinishToRows(axis, to_rows[i], {result.out}, cuts[i]);
  }
  return result;
}

void AttendByHeadsBackward(const ContextAxis& axis, KernelLibrary library, const at::Tensor& dout,
                           const std::vector<AttentionPiece>& pieces, int64_t window,
                           const AttentionInputs& gradients) {
  const int64_t kv_heads = gradients.key.size(1);
  const int64_t repeats = RepeatsOfHeads(dout.size(1), kv_heads, axis.size());
  const std::vector<PieceHeads> cuts = CutHeads(axis, dout.size(1), kv_heads * repeats);
  std::vector<Exchange> to_heads, to_rows;
  for (const PieceHeads& cut : cuts) to_heads.push_back(StartToHeads(axis, {dout}, cut));
  for (size_t i = 0; i < cuts.size(); ++i) {
    const at::Tensor dout_here = FinishToHeads(axis, to_heads[i]);
    const std::vector<int64_t> counts{cuts[i][0].count, cuts[i][1].count, cuts[i][2].count};
    const at::Tensor all = at::empty(
        {dout.size(0), dout_here.size(2), counts[0] + counts[1] + counts[2], dout.size(3)},
        pieces[i].inputs.query.options());
    const std::vector<at::Tensor> parts = all.transpose(1, 2).split_with_sizes(counts, 1);
    AttendBackward(library, dout_here, pieces[i].inputs, pieces[i].outputs, window,
                   {parts[0], parts[1], parts[2]});
    to_rows.push_back(StartToRows(axis, all));
  }
  // The gradient of a head that was repeated is the sum over its repeats.
  const auto target = [&](const at::Tensor& x) {
    return repeats == 1
               ? x
               : at::empty({x.size(0), kv_heads * repeats, x.size(2), x.size(3)}, x.options());
  };
  const std::vector<at::Tensor> rows{gradients.query, target(gradients.key),
                                     target(gradients.value)};
  for (size_t i = 0; i < cuts.size(); ++i) FinishToRows(axis, to_rows[i], rows, cuts[i]);
  if (repeats == 1) return;
  gradients.key.copy_(rows[1].unflatten(1, {kv_heads, repeats}).sum(2));
  gradients.value.copy_(rows[2].unflatten(1, {kv_heads, repeats}).sum(2));
}

std::vector<int64_t> HeadEdges(int64_t kv_heads, bool overlaps) {
  // Queries, keys and values are three eighths of all that is exchanged, and arrive piece by piece.
  // With 6 pieces the wait for them would be a tenth of all exchanges, where attention on a head
  // takes 1.5 times as long as the exchange of its queries, keys and values.
  constexpr int kMostPieces = 10;
  return ChunkEdges(kv_heads, overlaps ? kMostPieces : 1);
}

int64_t RepeatsOfHeads(int64_t heads, int64_t kv_heads, int size) {
  int64_t repeats = 1;
  while (heads / kv_heads % repeats != 0 || kv_heads * repeats % size != 0) ++repeats;
  return repeats;
}

}  // namespace weft::train
