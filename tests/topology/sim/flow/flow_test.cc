#include "topology/sim/flow/flow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/topology/sim/flow/flows.h"
#include "topology/fabric/routes.h"
#include "topology/sim/path_choice.h"

namespace weft::topology {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;

TEST(Flow, LoneTransferTakesWireTimeDelaysAndOnePacketAHop) {
  const Fabric fabric = LeafSpine(2, 2, 2);
  Workload workload;
  workload.Add({.source = Host(fabric, 0), .target = Host(fabric, 1), .bytes = Bytes(2'000'000)});
  const SimulationResult near = Simulate(fabric, workload);
  EXPECT_THAT(Microseconds(near.operations[0].ended),
              DoubleNear((Wire(2'000'000) + 4160) / kRate * 1e6 + 2, 1e-3));
  Workload far_workload;
  far_workload.Add({.source = Host(fabric, 0), .target = Host(fabric, 3), .bytes = Bytes(100)});
  const SimulationResult far = Simulate(fabric, far_workload);
  EXPECT_THAT(Microseconds(far.operations[0].ended), DoubleNear(164 * 4 / kRate * 1e6 + 4, 1e-3));
}

TEST(Flow, IncastSharesTheLastLinkEqually) {
  const Fabric fabric = LeafSpine(2, 8, 8);
  Workload workload;
  for (size_t i = 1; i < 8; ++i) {
    workload.Add({.source = Host(fabric, i), .target = Host(fabric, 0), .bytes = MiB(1)});
  }
  const SimulationResult result = Simulate(fabric, workload);
  for (const OperationResult& operation : result.operations) {
    EXPECT_THAT(Microseconds(operation.ended),
                DoubleNear((7 * Wire(1 << 20) + 4160) / kRate * 1e6 + 2, 1e-2));
  }
}

TEST(Flow, TransfersThatShareAPathEndInOrderOfSize) {
  const Fabric fabric = LeafSpine(2, 2, 2);
  Workload workload;
  const Endpoint a = Host(fabric, 0), b = Host(fabric, 3);
  workload.Add({.source = a, .target = b, .bytes = Bytes(4096 * 300)});
  workload.Add({.source = a, .target = b, .bytes = Bytes(4096 * 100)});
  workload.Add(
      {.source = a, .target = b, .bytes = Bytes(4096 * 100), .start = absl::Microseconds(4)});
  FlowStatistics statistics;
  FlowOptions options;
  options.statistics = &statistics;
  const SimulationResult result = Simulate(fabric, workload, options);
  // Alone to 4 us, then by two until the second arrives: processor sharing, by hand.
  const double packet = 4160 / kRate * 1e6, latency = 4 + 3 * packet;
  const double second = 4 + (100 - (4 / packet) / 2) * packet * 3;
  const double third = second + (4 / packet / 2) * packet * 2;
  EXPECT_THAT(Microseconds(result.operations[1].ended), DoubleNear(second + latency, 1e-2));
  EXPECT_THAT(Microseconds(result.operations[2].ended), DoubleNear(third + latency, 1e-2));
  EXPECT_THAT(Microseconds(result.operations[0].ended), DoubleNear(500 * packet + latency, 1e-2));
}

TEST(Flow, WhatWaitsBeginsWhenTheLastOfTheOthersEnded) {
  const Fabric fabric = LeafSpine(1, 4, 1);
  Workload workload;
  const auto compute = workload.Add({.kind = OperationKind::kCompute,
                                     .source = Host(fabric, 0),
                                     .duration = absl::Microseconds(7)});
  const auto transfer =
      workload.Add({.source = Host(fabric, 1), .target = Host(fabric, 2), .bytes = Bytes(1)});
  const auto join = workload.Add({.kind = OperationKind::kJoin}, {compute, transfer});
  const auto late = workload.Add({.kind = OperationKind::kCompute,
                                  .source = Host(fabric, 0),
                                  .duration = absl::Microseconds(1),
                                  .start = absl::Microseconds(20)},
                                 {join});
  const SimulationResult result = Simulate(fabric, workload);
  EXPECT_EQ(result.operations[join].ended, absl::Microseconds(7));
  EXPECT_EQ(result.operations[late].started, absl::Microseconds(20));
  EXPECT_EQ(result.end, absl::Microseconds(21));
  EXPECT_EQ(result.unfinished, 0);
}

TEST(Flow, TakesThePathThatTheSharedHashChooses) {
  const Fabric fabric = LeafSpine(4, 4, 4);
  const Routes routes(fabric);
  Workload workload;
  std::vector<int64_t> expected(static_cast<size_t>(fabric.links()));
  FlowOptions options;
  options.seed = 5;
  for (size_t i = 0; i < 16; ++i) {
    const Endpoint source = Host(fabric, i), target = Host(fabric, (i * 7 + 5) % 16);
    const uint16_t port = static_cast<uint16_t>(i % 3);
    workload.Add({.source_port = port, .source = source, .target = target, .bytes = Bytes(4096)});
    const uint64_t hash = FlowHash(options.seed, source, target, port);
    auto path = routes.Path(source, target, [&](NodeId at, absl::Span<const LinkId> next) {
      return ChooseLink(hash, at, next.size());
    });
    ASSERT_TRUE(path.ok());
    for (LinkId link : *path) expected[link.index()] += 4160;
  }
  const SimulationResult result = Simulate(fabric, workload, options);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(result.links[i].bytes.count(), expected[i])
        << fabric.Name(LinkId(static_cast<int>(i)));
  }
}

TEST(Flow, SprayUsesAllPathsAlike) {
  const Fabric fabric = LeafSpine(2, 4, 4);
  Workload workload;
  for (size_t i = 0; i < 4; ++i) {
    workload.Add({.source = Host(fabric, i), .target = Host(fabric, 4 + i), .bytes = MiB(1)});
  }
  FlowOptions options;
  options.load_balance = LoadBalance::kSpray;
  const SimulationResult result = Simulate(fabric, workload, options);
  for (const OperationResult& operation : result.operations) {  // no collision, whatever the seed
    EXPECT_THAT(Microseconds(operation.ended),
                DoubleNear((Wire(1 << 20) + 3 * 4160) / kRate * 1e6 + 4, 1e-2));
  }
  for (int i = 0; i < fabric.links(); ++i) {
    const FabricLink& link = fabric.link(LinkId(i));
    if (link.nic >= 0 || fabric.node(link.source).tier != 1) continue;
    const bool out = result.links[static_cast<size_t>(i)].bytes > Bytes(0);
    if (!out) continue;
    EXPECT_NEAR(static_cast<double>(result.links[static_cast<size_t>(i)].bytes.count()),
                Wire(1 << 20), 2);
  }
}

TEST(Flow, WideTransferIsItsLanes) {
  const Fabric fabric = LeafSpine(2, 2, 2, 4);
  Workload wide;
  wide.Add({.width = 4, .source = Host(fabric, 0), .target = Host(fabric, 3), .bytes = MiB(1)});
  absl::StatusOr<Expansion> expansion = Expand(wide);
  ASSERT_TRUE(expansion.ok());
  EXPECT_EQ(expansion->workload.transfers(), 4);
  const SimulationResult a = Simulate(fabric, wide), b = Simulate(fabric, expansion->workload);
  EXPECT_EQ(a.operations[0].ended, b.operations[expansion->last[0]].ended);
  for (size_t i = 0; i < a.links.size(); ++i) EXPECT_EQ(a.links[i].bytes, b.links[i].bytes);
}

// A ring as one variable against every step written out.
void ExpectRingLikeItsSteps(const Fabric& fabric, std::vector<Endpoint> members, Bytes bytes,
                            uint32_t steps, double tolerance, LoadBalance balance) {
  Workload ring;
  const uint32_t number = ring.AddRing(std::move(members));
  ring.Add({.kind = OperationKind::kRing, .bytes = bytes, .ring = number, .steps = steps});
  absl::StatusOr<Expansion> expansion = Expand(ring);
  ASSERT_TRUE(expansion.ok());
  FlowOptions options;
  options.load_balance = balance;
  options.exact_rings = 0;
  const double one = Microseconds(Simulate(fabric, ring, options).end);
  const double all = Microseconds(Simulate(fabric, expansion->workload, options).end);
  // Each step rounds twice, up to a quarter of a nanosecond.
  EXPECT_THAT(one, DoubleNear(all, all * tolerance + steps * 0.0005))
      << steps << " steps of " << bytes.count();
}

TEST(Flow, RingEqualsItsStepsWhereAllEdgesAreAlike) {
  const Fabric fabric = LeafSpine(4, 4, 4);
  std::vector<Endpoint> one_leaf, strided;
  for (size_t i = 0; i < 4; ++i) one_leaf.push_back(Host(fabric, i));
  for (size_t i = 0; i < 16; ++i) strided.push_back(Host(fabric, i % 4 * 4 + i / 4));
  for (int64_t bytes : {1, 4096, 100'000, 4'000'000}) {
    ExpectRingLikeItsSteps(fabric, one_leaf, Bytes(bytes), 6, 1e-9, LoadBalance::kEcmp);
    ExpectRingLikeItsSteps(fabric, strided, Bytes(bytes), 30, 1e-9, LoadBalance::kSpray);
  }
}

TEST(Flow, RingIsNearItsStepsWhereEdgesDiffer) {
  const Fabric fabric = LeafSpine(4, 4, 1);  // oversubscribed: the edges between leaves are slow
  std::vector<Endpoint> members;
  for (size_t i = 0; i < 16; ++i) members.push_back(Host(fabric, i % 2 * 8 + i / 2));
  ExpectRingLikeItsSteps(fabric, members, MiB(4), 30, 0.02, LoadBalance::kEcmp);
  std::vector<Endpoint> consecutive;
  for (size_t i = 0; i < 16; ++i) consecutive.push_back(Host(fabric, i));
  ExpectRingLikeItsSteps(fabric, consecutive, MiB(1), 30, 0.02, LoadBalance::kEcmp);
}

TEST(Flow, SmallRingsAreExactAndReportedAsOneOperation) {
  const Fabric fabric = LeafSpine(4, 4, 1);
  Workload workload;
  std::vector<Endpoint> members;
  for (size_t i = 0; i < 16; ++i) members.push_back(Host(fabric, i % 2 * 8 + i / 2));
  const uint32_t ring = workload.AddRing(members);
  const OperationId before =
      workload.Add({.kind = OperationKind::kCompute, .duration = absl::Microseconds(5)});
  const OperationId one = workload.Add(
      {.kind = OperationKind::kRing, .bytes = MiB(1), .ring = ring, .steps = 30}, {before});
  absl::StatusOr<Expansion> expansion = Expand(workload);
  ASSERT_TRUE(expansion.ok());
  const SimulationResult exact = Simulate(fabric, workload);
  ASSERT_EQ(exact.operations.size(), 2U);
  EXPECT_EQ(exact.unfinished, 0);
  EXPECT_EQ(exact.operations[one].started, absl::Microseconds(5));
  EXPECT_EQ(exact.operations[one].ended,
            Simulate(fabric, expansion->workload).operations[expansion->last[one]].ended);
}

TEST(Flow, BadArgumentsAreNamed) {
  const Fabric fabric = LeafSpine(1, 2, 1);
  Workload workload;
  workload.Add({.source = Host(fabric, 0), .target = Host(fabric, 1), .bytes = Bytes(1)});
  workload.Add({.source = Host(fabric, 0), .target = Host(fabric, 1, 3), .bytes = Bytes(1)});
  EXPECT_THAT(std::string(SimulateFlows(fabric, workload, {}).status().message()),
              HasSubstr("operation 1: NICs 3 to 3 are wanted, and h1 has 1"));
  FlowOptions options;
  options.late = 1;
  EXPECT_THAT(std::string(SimulateFlows(fabric, Workload(), options).status().message()),
              HasSubstr("late 1: wanted"));
  options.late = 0;
  options.faults = {{.at = absl::Microseconds(1), .link = LinkId(99)}};
  EXPECT_THAT(std::string(SimulateFlows(fabric, Workload(), options).status().message()),
              HasSubstr("link 99"));
  options.faults = {{.at = absl::Microseconds(2), .link = LinkId(0)},
                    {.at = absl::Microseconds(1), .link = LinkId(0)}};
  EXPECT_THAT(std::string(SimulateFlows(fabric, Workload(), options).status().message()),
              HasSubstr("in order of time"));
}

TEST(Flow, ProgressCanStopIt) {
  const Fabric fabric = LeafSpine(1, 2, 1);
  Workload workload;
  OperationId last = workload.Add({.kind = OperationKind::kJoin});
  for (int i = 0; i < 40'000; ++i) {
    last = workload.Add({.kind = OperationKind::kCompute,
                         .source = Host(fabric, 0),
                         .duration = absl::Nanoseconds(10)},
                        {last});
  }
  FlowOptions options;
  size_t seen = 0;
  options.progress = [&](absl::Duration, size_t done) {
    seen = done;
    return false;
  };
  EXPECT_EQ(SimulateFlows(fabric, workload, options).status().code(), absl::StatusCode::kCancelled);
  EXPECT_GT(seen, 0U);
  EXPECT_LT(seen, 40'000U);
}

}  // namespace
}  // namespace weft::topology
