// Links that die, come back and degrade under transfers; limits of time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/topology/sim/flow/flows.h"
#include "topology/fabric/routes.h"
#include "topology/sim/path_choice.h"

namespace weft::topology {
namespace {

using ::testing::DoubleNear;

TEST(Flow, TransferGoesRoundADeadLinkWhenSwitchesReroute) {
  const Fabric fabric = LeafSpine(2, 1, 2);
  Workload workload;
  workload.Add({.source = Host(fabric, 0), .target = Host(fabric, 1), .bytes = MiB(4)});
  const double alone = Microseconds(Simulate(fabric, workload).end);
  const Routes routes(fabric);
  const uint64_t hash = FlowHash(1, Host(fabric, 0), Host(fabric, 1), 0);
  auto path = routes.Path(
      Host(fabric, 0), Host(fabric, 1),
      [&](NodeId at, absl::Span<const LinkId> next) { return ChooseLink(hash, at, next.size()); });
  ASSERT_TRUE(path.ok());
  FlowOptions options;
  options.faults = {{.at = absl::Microseconds(30), .link = (*path)[1]}};
  const SimulationResult rerouted = Simulate(fabric, workload, options);
  EXPECT_THAT(Microseconds(rerouted.end), DoubleNear(alone, 1e-2));
  EXPECT_THAT(static_cast<double>(rerouted.links[(*path)[1].index()].bytes.count()),
              DoubleNear(30e-6 * kRate, 100));
  options.faults[0].reroute = false;
  EXPECT_EQ(Simulate(fabric, workload, options).unfinished, 1);
  options.faults.push_back({.at = absl::Microseconds(130),
                            .link = (*path)[1],
                            .kind = LinkFault::Kind::kUp,
                            .reroute = false});
  EXPECT_THAT(Microseconds(Simulate(fabric, workload, options).end), DoubleNear(alone + 100, 1e-2));
}

TEST(Flow, UnreachableTargetWaitsForTheLinkToComeBack) {
  const Fabric fabric = LeafSpine(1, 2, 1);
  Workload workload;
  workload.Add({.source = Host(fabric, 0), .target = Host(fabric, 1), .bytes = MiB(1)});
  const double alone = Microseconds(Simulate(fabric, workload).end);
  const LinkId port = fabric.Ports(Host(fabric, 1))[0];
  FlowOptions options;
  options.faults = {{.at = absl::ZeroDuration(), .link = port},
                    {.at = absl::Microseconds(10), .link = port, .kind = LinkFault::Kind::kUp},
                    {.at = absl::Microseconds(15), .link = port},
                    {.at = absl::Microseconds(45), .link = port, .kind = LinkFault::Kind::kUp}};
  EXPECT_THAT(Microseconds(Simulate(fabric, workload, options).end), DoubleNear(alone + 40, 1e-2));
  options.faults.resize(3);
  EXPECT_EQ(Simulate(fabric, workload, options).unfinished, 1);
}

TEST(Flow, DegradedLinkSlowsWhatIsUnderWay) {
  const Fabric fabric = LeafSpine(1, 2, 1);
  Workload workload;
  workload.Add({.source = Host(fabric, 0), .target = Host(fabric, 1), .bytes = MiB(1)});
  const double alone = Microseconds(Simulate(fabric, workload).end);
  FlowOptions options;
  options.faults = {{.at = absl::Microseconds(10),
                     .link = fabric.Ports(Host(fabric, 0))[0],
                     .kind = LinkFault::Kind::kBandwidth,
                     .bandwidth = Bandwidth::GigabitsPerSecond(100)}};
  const double wire = Wire(1 << 20) / kRate * 1e6;
  EXPECT_THAT(Microseconds(Simulate(fabric, workload, options).end),
              DoubleNear(alone + 3 * (wire - 10), 1e-2));
}

TEST(Flow, WhatLastsLongerThanTimeItselfIsUnfinished) {
  const Fabric fabric = LeafSpine(1, 2, 1);
  Workload workload;
  const OperationId first = workload.Add({.kind = OperationKind::kCompute,
                                          .source = Host(fabric, 0),
                                          .duration = absl::Hours(300'000)});
  const OperationId second = workload.Add(
      {.kind = OperationKind::kCompute, .source = Host(fabric, 0), .duration = absl::Hours(1e12)},
      {first});
  FlowOptions options;
  options.limit = absl::InfiniteDuration();
  const SimulationResult result = Simulate(fabric, workload, options);
  EXPECT_EQ(result.operations[first].ended, absl::Hours(300'000));
  EXPECT_EQ(result.operations[second].ended, absl::InfiniteDuration());
  EXPECT_EQ(result.unfinished, 1);
}

TEST(Flow, LimitLeavesTheRestUnfinished) {
  const Fabric fabric = LeafSpine(1, 2, 1);
  Workload workload;
  workload.Add({.source = Host(fabric, 0), .target = Host(fabric, 1), .bytes = MiB(1)});
  workload.Add({.source = Host(fabric, 1), .target = Host(fabric, 0), .bytes = Bytes(1)});
  FlowOptions options;
  options.limit = absl::Microseconds(10);
  const SimulationResult result = Simulate(fabric, workload, options);
  EXPECT_EQ(result.unfinished, 1);
  EXPECT_EQ(result.operations[0].ended, absl::InfiniteDuration());
  EXPECT_NEAR(
      static_cast<double>(result.links[fabric.Ports(Host(fabric, 0))[0].index()].bytes.count()),
      10e-6 * kRate, 100);
}

}  // namespace
}  // namespace weft::topology
