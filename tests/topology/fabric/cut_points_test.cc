#include "topology/fabric/cut_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAreArray;

// How many parts with host ports there are, of the network that has `start`, without a switch or a
// cable; and the host ports of the part that has `far`.
struct Parts {
  int count = 0;
  int64_t total = 0, far = 0;
};

Parts PartsWithout(const Fabric& fabric, NodeId node, LinkId cable, NodeId start, NodeId far) {
  std::vector<int> part(static_cast<size_t>(fabric.nodes()), -1);
  auto flood = [&](NodeId from, int number, bool whole) {
    std::vector<NodeId> queue = {from};
    part[from.index()] = number;
    int64_t ports = 0;
    for (size_t head = 0; head < queue.size(); ++head) {
      for (LinkId id : fabric.LinksFrom(queue[head])) {
        const FabricLink& link = fabric.link(id);
        bool is_gone = !whole && (link.target == node || id == cable || link.reverse == cable);
        if (!link.up || is_gone) continue;
        if (link.nic >= 0) ++ports;
        if (link.nic >= 0 || part[link.target.index()] == number) continue;
        part[link.target.index()] = number;
        queue.push_back(link.target);
      }
    }
    return ports;
  };
  Parts parts;
  parts.total = flood(start, 0, true);
  int number = 0;
  for (NodeId at : fabric.switches()) {
    if (part[at.index()] != 0 || at == node) continue;  // of another network, or counted
    int64_t ports = flood(at, ++number, false);
    if (ports > 0) ++parts.count;
    if (far != NodeId() && part[far.index()] == number) parts.far = ports;
  }
  return parts;
}

Fabric RandomFabric(Random& random) {
  FabricBuilder builder;
  FabricBuilder::Cable cable{Bandwidth::GigabitsPerSecond(100)};
  int switches = 2 + static_cast<int>(random.Below(9));
  auto any = [&] { return NodeId(static_cast<int>(random.Below(switches))); };
  for (int i = 0; i < switches; ++i) {
    EXPECT_TRUE(builder.Add({"s" + std::to_string(i), NodeKind::kSwitch, 1}).ok());
  }
  for (uint64_t i = 0, cables = random.Below(2 * switches); i < cables; ++i) {
    (void)builder.Connect(any(), any(), cable);
  }
  for (uint64_t i = 0, hosts = 1 + random.Below(5); i < hosts; ++i) {
    NodeId host = *builder.Add({"h" + std::to_string(i)});
    for (cable.nic = 0; cable.nic < 1 + static_cast<int>(random.Below(2)); ++cable.nic) {
      EXPECT_TRUE(builder.Connect(host, any(), cable).ok());
    }
  }
  Fabric fabric = *std::move(builder).Build();
  for (uint64_t i = 0, faults = random.Below(3); i < faults; ++i) {
    fabric.SetUp(LinkId(static_cast<int>(random.Below(fabric.links()))), false);
  }
  return fabric;
}

TEST(CutPoints, AreWhatFallsApartWhenItIsTakenAway) {
  using Row = std::tuple<std::string, int, int64_t>;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed);
    Fabric fabric = RandomFabric(random);
    std::vector<Row> expected;
    std::vector<Row> found;
    for (NodeId node : fabric.switches()) {
      Parts parts = PartsWithout(fabric, node, LinkId(), node, NodeId());
      if (parts.count > 1) expected.emplace_back(fabric.node(node).name, parts.count, parts.total);
    }
    for (int i = 0; i < fabric.links(); i += 2) {
      const FabricLink& link = fabric.link(LinkId(i));
      if (!link.up || link.nic >= 0) continue;
      Parts parts = PartsWithout(fabric, NodeId(), LinkId(i), link.source, link.target);
      if (parts.count > 1) expected.emplace_back(std::to_string(i), 2, parts.total);
    }
    for (const CutPoint& point : FindCutPoints(fabric)) {
      bool is_switch = point.cable == LinkId();
      int cable = is_switch ? 0 : point.cable.value() / 2 * 2;
      found.emplace_back(is_switch ? fabric.node(point.node).name : std::to_string(cable),
                         point.parts, point.total);
      if (is_switch) continue;
      const FabricLink& link = fabric.link(point.cable);
      EXPECT_EQ(point.cut_off,
                PartsWithout(fabric, NodeId(), point.cable, link.source, link.target).far);
    }
    std::sort(expected.begin(), expected.end());
    std::sort(found.begin(), found.end());
    ASSERT_THAT(found, ElementsAreArray(expected)) << "seed " << seed;
  }
}

TEST(CutPoints, OfAChainAsLongAsAFabricMayBeNeedNoStack) {
  FabricBuilder builder;
  FabricBuilder::Cable cable{Bandwidth::GigabitsPerSecond(100)};
  constexpr int kSwitches = 100'000;
  for (int i = 0; i < kSwitches; ++i) {
    ASSERT_TRUE(builder.Add({"s" + std::to_string(i), NodeKind::kSwitch, 1}).ok());
    if (i == 0) continue;
    ASSERT_TRUE(builder.Connect(NodeId(i - 1), NodeId(i), cable).ok());
  }
  cable.nic = 0;
  for (int i : {0, kSwitches - 1}) {
    NodeId host = *builder.Add({"h" + std::to_string(i)});
    ASSERT_TRUE(builder.Connect(host, NodeId(i), cable).ok());
  }
  Fabric fabric = *std::move(builder).Build();
  EXPECT_EQ(FindCutPoints(fabric).size(), 2u * kSwitches - 3);
}

}  // namespace
}  // namespace weft::topology
