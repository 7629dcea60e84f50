#include "topology/fabric/fabric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "topology/fabric/file.h"
#include "topology/fabric/load.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Bandwidth kFast = Bandwidth::GigabitsPerSecond(400);

NodeId Add(FabricBuilder& builder, const std::string& name, NodeKind kind, int tier = 1) {
  FabricNode node;
  node.name = name;
  node.kind = kind;
  node.tier = kind == NodeKind::kHost ? 0 : tier;
  absl::StatusOr<NodeId> id = builder.Add(std::move(node));
  EXPECT_TRUE(id.ok()) << id.status();
  return *id;
}

// One host with NICs 1 and 0, cabled in that order, the former with two ports; switches in between.
class FabricTest : public ::testing::Test {
 protected:
  FabricBuilder builder_;
  NodeId leaf0_ = Add(builder_, "leaf0", NodeKind::kSwitch);
  NodeId host_ = Add(builder_, "h0", NodeKind::kHost);
  NodeId leaf1_ = Add(builder_, "leaf1", NodeKind::kSwitch);

  Fabric Build() {
    EXPECT_TRUE(builder_.Connect(host_, leaf0_, {kFast, {}, {}, 1}).ok());
    EXPECT_TRUE(builder_.Connect(leaf1_, host_, {kFast, {}, {}, 1}).ok());
    EXPECT_TRUE(builder_.Connect(host_, leaf0_, {kFast, {}, {}, 0}).ok());
    EXPECT_TRUE(builder_.Connect(leaf0_, leaf1_, {kFast}).ok());
    absl::StatusOr<Fabric> fabric = std::move(builder_).Build();
    EXPECT_TRUE(fabric.ok()) << fabric.status();
    return *std::move(fabric);
  }
};

TEST_F(FabricTest, ACableIsTwoLinksEachTheOthersReverse) {
  Fabric fabric = Build();
  ASSERT_EQ(fabric.links(), 8);
  for (int i = 0; i < fabric.links(); ++i) {
    const FabricLink& link = fabric.link(LinkId(i));
    const FabricLink& back = fabric.link(link.reverse);
    EXPECT_EQ(back.reverse, LinkId(i));
    EXPECT_EQ(back.source, link.target);
    EXPECT_EQ(back.target, link.source);
    EXPECT_EQ(back.nic, link.nic);
  }
}

TEST_F(FabricTest, PortsOfANicAreItsCablesInOrder) {
  Fabric fabric = Build();
  EXPECT_EQ(fabric.nics(host_), 2);
  EXPECT_EQ(fabric.endpoints(), 2);
  EXPECT_THAT(fabric.Ports({host_, 0}), ElementsAre(LinkId(4)));
  EXPECT_THAT(fabric.Ports({host_, 1}), ElementsAre(LinkId(0), LinkId(3)));
  EXPECT_THAT(fabric.LinksFrom(host_), ElementsAre(LinkId(4), LinkId(0), LinkId(3)));
  EXPECT_THAT(fabric.Ports({host_, 2}), IsEmpty());
  EXPECT_THAT(fabric.Ports({host_, -1}), IsEmpty());
  EXPECT_THAT(fabric.Ports({leaf0_, 0}), IsEmpty());
  EXPECT_THAT(fabric.Ports({NodeId(99), 0}), IsEmpty());
}

TEST_F(FabricTest, LinksAreNamedAfterTheirEndsAndCountedWhereThereAreSeveral) {
  Fabric fabric = Build();
  EXPECT_EQ(fabric.Name(LinkId(0)), "h0>leaf0");
  EXPECT_EQ(fabric.Name(LinkId(4)), "h0>leaf0#1");
  EXPECT_EQ(fabric.Name(LinkId(7)), "leaf1>leaf0");
  EXPECT_EQ(*fabric.FindLink(host_, leaf0_), LinkId(0));
  EXPECT_EQ(*fabric.FindLink(leaf0_, leaf1_), LinkId(6));
}

TEST_F(FabricTest, AnUnknownNameIsAnsweredWithTheNearest) {
  Fabric fabric = Build();
  EXPECT_EQ(*fabric.Find("leaf1"), leaf1_);
  absl::Status status = fabric.Find("leef1").status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"leef1\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("leaf1"));
}

TEST_F(FabricTest, FaultsTakeBothDirectionsAndAreCounted) {
  Fabric fabric = Build();
  EXPECT_EQ(fabric.generation(), 0u);
  fabric.SetUp(LinkId(7), false);
  fabric.SetBandwidth(LinkId(0), Bandwidth::GigabitsPerSecond(100));
  EXPECT_EQ(fabric.generation(), 2u);
  EXPECT_FALSE(fabric.link(LinkId(6)).up);
  EXPECT_FALSE(fabric.link(LinkId(7)).up);
  EXPECT_TRUE(fabric.link(LinkId(0)).up);
  EXPECT_EQ(fabric.link(LinkId(1)).bandwidth, Bandwidth::GigabitsPerSecond(100));
  EXPECT_EQ(fabric.link(LinkId(1)).nominal, kFast);
}

TEST(FabricBuilder, RefusesNamesThatAreTakenOrCannotBeWritten) {
  FabricBuilder builder;
  Add(builder, "h0", NodeKind::kHost);
  EXPECT_TRUE(absl::IsAlreadyExists(builder.Add({"h0"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(builder.Add({""}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(builder.Add({"a b"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(builder.Add({std::string(256, 'x')}).status()));
  EXPECT_TRUE(builder.Add({std::string(255, 'x')}).ok());
}

TEST(FabricBuilder, RefusesCablesThatCannotBe) {
  FabricBuilder builder;
  NodeId h0 = Add(builder, "h0", NodeKind::kHost);
  NodeId h1 = Add(builder, "h1", NodeKind::kHost);
  NodeId leaf = Add(builder, "leaf", NodeKind::kSwitch);
  auto message = [&](NodeId a, NodeId b, FabricBuilder::Cable cable) {
    absl::Status status = builder.Connect(a, b, cable).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message(h0, h0, {kFast, {}, {}, 0}), HasSubstr("the same node"));
  EXPECT_THAT(message(h0, h1, {kFast, {}, {}, 0}), HasSubstr("both ends are hosts"));
  EXPECT_THAT(message(h0, leaf, {kFast}), HasSubstr("NIC -1"));
  EXPECT_THAT(message(h0, leaf, {kFast, {}, {}, kMaxNics}), HasSubstr("NIC 256"));
  EXPECT_THAT(message(h0, leaf, {Bandwidth(), {}, {}, 0}), HasSubstr("bandwidth of 0"));
  EXPECT_THAT(message(h0, leaf, {kFast, absl::Seconds(-1), {}, 0}), HasSubstr("delay of -1s"));
  EXPECT_THAT(message(h0, leaf, {kFast, {}, Bytes(-1), 0}), HasSubstr("buffer of -1"));
  EXPECT_THAT(message(h0, NodeId(7), {kFast, {}, {}, 0}), HasSubstr("no node 7"));
}

TEST(FabricBuilder, AFabricNeedsHostsWithCablesAndNicsWithoutGaps) {
  EXPECT_THAT(std::string(FabricBuilder().Build().status().message()), HasSubstr("without a host"));

  FabricBuilder uncabled;
  Add(uncabled, "h0", NodeKind::kHost);
  EXPECT_THAT(std::string(std::move(uncabled).Build().status().message()),
              HasSubstr("host h0 has no cable"));

  FabricBuilder gap;
  NodeId host = Add(gap, "h0", NodeKind::kHost);
  NodeId leaf = Add(gap, "leaf", NodeKind::kSwitch);
  ASSERT_TRUE(gap.Connect(host, leaf, {kFast, {}, {}, 0}).ok());
  ASSERT_TRUE(gap.Connect(host, leaf, {kFast, {}, {}, 2}).ok());
  EXPECT_THAT(std::string(std::move(gap).Build().status().message()),
              HasSubstr("has a NIC 2 but no NIC 1"));
}

// As in a fabric that was discovered or imported, which the planner of paths then treats as the
// generator's.
TEST(FabricBuilder, PodsThatNobodyStatedAreWhatHangsTogetherBelowTheHighestTier) {
  for (const char* text :
       {"leaf-spine:leaves=3,hosts_per_leaf=2,spines=2",
        "three-tier:pods=3,leaves_per_pod=2,hosts_per_leaf=2,spines_per_pod=2,cores=4",
        "rail-optimised:pods=2,groups=2,hosts_per_group=2,rails=2,spines=2,cores=4",
        "rail-only:pods=2,groups=2,hosts_per_group=2,rails=2,spines=2,cores=4",
        "dual-plane:pods=2,groups=2,hosts_per_group=2,rails=2,spines=2,cores=4"}) {
    const Fabric stated = *LoadFabric(text);
    FabricBuilder builder;
    for (int i = 0; i < stated.nodes(); ++i) {
      FabricNode node = stated.node(NodeId(i));
      node.pod = -1;
      ASSERT_TRUE(builder.Add(node).ok());
    }
    for (int i = 0; i < stated.links(); i += 2) {
      const FabricLink& link = stated.link(LinkId(i));
      ASSERT_TRUE(builder
                      .Connect(link.source, link.target,
                               {link.bandwidth, link.delay, link.buffer, link.nic})
                      .ok());
    }
    const Fabric built = *std::move(builder).Build();
    EXPECT_TRUE(SameFabric(built, stated)) << text;
  }
}

TEST(FabricBuilder, APodThatIsStatedIsTheOnlyOne) {
  FabricBuilder builder;
  const NodeId top = Add(builder, "top", NodeKind::kSwitch, 3);
  for (int pod : {0, 1}) {
    FabricNode leaf;
    leaf.name = absl::StrCat("leaf", pod);
    leaf.kind = NodeKind::kSwitch;
    leaf.tier = 1;
    leaf.pod = pod == 1 ? 7 : -1;
    const NodeId at = *builder.Add(leaf);
    const NodeId host = Add(builder, absl::StrCat("h", pod), NodeKind::kHost);
    ASSERT_TRUE(builder.Connect(host, at, {kFast, {}, {}, 0}).ok());
    ASSERT_TRUE(builder.Connect(at, top, {kFast}).ok());
  }
  const Fabric fabric = *std::move(builder).Build();
  EXPECT_EQ(fabric.node(*fabric.Find("leaf0")).pod, -1);
  EXPECT_EQ(fabric.node(*fabric.Find("h1")).pod, -1);
  EXPECT_EQ(fabric.node(*fabric.Find("leaf1")).pod, 7);
}

TEST(FabricBuilder, HoldsNoMoreThanItsBound) {
  FabricBuilder builder;
  NodeId a = Add(builder, "a", NodeKind::kSwitch);
  NodeId b = Add(builder, "b", NodeKind::kSwitch);
  for (int i = 0; i < kMaxLinks / 2; ++i) ASSERT_TRUE(builder.Connect(a, b, {kFast}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(builder.Connect(a, b, {kFast}).status()));
}

}  // namespace
}  // namespace weft::topology
