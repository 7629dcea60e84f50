// Any number of ranks for algorithms of powers of two: the ranks beyond the largest power p give
// their input to a neighbour first and get their result from it in the end (Thakur, Rabenseifner,
// Gropp, "Optimization of collective communication operations in MPICH", 2005, section 4.2).
#ifndef WEFT_COLLECTIVES_ALGORITHMS_FOLDING_H_
#define WEFT_COLLECTIVES_ALGORITHMS_FOLDING_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/schedule.h"

namespace weft::collectives {

// n ranks as p = 2^log nodes. Node v < n - p is the pair of ranks 2v, which acts, and 2v + 1, which
// is folded in; any other node is rank v + n - p.
class Folding {
 public:
  explicit Folding(int n) {
    while (2 * nodes_ <= n) nodes_ *= 2, ++log_;
    pairs_ = n - nodes_;
  }
  int nodes() const { return nodes_; }
  int log() const { return log_; }
  bool any() const { return pairs_ > 0; }
  bool IsPair(int node) const { return node < pairs_; }
  int RankOf(int node) const { return node < pairs_ ? 2 * node : node + pairs_; }
  int NodeOf(int rank) const { return rank < 2 * pairs_ ? rank / 2 : rank - pairs_; }
  bool IsFoldedIn(int rank) const { return rank < 2 * pairs_ && rank % 2 == 1; }
  // Ranks [first, first + its number of ranks) are those of the node.
  int FirstRank(int node) const { return RankOf(node); }

 private:
  int nodes_ = 1, log_ = 0, pairs_ = 0;
};

// The schedule of a rank that is folded in: gives its neighbour its input, `length` elements, and
// gets its result, spec.count elements.
RankSchedule FoldedInSchedule(const CollectiveSpec& spec, uint64_t length);

// For cost functions: fills in what crosses between switches where each folded-in rank gives
// `given` elements and gets `got`, and each node exchanges `part(bit)` elements with the node that
// differs from it in `bit`, for all bits in turn.
Cost FoldedBetweenSwitches(Cost cost, const CollectiveSpec& spec, double given, double got,
                           absl::FunctionRef<double(int bit)> part);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_FOLDING_H_
