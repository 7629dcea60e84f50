// What hashing costs before anything is planned: N flows that fall on M equal paths independently
// and uniformly (balls in bins), exactly.
//
//   P(max <= k) = N! M^-N [x^N] (sum_{j<=k} x^j / j!)^M
//   idle        = (1 - 1/M)^N, the expected share of paths without a flow
//   share       = E[min(1, cap / (1 + B))], B ~ Binomial(N-1, 1/M): what a flow gets of its full
//                 rate, if a path carries `cap` flows at full rate
//   P(no two share a path) = M! / ((M-N)! M^N)
//
// A collective ends with its slowest flow: its slowdown is E[max] / cap. A flow split into k equal
// parts is N -> kN, cap -> k cap.
#ifndef WEFT_TOPOLOGY_ECMP_COLLISIONS_H_
#define WEFT_TOPOLOGY_ECMP_COLLISIONS_H_

#include <vector>

#include "absl/status/statusor.h"

namespace weft::topology {

struct Collisions {
  double max_mean = 0;  // E[flows on the fullest path]
  int max_p99 = 0;      // the least k with P(max <= k) >= 0.99
  double slowdown = 0;  // max_mean / cap
  double idle = 0;
  double share = 0;
  double none = 0;  // P(no two flows share a path)
};

// 1 <= flows <= 4096, 1 <= paths <= 65536, cap >= 1; else InvalidArgument.
absl::StatusOr<Collisions> ExpectedCollisions(int flows, int paths, int cap = 1);

// P(max <= k) for k = 0, 1, ..., flows, under the same limits.
absl::StatusOr<std::vector<double>> MaxLoadDistribution(int flows, int paths);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_COLLISIONS_H_
