#include "tools/doctor/pairs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace weft::doctor {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Tournament, EveryRankMeetsEveryOtherOnceAndNobodyTwiceInARound) {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < ranks - 1 + ranks % 2; ++round) {
      for (int rank = 0; rank < ranks; ++rank) {
        const int other = Opponent(rank, round, ranks);
        if (other < 0) continue;
        EXPECT_NE(other, rank);
        EXPECT_EQ(Opponent(other, round, ranks), rank) << ranks << " ranks, round " << round;
        EXPECT_TRUE(met.emplace(rank, other).second) << rank << " meets " << other << " again";
      }
    }
    EXPECT_EQ(met.size(), static_cast<size_t>(ranks * (ranks - 1)));
  }
}

std::vector<Direction> AllPairs(int ranks, double gbps) {
  std::vector<Direction> directions;
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      if (from != to) directions.push_back({from, to, "", 10, gbps});
    }
  }
  return directions;
}

Findings Judge(const std::vector<Direction>& directions) {
  Findings findings;
  CheckDirections(directions, {"a", "b", "c"}, findings);
  return findings;
}

auto Is(const std::string& check, const std::string& subject, const std::string& words) {
  return testing::AllOf(Field(&Finding::check, check), Field(&Finding::subject, subject),
                        Field(&Finding::sentence, HasSubstr(words)));
}

TEST(Directions, EqualOnesAreFine) { EXPECT_THAT(Judge(AllPairs(3, 100)), IsEmpty()); }

TEST(Directions, OneThatFailsWhileTheWayBackWorksIsNamedSo) {
  auto directions = AllPairs(3, 100);
  directions[0].error = "timed out";
  EXPECT_THAT(Judge(directions), ElementsAre(Is("pair-one-way", "a -> b", "timed out")));
  directions[2].error = "timed out too";  // b -> a
  EXPECT_THAT(Judge(directions), ElementsAre(Is("pair-failed", "a -> b", "timed out"),
                                             Is("pair-failed", "b -> a", "timed out too")));
}

TEST(Directions, SlowerThanTheWayBackAndSlowerThanTheRest) {
  auto directions = AllPairs(3, 100);
  directions[0].gbps = 40;
  EXPECT_THAT(Judge(directions), ElementsAre(Is("pair-uneven", "a -> b", "40.0 Gb/s")));
  directions[2].gbps = 40;
  EXPECT_THAT(Judge(directions), ElementsAre(Is("pair-slow", "a -> b", "median of all is 100.0"),
                                             Is("pair-slow", "b -> a", "40.0 Gb/s")));
}

json NodeOf(const std::string& host, int mtu) {
  return {
      {"host", host},
      {"kernel", "6.1.0"},
      {"devices",
       {{{"name", "mlx5_0"},
         {"board", "MT_1"},
         {"firmware", "28.39"},
         {"interfaces", {{{"name", "ens0"}, {"mtu", mtu}, {"roce_mtu", mtu > 4192 ? 4096 : 1024}}}},
         {"ports", {{{"number", 1}, {"gbps", 400.0}}}}}}},
      {"environment", {{"NCCL_IB_TC", "106"}, {"WEFT_STORE", host + ":1"}}}};
}

TEST(Sameness, EqualHostsAreFineThoughTheirPlacesDiffer) {
  Findings findings;
  CheckSameness({NodeOf("a", 9000), NodeOf("b", 9000)}, findings);
  EXPECT_THAT(findings, IsEmpty());
}

TEST(Sameness, AnotherMtuAndAMissingSettingAreNamedWithTheirHosts) {
  std::vector<json> nodes = {NodeOf("a", 9000), NodeOf("b", 9000), NodeOf("c", 1500)};
  nodes[1]["environment"].erase("NCCL_IB_TC");
  Findings findings;
  CheckSameness(nodes, findings);
  EXPECT_THAT(findings,
              ElementsAre(Is("nodes-differ", "NCCL_IB_TC", "106 on a, c; not there on b"),
                          Is("nodes-differ", "RoCE MTU of mlx5_0", "1024 (interface 1500) on c")));
}

TEST(Sameness, OfManyHostsAFewAreNamed) {
  std::vector<json> nodes;
  for (int i = 0; i < 9; ++i)
    nodes.push_back(NodeOf("h" + std::to_string(i), i == 4 ? 1500 : 9000));
  Findings findings;
  CheckSameness(nodes, findings);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].sentence, HasSubstr("on h0, h1, h2 and 5 more"));
  EXPECT_THAT(findings[0].sentence, HasSubstr("on h4"));
}

TEST(JobParts, AHostsTroubleIsSaidOnceWithItsHosts) {
  std::vector<std::string> parts;
  for (const char* host : {"a", "b", "b"}) {
    json part = NodeOf(host, 9000);
    part["pairs"] = json::array();
    part["findings"] = {{{"severity", "error"},
                         {"check", "port-down"},
                         {"subject", "mlx5_0 port 1"},
                         {"sentence", "is DOWN"}},
                        {{"severity", "note"}, {"check", "no-rdma"}}};
    parts.push_back(part.dump());
  }
  auto job = JobParts::Parse(parts);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->names, ElementsAre("a", "b", "b"));
  EXPECT_THAT(job->Judge(), ElementsAre(Is("port-down", "a, b: mlx5_0 port 1", "is DOWN")));
  parts[1] = "garbage";
  EXPECT_THAT(JobParts::Parse(parts).status().message(), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace weft::doctor
