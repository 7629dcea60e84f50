// Collectives as the fabric sees them: who sends how much to whom, after what. (The schedules that
// really run are turned into workloads by collectives/simulate.)
//
// n ranks, S bytes a rank (all-reduce: of the whole; the others: of the whole result or input).
// Cost with alpha a message and beta a byte, on a fabric where nothing collides:
//
//   ring                2(n-1) alpha + 2 (n-1)/n S beta   all-reduce; half for the others
//   direct              2 alpha + 2 (n-1)/n S beta         everybody to everybody, twice
//   halving_doubling    2 log2 n alpha + 2 (n-1)/n S beta  n a power of two
//   recursive_doubling  log2 n (alpha + S beta)            n a power of two; all-reduce only
//   tree                ~ 2 log2 n alpha' + 2 S beta       double binary tree, in chunks: alpha'
//                                                          holds a chunk's time; all-reduce only
//   hierarchical        within groups of g, then across: 2 (g-1)/g S beta_in +
//                       2 (m-1)/m S/g beta_out, m = n/g groups; all-reduce only
//   chain               broadcast, in k chunks: (k + n - 2) S/k beta + (n - 1) alpha, where alpha
//                       is a latency alone, that occupies nobody
//
// Patarasuk, Yuan 2009 (ring); Thakur, Rabenseifner, Gropp 2005 (doubling); Sanders, Speck, Traeff
// 2009 (two trees).
#ifndef WEFT_TOPOLOGY_SIM_WORKLOADS_COLLECTIVES_H_
#define WEFT_TOPOLOGY_SIM_WORKLOADS_COLLECTIVES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "topology/sim/workload.h"

namespace weft::topology {

enum class CollectiveOp : uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast };
enum class CollectiveAlgorithm : uint8_t {
  kRing,
  kDirect,
  kHalvingDoubling,
  kRecursiveDoubling,
  kTree,
  kHierarchical,
  kChain,
};

struct CollectiveTraffic {
  CollectiveOp op = CollectiveOp::kAllReduce;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kRing;
  Bytes bytes;           // S
  Bytes chunk{1 << 20};  // tree, chain
  int group = 0;         // hierarchical: g, ranks that follow each other
  Bandwidth local;       // hierarchical: within one host, where no fabric is
};

// Appends it, rank i on endpoints[i]; ends with the id returned. InvalidArgument: the algorithm
// lacks the operation, or n does not suit it. ResourceExhausted: more than 20 million transfers.
absl::StatusOr<OperationId> AddCollective(Workload& workload, absl::Span<const Endpoint> endpoints,
                                          const CollectiveTraffic& traffic, absl::string_view name,
                                          absl::Span<const OperationId> after = {});

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_WORKLOADS_COLLECTIVES_H_
