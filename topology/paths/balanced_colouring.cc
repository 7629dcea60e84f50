#include "topology/paths/balanced_colouring.h"

#include <algorithm>
#include <map>
#include <utility>

namespace weft::topology {
namespace {

using Edges = std::vector<ColouredEdge>;
using List = std::vector<uint32_t>;  // of edges
constexpr uint32_t kNone = ~0u;
constexpr int kSweepsMax = 8;

class Splitter {
 public:
  explicit Splitter(const Edges& edges)
      : edges_(edges), left_(edges.size()), right_(edges.size()), side_(edges.size()) {}

  // Splits into two halves, each in the order of `list`.
  std::pair<List, List> Split(const List& list) {
    Pair(list, &ColouredEdge::left, left_);
    Pair(list, &ColouredEdge::right, right_);
    for (uint32_t edge : list) side_[edge] = -1;
    weight_ = {};
    for (uint32_t edge : list) {  // paths, from an end
      if (side_[edge] < 0 && (left_[edge] == kNone || right_[edge] == kNone)) {
        Walk(edge, right_[edge] != kNone);
      }
    }
    for (uint32_t edge : list) {  // cycles
      if (side_[edge] < 0) Walk(edge, true);
    }
    std::pair<List, List> halves;
    for (uint32_t edge : list) (side_[edge] == 0 ? halves.first : halves.second).push_back(edge);
    return halves;
  }

 private:
  void Pair(const List& list, std::array<int32_t, 3> ColouredEdge::*sets, List& partner) {
    List open = list, left_over;
    for (uint32_t edge : list) partner[edge] = kNone;
    for (size_t level = 0; level < 3 && !open.empty(); ++level) {
      std::sort(open.begin(), open.end(), [&](uint32_t a, uint32_t b) {
        int32_t set_a = (edges_[a].*sets)[level], set_b = (edges_[b].*sets)[level];
        if (set_a != set_b) return set_a < set_b;
        if (edges_[a].weight != edges_[b].weight) return edges_[a].weight > edges_[b].weight;
        return a < b;
      });
      left_over.clear();
      for (size_t i = 0; i < open.size();) {
        uint32_t a = open[i];
        bool paired =
            i + 1 < open.size() && (edges_[a].*sets)[level] == (edges_[open[i + 1]].*sets)[level];
        if (paired) {
          partner[a] = open[i + 1];
          partner[open[i + 1]] = a;
        } else {
          left_over.push_back(a);
        }
        i += paired ? 2 : 1;
      }
      std::swap(open, left_over);
    }
  }

  // Alternates along a path or cycle; a path begins on the lighter side.
  void Walk(uint32_t edge, bool over_right) {
    int side = weight_[0] <= weight_[1] ? 0 : 1;
    while (edge != kNone && side_[edge] < 0) {
      side_[edge] = static_cast<int8_t>(side);
      weight_[static_cast<size_t>(side)] += edges_[edge].weight;
      edge = over_right ? right_[edge] : left_[edge];
      over_right = !over_right;
      side = 1 - side;
    }
  }

  const Edges& edges_;
  List left_, right_;  // partners
  std::vector<int8_t> side_;
  std::array<double, 2> weight_{};
};

// Whether the counts of two colours differ by more than one in some innermost set.
bool Unbalanced(const Edges& edges, const List& list, int first, int count) {
  for (auto sets : {&ColouredEdge::left, &ColouredEdge::right}) {
    std::map<int32_t, std::vector<int>> counts;
    for (uint32_t edge : list) {
      std::vector<int>& of_set = counts[(edges[edge].*sets)[1]];
      of_set.resize(static_cast<size_t>(count));
      ++of_set[static_cast<size_t>(edges[edge].colour - first)];
    }
    for (const auto& [set, of_set] : counts) {
      auto [low, high] = std::minmax_element(of_set.begin(), of_set.end());
      if (*high - *low > 1) return true;
    }
  }
  return false;
}

class Colourer {
 public:
  explicit Colourer(Edges& edges) : edges_(edges), splitter_(edges) {}

  void Colour(const List& list, int first, int count) {
    if (list.empty()) return;
    if (count % 2 == 0) {
      auto [low, high] = splitter_.Split(list);
      Colour(low, first, count / 2);
      Colour(high, first + count / 2, count / 2);
    } else if (count == 1) {
      for (uint32_t edge : list) edges_[edge].colour = first;
    } else {
      ColourOdd(list, first, count);
    }
  }

 private:
  void ColourOdd(List list, int first, int count) {
    std::stable_sort(list.begin(), list.end(),
                     [this](uint32_t a, uint32_t b) { return edges_[a].left < edges_[b].left; });
    int next = 0;
    for (uint32_t edge : list) edges_[edge].colour = first + next++ % count;
    for (int sweep = 0; sweep < kSweepsMax && Unbalanced(edges_, list, first, count); ++sweep) {
      for (int one = first; one < first + count; ++one) {
        for (int two = one + 1; two < first + count; ++two) SplitAnew(list, one, two);
      }
    }
  }

  void SplitAnew(const List& list, int one, int two) {
    List both;
    for (uint32_t edge : list) {
      if (edges_[edge].colour == one || edges_[edge].colour == two) both.push_back(edge);
    }
    auto [low, high] = splitter_.Split(both);
    for (uint32_t edge : low) edges_[edge].colour = one;
    for (uint32_t edge : high) edges_[edge].colour = two;
  }

  Edges& edges_;
  Splitter splitter_;
};

}  // namespace

void BalanceColours(std::vector<ColouredEdge>& edges, int colours) {
  List all(edges.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint32_t>(i);
  Colourer(edges).Colour(all, 0, colours);
}

}  // namespace weft::topology
