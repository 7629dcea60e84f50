// What must hold whatever the workload: shortcuts of the solver against what they replace, bounds,
// determinism.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/topology/sim/flow/flows.h"

namespace weft::topology {
namespace {

Workload RandomWorkload(const Fabric& fabric, uint64_t seed) {
  Random random(seed);
  Workload workload;
  const size_t hosts = fabric.hosts().size();
  std::vector<Endpoint> members;
  for (size_t i = 0; i < 6; ++i) members.push_back(Host(fabric, i * 2));
  const uint32_t ring = workload.AddRing(members);
  std::vector<OperationId> after;
  for (OperationId i = 0; i < 300; ++i) {
    after.clear();
    if (i > 10 && random.Below(2) == 0) after.push_back(static_cast<OperationId>(random.Below(i)));
    const absl::Duration start = absl::Nanoseconds(static_cast<int64_t>(random.Below(40)) * 500);
    if (random.Below(20) == 0) {
      workload.Add({.kind = OperationKind::kRing,
                    .bytes = Bytes(100'000),
                    .start = start,
                    .ring = ring,
                    .steps = 5},
                   after);
      continue;
    }
    const size_t source = random.Below(hosts), target = random.Below(hosts);
    workload.Add({.source_port = static_cast<uint16_t>(random.Below(3)),
                  .source = Host(fabric, source),
                  .target = Host(fabric, target),
                  .bytes = Bytes(static_cast<int64_t>(random.Below(400'000))),
                  .start = start},
                 after);
  }
  return workload;
}

TEST(Flow, IncrementalEqualsFromScratchOnRandomWorkloads) {
  const Fabric fabric = LeafSpine(4, 4, 2);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Workload workload = RandomWorkload(fabric, seed);
    FlowOptions options;
    options.seed = seed;
    if (seed % 2 == 0) options.exact_rings = 0;
    if (seed % 3 == 0) options.load_balance = LoadBalance::kSpray;
    options.faults = {
        {.at = absl::Microseconds(11), .link = LinkId(40)},
        {.at = absl::Microseconds(25), .link = LinkId(40), .kind = LinkFault::Kind::kUp}};
    const SimulationResult incremental = Simulate(fabric, workload, options);
    options.incremental = false;
    const SimulationResult scratch = Simulate(fabric, workload, options);
    ASSERT_EQ(incremental.unfinished, 0);
    for (size_t i = 0; i < workload.size(); ++i) {
      EXPECT_NEAR(Microseconds(incremental.operations[i].ended),
                  Microseconds(scratch.operations[i].ended), 1e-2)
          << "seed " << seed << " op " << i;
    }
  }
}

// Three tiers and uneven traffic, so that cells split in many ways; and a fault, which takes a link
// out of its cell.
TEST(Flow, MergedLinksChangeNothingOfSprayedTransfers) {
  ClosSpec spec;
  spec.groups = 2;
  spec.hosts_per_group = 3;
  spec.pods = 3;
  spec.spines = 2;
  spec.cores = 4;
  const Fabric fabric = *BuildClos(spec);
  const LinkId uplink = fabric.LinksFrom(*fabric.Find("leaf0"))[4];
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const Workload workload = RandomWorkload(fabric, seed);
    FlowOptions options;
    options.load_balance = LoadBalance::kSpray;
    options.exact_rings = seed % 2 == 0 ? 0 : 1'000'000;
    if (seed > 4) {
      options.faults = {
          {.at = absl::Microseconds(9), .link = uplink},
          {.at = absl::Microseconds(30), .link = uplink, .kind = LinkFault::Kind::kUp}};
    }
    const SimulationResult merged = Simulate(fabric, workload, options);
    options.merge_links = false;
    const SimulationResult single = Simulate(fabric, workload, options);
    for (size_t i = 0; i < workload.size(); ++i) {
      EXPECT_NEAR(Microseconds(merged.operations[i].ended),
                  Microseconds(single.operations[i].ended), 1e-2)
          << "seed " << seed << " op " << i;
    }
    for (size_t i = 0; i < merged.links.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(merged.links[i].bytes.count()),
                  static_cast<double>(single.links[i].bytes.count()), 200)
          << "seed " << seed << " " << fabric.Name(LinkId(static_cast<int>(i)));
    }
  }
}

TEST(Flow, SameArgumentsGiveTheSameResultToTheTick) {
  const Fabric fabric = LeafSpine(4, 4, 2);
  const Workload workload = RandomWorkload(fabric, 3);
  const SimulationResult a = Simulate(fabric, workload), b = Simulate(fabric, workload);
  for (size_t i = 0; i < workload.size(); ++i) {
    EXPECT_EQ(a.operations[i].started, b.operations[i].started);
    EXPECT_EQ(a.operations[i].ended, b.operations[i].ended);
  }
  for (size_t i = 0; i < a.links.size(); ++i) EXPECT_EQ(a.links[i].bytes, b.links[i].bytes);
  EXPECT_EQ(a.events, b.events);
}

TEST(Flow, NoTransferBeatsItsBoundAndNoLinkItsCapacity) {
  const Fabric fabric = LeafSpine(4, 4, 2);
  const Workload workload = RandomWorkload(fabric, 7);
  const SimulationResult result = Simulate(fabric, workload);
  for (OperationId i = 0; i < workload.size(); ++i) {
    const Operation& operation = workload.operation(i);
    if (operation.kind != OperationKind::kTransfer) continue;
    if (operation.source.host == operation.target.host) continue;
    const absl::Duration took = result.operations[i].ended - result.operations[i].started;
    EXPECT_GE(Microseconds(took), Wire(operation.bytes.count()) / kRate * 1e6 + 2 - 1e-3);
  }
  for (const LinkResult& link : result.links) {
    EXPECT_LE(static_cast<double>(link.bytes.count()),
              absl::ToDoubleSeconds(result.end) * kRate * (1 + 1e-9));
  }
}

// Everybody to everybody, and again as soon as an endpoint has heard from all: the second time the
// endpoints are out of step.
Workload TwoMeshes(const std::vector<Endpoint>& endpoints, Bytes bytes) {
  Workload workload;
  const size_t n = endpoints.size();
  std::vector<std::vector<OperationId>> heard(n);
  for (int phase = 0; phase < 2; ++phase) {
    const std::vector<std::vector<OperationId>> before = std::exchange(heard, {});
    heard.resize(n);
    for (size_t shift = 1; shift < n; ++shift) {
      for (size_t from = 0; from < n; ++from) {
        const size_t to = (from + shift) % n;
        const Operation send{
            .in_order = true, .source = endpoints[from], .target = endpoints[to], .bytes = bytes};
        heard[to].push_back(workload.Add(send, before[from]));
      }
    }
  }
  return workload;
}

// On hashed paths: the worst that the solver meets.
TEST(Flow, RatesThatAreLateMoveAMeshByNoMoreThanTheyMay) {
  const Fabric fabric = LeafSpine(4, 8, 8);
  const Workload workload = TwoMeshes(fabric.Endpoints(), KiB(256));
  FlowOptions options;
  FlowStatistics exact_cost, late_cost;
  options.statistics = &exact_cost;
  const SimulationResult exact = Simulate(fabric, workload, options);
  options.statistics = &late_cost;
  options.exact_paths = 0;
  options.late = 0.02;
  const SimulationResult late = Simulate(fabric, workload, options);
  EXPECT_EQ(late.unfinished, 0);
  EXPECT_LT(late_cost.rates * 2, exact_cost.rates);
  EXPECT_NE(late.end, exact.end);
  EXPECT_NEAR(Microseconds(late.end), Microseconds(exact.end), Microseconds(exact.end) * 0.02);
  for (size_t i = 0; i < workload.size(); ++i) {
    const double ended = Microseconds(exact.operations[i].ended);
    EXPECT_NEAR(Microseconds(late.operations[i].ended), ended, ended * 0.04) << i;
  }
  for (size_t i = 0; i < exact.links.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(late.links[i].bytes.count()),
                static_cast<double>(exact.links[i].bytes.count()), 1000);
  }
}

// A link that dies must show at once, however late rates may be.
TEST(Flow, FaultsAreNeverLate) {
  const Fabric fabric = LeafSpine(1, 2, 1);
  Workload workload;
  workload.Add({.source = Host(fabric, 0), .target = Host(fabric, 1), .bytes = MiB(1)});
  const double alone = Microseconds(Simulate(fabric, workload).end);
  const LinkId port = fabric.Ports(Host(fabric, 0))[0];
  FlowOptions options;
  options.exact_paths = 0;
  options.late = 0.5;
  options.faults = {
      {.at = absl::Microseconds(15), .link = port, .reroute = false},
      {.at = absl::Microseconds(16), .link = port, .kind = LinkFault::Kind::kUp, .reroute = false}};
  const double wire = Wire(1 << 20) / kRate * 1e6;  // at half of which its first rate may come
  EXPECT_NEAR(Microseconds(Simulate(fabric, workload, options).end), alone + 1 + wire / 2, 1e-2);
}

}  // namespace
}  // namespace weft::topology
