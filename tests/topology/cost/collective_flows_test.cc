// The flows of each collective, by the bytes that theory says it moves.
#include "topology/cost/collective_flows.h"

#include <gmock/gmock.h>

#include <map>

#include "topology/job/mesh_text.h"

namespace weft::topology {
namespace {

constexpr int64_t kBytes = 960'000;

TrafficFlows Flows(CollectiveKind collective, GroupAlgorithm algorithm, int data, int gpus,
                   int nics) {
  Mesh mesh = *Mesh::Create({{Axis::kData, data}});
  Traffic traffic;
  traffic.axes = {Axis::kData};
  traffic.collective = collective;
  traffic.algorithm = algorithm;
  traffic.bytes = Bytes(kBytes);
  return FlowsOf(traffic, mesh, {}, RankBlocks::Contiguous(data, gpus), nics);
}

int64_t Total(const TrafficFlows& flows) {
  int64_t total = 0;
  for (const SlotFlow& flow : flows.flows) total += flow.bytes;
  return total;
}

TEST(CollectiveFlows, ARingCarriesItsVolumeOverEveryHop) {
  TrafficFlows one = Flows(CollectiveKind::kAllReduce, GroupAlgorithm::kRing, 6, 1, 1);
  ASSERT_EQ(one.flows.size(), 6U);
  for (const SlotFlow& flow : one.flows) {
    EXPECT_EQ(flow.bytes, kBytes * 2 * 5 / 6);
    EXPECT_EQ(flow.target, (flow.source + 1) % 6);
  }
  EXPECT_DOUBLE_EQ(one.network_steps, 10);
  EXPECT_EQ(Flows(CollectiveKind::kAllGather, GroupAlgorithm::kRing, 6, 1, 1).flows[0].bytes,
            kBytes * 5 / 6);
}

TEST(CollectiveFlows, ARingThroughHostsSharesTheirNics) {
  TrafficFlows flows = Flows(CollectiveKind::kAllReduce, GroupAlgorithm::kRing, 12, 4, 4);
  ASSERT_EQ(flows.flows.size(), 3U * 4);
  for (const SlotFlow& flow : flows.flows) {
    EXPECT_EQ(flow.bytes, kBytes * 2 * 11 / 12 / 4);
    EXPECT_EQ(flow.source_nic, flow.target_nic);
  }
  // Inside, every GPU passes the whole volume on.
  EXPECT_NEAR(absl::ToDoubleSeconds(flows.inside), kBytes * 2.0 * 11 / 12 / 300e9, 1e-9);
}

TEST(CollectiveFlows, HierarchicalFollowsItsFormula) {
  TrafficFlows flows = Flows(CollectiveKind::kAllReduce, GroupAlgorithm::kHierarchical, 12, 4, 4);
  ASSERT_EQ(flows.flows.size(), 3U * 4);
  EXPECT_EQ(flows.flows[0].bytes, kBytes / 4 * 2 * 2 / 3);
  EXPECT_TRUE(flows.inside_adds);
  EXPECT_DOUBLE_EQ(flows.network_steps, 4);
  EXPECT_NEAR(absl::ToDoubleSeconds(flows.inside), kBytes * 2.0 * 3 / 4 / 300e9, 1e-9);
}

TEST(CollectiveFlows, FewerNicsThanGpusAreShared) {
  TrafficFlows flows = Flows(CollectiveKind::kAllReduce, GroupAlgorithm::kRing, 16, 8, 4);
  std::map<int, int64_t> of_nic;
  for (const SlotFlow& flow : flows.flows) of_nic[flow.source_nic] += flow.bytes;
  ASSERT_EQ(of_nic.size(), 4U);
  for (auto [nic, bytes] : of_nic) EXPECT_EQ(bytes, of_nic[0]) << nic;
  NicsOfGpu more = NicsOf(1, 2, 8);
  EXPECT_EQ(more.first, 4);
  EXPECT_EQ(more.count, 4);
}

TEST(CollectiveFlows, ATreeSendsHalfUpAndDownEachEdgeOfBothTrees) {
  TrafficFlows flows = Flows(CollectiveKind::kAllReduce, GroupAlgorithm::kTree, 8, 1, 1);
  EXPECT_EQ(Total(flows), 2 * 7 * kBytes);
  EXPECT_DOUBLE_EQ(flows.network_steps, 6);
}

TEST(CollectiveFlows, AllToAllMovesEachPartOnceOnTheTargetsRail) {
  TrafficFlows flows = Flows(CollectiveKind::kAllToAll, GroupAlgorithm::kRing, 12, 4, 4);
  // 12 ranks, each to the 8 of other hosts.
  EXPECT_EQ(Total(flows), 12 * 8 * kBytes / 12);
  for (const SlotFlow& flow : flows.flows) EXPECT_EQ(flow.source_nic, flow.target_nic);
}

TEST(CollectiveFlows, SendRecvFollowsTheAxis) {
  Mesh mesh = *ParseMesh("tp2,pp4");
  Traffic traffic;
  traffic.axes = {Axis::kPipeline};
  traffic.collective = CollectiveKind::kSendReceive;
  traffic.bytes = Bytes(kBytes);
  RankBlocks blocks = RankBlocks::Contiguous(8, 2);
  TrafficFlows flows = FlowsOf(traffic, mesh, {}, blocks, 2);
  EXPECT_EQ(flows.flows.size(), 6U);
  traffic.both_ways = true;
  traffic.wraps = true;
  flows = FlowsOf(traffic, mesh, {}, blocks, 2);
  EXPECT_EQ(flows.flows.size(), 16U);
  for (const SlotFlow& flow : flows.flows) {
    EXPECT_EQ(flow.bytes, kBytes);
    EXPECT_EQ(flow.source_nic, flow.target_nic);
  }
}

}  // namespace
}  // namespace weft::topology
