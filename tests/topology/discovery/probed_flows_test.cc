// What probes tell of flows, and when hashes that were found are not to be believed.
#include "topology/discovery/probed_flows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/random.h"
#include "topology/ecmp/hash_text.h"
#include "topology/fabric/load.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ProbedFlows : public ::testing::Test {
 protected:
  ProbedFlows() : hashes_(*FabricHashes::Create(fabric_)) {
    for (NodeId at : fabric_.switches()) {
      hashes_.SetHash(at, *ParseHash(absl::StrCat("linux:seed=", 100 + at.value())));
    }
  }

  NodeId Node(const std::string& name) const { return *fabric_.Find(name); }

  // `count` flows between hosts of different leaves, as the switches of `hashes` send them.
  std::vector<ProbedFlow> Probe(const FabricHashes& hashes, int count) {
    Random random(5);
    std::vector<ProbedFlow> out;
    while (static_cast<int>(out.size()) < count) {
      const Endpoint a{fabric_.hosts()[random.Below(fabric_.hosts().size())], 0};
      const Endpoint b{fabric_.hosts()[random.Below(fabric_.hosts().size())], 0};
      if (routes_.Hops(a, b) < 4) continue;
      ProbedFlow flow{a, b, {}, {}};
      const auto port = static_cast<uint16_t>(50'000 + random.Below(10'000));
      flow.tuple = hashes.Tuple(a, b, port, kRoceTargetPort, kProtocolUdp);
      const std::vector<LinkId> path = *hashes.Path(routes_, a, b, flow.tuple);
      for (size_t i = 0; i + 2 < path.size(); ++i) {
        flow.switches.push_back(fabric_.link(path[i]).target);
      }
      out.push_back(flow);
    }
    return out;
  }

  Fabric fabric_ = *LoadFabric("leaf-spine:leaves=3,hosts_per_leaf=2,spines=3");
  Routes routes_{fabric_};
  FabricHashes hashes_;
  const std::set<NodeId> leaves_{Node("leaf0"), Node("leaf1"), Node("leaf2")};
};

TEST_F(ProbedFlows, ChoicesAreGatheredBySwitch) {
  const std::vector<ProbedFlow> flows = Probe(hashes_, 100);
  const auto choices = ChoicesOf(routes_, flows);
  ASSERT_EQ(choices.size(), 3u);
  size_t seen = 0;
  for (const auto& [node, one] : choices) {
    EXPECT_EQ(leaves_.count(node), 1u);
    EXPECT_EQ(one.members.size(), 3u);
    EXPECT_EQ(FitOrder(hashes_.hash(node), 3, one.seen).wrong, 0);
    seen += one.seen.size();
  }
  EXPECT_EQ(seen, 100u);
  EXPECT_EQ(SwitchesWithChoice(routes_, fabric_.Endpoints()), leaves_);
}

// A probe does not tell which of two cables to one spine a flow takes.
TEST(ParallelCables, OfThemNoChoiceIsToldAndTheirSwitchesAreNamed) {
  const Fabric fabric = *LoadFabric(
      "three-tier:pods=2,leaves_per_pod=2,hosts_per_leaf=1,spines_per_pod=2,spine_cables=2,cores="
      "4");
  const Routes routes(fabric);
  const FabricHashes hashes = *FabricHashes::Create(fabric);
  const Endpoint a{fabric.hosts().front(), 0}, b{fabric.hosts().back(), 0};
  std::vector<ProbedFlow> flows;
  for (uint16_t port = 50'000; port < 50'100; ++port) {
    ProbedFlow flow{a, b, hashes.Tuple(a, b, port, kRoceTargetPort, kProtocolUdp), {}};
    const std::vector<LinkId> path = *hashes.Path(routes, a, b, flow.tuple);
    for (size_t i = 0; i + 1 < path.size(); ++i) {
      flow.switches.push_back(fabric.link(path[i]).target);
    }
    flows.push_back(flow);
  }
  // A spine's way up is told: a cable to each of two cores.
  const auto choices = ChoicesOf(routes, flows);
  EXPECT_FALSE(choices.empty());
  for (const auto& [node, one] : choices) {
    EXPECT_EQ(fabric.node(node).tier, 2) << fabric.node(node).name;
    ASSERT_EQ(one.members.size(), 2u);
    EXPECT_NE(one.members[0], one.members[1]);
  }
  const auto parallel = SwitchesWithParallelCables(routes, fabric.Endpoints());
  const auto leaf = parallel.find(*fabric.Find("leaf0"));
  ASSERT_NE(leaf, parallel.end());
  EXPECT_EQ(fabric.node(leaf->second).tier, 2);
  EXPECT_EQ(parallel.count(*fabric.Find("core0")), 0u);
}

TEST_F(ProbedFlows, NoCableIsParallelWhereEachLeadsElsewhere) {
  EXPECT_THAT(SwitchesWithParallelCables(routes_, fabric_.Endpoints()), IsEmpty());
}

TEST_F(ProbedFlows, HashesThatPredictAllPass) {
  const PredictionCheck check = CheckPredictions(routes_, hashes_, leaves_, Probe(hashes_, 100));
  EXPECT_EQ(check.flows.told, 100);
  EXPECT_EQ(check.flows.right, 100);
  EXPECT_TRUE(check.Verdict(fabric_, leaves_, 0.99).ok());
  EXPECT_THAT(check.Failed(leaves_, 0.99), IsEmpty());
}

TEST_F(ProbedFlows, AHashThatDoesNotPredictIsNamed) {
  FabricHashes guess = hashes_;
  guess.SetHash(Node("leaf1"), *ParseHash("linux:seed=7"));
  const PredictionCheck check = CheckPredictions(routes_, guess, leaves_, Probe(hashes_, 300));
  EXPECT_THAT(check.Failed(leaves_, 0.99), ::testing::ElementsAre(Node("leaf1")));
  const absl::Status refused = check.Verdict(fabric_, leaves_, 0.99);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("do not predict fresh ports"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("leaf1 "));
  EXPECT_THAT(std::string(refused.message()), ::testing::Not(HasSubstr("leaf0 ")));
}

TEST_F(ProbedFlows, NothingToCheckIsNoSuccess) {
  std::vector<ProbedFlow> flows = Probe(hashes_, 50);
  // The first switch is always known; what it chose is not.
  for (ProbedFlow& flow : flows) flow.switches[1] = NodeId();
  const PredictionCheck check = CheckPredictions(routes_, hashes_, leaves_, flows);
  EXPECT_EQ(check.asked, 50);
  EXPECT_EQ(check.flows.told, 0);
  EXPECT_THAT(std::string(check.Verdict(fabric_, leaves_, 0.99).message()),
              HasSubstr("nothing was checked: of 50 flows"));
  EXPECT_FALSE(CheckPredictions(routes_, hashes_, leaves_, {}).Verdict(fabric_, leaves_, 0.5).ok());
}

TEST_F(ProbedFlows, ASwitchThatNoFlowCheckedIsNamed) {
  std::vector<ProbedFlow> flows = Probe(hashes_, 100);
  flows.erase(std::remove_if(flows.begin(), flows.end(),
                             [&](const auto& flow) { return flow.switches[0] == Node("leaf2"); }),
              flows.end());
  const PredictionCheck check = CheckPredictions(routes_, hashes_, leaves_, flows);
  EXPECT_EQ(check.flows.right, check.flows.told);
  EXPECT_THAT(std::string(check.Verdict(fabric_, leaves_, 0.99).message()),
              HasSubstr("leaf2 not checked by any flow"));
}

TEST_F(ProbedFlows, OnlyWhatWasLearnedIsHeldAgainstFlows) {
  FabricHashes guess = hashes_;
  guess.SetHash(Node("leaf1"), *ParseHash("linux:seed=7"));
  const std::set<NodeId> learned{Node("leaf0"), Node("leaf2")};
  const PredictionCheck check = CheckPredictions(routes_, guess, learned, Probe(hashes_, 100));
  EXPECT_EQ(check.asked, 100);
  EXPECT_LT(check.flows.told, 100);
  EXPECT_TRUE(check.Verdict(fabric_, learned, 0.99).ok());
}

TEST_F(ProbedFlows, AWayThatTheFabricDoesNotHaveIsWrong) {
  std::vector<ProbedFlow> flows = Probe(hashes_, 10);
  for (ProbedFlow& flow : flows) flow.switches[1] = Node("leaf0");  // no spine
  const PredictionCheck check = CheckPredictions(routes_, hashes_, leaves_, flows);
  EXPECT_EQ(check.flows.told, 10);
  EXPECT_EQ(check.flows.right, 0);
}

}  // namespace
}  // namespace weft::topology
