// The expected load of the fullest of M equal paths under N hashed flows, fast enough to be asked
// for millions of times: a table over N, exact (topology/ecmp/collisions.h) up to kExactFlows,
// beyond with independent Poisson loads, P(max <= k) = P(Poisson(N/M) <= k)^M, within 1 % there.
// Between the points of the table: linear.
#ifndef WEFT_TOPOLOGY_COST_COLLISION_TABLE_H_
#define WEFT_TOPOLOGY_COST_COLLISION_TABLE_H_

#include <cstdint>
#include <vector>

namespace weft::topology {

class CollisionTable {
 public:
  static constexpr int kExactFlows = 128;

  // paths >= 1. `flows_most` is where the table ends; beyond, max/mean stays what it is there.
  CollisionTable(int paths, int64_t flows_most);

  // E[max load], in flows; 0 for none. `flows` may be a fraction.
  double MaxLoad(double flows) const;
  int paths() const { return paths_; }

 private:
  int paths_;
  std::vector<double> direct_;  // [flows], while flows < direct_.size()
  std::vector<double> flows_, load_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_COST_COLLISION_TABLE_H_
