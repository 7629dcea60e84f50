// Halving and doubling: the buffer is halved in each of log2(n) exchanges, so that every node ends
// with the sum of one part; all-reduce then gathers the parts by doubling (Rabenseifner,
// "Optimization of collective reduction operations", 2004, section 4; Thakur, Rabenseifner, Gropp
// 2005 for reduce-scatter and numbers of ranks that are no power of two).
// All-reduce begins with the nearest node, so that most bytes go to neighbours: its parts then lie
// in bit-reversed order. Reduce-scatter begins with the farthest: its parts lie in rank order.
#include <algorithm>
#include <vector>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/folding.h"
#include "collectives/algorithms/parts.h"

namespace weft::collectives {
namespace {

// The stretch of parts [begin, end) of a buffer cut for `nodes`.
struct Range {
  int begin, end;
  Range Half(bool upper) const {
    const int middle = (begin + end) / 2;
    return upper ? Range{middle, end} : Range{begin, middle};
  }
};

RankSchedule AllReduce(const CollectiveSpec& spec) {
  const Folding folding(spec.size);
  const uint64_t count = spec.count;
  if (folding.IsFoldedIn(spec.rank)) return FoldedInSchedule(spec, count);
  ScheduleBuilder builder;
  const int node = folding.NodeOf(spec.rank), log = folding.log();
  auto stretch = [&](Range range) {
    const uint64_t begin = PartOf(count, folding.nodes(), range.begin).offset;
    const Stretch last = PartOf(count, folding.nodes(), range.end - 1);
    return Stretch{begin, last.offset + last.length - begin};
  };
  uint32_t last = kNone;
  bool from_input = true;  // the own sum so far lies there
  if (folding.IsPair(node)) {
    last = builder.ReceiveReduce(spec.rank + 1, Output(0), Input(0), count);
    from_input = false;
  }
  Range range{0, folding.nodes()};
  std::vector<Range> halves;    // by exchange: the half that was given away
  std::vector<uint32_t> given;  // and the step, where it read what its result will overwrite
  for (int k = 0; k < log; ++k) {
    const bool upper = node >> k & 1;
    const int peer = folding.RankOf(node ^ (1 << k));
    const Stretch theirs = stretch(range.Half(!upper)), own = stretch(range.Half(upper));
    const Place from = from_input ? Input(0) : Output(0);
    halves.push_back(range.Half(!upper));
    const uint32_t send = builder.Send(peer, from + theirs.offset, theirs.length, {last});
    given.push_back(from_input && !spec.in_place ? kNone : send);
    last = builder.ReceiveReduce(peer, Output(own.offset), from + own.offset, own.length, {last});
    range = range.Half(upper);
    from_input = false;
  }
  last = builder.Average(spec, last);
  std::vector<uint32_t> whole{last};  // the steps that wrote what is whole
  for (int k = log - 1; k >= 0; --k) {
    const int peer = folding.RankOf(node ^ (1 << k));
    const Stretch own = stretch(range), theirs = stretch(halves[k]);
    builder.Send(peer, Output(own.offset), own.length);
    builder.AlsoAfter(whole);
    whole.push_back(builder.Receive(peer, Output(theirs.offset), theirs.length, {given[k]}));
    range = {std::min(range.begin, halves[k].begin), std::max(range.end, halves[k].end)};
  }
  if (folding.IsPair(node)) {
    builder.Send(spec.rank + 1, Output(0), count);
    builder.AlsoAfter(whole);
  }
  return std::move(builder).Finish();
}

RankSchedule ReduceScatter(const CollectiveSpec& spec) {
  const Folding folding(spec.size);
  const uint64_t count = spec.count, n = static_cast<uint64_t>(spec.size);
  if (folding.IsFoldedIn(spec.rank)) return FoldedInSchedule(spec, n * count);
  ScheduleBuilder builder;
  const int node = folding.NodeOf(spec.rank);
  auto stretch = [&](Range range) {
    const uint64_t begin = static_cast<uint64_t>(folding.FirstRank(range.begin)) * count;
    const uint64_t end = range.end == folding.nodes()
                             ? n * count
                             : static_cast<uint64_t>(folding.FirstRank(range.end)) * count;
    return Stretch{begin, end - begin};
  };
  Range range{0, folding.nodes()};
  uint32_t last = kNone;
  Place sums = Input(0);  // of what lies from `sums_begin` on
  uint64_t sums_begin = 0;
  if (folding.IsPair(node)) {
    sums = builder.Scratch(n * count);
    last = builder.ReceiveReduce(spec.rank + 1, sums, Input(0), n * count);
  }
  for (int bit = folding.nodes() / 2; bit >= 1; bit /= 2) {
    const bool upper = node & bit;
    const int peer = folding.RankOf(node ^ bit);
    const Stretch theirs = stretch(range.Half(!upper)), own = stretch(range.Half(upper));
    builder.Send(peer, sums + (theirs.offset - sums_begin), theirs.length, {last});
    const bool result = bit == 1 && !folding.IsPair(node);
    const Place left = sums + (own.offset - sums_begin);
    Place out = left;
    if (result) {
      out = Output(0);
    } else if (sums.buffer == Buffer::kInput) {
      sums = out = builder.Scratch(own.length);
      sums_begin = own.offset;
    }
    last = builder.ReceiveReduce(peer, out, left, own.length, {last});
    range = range.Half(upper);
  }
  if (!folding.IsPair(node)) {
    builder.Average(spec, last);
    return std::move(builder).Finish();
  }
  const Place own = sums + (stretch(range).offset - sums_begin);
  last = builder.Average(spec, last);
  builder.Copy(Output(0), own, count, {last});
  builder.Send(spec.rank + 1, own + count, count, {last});
  return std::move(builder).Finish();
}

bool Has(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
}

RankSchedule Build(const CollectiveSpec& spec) {
  if (spec.size == 1) return CopyAlone(spec);
  return spec.kind == CollectiveKind::kAllReduce ? AllReduce(spec) : ReduceScatter(spec);
}

Cost CostOf(const CollectiveSpec& spec) {
  const Folding folding(spec.size);
  const double log = folding.log(), nodes = folding.nodes();
  const bool folds = folding.any(), all = spec.kind == CollectiveKind::kAllReduce;
  const double whole = static_cast<double>(spec.count) * static_cast<double>(all ? 1 : spec.size);
  const double halved = whole * (nodes - 1) / nodes;
  Cost cost{.turns = all ? 2 * log : log, .elements = all ? 2 * halved : halved, .reduced = halved};
  cost.messages = cost.turns;
  // Each exchange of the halving has its receive posted after the one before it.
  cost.staged = 1;
  cost.posts = std::max(log - 1, 0.0) + (folds ? 1 : 0);
  if (folds) {
    const double folded = spec.size - nodes, moved = cost.elements * nodes;
    cost.turns += 2, cost.messages += 1;
    if (!all) {  // node 0 keeps the half with the more ranks in each exchange
      cost.elements = 0;
      for (int node = folding.nodes() / 2; node >= 1; node /= 2) {
        cost.elements += folding.FirstRank(node) * static_cast<double>(spec.count);
      }
      cost.reduced = cost.elements;
      cost.copied = static_cast<double>(spec.count);
    }
    cost.elements += whole, cost.reduced += whole;
    cost.balance = (moved + (all ? 2 : 1) * folded * whole) / (cost.elements * spec.size);
  }
  // The first exchange is of a half: with the nearest node, or with the farthest.
  return FoldedBetweenSwitches(SpreadOverHosts(cost, spec), spec, whole,
                               all ? whole : static_cast<double>(spec.count),
                               [&](int bit) { return all ? whole / bit : whole * bit / nodes; });
}

}  // namespace

const Algorithm kHalvingDoubling{"halving_doubling", &Has, &Build, &CostOf};

}  // namespace weft::collectives
