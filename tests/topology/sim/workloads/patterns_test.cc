#include "topology/sim/workloads/patterns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

namespace weft::topology {
namespace {

std::vector<Endpoint> Endpoints(int n) {
  std::vector<Endpoint> endpoints;
  endpoints.reserve(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) endpoints.push_back({NodeId(i), 0});
  return endpoints;
}

TEST(Patterns, PermutationIsOneCycleThroughAll) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Workload workload;
    AddPermutation(workload, Endpoints(17), Bytes(9), absl::Microseconds(2), seed);
    ASSERT_EQ(workload.size(), 17U);
    std::map<NodeId, NodeId> next;
    for (OperationId i = 0; i < 17; ++i) {
      const Operation& operation = workload.operation(i);
      next[operation.source.host] = operation.target.host;
      EXPECT_EQ(operation.bytes, Bytes(9));
      EXPECT_EQ(operation.start, absl::Microseconds(2));
    }
    NodeId at(0);
    std::set<NodeId> seen;
    while (seen.insert(at).second) at = next[at];
    EXPECT_EQ(seen.size(), 17U) << "seed " << seed;
  }
}

TEST(Patterns, SeedDecidesThePermutation) {
  auto targets = [](uint64_t seed) {
    Workload workload;
    AddPermutation(workload, Endpoints(50), Bytes(1), absl::ZeroDuration(), seed);
    std::vector<NodeId> found;
    for (OperationId i = 0; i < 50; ++i) found.push_back(workload.operation(i).target.host);
    return found;
  };
  EXPECT_EQ(targets(3), targets(3));
  EXPECT_NE(targets(3), targets(4));
}

TEST(Patterns, IncastHasThatManyDifferentSendersAndNeverTheTarget) {
  for (bool random : {false, true}) {
    Workload workload;
    AddIncast(workload, Endpoints(10), 9, 4, random, Bytes(1), absl::ZeroDuration(), 1);
    std::set<NodeId> sources;
    for (OperationId i = 0; i < workload.size(); ++i) {
      sources.insert(workload.operation(i).source.host);
      EXPECT_EQ(workload.operation(i).target.host, NodeId(4));
    }
    EXPECT_EQ(sources.size(), 9U);
    EXPECT_FALSE(sources.contains(NodeId(4)));
  }
}

TEST(Patterns, FullMeshHasEveryPairOnceAndKeepsItsWindow) {
  for (FullMeshShape shape :
       {FullMeshShape::kParallel, FullMeshShape::kShifted, FullMeshShape::kRandom}) {
    Workload workload;
    AddFullMesh(workload, Endpoints(7), shape, 2, Bytes(1), absl::ZeroDuration(), 1);
    std::set<std::pair<NodeId, NodeId>> pairs;
    int unbound = 0;
    for (OperationId i = 0; i < workload.size(); ++i) {
      const Operation& operation = workload.operation(i);
      pairs.insert({operation.source.host, operation.target.host});
      EXPECT_NE(operation.source.host, operation.target.host);
      if (workload.After(i).empty()) ++unbound;
    }
    EXPECT_EQ(pairs.size(), 42U);
    EXPECT_EQ(workload.size(), 42U);
    EXPECT_EQ(unbound, shape == FullMeshShape::kParallel ? 42 : 14);
  }
}

TEST(Patterns, ExponentialDrawsHaveMeanAndTailOfTheDistribution) {
  Random random(7);
  constexpr int kDraws = 200'000;
  double sum = 0;
  int above_two = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double draw = ExponentialDraw(random);
    ASSERT_GE(draw, 0);
    sum += draw;
    above_two += draw > 2;
  }
  EXPECT_NEAR(sum / kDraws, 1, 0.01);  // four standard errors: 0.009
  EXPECT_NEAR(static_cast<double>(above_two) / kDraws, std::exp(-2), 0.003);
}

TEST(Patterns, BackgroundOffersItsLoadWithinItsTime) {
  Workload workload;
  BackgroundTraffic traffic{.load = 0.5,
                            .rate = Bandwidth::BytesPerSecond(1e9),
                            .bytes = Bytes(10'000),
                            .exponential = true,
                            .start = absl::Milliseconds(1),
                            .duration = absl::Milliseconds(20)};
  AddBackground(workload, Endpoints(20), traffic, 5);
  double bytes = 0;
  for (OperationId i = 0; i < workload.size(); ++i) {
    const Operation& operation = workload.operation(i);
    bytes += static_cast<double>(operation.bytes.count());
    EXPECT_GE(operation.start, traffic.start);
    EXPECT_LT(operation.start, traffic.start + traffic.duration);
    EXPECT_NE(operation.source.host, operation.target.host);
  }
  EXPECT_NEAR(bytes / (20 * 1e9 * 0.02), 0.5, 0.03);
}

}  // namespace
}  // namespace weft::topology
