// Colours the edges of a bipartite multigraph so that every vertex has nearly as much weight of one
// colour as of another: flows between leaves, coloured with spines.
//
// With equal weights, each vertex of d edges then has floor(d / n) or ceil(d / n) of each of n
// colours, which is optimal (König 1916; de Werra, "Equitable colorations of graphs", 1971), and
// holds as well for sets of vertices that are nested: leaf within pod.
//
// Edges are split in two halves again and again. For a split, edges that meet in a set are paired,
// the heaviest with the next, what is left over in a set with what is left over in the set around
// it; the pairs of both sides form paths and even cycles, along which the halves alternate. An odd
// number of colours is balanced by splitting each pair of colours anew until nothing changes.
#ifndef WEFT_TOPOLOGY_PATHS_BALANCED_COLOURING_H_
#define WEFT_TOPOLOGY_PATHS_BALANCED_COLOURING_H_

#include <array>
#include <cstdint>
#include <vector>

namespace weft::topology {

struct ColouredEdge {
  // The nested sets that the edge's ends lie in, the innermost first; any numbers.
  std::array<int32_t, 3> left{}, right{};
  double weight = 1;
  int colour = -1;  // the result, from 0
};

// colours > 0. Deterministic; O(edges log edges log colours) where `colours` is a power of two,
// times `colours` else.
void BalanceColours(std::vector<ColouredEdge>& edges, int colours);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_PATHS_BALANCED_COLOURING_H_
