#include "topology/sim/flow/max_min.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace weft::topology {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<MaxMin::Use> Uses(const std::vector<uint32_t>& resources) {
  std::vector<MaxMin::Use> uses;
  uses.reserve(resources.size());
  for (uint32_t resource : resources) uses.push_back({resource, 1});
  return uses;
}

// Bertsekas, Gallager, figure 6.10's kind: a chain of links, one flow through all of them and short
// flows beside it.
TEST(MaxMin, ChainGivesTheKnownShares) {
  MaxMin solver({10, 4, 10});
  const auto everywhere = solver.Add(Uses({0, 1, 2}));
  const auto first = solver.Add(Uses({0}));
  const auto second = solver.Add(Uses({1}));
  const auto third_a = solver.Add(Uses({2}));
  const auto third_b = solver.Add(Uses({2}));
  solver.Solve();
  EXPECT_THAT(solver.rate(everywhere), DoubleEq(2));  // link 1 shared by two
  EXPECT_THAT(solver.rate(second), DoubleEq(2));
  EXPECT_THAT(solver.rate(first), DoubleEq(8));    // the rest of link 0
  EXPECT_THAT(solver.rate(third_a), DoubleEq(4));  // half of the rest of link 2
  EXPECT_THAT(solver.rate(third_b), DoubleEq(4));
  EXPECT_TRUE(solver.Check().ok()) << solver.Check();
}

TEST(MaxMin, CountsAreThatManyFlows) {
  MaxMin solver({12});
  const auto three = solver.Add(Uses({0}), 3);
  const auto one = solver.Add(Uses({0}));
  solver.Solve();
  EXPECT_THAT(solver.rate(three), DoubleEq(3));
  EXPECT_THAT(solver.rate(one), DoubleEq(3));
  solver.SetCount(three, 1);
  solver.Solve();
  EXPECT_THAT(solver.rate(three), DoubleEq(6));
}

TEST(MaxMin, WeightsAreWhatAFlowTakes) {
  // A ring that crosses link 0 twice beside a flow that crosses it once: 2x + x = 12.
  MaxMin solver({12, 100});
  const auto ring = solver.Add({{{0, 2}, {1, 1}}});
  const auto flow = solver.Add(Uses({0}));
  solver.Solve();
  EXPECT_THAT(solver.rate(ring), DoubleEq(4));
  EXPECT_THAT(solver.rate(flow), DoubleEq(4));
}

TEST(MaxMin, WhatLeavesGivesItsShareToThoseItHeldBack) {
  MaxMin solver({10, 10});
  const auto a = solver.Add(Uses({0}));
  const auto both = solver.Add(Uses({0, 1}));
  const auto b = solver.Add(Uses({1}));
  solver.Solve();
  EXPECT_THAT(solver.rate(both), DoubleEq(5));
  solver.Remove(a);
  solver.Remove(b);
  EXPECT_THAT(solver.Solve(), UnorderedElementsAre(both));
  EXPECT_THAT(solver.rate(both), DoubleEq(10));
  EXPECT_THAT(solver.Solve(), IsEmpty());
}

TEST(MaxMin, ResourceWithoutCapacityStopsWhatUsesItAndNothingElse) {
  MaxMin solver({10, 10});
  const auto both = solver.Add(Uses({0, 1}));
  const auto one = solver.Add(Uses({0}));
  solver.Solve();
  solver.SetCapacity(1, 0);
  solver.Solve();
  EXPECT_THAT(solver.rate(both), DoubleEq(0));
  EXPECT_THAT(solver.rate(one), DoubleEq(10));
  solver.SetCapacity(1, 10);
  solver.Solve();
  EXPECT_THAT(solver.rate(both), DoubleEq(5));
}

TEST(MaxMin, ShrunkResourceSlowsThoseItDidNotHoldBackBefore) {
  MaxMin solver({10, 100});
  const auto flow = solver.Add(Uses({0, 1}));
  solver.Solve();
  EXPECT_THAT(solver.rate(flow), DoubleEq(10));
  solver.SetCapacity(1, 3);
  solver.Solve();
  EXPECT_THAT(solver.rate(flow), DoubleEq(3));
}

TEST(MaxMin, CheckFindsARateThatIsNotMaxMin) {
  MaxMin solver({10});
  solver.Add(Uses({0}));
  EXPECT_FALSE(solver.Check().ok());  // not solved yet: nobody holds it at 0
}

// A random change to a random instance.
class Scene {
 public:
  explicit Scene(uint64_t seed)
      : random_(seed), resources_(3 + random_.Below(20)), solver_(Capacities()) {}

  void Change() {
    const uint64_t what = random_.Below(10);
    if (what < 5 || variables_.size() < 2) {
      variables_.push_back(solver_.Add(RandomUses(), 1 + static_cast<uint32_t>(random_.Below(3))));
    } else if (what < 8) {
      const size_t i = random_.Below(variables_.size());
      solver_.Remove(variables_[i]);
      variables_.erase(variables_.begin() + static_cast<ptrdiff_t>(i));
    } else if (what == 8) {
      solver_.SetCount(variables_[random_.Below(variables_.size())],
                       1 + static_cast<uint32_t>(random_.Below(4)));
    } else {
      solver_.SetCapacity(static_cast<uint32_t>(random_.Below(resources_)), Capacity());
    }
  }

  MaxMin& solver() { return solver_; }
  const std::vector<MaxMin::Variable>& variables() const { return variables_; }

 private:
  // Few different values, so that ties are frequent.
  double Capacity() { return static_cast<double>(1 + random_.Below(4)) * 25; }
  std::vector<double> Capacities() {
    std::vector<double> capacities(resources_);
    for (double& capacity : capacities) capacity = Capacity();
    return capacities;
  }
  std::vector<MaxMin::Use> RandomUses() {
    std::vector<uint32_t> order(resources_);
    for (uint32_t i = 0; i < resources_; ++i) order[i] = i;
    random_.Shuffle(order);
    order.resize(1 + random_.Below(std::min<uint64_t>(6, resources_)));
    static constexpr double kWeights[] = {1, 1, 1, 2, 0.25};
    std::vector<MaxMin::Use> uses;
    uses.reserve(order.size());
    for (uint32_t resource : order) uses.push_back({resource, kWeights[random_.Below(5)]});
    return uses;
  }

  Random random_;
  size_t resources_;
  MaxMin solver_;
  std::vector<MaxMin::Variable> variables_;
};

TEST(MaxMin, EveryFlowHasABottleneckAfterEveryRandomChange) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Scene scene(seed);
    for (int change = 0; change < 200; ++change) {
      scene.Change();
      if (change % 3 != 0) continue;  // several changes, one solve
      scene.solver().Solve();
      ASSERT_TRUE(scene.solver().Check().ok())
          << "seed " << seed << " change " << change << ": " << scene.solver().Check();
    }
  }
}

TEST(MaxMin, IncrementalEqualsFromScratchAfterEveryRandomChange) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Scene incremental(seed), scratch(seed);
    for (int change = 0; change < 200; ++change) {
      incremental.Change();
      scratch.Change();
      incremental.solver().Solve();
      scratch.solver().SolveAll();
      for (MaxMin::Variable variable : incremental.variables()) {
        const double rate = scratch.solver().rate(variable);
        ASSERT_THAT(incremental.solver().rate(variable), DoubleNear(rate, rate * 1e-7))
            << "seed " << seed << " change " << change << " variable " << variable;
      }
    }
  }
}

// What makes it worth the trouble: two halves of a network that share nothing.
TEST(MaxMin, ChangeCostsWhatItReaches) {
  MaxMin solver(std::vector<double>(1000, 10));
  for (uint32_t i = 0; i < 1000; ++i) solver.Add(Uses({i}), 2);
  solver.Solve();
  const int64_t before = solver.filled();
  const auto added = solver.Add(Uses({7}));
  solver.Solve();
  EXPECT_THAT(solver.rate(added), DoubleNear(10.0 / 3, 1e-12));
  EXPECT_EQ(solver.filled() - before, 2);
}

}  // namespace
}  // namespace weft::topology
