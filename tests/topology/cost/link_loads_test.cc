// Expected loads of single links, against the cuts of the cost model and by hand.
#include "topology/cost/link_loads.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "base/random.h"
#include "topology/fabric/clos.h"

namespace weft::topology {
namespace {

Job DataAndPipeline(int tensor, int data, int pipeline) {
  Job job;
  job.mesh =
      *Mesh::Create({{Axis::kTensor, tensor}, {Axis::kData, data}, {Axis::kPipeline, pipeline}});
  Traffic traffic;
  traffic.name = "gradients";
  traffic.axes = {Axis::kData};
  traffic.bytes = Bytes(12'000'000);
  job.traffic.push_back(traffic);
  traffic.name = "pipeline";
  traffic.axes = {Axis::kPipeline};
  traffic.collective = CollectiveKind::kSendReceive;
  traffic.times = 3;
  job.traffic.push_back(traffic);
  return job;
}

Placement Shuffled(size_t size, uint64_t seed) {
  Placement placement(size);
  std::iota(placement.begin(), placement.end(), 0);
  Random random(seed);
  random.Shuffle(placement);
  return placement;
}

// In any Clos fabric the links of a cut carry alike, and together what the model counts.
void ExpectCutsToAgree(const ClosSpec& spec, const Job& job) {
  Fabric fabric = *BuildClos(spec);
  CutTree tree(fabric);
  Routes routes(fabric);
  std::vector<NodeId> hosts(fabric.hosts().begin(), fabric.hosts().end());
  CostModel model = *CostModel::Create(
      tree, job, RankBlocks::Contiguous(job.mesh.ranks(), spec.nics), hosts, Balance::kEven);
  Placement placement = Shuffled(hosts.size(), 5);
  for (size_t traffic = 0; traffic < job.traffic.size(); ++traffic) {
    std::vector<double> bytes = *LinkBytes(routes, model, placement, traffic);
    std::vector<CutLoad> cuts = model.WorstCuts(placement, traffic, 1000);
    EXPECT_GT(cuts.size(), 2U);
    for (const CutLoad& cut : cuts) {
      std::vector<LinkId> links = tree.UpLinks(cut.group);
      double sum = 0;
      for (LinkId up : links) {
        LinkId link = cut.up ? up : fabric.link(up).reverse;
        sum += bytes[link.index()];
        EXPECT_NEAR(bytes[link.index()] * static_cast<double>(links.size()) /
                        static_cast<double>(cut.bytes.count()),
                    1, 1e-6)
            << fabric.Name(link);
      }
      EXPECT_NEAR(sum / static_cast<double>(cut.bytes.count()), 1, 1e-9);
    }
  }
}

TEST(LinkLoads, AgreeWithTheCutsOfALeafSpine) {
  ClosSpec spec;
  spec.hosts_per_group = 4;
  spec.groups = 4;
  spec.spines = 3;
  ExpectCutsToAgree(spec, DataAndPipeline(1, 8, 2));
}

TEST(LinkLoads, AgreeWithTheCutsOfARailOptimisedThreeTierFabric) {
  ClosSpec spec;
  spec.hosts_per_group = 2;
  spec.groups = 2;
  spec.pods = 4;
  spec.nics = 2;
  spec.rail_leaves = true;
  spec.spines = 2;
  spec.cores = 4;
  ExpectCutsToAgree(spec, DataAndPipeline(2, 4, 4));
}

TEST(LinkLoads, AgreeWithTheCutsOfDualTors) {
  ClosSpec spec;
  spec.hosts_per_group = 4;
  spec.groups = 2;
  spec.ports = 2;
  spec.spines = 2;
  ExpectCutsToAgree(spec, DataAndPipeline(1, 4, 2));
}

TEST(LinkLoads, EveryByteEntersAndLeavesAHostOnce) {
  ClosSpec spec;
  spec.hosts_per_group = 4;
  spec.groups = 2;
  spec.spines = 2;
  Fabric fabric = *BuildClos(spec);
  fabric.SetUp(*fabric.FindLink(*fabric.Find("leaf0"), *fabric.Find("spine1")), false);
  CutTree tree(fabric);
  Routes routes(fabric);
  std::vector<NodeId> hosts(fabric.hosts().begin(), fabric.hosts().end());
  Job job = DataAndPipeline(1, 8, 1);
  CostModel model =
      *CostModel::Create(tree, job, RankBlocks::Contiguous(8, 1), hosts, Balance::kEven);
  std::vector<double> bytes = *LinkBytes(routes, model, Shuffled(8, 2), 0);
  for (NodeId host : fabric.hosts()) {
    LinkId port = fabric.Ports({host, 0})[0];
    EXPECT_NEAR(bytes[port.index()], 12e6 * 2 * 7 / 8, 1);
    EXPECT_NEAR(bytes[fabric.link(port).reverse.index()], 12e6 * 2 * 7 / 8, 1);
  }
  // All that crosses leaf0's border has one spine left.
  EXPECT_EQ(bytes[fabric.FindLink(*fabric.Find("leaf0"), *fabric.Find("spine1"))->index()], 0);
  EXPECT_EQ(bytes[fabric.FindLink(*fabric.Find("leaf1"), *fabric.Find("spine1"))->index()], 0);
  double step = 0, once = 0;
  std::vector<double> whole = *StepLinkBytes(routes, model, Shuffled(8, 2));
  for (size_t i = 0; i < bytes.size(); ++i) {
    step += whole[i];
    once += bytes[i];
  }
  EXPECT_DOUBLE_EQ(step, once);
}

}  // namespace
}  // namespace weft::topology
