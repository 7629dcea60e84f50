// The algorithms: each a file of this folder with one function from a CollectiveSpec to a schedule,
// and a row in the table of algorithm.cc. That is all that a new one needs.
//
//   oneshot  every rank sends its whole contribution to each that needs it, all at once: fewest
//            turns, for small sizes. Reduces in the order of ranks 0, 1, ..., n-1.
//   direct   each part has an owner; owners reduce, then send the result to each other rank; in
//            chunks. Reduces in the order owner, owner+1, ... round. For ranks that share memory.
//   ring     each rank talks to two neighbours only, in chunks. For many ranks or several hosts.
//
// n ranks, s bytes (of the whole), messages and bytes that one rank sends:
//   all-reduce   oneshot: n-1, (n-1)s    direct and ring: 2(n-1), 2s(n-1)/n   turns: 1, 2, 2(n-1)
//
// Results are bit-identical on all ranks, and the same whenever kind, count, size of the group and
// algorithm are.
#ifndef WEFT_COLLECTIVES_ALGORITHMS_ALGORITHM_H_
#define WEFT_COLLECTIVES_ALGORITHMS_ALGORITHM_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "collectives/schedule.h"

namespace weft::collectives {

struct Algorithm {
  const char* name;
  bool (*has)(CollectiveKind kind);
  RankSchedule (*build)(const CollectiveSpec& spec);
};

absl::Span<const Algorithm> Algorithms();
// Null when there is none of that name for that kind.
const Algorithm* FindAlgorithm(absl::string_view name, CollectiveKind kind);

// What the setting collective.algorithm = `wanted` ("auto" or a name) means here; a named algorithm
// that lacks the kind counts as "auto". `part` is what one rank contributes to one other.
const Algorithm& ChooseAlgorithm(absl::string_view wanted, CollectiveKind kind, int size,
                                 Bytes part, bool one_host);

bool OneShotHas(CollectiveKind kind);
RankSchedule BuildOneShot(const CollectiveSpec& spec);
bool DirectHas(CollectiveKind kind);
RankSchedule BuildDirect(const CollectiveSpec& spec);
bool RingHas(CollectiveKind kind);
RankSchedule BuildRing(const CollectiveSpec& spec);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_ALGORITHM_H_
