#include "topology/fabric/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "base/random.h"
#include "topology/fabric/clos.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Fabric Clos(const ClosSpec& spec) {
  absl::StatusOr<Fabric> fabric = BuildClos(spec);
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  return *std::move(fabric);
}

ClosSpec LeafSpine(int leaves, int hosts, int spines) {
  ClosSpec spec;
  spec.groups = leaves;
  spec.hosts_per_group = hosts;
  spec.spines = spines;
  return spec;
}

ClosSpec ThreeTier() {
  ClosSpec spec = LeafSpine(2, 2, 2);
  spec.pods = 3;
  spec.cores = 4;
  return spec;
}

Endpoint Host(const Fabric& fabric, int host, int nic = 0) {
  return {fabric.hosts()[static_cast<size_t>(host)], nic};
}

// The reference: for one destination, distances by a search that knows nothing of tables.
class Naive {
 public:
  Naive(const Fabric& fabric, Endpoint target)
      : fabric_(fabric), distance_(static_cast<size_t>(fabric.nodes()), -1) {
    std::deque<NodeId> queue;
    for (LinkId port : fabric.Ports(target)) {
      NodeId at = fabric.link(port).target;
      if (!fabric.link(port).up || distance_[at.index()] >= 0) continue;
      distance_[at.index()] = 1;
      queue.push_back(at);
    }
    for (; !queue.empty(); queue.pop_front()) {
      for (LinkId id : fabric.LinksFrom(queue.front())) {
        const FabricLink& link = fabric.link(id);
        if (!link.up || fabric.node(link.target).kind == NodeKind::kHost) continue;
        if (distance_[link.target.index()] >= 0) continue;
        distance_[link.target.index()] = distance_[queue.front().index()] + 1;
        queue.push_back(link.target);
      }
    }
    target_ = target;
  }

  std::vector<LinkId> Next(NodeId at) const {
    std::vector<LinkId> next;
    if (distance_[at.index()] < 0) return next;
    for (LinkId id : fabric_.LinksFrom(at)) {
      const FabricLink& link = fabric_.link(id);
      if (!link.up) continue;
      bool is_last = link.target == target_.host && link.nic == target_.nic;
      bool is_nearer = distance_[link.target.index()] > 0 &&
                       distance_[link.target.index()] == distance_[at.index()] - 1;
      if (distance_[at.index()] == 1 ? is_last : is_nearer) next.push_back(id);
    }
    return next;
  }

  std::vector<LinkId> First(Endpoint source) const {
    std::vector<LinkId> first;
    int least = 1 << 30;
    for (LinkId id : fabric_.Ports(source)) {
      int distance = distance_[fabric_.link(id).target.index()];
      if (!fabric_.link(id).up || distance < 0 || distance > least) continue;
      if (distance < least) first.clear();
      least = distance;
      first.push_back(id);
    }
    return first;
  }

 private:
  const Fabric& fabric_;
  Endpoint target_;
  std::vector<int> distance_;
};

void ExpectAsNaive(const Fabric& fabric, const Routes& routes, const std::string& where) {
  for (Endpoint target : fabric.Endpoints()) {
    Naive naive(fabric, target);
    for (NodeId at : fabric.switches()) {
      ASSERT_THAT(routes.Next(at, target), ElementsAreArray(naive.Next(at)))
          << where << ": at " << fabric.node(at).name << " towards "
          << fabric.node(target.host).name << " NIC " << target.nic;
    }
    for (Endpoint source : fabric.Endpoints()) {
      if (source.host == target.host) continue;
      ASSERT_THAT(routes.First(source, target), ElementsAreArray(naive.First(source))) << where;
    }
  }
}

TEST(Routes, OfALeafSpineGoOverEverySpine) {
  Fabric fabric = Clos(LeafSpine(4, 3, 5));
  Routes routes(fabric);
  EXPECT_EQ(routes.Hops(Host(fabric, 0), Host(fabric, 2)), 2);
  EXPECT_EQ(routes.Paths(Host(fabric, 0), Host(fabric, 2)), 1);
  EXPECT_EQ(routes.Hops(Host(fabric, 0), Host(fabric, 3)), 4);
  EXPECT_EQ(routes.Paths(Host(fabric, 0), Host(fabric, 3)), 5);
  EXPECT_THAT(routes.Next(*fabric.Find("leaf0"), Host(fabric, 3)), SizeIs(5));
  EXPECT_THAT(routes.Next(*fabric.Find("spine0"), Host(fabric, 3)), SizeIs(1));
  EXPECT_THAT(routes.Next(Host(fabric, 1).host, Host(fabric, 3)), IsEmpty());
}

TEST(Routes, OfThreeTiersMultiplyAcrossPods) {
  Fabric fabric = Clos(ThreeTier());
  Routes routes(fabric);
  EXPECT_EQ(routes.Hops(Host(fabric, 0), Host(fabric, 2)), 4);
  EXPECT_EQ(routes.Paths(Host(fabric, 0), Host(fabric, 2)), 2);
  EXPECT_EQ(routes.Hops(Host(fabric, 0), Host(fabric, 11)), 6);
  EXPECT_EQ(routes.Paths(Host(fabric, 0), Host(fabric, 11)), 4);
}

TEST(Routes, OfParallelCablesCountEachCable) {
  ClosSpec spec = LeafSpine(2, 1, 2);
  spec.spine.cables = 3;
  Fabric fabric = Clos(spec);
  EXPECT_EQ(Routes(fabric).Paths(Host(fabric, 0), Host(fabric, 1)), 2 * 3 * 3);
}

TEST(Routes, OnOneHostNeedNoNetwork) {
  ClosSpec spec = LeafSpine(2, 1, 2);
  spec.nics = 2;
  spec.rail_leaves = true;
  Fabric fabric = Clos(spec);
  Routes routes(fabric);
  EXPECT_EQ(routes.Hops(Host(fabric, 0, 0), Host(fabric, 0, 1)), 0);
  EXPECT_THAT(routes.First(Host(fabric, 0, 0), Host(fabric, 0, 1)), IsEmpty());
  auto path = routes.Path(Host(fabric, 0, 0), Host(fabric, 0, 1), [](auto, auto) { return 0; });
  EXPECT_THAT(*path, IsEmpty());
}

TEST(Routes, OfARailReachTheSameRailUnderItsLeaf) {
  ClosSpec spec = LeafSpine(2, 4, 2);
  spec.nics = 2;
  spec.rail_leaves = true;
  Fabric fabric = Clos(spec);
  Routes routes(fabric);
  EXPECT_EQ(routes.Hops(Host(fabric, 0, 1), Host(fabric, 3, 1)), 2);
  EXPECT_EQ(routes.Hops(Host(fabric, 0, 0), Host(fabric, 3, 1)), 4);
}

TEST(Routes, OfTwoPortsUseBothAndSurviveTheLossOfOne) {
  ClosSpec spec = LeafSpine(2, 2, 3);
  spec.ports = 2;
  Fabric fabric = Clos(spec);
  Routes routes(fabric);
  Endpoint source = Host(fabric, 0);
  Endpoint target = Host(fabric, 3);
  EXPECT_THAT(routes.First(source, target), SizeIs(2));
  EXPECT_EQ(routes.Paths(source, target), 2 * 3 * 2);
  fabric.SetUp(fabric.Ports(target)[1], false);
  fabric.SetUp(fabric.Ports(source)[0], false);
  routes.Update();
  EXPECT_THAT(routes.First(source, target), ElementsAre(fabric.Ports(source)[1]));
  EXPECT_EQ(routes.Paths(source, target), 3);
}

TEST(Routes, PathTakesTheChoicesThatItIsGiven) {
  Fabric fabric = Clos(ThreeTier());
  Routes routes(fabric);
  auto path = routes.Path(Host(fabric, 0), Host(fabric, 11),
                          [](NodeId, absl::Span<const LinkId> next) { return next.size() - 1; });
  ASSERT_TRUE(path.ok()) << path.status();
  std::vector<std::string> names;
  for (LinkId link : *path) names.push_back(fabric.Name(link));
  EXPECT_THAT(names, ElementsAre("h0>leaf0", "leaf0>spine1", "spine1>core3", "core3>spine5",
                                 "spine5>leaf5", "leaf5>h11"));
}

TEST(Routes, APartitionIsAnErrorThatNamesBothSides) {
  Fabric fabric = Clos(LeafSpine(2, 2, 1));
  Routes routes(fabric);
  NodeId leaf1 = *fabric.Find("leaf1");
  fabric.SetUp(*fabric.FindLink(leaf1, *fabric.Find("spine0")), false);
  routes.Update();
  EXPECT_EQ(routes.Hops(Host(fabric, 0), Host(fabric, 3)), -1);
  EXPECT_EQ(routes.Paths(Host(fabric, 0), Host(fabric, 3)), 0);
  EXPECT_EQ(routes.Hops(Host(fabric, 2), Host(fabric, 3)), 2);
  auto path = routes.Path(Host(fabric, 0), Host(fabric, 3), [](auto, auto) { return 0; });
  EXPECT_TRUE(absl::IsNotFound(path.status()));
  EXPECT_THAT(std::string(path.status().message()), HasSubstr("h0 NIC 0 cannot reach h3 NIC 0"));

  fabric.SetUp(fabric.Ports(Host(fabric, 3))[0], false);
  routes.Update();
  EXPECT_EQ(routes.Hops(Host(fabric, 2), Host(fabric, 3)), -1);
  EXPECT_THAT(routes.Next(leaf1, Host(fabric, 3)), IsEmpty());
}

// Switches in a random graph, hosts with one to three NICs of one to four ports.
Fabric RandomFabric(Random& random) {
  FabricBuilder builder;
  int switches = 2 + static_cast<int>(random.Below(10));
  int hosts = 2 + static_cast<int>(random.Below(8));
  auto any_switch = [&] { return NodeId(static_cast<int>(random.Below(switches))); };
  FabricBuilder::Cable cable{Bandwidth::GigabitsPerSecond(100)};
  for (int i = 0; i < switches; ++i) {
    EXPECT_TRUE(builder.Add({"s" + std::to_string(i), NodeKind::kSwitch, 1}).ok());
  }
  for (uint64_t i = 0, cables = random.Below(4 * switches); i < cables; ++i) {
    NodeId a = any_switch();
    NodeId b = any_switch();
    if (a == b) continue;
    EXPECT_TRUE(builder.Connect(a, b, cable).ok());
  }
  for (int i = 0; i < hosts; ++i) {
    NodeId host = *builder.Add({"h" + std::to_string(i), NodeKind::kHost});
    int nics = 1 + static_cast<int>(random.Below(3));
    for (cable.nic = 0; cable.nic < nics; ++cable.nic) {
      for (uint64_t port = 0, ports = 1 + random.Below(4); port < ports; ++port) {
        EXPECT_TRUE(builder.Connect(host, any_switch(), cable).ok());
      }
    }
    cable.nic = -1;
  }
  return *std::move(builder).Build();
}

TEST(Routes, EqualASearchOnRandomFabrics) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Random random(seed);
    Fabric fabric = RandomFabric(random);
    ExpectAsNaive(fabric, Routes(fabric), "seed " + std::to_string(seed));
    if (HasFatalFailure()) return;
  }
}

TEST(Routes, UpdateAfterRandomFaultsEqualsASearch) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed, 1);
    Fabric fabric = RandomFabric(random);
    Routes routes(fabric);
    for (int round = 0; round < 8; ++round) {
      for (uint64_t i = 0, faults = 1 + random.Below(4); i < faults; ++i) {
        LinkId link(static_cast<int>(random.Below(fabric.links())));
        fabric.SetUp(link, !fabric.link(link).up);
      }
      routes.Update();
      ExpectAsNaive(fabric, routes,
                    "seed " + std::to_string(seed) + " round " + std::to_string(round));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Routes, UpdateAfterFaultsOfAClosEqualsASearch) {
  Fabric fabric = Clos(ThreeTier());
  Routes routes(fabric);
  Random random(7);
  for (int round = 0; round < 60; ++round) {
    LinkId link(static_cast<int>(random.Below(fabric.links())));
    fabric.SetUp(link, !fabric.link(link).up);
    routes.Update();
    ExpectAsNaive(fabric, routes, "round " + std::to_string(round));
    if (HasFatalFailure()) return;
  }
}

TEST(Routes, FlapsWithoutEndDoNotFillMemory) {
  Fabric fabric = Clos(ThreeTier());
  Routes routes(fabric);
  Random random(3);
  Bytes most;
  for (int round = 0; round < 4000; ++round) {
    LinkId link(static_cast<int>(random.Below(fabric.links())));
    fabric.SetUp(link, !fabric.link(link).up);
    routes.Update();
    most = std::max(most, routes.memory());
  }
  EXPECT_LT(most, MiB(2));
}

TEST(Routes, OfTwelveThousandHostsInThreeTiersFitMemory) {
  ClosSpec spec = LeafSpine(32, 32, 32);
  spec.pods = 12;
  spec.cores = 192;
  Fabric fabric = Clos(spec);
  ASSERT_THAT(fabric.hosts(), SizeIs(12'288));
  Routes routes(fabric);
  EXPECT_LT(routes.memory(), MiB(4));
  EXPECT_EQ(routes.Paths(Host(fabric, 0), Host(fabric, 12'287)), 192);
}

TEST(Routes, TablesThatWouldTakeGigabytesAreRefusedBeforehand) {
  // 20,000 hosts, each on a switch of its own: 20,000 tables of 20,000 entries.
  FabricBuilder builder;
  FabricBuilder::Cable cable{Bandwidth::GigabitsPerSecond(100), {}, {}, 0};
  for (int i = 0; i < 20'000; ++i) {
    NodeId host = *builder.Add({"h" + std::to_string(i), NodeKind::kHost});
    NodeId leaf = *builder.Add({"s" + std::to_string(i), NodeKind::kSwitch, 1});
    ASSERT_TRUE(builder.Connect(host, leaf, cable).ok());
  }
  Fabric fabric = *std::move(builder).Build();
  EXPECT_TRUE(absl::IsResourceExhausted(Routes::Feasible(fabric)));
  EXPECT_TRUE(Routes::Feasible(Clos(ThreeTier())).ok());
}

}  // namespace
}  // namespace weft::topology
