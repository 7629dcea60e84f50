// Recursive doubling: in turn k a node exchanges all that it has with the node 2^k away (Thakur,
// Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005,
// section 4.1). log2(n) turns of the whole buffer: for small sizes. Both sides of an exchange put
// the lower node's sum on the left, so that all ranks compute the same bits.
#include <algorithm>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/folding.h"
#include "collectives/algorithms/parts.h"

namespace weft::collectives {
namespace {

RankSchedule AllReduce(const CollectiveSpec& spec) {
  const Folding folding(spec.size);
  const uint64_t count = spec.count;
  if (folding.IsFoldedIn(spec.rank)) return FoldedInSchedule(spec, count);
  ScheduleBuilder builder;
  const int node = folding.NodeOf(spec.rank);
  Place sum = Input(0);
  uint32_t last = kNone, first_send = kNone;
  if (folding.IsPair(node)) {
    sum = builder.Scratch(count);
    last = builder.ReceiveReduce(spec.rank + 1, sum, Input(0), count);
  }
  for (int k = 0; k < folding.log(); ++k) {
    const int other = node ^ (1 << k), peer = folding.RankOf(other);
    const Place next = k + 1 == folding.log() ? Output(0) : builder.Scratch(count);
    const uint32_t send = builder.Send(peer, sum, count, {last});
    // In place, the input may be overwritten only when the first message has left.
    if (k == 0 && spec.in_place && sum == Input(0)) first_send = send;
    const uint32_t overwrites = next == Output(0) ? first_send : kNone;
    if (node < other) {
      last = builder.ReceiveReduce(peer, next, sum, count, {last, overwrites});
    } else {
      const Place theirs = builder.Scratch(count);
      const uint32_t arrival = builder.Receive(peer, theirs, count);
      last = builder.Reduce(next, theirs, sum, count, {last, arrival, overwrites});
    }
    sum = next;
  }
  last = builder.Average(spec, last);
  if (folding.IsPair(node)) builder.Send(spec.rank + 1, Output(0), count, {last});
  return std::move(builder).Finish();
}

bool Has(CollectiveKind kind) { return kind == CollectiveKind::kAllReduce; }

RankSchedule Build(const CollectiveSpec& spec) {
  return spec.size == 1 ? CopyAlone(spec) : AllReduce(spec);
}

Cost CostOf(const CollectiveSpec& spec) {
  const Folding folding(spec.size);
  const double log = folding.log(), folds = folding.any() ? 1 : 0;
  const double count = static_cast<double>(spec.count), exchanges = log + folds;
  // Cost of the busiest rank, which receives from a folded-in rank and sends to it.
  Cost cost{.turns = log + 2 * folds,
            .messages = exchanges,
            .elements = exchanges * count,
            .posts = std::max(exchanges - 1, 0.0),
            .reduced = exchanges * count,
            .copied = log * count,
            .rewritten = exchanges * count};
  const double folded = spec.size - folding.nodes();
  if (exchanges > 0) {
    // In the first exchange the upper nodes read the input of the lower ones, unless that is a sum.
    const double read = folding.any() ? 0 : folding.nodes() / 2.0;
    cost.staged = 1 - read / (folding.nodes() * log + 2 * folded);
    cost.balance = (folding.nodes() * log + 2 * folded) / (spec.size * exchanges);
  }
  return FoldedBetweenSwitches(SpreadOverHosts(cost, spec), spec, count, count,
                               [&](int) { return count; });
}

}  // namespace

const Algorithm kRecursiveDoubling{"recursive_doubling", &Has, &Build, &CostOf};

}  // namespace weft::collectives
