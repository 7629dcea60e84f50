// What single cuts carry, and what they must carry at least: against every order of few hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "topology/fabric/clos.h"
#include "topology/job/mesh_text.h"
#include "topology/order/bound.h"

namespace weft::topology {
namespace {

// `hosts` of a leaf-spine, a rank each; the first are the job's.
struct World {
  Fabric fabric;
  CutTree tree{fabric};
  CostModel model;

  World(int leaves, int hosts_per_leaf, int data, int pipeline, CollectiveKind collective,
        Balance balance = Balance::kHashed)
      : fabric(MakeFabric(leaves, hosts_per_leaf)),
        model(MakeModel(tree, data, pipeline, collective, balance)) {}

  static Fabric MakeFabric(int leaves, int hosts_per_leaf) {
    ClosSpec spec;
    spec.groups = leaves;
    spec.hosts_per_group = hosts_per_leaf;
    spec.spines = 2;
    return *BuildClos(spec);
  }
  static CostModel MakeModel(const CutTree& tree, int data, int pipeline, CollectiveKind collective,
                             Balance balance) {
    Job job;
    job.mesh = *Mesh::Create({{Axis::kData, data}, {Axis::kPipeline, pipeline}});
    Traffic traffic;
    traffic.name = "gradients";
    traffic.axes = {Axis::kData};
    traffic.collective = collective;
    traffic.bytes = Bytes(12'000'000);
    job.traffic.push_back(traffic);
    traffic.name = "pipeline";
    traffic.axes = {Axis::kPipeline};
    traffic.collective = CollectiveKind::kSendReceive;
    job.traffic.push_back(traffic);
    std::vector<NodeId> hosts(tree.fabric().hosts().begin(),
                              tree.fabric().hosts().begin() + data * pipeline);
    return *CostModel::Create(tree, job, RankBlocks::Contiguous(data * pipeline, 1), hosts,
                              balance);
  }
  std::string LeafOf(int32_t host) const {
    const LinkId port = fabric.Ports({model.hosts()[static_cast<size_t>(host)], 0})[0];
    return fabric.node(fabric.link(port).target).name;
  }
};

// visit(placement) for every order of the job's hosts.
template <typename Visit>
void ForEveryOrder(const World& world, Visit visit) {
  Placement placement(world.model.hosts().size());
  std::iota(placement.begin(), placement.end(), 0);
  do {
    visit(placement);
  } while (std::next_permutation(placement.begin(), placement.end()));
}

// By name of the leaf, in its fuller direction.
std::map<std::string, CutLoad> LoadsOf(const World& world, const Placement& placement,
                                       size_t traffic) {
  std::map<std::string, CutLoad> loads;
  for (const CutLoad& load : world.model.WorstCuts(placement, traffic, 1000)) {
    loads.try_emplace(world.tree.Name(load.group), load);
  }
  return loads;
}

TEST(CutLoads, AreThoseOfFlowsCountedOneByOneInEveryOrder) {
  for (CollectiveKind collective : {CollectiveKind::kAllReduce, CollectiveKind::kAllToAll}) {
    World world(3, 2, 3, 2, collective);
    ForEveryOrder(world, [&](const Placement& placement) {
      for (size_t traffic : {0, 1}) {
        std::map<std::pair<std::string, bool>, int64_t> flows, bytes;
        for (const SlotFlow& flow : world.model.flows(traffic).flows) {
          const std::string from = world.LeafOf(placement[static_cast<size_t>(flow.source)]);
          const std::string to = world.LeafOf(placement[static_cast<size_t>(flow.target)]);
          if (from == to) continue;
          for (const auto& side : {std::pair(from, true), std::pair(to, false)}) {
            ++flows[side];
            bytes[side] += flow.bytes;
          }
        }
        const std::vector<CutLoad> cuts = world.model.WorstCuts(placement, traffic, 1000);
        ASSERT_EQ(cuts.size(), flows.size());
        for (const CutLoad& cut : cuts) {
          const std::pair side(world.tree.Name(cut.group), cut.up);
          ASSERT_EQ(cut.flows, flows[side]) << side.first;
          ASSERT_EQ(cut.bytes.count(), bytes[side]) << side.first;
        }
      }
    });
  }
}

struct Shape {
  int leaves, hosts_per_leaf, data, pipeline;
};

TEST(CutBounds, HoldOnEveryCutInEveryOrder) {
  for (Shape shape : {Shape{2, 3, 6, 1}, {2, 3, 2, 3}, {3, 2, 3, 2}, {3, 3, 7, 1}, {2, 4, 3, 2}}) {
    for (CollectiveKind collective : {CollectiveKind::kAllReduce, CollectiveKind::kAllToAll}) {
      for (Balance balance : {Balance::kHashed, Balance::kPlanned, Balance::kEven}) {
        World world(shape.leaves, shape.hosts_per_leaf, shape.data, shape.pipeline, collective,
                    balance);
        for (size_t traffic : {0, 1}) {
          const std::vector<CutBound> bounds = CutBounds(world.model, traffic);
          EXPECT_EQ(bounds.size(), static_cast<size_t>(shape.leaves));
          ForEveryOrder(world, [&](const Placement& placement) {
            std::map<std::string, CutLoad> loads = LoadsOf(world, placement, traffic);
            for (const CutBound& bound : bounds) {
              const CutLoad& load = loads[world.tree.Name(bound.group)];
              ASSERT_LE(bound.flows, load.flows);
              ASSERT_LE(bound.bytes, load.bytes);
              ASSERT_LE(bound.time, load.time);
            }
          });
        }
      }
    }
  }
}

TEST(CutBounds, AreReachedBySomeOrder) {
  struct Case {
    Shape shape;
    CollectiveKind collective;
    int64_t flows;  // of each leaf
  };
  for (const Case& one : {Case{{2, 3, 2, 3}, CollectiveKind::kAllReduce, 1},  // a pair must part
                          {{2, 2, 2, 2}, CollectiveKind::kAllReduce, 0},      // pairs fit
                          {{2, 3, 6, 1}, CollectiveKind::kAllReduce, 1},      // one ring of all
                          {{2, 3, 6, 1}, CollectiveKind::kAllToAll, 9},       // three times three
                          {{2, 4, 4, 2}, CollectiveKind::kAllToAll, 0},
                          {{2, 3, 2, 3}, CollectiveKind::kAllToAll, 1}}) {
    World world(one.shape.leaves, one.shape.hosts_per_leaf, one.shape.data, one.shape.pipeline,
                one.collective);
    std::map<std::string, int64_t> least;
    ForEveryOrder(world, [&](const Placement& placement) {
      std::map<std::string, CutLoad> loads = LoadsOf(world, placement, 0);
      for (const CutBound& bound : CutBounds(world.model, 0)) {
        const std::string name = world.tree.Name(bound.group);
        const int64_t flows = loads[name].flows;
        least[name] = least.contains(name) ? std::min(least[name], flows) : flows;
      }
    });
    for (const CutBound& bound : CutBounds(world.model, 0)) {
      EXPECT_EQ(bound.flows, one.flows);
      EXPECT_EQ(least[world.tree.Name(bound.group)], one.flows);
    }
  }
}

// With a host to spare an order may leave out whoever would have to cross.
TEST(CutBounds, SayNothingWhereHostsAreToSpare) {
  World world(2, 3, 2, 3, CollectiveKind::kAllReduce);
  std::vector<NodeId> hosts(world.fabric.hosts().begin(), world.fabric.hosts().end());
  Job job = world.model.job();
  job.mesh = *ParseMesh("dp2,pp2");
  CostModel model =
      *CostModel::Create(world.tree, job, RankBlocks::Contiguous(4, 1), hosts, Balance::kHashed);
  for (const CutBound& bound : CutBounds(model, 0)) EXPECT_EQ(bound.flows, 0);
}

}  // namespace
}  // namespace weft::topology
