#include "topology/paths/balanced_colouring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/random.h"

namespace weft::topology {
namespace {

// The largest difference between the counts of two colours in one of the sets of a level.
int Spread(const std::vector<ColouredEdge>& edges, int colours, size_t level) {
  int spread = 0;
  for (auto sets : {&ColouredEdge::left, &ColouredEdge::right}) {
    std::map<int, std::vector<int>> counts;
    for (const ColouredEdge& edge : edges) {
      std::vector<int>& of_set = counts[(edge.*sets)[level]];
      of_set.resize(static_cast<size_t>(colours));
      ++of_set[static_cast<size_t>(edge.colour)];
    }
    for (const auto& [set, count] : counts) {
      auto [low, high] = std::minmax_element(count.begin(), count.end());
      spread = std::max(spread, *high - *low);
    }
  }
  return spread;
}

std::vector<ColouredEdge> RandomEdges(int vertices, int count, uint64_t seed) {
  Random random(seed);
  std::vector<ColouredEdge> edges(static_cast<size_t>(count));
  for (ColouredEdge& edge : edges) {
    auto draw = [&] {
      auto vertex = static_cast<int32_t>(random.Below(static_cast<uint64_t>(vertices)));
      return std::array<int32_t, 3>{vertex, vertex, vertex / 4};
    };
    edge.left = draw();
    edge.right = draw();
  }
  return edges;
}

TEST(BalancedColouring, IsWithinOneEdgeForPowersOfTwo) {
  for (int colours : {1, 2, 4, 16, 32}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      std::vector<ColouredEdge> edges = RandomEdges(12, 700, seed);
      BalanceColours(edges, colours);
      EXPECT_LE(Spread(edges, colours, 0), 1) << colours << " colours, seed " << seed;
      EXPECT_LE(Spread(edges, colours, 2), 1) << "pods, " << colours << " colours";
    }
  }
}

TEST(BalancedColouring, IsWithinOneEdgeForAnyNumber) {
  for (int colours : {3, 5, 6, 7, 12, 31}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      std::vector<ColouredEdge> edges = RandomEdges(9, 400, seed);
      BalanceColours(edges, colours);
      EXPECT_LE(Spread(edges, colours, 0), 1) << colours << " colours, seed " << seed;
    }
  }
}

TEST(BalancedColouring, ColoursARegularGraphPerfectly) {
  // 32 vertices of degree 32: every vertex has each colour once.
  std::vector<ColouredEdge> edges;
  Random random(3);
  for (int i = 0; i < 32; ++i) {
    std::vector<int32_t> partner(32);
    for (int32_t v = 0; v < 32; ++v) partner[static_cast<size_t>(v)] = v;
    random.Shuffle(partner);
    for (int32_t v = 0; v < 32; ++v) {
      int32_t w = partner[static_cast<size_t>(v)];
      edges.push_back({{v, v, 0}, {w, w, 0}});
    }
  }
  BalanceColours(edges, 32);
  EXPECT_EQ(Spread(edges, 32, 0), 0);
}

TEST(BalancedColouring, BalancesWeightsWithinTheHeaviest) {
  Random random(11);
  std::vector<ColouredEdge> edges = RandomEdges(6, 600, 11);
  for (ColouredEdge& edge : edges) edge.weight = 1 + static_cast<double>(random.Below(1000)) / 100;
  BalanceColours(edges, 8);
  std::map<int, std::vector<double>> sums;
  for (const ColouredEdge& edge : edges) {
    std::vector<double>& of_set = sums[edge.left[0]];
    of_set.resize(8);
    of_set[static_cast<size_t>(edge.colour)] += edge.weight;
  }
  for (const auto& [set, of_set] : sums) {
    auto [low, high] = std::minmax_element(of_set.begin(), of_set.end());
    EXPECT_LE(*high - *low, 2 * 11.0);
  }
}

}  // namespace
}  // namespace weft::topology
