// The collectives against their formulas (collectives.h), run at flow level on fabrics where
// nothing collides.
#include "topology/sim/workloads/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "topology/fabric/clos.h"
#include "topology/sim/flow/flow.h"

namespace weft::topology {
namespace {

using ::testing::DoubleNear;
using ::testing::Ge;
using ::testing::HasSubstr;

constexpr double kRate = 50e9;                   // bytes a second of 400 Gbit/s
constexpr double kBeta = 4160.0 / 4096 / kRate;  // seconds a byte, header included
// Two links of 1 us under one switch, and a packet that is stored there.
constexpr double kAlpha = 2e-6 + 4160 / kRate;

Fabric Switch(int hosts, int nics = 1) {
  ClosSpec spec;
  spec.groups = 1;
  spec.hosts_per_group = hosts;
  spec.nics = nics;
  spec.rail_leaves = nics > 1;
  spec.spines = 1;
  spec.leaf.delay = spec.spine.delay = absl::Microseconds(1);
  return *BuildClos(spec);
}

double Seconds(const Fabric& fabric, const CollectiveTraffic& traffic) {
  Workload workload;
  const absl::StatusOr<OperationId> end =
      AddCollective(workload, fabric.Endpoints(), traffic, "test");
  EXPECT_TRUE(end.ok()) << end.status();
  const absl::StatusOr<SimulationResult> result = SimulateFlows(fabric, workload, {});
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->unfinished, 0);
  EXPECT_EQ(result->operations[*end].ended, result->end);
  return absl::ToDoubleSeconds(result->end);
}

constexpr double kS = 64 << 20;

TEST(Collectives, RingTakesItsFormulasTime) {
  for (int n : {2, 8, 32}) {
    const double one = (n - 1) * kAlpha + (n - 1.0) / n * kS * kBeta;
    const Fabric fabric = Switch(n);
    for (CollectiveOp op :
         {CollectiveOp::kAllReduce, CollectiveOp::kAllGather, CollectiveOp::kReduceScatter}) {
      const double formula = op == CollectiveOp::kAllReduce ? 2 * one : one;
      EXPECT_THAT(Seconds(fabric, {.op = op, .bytes = MiB(64)}),
                  DoubleNear(formula, formula * 0.01));
    }
  }
}

TEST(Collectives, DirectTakesItsFormulasTime) {
  for (int n : {2, 8, 32}) {
    const double formula = 2 * kAlpha + 2 * (n - 1.0) / n * kS * kBeta;
    EXPECT_THAT(Seconds(Switch(n), {.algorithm = CollectiveAlgorithm::kDirect, .bytes = MiB(64)}),
                DoubleNear(formula, formula * 0.01));
  }
}

TEST(Collectives, DoublingTakesItsFormulasTime) {
  for (int n : {2, 8, 32}) {
    const double rounds = std::log2(n);
    const double halving = 2 * rounds * kAlpha + 2 * (n - 1.0) / n * kS * kBeta;
    EXPECT_THAT(
        Seconds(Switch(n), {.algorithm = CollectiveAlgorithm::kHalvingDoubling, .bytes = MiB(64)}),
        DoubleNear(halving, halving * 0.01));
    const double recursive = rounds * (kAlpha + kS * kBeta);
    EXPECT_THAT(Seconds(Switch(n),
                        {.algorithm = CollectiveAlgorithm::kRecursiveDoubling, .bytes = MiB(64)}),
                DoubleNear(recursive, recursive * 0.01));
  }
}

TEST(Collectives, HierarchicalTakesItsFormulasTime) {
  // Groups of 4 hosts.
  {
    const double g = 4, m = 4;
    const double formula = 2 * (g - 1) * kAlpha + 2 * (g - 1) / g * kS * kBeta +
                           2 * (m - 1) * kAlpha + 2 * (m - 1) / m * (kS / g) * kBeta;
    EXPECT_THAT(Seconds(Switch(16), {.algorithm = CollectiveAlgorithm::kHierarchical,
                                     .bytes = MiB(64),
                                     .group = 4,
                                     .local = Bandwidth::GigabitsPerSecond(2400)}),
                DoubleNear(formula, formula * 0.01));
  }
  // Hosts of 8 NICs on 8 rails, which reduce inside at 300 GB/s.
  const double g = 8, m = 4;
  const double formula =
      2 * (g - 1) / g * kS / 300e9 + 2 * (m - 1) * kAlpha + 2 * (m - 1) / m * (kS / g) * kBeta;
  EXPECT_THAT(Seconds(Switch(4, 8), {.algorithm = CollectiveAlgorithm::kHierarchical,
                                     .bytes = MiB(64),
                                     .group = 8,
                                     .local = Bandwidth::GigabitsPerSecond(2400)}),
              DoubleNear(formula, formula * 0.01));
}

// A latency that occupies nobody is paid once a hop; the last rank then gets a chunk a chunk's
// time.
TEST(Collectives, ChainBroadcastIsAPipelineOfItsChunks) {
  for (int n : {2, 4, 16}) {
    for (double chunks : {1, 4, 64, 512}) {
      const double formula = (chunks + n - 2) * kS * kBeta / chunks + (n - 1) * kAlpha;
      EXPECT_THAT(Seconds(Switch(n), {.op = CollectiveOp::kBroadcast,
                                      .algorithm = CollectiveAlgorithm::kChain,
                                      .bytes = MiB(64),
                                      .chunk = Bytes(static_cast<int64_t>(kS / chunks))}),
                  DoubleNear(formula, formula * 0.01))
          << n << " ranks, " << chunks << " chunks";
    }
  }
}

TEST(Collectives, TwoTreesApproachTwiceTheBytes) {
  for (int n : {8, 15, 32}) {
    const double bandwidth = 2 * kS * kBeta;
    const double time = Seconds(
        Switch(n), {.algorithm = CollectiveAlgorithm::kTree, .bytes = MiB(64), .chunk = KiB(128)});
    EXPECT_THAT(time, Ge(2 * (n - 1.0) / n * kS * kBeta));
    EXPECT_THAT(time, Ge(bandwidth * 0.9));
    // Filling and draining: some chunks and latencies a level, up and down.
    const double levels = 2 * std::ceil(std::log2(n));
    EXPECT_LE(time, bandwidth * 1.1 + levels * (kAlpha + 3 * 131072 * kBeta)) << n;
  }
}

TEST(Collectives, SmallAllReducesRankByTurns) {
  const Fabric fabric = Switch(16);
  auto time = [&](CollectiveAlgorithm algorithm) {
    return Seconds(fabric, {.algorithm = algorithm, .bytes = Bytes(64)});
  };
  EXPECT_LT(time(CollectiveAlgorithm::kDirect), time(CollectiveAlgorithm::kRecursiveDoubling));
  EXPECT_LT(time(CollectiveAlgorithm::kRecursiveDoubling),
            time(CollectiveAlgorithm::kHalvingDoubling));
  EXPECT_LT(time(CollectiveAlgorithm::kHalvingDoubling), time(CollectiveAlgorithm::kRing));
}

TEST(Collectives, EveryTreeReachesEveryRank) {
  // A tree that loses a rank would send fewer messages: 2 (n - 1) a chunk and tree.
  for (int n = 2; n <= 33; ++n) {
    Workload workload;
    const std::vector<Endpoint> endpoints = Switch(n).Endpoints();
    ASSERT_TRUE(AddCollective(workload, endpoints,
                              {.algorithm = CollectiveAlgorithm::kTree, .bytes = KiB(4)}, "test")
                    .ok());
    EXPECT_EQ(workload.transfers(), 4 * (n - 1));
    std::vector<int> received(static_cast<size_t>(n));
    for (OperationId i = 0; i < workload.size(); ++i) {
      if (workload.operation(i).kind != OperationKind::kTransfer) continue;
      ++received[workload.operation(i).target.host.index()];
    }
    for (int count : received) EXPECT_GE(count, 1) << n;
  }
}

TEST(Collectives, WhatDoesNotFitIsRefused) {
  Workload workload;
  const std::vector<Endpoint> endpoints = Switch(6).Endpoints();
  auto message = [&](const CollectiveTraffic& traffic) {
    return std::string(AddCollective(workload, endpoints, traffic, "test").status().message());
  };
  EXPECT_THAT(message({.algorithm = CollectiveAlgorithm::kHalvingDoubling, .bytes = Bytes(1)}),
              HasSubstr("power of two"));
  EXPECT_THAT(message({.op = CollectiveOp::kBroadcast, .bytes = Bytes(1)}), HasSubstr("lacks"));
  EXPECT_THAT(message({.algorithm = CollectiveAlgorithm::kTree,
                       .bytes = Bytes(int64_t{1} << 50),
                       .chunk = Bytes(1)}),
              HasSubstr("at most"));
}

}  // namespace
}  // namespace weft::topology
