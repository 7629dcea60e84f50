// Where a group's ranks lie, which hosts and ranks its rings and trees therefore go along, and what
// that costs; with a plan of connections and without.
#include "collectives/group_place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/planner/planned_peers.h"
#include "collectives/verify.h"
#include "tests/collectives/counted_cost.h"
#include "tests/collectives/schedule_cases.h"
#include "topology/job/binary_trees.h"

namespace weft::collectives {
namespace {

TEST(GroupPlaceTest, HostsOfASwitchFollowEachOtherAndWhatIsNotKnownIsOneSwitch) {
  std::vector<RankPlace> places(6);
  const char* hosts[] = {"a", "b", "c", "a", "b", "d"};
  const char* switches[] = {"x", "y", "x", "x", "y", "x"};
  for (size_t r = 0; r < 6; ++r) places[r].host = hosts[r], places[r].switch_name = switches[r];
  const GroupPlace place(places);
  EXPECT_EQ(place.hosts, (std::vector<std::vector<int>>{{0, 3}, {2}, {5}, {1, 4}}));
  EXPECT_EQ(place.switches, (std::vector<std::vector<int>>{{0, 1, 2}, {3}}));
  EXPECT_EQ(place.host, (std::vector<int>{0, 3, 1, 0, 3, 2}));
  EXPECT_EQ(place.hosts_max, 3);
  places[5].switch_name = "";
  EXPECT_EQ(GroupPlace(places).switches.size(), 1u);
}

TEST(GroupPlaceTest, RingsGoAlongAllThatIsLinked) {
  using Next = std::vector<std::vector<int>>;
  EXPECT_EQ(RingAlong(Next{{2}, {0}, {1}}), (std::vector<int>{0, 2, 1}));
  EXPECT_EQ(RingAlong(Next{{1, 2}, {2, 3}, {0, 1}, {0}}), (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(RingAlong(Next{{1}, {0}, {3}, {2}}), std::vector<int>{}) << "two rings";
  EXPECT_EQ(RingAlong(Next{{1}, {2}, {}}), std::vector<int>{}) << "no way back";
  EXPECT_EQ(RingAlong(Next{{}}), std::vector<int>{});
  // 30 hosts that are all linked but for the one that nothing leads to: the search is bounded.
  Next many(30);
  for (int from = 0; from < 30; ++from) {
    for (int to = 0; to < 29; ++to) {
      if (to != from) many[static_cast<size_t>(from)].push_back(to);
    }
  }
  EXPECT_EQ(RingAlong(many), std::vector<int>{});
}

// Four hosts of two ranks, h0 h2 h1 h3 along the plan.
std::vector<std::vector<int>> ShuffledRing() {
  std::vector<std::vector<int>> planned(8);
  const int order[] = {0, 2, 1, 3};
  for (int i = 0; i < 4; ++i) {
    const int from = order[i], to = order[(i + 1) % 4];
    for (int k : {0, 1}) planned[static_cast<size_t>(2 * from + k)] = {2 * to + k};
  }
  return planned;
}

TEST(GroupPlaceTest, HostsAreNumberedAlongAPlannedRing) {
  std::vector<RankPlace> places(8);
  for (size_t r = 0; r < 8; ++r) places[r].host = absl::StrCat("h", r / 2);
  EXPECT_TRUE(GroupPlace(places).planned_ring.empty());
  const GroupPlace place(places, ShuffledRing());
  EXPECT_EQ(place.hosts, (std::vector<std::vector<int>>{{0, 1}, {4, 5}, {2, 3}, {6, 7}}));
  EXPECT_EQ(place.planned_ring, (std::vector<int>{0, 1, 2, 3}));
  // A ring that comes to a switch twice leaves hosts by switch, and is still known.
  for (size_t r = 0; r < 8; ++r) places[r].switch_name = r < 4 ? "x" : "y";
  const GroupPlace switched(places, ShuffledRing());
  EXPECT_EQ(switched.switches, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  EXPECT_EQ(switched.hosts, (std::vector<std::vector<int>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(switched.planned_ring, (std::vector<int>{0, 2, 1, 3}));
  // One that does not is followed: here from the switch of rank 0 on.
  for (size_t r = 0; r < 8; ++r) places[r].switch_name = r / 2 == 0 || r / 2 == 3 ? "x" : "y";
  const GroupPlace contiguous(places, ShuffledRing());
  EXPECT_EQ(contiguous.switches, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  EXPECT_EQ(contiguous.hosts, (std::vector<std::vector<int>>{{6, 7}, {0, 1}, {4, 5}, {2, 3}}));
  EXPECT_EQ(contiguous.planned_ring, (std::vector<int>{0, 1, 2, 3}));
}

TEST(GroupPlaceTest, RingsSendBetweenHostsAlongThePlanAlone) {
  std::vector<RankPlace> places(8);
  for (size_t r = 0; r < 8; ++r) places[r].host = absl::StrCat("h", r / 2);
  const auto place = std::make_shared<const GroupPlace>(places, ShuffledRing());
  const std::set<std::pair<int, int>> planned = {{0, 2}, {2, 1}, {1, 3}, {3, 0}};
  for (const Algorithm* algorithm : {&kRing, &kHierarchical}) {
    for (CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
      // By two levels, all kinds but all-reduce go from each rank to all hosts.
      if (algorithm == &kHierarchical && kind != CollectiveKind::kAllReduce) continue;
      Case built = BuildCase(*algorithm, kind, 8, {.count = 4800, .chunk = 600});
      for (size_t r = 0; r < built.specs.size(); ++r) {
        built.specs[r].place = place;
        built.specs[r].channels = algorithm == &kRing ? 4 : built.specs[r].channels;
        built.schedules[r] = algorithm->build(built.specs[r]);
      }
      SCOPED_TRACE(absl::StrCat(algorithm->name, ": ", built.text));
      EXPECT_EQ(VerifySchedules(built.specs, built.schedules), absl::OkStatus());
      int between = 0;
      for (int rank = 0; rank < 8; ++rank) {
        for (const Step& step : built.schedules[static_cast<size_t>(rank)].steps) {
          if (step.kind != StepKind::kSend || step.peer / 2 == rank / 2) continue;
          ++between;
          EXPECT_EQ(planned.count({rank / 2, step.peer / 2}), 1U) << rank << " to " << step.peer;
        }
      }
      EXPECT_GT(between, 0);
      if (algorithm != &kHierarchical) continue;
      const Cost cost = algorithm->cost(built.specs[0]), counted = Counted(built);
      EXPECT_EQ(cost.turns, counted.turns);
      EXPECT_NEAR(cost.elements_across, counted.elements_across, 0.1 * counted.elements_across);
    }
  }
}

// By rank of `hosts` of `ranks`: those to which `weft-plan paths` plans flows for trees.
std::vector<std::vector<int>> TreeFlows(int hosts, int ranks) {
  std::vector<std::vector<int>> planned(static_cast<size_t>(hosts * ranks));
  const topology::BinaryTrees trees = topology::MakeBinaryTrees(hosts);
  for (const std::vector<int>* tree : {&trees.first, &trees.second}) {
    for (int host = 0; host < hosts; ++host) {
      const int parent = (*tree)[static_cast<size_t>(host)];
      for (int k = 0; k < ranks && parent >= 0; ++k) {
        planned[static_cast<size_t>(ranks * host + k)].push_back(ranks * parent + k);
        planned[static_cast<size_t>(ranks * parent + k)].push_back(ranks * host + k);
      }
    }
  }
  return planned;
}

// Two hosts a switch, the switches in turn, so that hosts are not numbered as they come.
std::vector<RankPlace> PlacesOfHosts(int hosts, int ranks) {
  std::vector<RankPlace> places(static_cast<size_t>(hosts * ranks));
  for (int r = 0; r < hosts * ranks; ++r) {
    const int host = r / ranks, switches = (hosts + 1) / 2;
    places[static_cast<size_t>(r)].host = absl::StrCat("h", host);
    places[static_cast<size_t>(r)].switch_name = absl::StrCat("s", host % switches);
  }
  return places;
}

TEST(GroupPlaceTest, TreesArePlannedWhereEveryEdgeHasFlowsBothWays) {
  for (int hosts : {2, 3, 4, 6, 8}) {
    for (int ranks : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(hosts, " hosts of ", ranks));
      const std::vector<RankPlace> places = PlacesOfHosts(hosts, ranks);
      const std::vector<std::vector<int>> flows = TreeFlows(hosts, ranks);
      EXPECT_TRUE(GroupPlace(places).planned_trees.empty());
      const GroupPlace place(places, flows);
      ASSERT_EQ(place.planned_trees.size(), 2U);
      for (const HostTree& tree : place.planned_trees) {
        int roots = 0;
        for (size_t host = 0; host < place.hosts.size(); ++host) {
          if (tree.parent[host] < 0) {
            ++roots;
            continue;
          }
          const size_t parent = static_cast<size_t>(tree.parent[host]);
          const std::vector<int>& children = tree.children[parent];
          EXPECT_EQ(std::count(children.begin(), children.end(), host), 1);
          const std::vector<int>& peers = flows[static_cast<size_t>(place.hosts[host][0])];
          EXPECT_NE(std::find(peers.begin(), peers.end(), place.hosts[parent][0]), peers.end());
        }
        EXPECT_EQ(roots, 1);
      }
      std::vector<std::vector<int>> one_way = flows;  // of one edge
      const int peer = one_way.back().back();
      std::erase(one_way.back(), peer);
      EXPECT_TRUE(GroupPlace(places, one_way).planned_trees.empty());
    }
  }
}

TEST(GroupPlaceTest, TheFlowsOfAnAllToAllAreNoTrees) {
  std::vector<std::vector<int>> flows(8);
  for (int from = 0; from < 8; ++from) {
    for (int to = 0; to < 8; ++to) {
      if (to != from) flows[static_cast<size_t>(from)].push_back(to);
    }
  }
  const GroupPlace place(PlacesOfHosts(8, 1), flows);
  EXPECT_FALSE(place.planned_ring.empty());
  EXPECT_TRUE(place.planned_trees.empty());
}

TEST(GroupPlaceTest, AllReducesGoAlongPlannedTreesAlone) {
  for (int hosts : {2, 3, 6, 8, 13}) {
    for (int ranks : {1, 2, 3}) {
      const int n = hosts * ranks;
      const std::vector<std::vector<int>> flows = TreeFlows(hosts, ranks);
      const auto place = std::make_shared<const GroupPlace>(PlacesOfHosts(hosts, ranks), flows);
      for (const auto in_place :
           {CaseOptions::kNobody, CaseOptions::kEverybody, CaseOptions::kSome}) {
        Case built = BuildCase(kTree, CollectiveKind::kAllReduce, n,
                               {.count = 2400, .chunk = 50, .in_place = in_place});
        for (size_t r = 0; r < built.specs.size(); ++r) {
          built.specs[r].place = place;
          built.schedules[r] = kTree.build(built.specs[r]);
        }
        SCOPED_TRACE(absl::StrCat(hosts, " hosts of ", ranks, ": ", built.text));
        EXPECT_EQ(VerifySchedules(built.specs, built.schedules), absl::OkStatus());
        std::set<std::pair<int, int>> used;
        for (int rank = 0; rank < n; ++rank) {
          for (const Step& step : built.schedules[static_cast<size_t>(rank)].steps) {
            if (step.kind != StepKind::kSend || step.peer / ranks == rank / ranks) continue;
            const std::vector<int>& peers = flows[static_cast<size_t>(rank)];
            EXPECT_NE(std::find(peers.begin(), peers.end(), step.peer), peers.end())
                << rank << " to " << step.peer;
            used.emplace(rank, step.peer);
          }
        }
        std::set<std::pair<int, int>> planned;  // every rail is used
        for (int rank = 0; rank < n; ++rank) {
          for (int peer : flows[static_cast<size_t>(rank)]) planned.emplace(rank, peer);
        }
        EXPECT_EQ(used, planned);
        const Cost cost = kTree.cost(built.specs[0]), counted = Counted(built);
        EXPECT_EQ(cost.turns, counted.turns);
        EXPECT_NEAR(cost.messages, counted.messages, 0.01 * counted.messages);
        EXPECT_NEAR(cost.elements, counted.elements, 0.01 * counted.elements);
        EXPECT_NEAR(cost.reduced, counted.reduced, 0.01 * counted.reduced);
        EXPECT_NEAR(cost.balance, counted.balance, 0.01);
        EXPECT_NEAR(cost.elements_across, counted.elements_across, 0.01 * counted.elements_across);
        if (place->switches.size() < 2) continue;
        EXPECT_NEAR(cost.elements_beyond, counted.elements_beyond, 0.01 * counted.elements_beyond);
      }
    }
  }
}

// Six hosts, whose planned trees have no ring through all of them.
TEST(GroupPlaceTest, WhatLeavesPlannedTreesCountsTwiceBetweenSwitches) {
  const std::vector<RankPlace> places = PlacesOfHosts(6, 1);
  const auto hashed = std::make_shared<const GroupPlace>(places);
  const auto planned = std::make_shared<const GroupPlace>(places, TreeFlows(6, 1));
  ASSERT_TRUE(planned->planned_ring.empty());
  ASSERT_EQ(planned->planned_trees.size(), 2U);
  const auto beyond = [](const Algorithm& algorithm, CollectiveKind kind, const auto& place) {
    CollectiveSpec spec{.kind = kind, .size = 6, .count = 4800, .chunk = 100, .place = place};
    return algorithm.cost(spec).elements_beyond;
  };
  for (const auto& [algorithm, kind] :
       {std::pair(&kRing, CollectiveKind::kAllReduce),
        std::pair(&kHalvingDoubling, CollectiveKind::kAllReduce),
        std::pair(&kHierarchical, CollectiveKind::kAllReduce),
        std::pair(&kChain, CollectiveKind::kBroadcast),
        std::pair(&kTree, CollectiveKind::kBroadcast)}) {  // from a root, by other edges
    EXPECT_GT(beyond(*algorithm, kind, hashed), 0) << algorithm->name;
    EXPECT_DOUBLE_EQ(beyond(*algorithm, kind, planned), 2 * beyond(*algorithm, kind, hashed))
        << algorithm->name;
  }
}

TEST(GroupPlaceTest, ARankPlaceTravelsUnchanged) {
  RankPlace place{.host = "", .numa = 1, .switch_name = "leaf 3", .nics = 8};
  place.nic_rate = 1e10 / 3, place.host_rate = 8e10 / 3, place.switch_rate = 1;
  place.plan = "0123456789abcdef";
  EXPECT_EQ(*RankPlaceFromWord(ToWord(place)), place);
  EXPECT_EQ(ToWord(place).find(' '), std::string::npos);
  EXPECT_EQ(*RankPlaceFromWord(ToWord(RankPlace{})), RankPlace{});
  for (const char* wrong : {"", "1,2,3", "1,-2,1,1,1,,", "1,2,-1,1,1,,", "a,2,1,1,1,,"}) {
    EXPECT_EQ(RankPlaceFromWord(wrong).status().code(), absl::StatusCode::kDataLoss) << wrong;
  }
}

TEST(PlannedPeersTest, AGroupGoesByThePlanThatAllItsRanksName) {
  topology::ConnectionPlanText text;
  for (const auto& [rank, peer] :
       {std::pair(3, 5), std::pair(5, 9), std::pair(9, 3), std::pair(9, 4)}) {
    topology::ConnectionPlanFlow flow;
    flow.rank = rank, flow.peer = peer;
    text.flows.push_back(flow);
  }
  const planner::PlannedPeers peers(text);
  std::vector<RankPlace> places(3);
  for (RankPlace& place : places) place.plan = peers.name();
  const std::vector<Rank> group = {Rank(9), Rank(3), Rank(5)};
  EXPECT_EQ(peers.Within(group, places), (std::vector<std::vector<int>>{{1}, {2}, {0}}));
  places[1].plan = "another";
  EXPECT_TRUE(peers.Within(group, places).empty());
  text.flows.pop_back();
  EXPECT_NE(planner::PlannedPeers(text).name(), peers.name());
  EXPECT_EQ(planner::PlannedPeers(topology::ConnectionPlanText()).name(), "");
}

}  // namespace
}  // namespace weft::collectives
