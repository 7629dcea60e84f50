// Plans of connections: the file, which way each connection gets, and the ports that take it.
#include "topology/plan/connection_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "topology/ecmp/fingerprint.h"
#include "topology/ecmp/hash_text.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kPlan[] = R"(weft-paths 1
fingerprint 0123456789abcdef
ranks 4
host h0 10.1.0.1 leaf0
host h1 10.1.0.2 leaf0   # of the same leaf
host h2 10.1.1.1 leaf1
host h3 10.1.1.2 leaf1
hash leaf0 linux:seed=1000
hash leaf1 linux:seed=1001
flow 0 2 h0:0 h2:0 0.5 leaf0:1/4
flow 0 2 h0:0 h2:0 0.5 leaf0:3/4
flow 1 2 h0:0 h2:0 0.5 leaf0:2/4
flow 2 0 h2:0 h0:0 0.5 leaf1:0/4
rate 5000000 2
rate 833333 0 1
spare leaf0 leaf1 0.1 leaf0:0/4
spare leaf0 leaf1 0.6 leaf0:1/4
spare leaf1 leaf0 0.2 leaf1:2/4
)";

const IpAddress kH0 = *IpAddress::Parse("10.1.0.1"), kH1 = *IpAddress::Parse("10.1.0.2"),
                kH2 = *IpAddress::Parse("10.1.1.1");

ConnectionPlan MakePlan(const std::string& text = kPlan) {
  return ConnectionPlan(*ParseConnectionPlan(text, "plan"), "plan");
}

std::vector<std::string> Names(const std::vector<PathWay>& ways) {
  std::vector<std::string> names;
  for (const PathWay& way : ways) names.push_back(way.ToString());
  return names;
}

TEST(ConnectionPlan, TheFileIsReadBackAsWritten) {
  ConnectionPlanText plan = *ParseConnectionPlan(kPlan, "plan");
  const std::string text = ConnectionPlanFileText(plan);
  EXPECT_EQ(ConnectionPlanFileText(*ParseConnectionPlan(text, "again")), text);
  EXPECT_EQ(plan.flows[1].way.choices, (std::vector<PathChoice>{{"leaf0", 3, 4}}));
  std::vector<double> rates;
  for (const ConnectionPlanFlow& flow : plan.flows) rates.push_back(flow.way.rate);
  EXPECT_EQ(rates, (std::vector<double>{833333, 833333, 5000000, 0}));
}

// As a copy that was interrupted.
TEST(ConnectionPlan, AFileThatIsNotWholeIsRefused) {
  const std::string text = ConnectionPlanFileText(*ParseConnectionPlan(kPlan, "plan"));
  ASSERT_TRUE(ParseConnectionPlan(text, "plan").ok());
  const size_t stated = text.find("\nranks ");
  for (size_t size = stated + 1; size < text.size(); ++size) {
    EXPECT_FALSE(ParseConnectionPlan(text.substr(0, size), "plan").ok()) << size;
  }
  const size_t cut = text.rfind("\nspare ") + 1;
  EXPECT_THAT(std::string(ParseConnectionPlan(text.substr(0, cut), "plan").status().message()),
              HasSubstr("plan: it is not whole: of "));
}

TEST(ConnectionPlan, NamesTheLineThatIsWrong) {
  const auto message = [](const std::string& line) {
    const std::string text = absl::StrCat("weft-paths 1\nhost h0 10.1.0.1 leaf0\n", line);
    return std::string(ParseConnectionPlan(text, "plan").status().message());
  };
  EXPECT_THAT(message("host h0 10.1.0.2 leaf0"), HasSubstr("plan:3: host h0 is there twice"));
  EXPECT_THAT(message("host h1 10.1.0 leaf0"), HasSubstr("plan:3: \"10.1.0\" is no IP address"));
  EXPECT_THAT(message("hash leaf0 crc17:seed=1"), HasSubstr("plan:3: hash \"crc17:seed=1\""));
  EXPECT_THAT(message("flow 0 1 h0:0 h9:0 1"), HasSubstr("what address h9:0 has"));
  EXPECT_THAT(message("flow 0 1 h0:0 h0:0 1 leaf0:4/4"), HasSubstr("\"leaf0:4/4\" is no choice"));
  EXPECT_THAT(message("flow 0 1 h0:0 h0:0 1 leaf0:1/4"), HasSubstr("what leaf0 hashes"));
  EXPECT_THAT(message("detour spine0 0 0.5 leaf0:0/3"), HasSubstr("before it there are 0"));
  EXPECT_THAT(message("rate 1 0"),
              HasSubstr("plan:3: a rate of flow \"0\"; before it there are 0"));
  for (const char* rate : {"0", "-1", "nan", "inf", "fast"}) {
    EXPECT_THAT(message(absl::StrCat("rate ", rate, " 0")), HasSubstr("is no rate")) << rate;
  }
  EXPECT_THAT(message("route 1 2"), HasSubstr("lines begin with fingerprint"));
  EXPECT_THAT(std::string(ParseConnectionPlan("ranks 4\n", "plan").status().message()),
              HasSubstr("plan:1: this is no plan of paths of this version"));
}

TEST(ConnectionPlan, ConnectionsOfKnownRanksGetTheirFlows) {
  ConnectionPlan plan = MakePlan();
  EXPECT_EQ(Names(*plan.Take({kH0, kH2, 1, 2}, 1)), std::vector<std::string>{"leaf0:2/4"});
  EXPECT_EQ(Names(*plan.Take({kH0, kH2, 0, 2}, 1)),
            (std::vector<std::string>{"leaf0:1/4", "leaf0:3/4"}));
  // Made once more, it is the same connection.
  EXPECT_THAT(*plan.Take({kH0, kH2, 0, 2}, 1), SizeIs(2));
}

TEST(ConnectionPlan, WithoutRanksTheNthConnectionTakesTheNthFlow) {
  ConnectionPlan plan = MakePlan();
  EXPECT_EQ(Names(*plan.Take({kH0, kH2}, 1)), (std::vector<std::string>{"leaf0:1/4", "leaf0:3/4"}));
  EXPECT_EQ(Names(*plan.Take({kH0, kH2}, 1)), std::vector<std::string>{"leaf0:2/4"});
}

TEST(ConnectionPlan, BeyondThePlanTheLeastLoadedWayLeftIsTaken) {
  ConnectionPlan plan = MakePlan();
  const PathEnds unplanned{kH1, kH2};
  // 0.1 and what each connection adds, 0.5, against 0.6.
  EXPECT_EQ(Names(*plan.Take(unplanned, 1)), std::vector<std::string>{"leaf0:0/4"});
  EXPECT_EQ(Names(*plan.Take(unplanned, 1)), std::vector<std::string>{"leaf0:0/4"});
  EXPECT_EQ(Names(*plan.Take(unplanned, 1)), std::vector<std::string>{"leaf0:1/4"});
  EXPECT_THAT(*plan.Take({kH0, kH1}, 2), IsEmpty());  // under one switch
}

constexpr char kFourWays[] = R"(weft-paths 1
ranks 2
host h0 10.1.0.1 leaf0
host h2 10.1.1.1 leaf1
hash leaf0 linux:seed=1000
flow 0 1 h0:0 h2:0 0.5 leaf0:0/4
spare leaf0 leaf1 0.4 leaf0:0/4
spare leaf0 leaf1 0.3 leaf0:1/4
spare leaf0 leaf1 0.2 leaf0:2/4
spare leaf0 leaf1 0.1 leaf0:3/4
)";

TEST(ConnectionPlan, NoWayThatFailedIsTakenWhileAnotherIsLeft) {
  ConnectionPlan plan = MakePlan(kFourWays);
  const PathEnds ends{kH0, kH2, 0, 1};
  const absl::Time now = absl::UnixEpoch();
  PathWay way = plan.Take(ends, 1)->front();
  std::set<std::string> failed;
  for (int i = 0; i < 3; ++i) {
    failed.insert(way.ToString());
    way = *plan.Instead(ends, way, now + absl::Seconds(i));
    EXPECT_EQ(failed.count(way.ToString()), 0u) << way.ToString();
    // Nor by anybody else.
    EXPECT_EQ(failed.count(plan.Answer({kH0, kH2}, 1)->front().ToString()), 0u);
    EXPECT_EQ(failed.count(plan.Take(ends, 1)->front().ToString()), 0u);
  }
  EXPECT_EQ(plan.failed(), 3u);
  // All have failed: the one of which that is longest ago.
  EXPECT_EQ(plan.Instead(ends, way, now + absl::Seconds(3))->ToString(), "leaf0:0/4");
  // One answers again.
  plan.Answers(ends, {.choices = {{"leaf0", 2, 4}}});
  EXPECT_EQ(plan.Answer(ends, 1)->front().ToString(), "leaf0:2/4");
}

TEST(ConnectionPlan, AnswersTakeTheLeastLoadedWaysInTurn) {
  constexpr char kWays[] = R"(weft-paths 1
fingerprint 0
ranks 2
host h0 10.1.0.1 leaf0
host h2 10.1.1.1 leaf1
hash leaf0 linux:seed=1000
spare leaf0 leaf1 0.1 leaf0:0/3
spare leaf0 leaf1 0.1 leaf0:1/3
spare leaf0 leaf1 0.2 leaf0:2/3
)";
  ConnectionPlan plan = MakePlan(kWays);
  const PathEnds ends{*IpAddress::Parse("10.1.0.1"), *IpAddress::Parse("10.1.1.1")};
  const std::vector<PathWay> ways = *plan.Answer(ends, 2);
  ASSERT_EQ(ways.size(), 2u);
  EXPECT_EQ(ways[0].ToString(), "leaf0:0/3");
  EXPECT_EQ(ways[1].ToString(), "leaf0:1/3");
  EXPECT_EQ(plan.Answer(ends, 1)->front().ToString(), "leaf0:0/3");
  EXPECT_EQ(plan.Answer(ends, 1)->front().ToString(), "leaf0:1/3");
  plan.Fails(ends, ways[0], absl::UnixEpoch());
  EXPECT_EQ(plan.Answer(ends, 1)->front().ToString(), "leaf0:1/3");
  EXPECT_EQ(plan.Answer(ends, 1)->front().ToString(), "leaf0:1/3");
}

TEST(ConnectionPlan, FailuresAreForgottenAndBounded) {
  ConnectionPlan plan = MakePlan(kFourWays);
  const PathEnds ends{kH0, kH2, 0, 1};
  for (uint32_t i = 0; i < 1000; ++i) {
    ASSERT_TRUE(plan.Instead(ends, {.choices = {{"leaf0", i, 1000}}}, absl::UnixEpoch()).ok());
  }
  EXPECT_EQ(plan.failed(), ConnectionPlan::kFailedMost);
  const PathWay planned = plan.Take(ends, 1)->front();
  const absl::Time late = absl::UnixEpoch() + ConnectionPlan::kFailedFor + absl::Seconds(1);
  ASSERT_TRUE(plan.Instead(ends, planned, late).ok());
  EXPECT_EQ(plan.failed(), 1u);
}

constexpr char kDetours[] = R"(weft-paths 1
fingerprint 0123456789abcdef
ranks 4
host h0 10.1.0.1 leaf0
host h1 10.1.1.1 leaf1
host h2 10.1.2.1 leaf2
hash leaf0 linux:seed=1000
hash leaf1 linux:seed=1001
router 10.2.0.1 spine1
flow 0 1 h0:0 h1:0 0.5 leaf0:0/3>spine0
flow 1 2 h1:0 h2:0 0.5 leaf1:2/3>spine2
rate 833333 0
detour spine0 0 0.5 leaf0:2/3>spine2
detour spine0 1 0.5 leaf1:1/3>spine1
spare leaf0 leaf1 0.5 leaf0:0/3>spine0
spare leaf0 leaf1 0.2 leaf0:1/3>spine1
spare leaf0 leaf1 0.3 leaf0:2/3>spine2
spare leaf1 leaf2 0.5 leaf1:0/3>spine0
spare leaf1 leaf2 0.5 leaf1:1/3>spine1
spare leaf1 leaf2 0.5 leaf1:2/3>spine2
)";

TEST(ConnectionPlan, WhileASwitchCarriesNothingAllFlowsHaveTheWaysThatWerePlannedForThat) {
  const ConnectionPlanText text = *ParseConnectionPlan(kDetours, "plan");
  EXPECT_EQ(ConnectionPlanFileText(*ParseConnectionPlan(ConnectionPlanFileText(text), "again")),
            ConnectionPlanFileText(text));
  ConnectionPlan plan(text, "plan"), other(text, "plan");
  const PathEnds ends{kH0, *IpAddress::Parse("10.1.1.1"), 0, 1};
  const PathWay way = plan.Take(ends, 1)->front(), displaced = other.text().flows[1].way;
  // The one whose way has failed knows where to go before anybody else has reported anything.
  EXPECT_EQ(plan.Another(ends, {way})->ToString(), "leaf0:2/3");
  plan.Fails(ends, way, absl::UnixEpoch());
  ASSERT_TRUE(other.Hear(plan.Reports()).ok());
  EXPECT_EQ(other.reports_version(), 1u);
  EXPECT_EQ(other.Now(displaced).ToString(), "leaf1:2/3");  // it may be one link
  ASSERT_TRUE(other.Hear("dropping spine0 leaf1 leaf2 5\n").ok());
  ASSERT_TRUE(plan.Hear(other.Reports()).ok());
  for (ConnectionPlan* one : {&plan, &other}) {
    EXPECT_EQ(one->Now(way).ToString(), "leaf0:2/3");
    EXPECT_EQ(one->Now(displaced).ToString(), "leaf1:1/3");
    EXPECT_EQ(one->Now(way).rate, 833333);
    EXPECT_EQ(one->Planned(one->Now(way)).ToString(), "leaf0:0/3");
  }
  EXPECT_EQ(Names(*other.Take(ends, 1)), std::vector<std::string>{"leaf0:2/3"});
  // It answers on the planned way again.
  plan.Answers(ends, way);
  ASSERT_TRUE(other.Hear(plan.Reports()).ok());
  EXPECT_EQ(other.Now(displaced).ToString(), "leaf1:2/3");
}

TEST(ConnectionPlan, WhereASwitchHasLeftANextHopChoicesAreThoseThatAreLeft) {
  ConnectionPlan plan = MakePlan(kDetours);
  const PathWay first = plan.text().flows[0].way, second = plan.text().flows[1].way;
  plan.Leaves("leaf0", "spine0", true);
  EXPECT_EQ(plan.Now(first).ToString(), "leaf0:1/2");  // spine2 of spine1 and spine2
  EXPECT_EQ(plan.Now(second).ToString(), "leaf1:2/3");
  plan.Leaves("leaf2", "spine0", true);
  EXPECT_EQ(plan.Now(second).ToString(), "leaf1:1/3");  // lost, and leaf1 does not know
  plan.Leaves("leaf1", "spine0", true);
  EXPECT_EQ(plan.Now(second).ToString(), "leaf1:0/2");
  // A port for it is one that the hash over two puts there.
  FiveTuple tuple{kH0, kH2, 0, 9999, kProtocolTcp, 0};
  tuple.source_port = *plan.Port(plan.Now(first), tuple, 1, 0, 16'384, 32'767);
  EXPECT_EQ(plan.text().hashes.at("leaf0").Select(tuple, 2), 1u);
  for (const char* leaf : {"leaf0", "leaf1", "leaf2"}) plan.Leaves(leaf, "spine0", false);
  EXPECT_EQ(plan.Now(first).ToString(), "leaf0:0/3");
}

TEST(ConnectionPlan, WhereTwoSwitchesAreLostFlowsAreDealtOutOverTheRest) {
  ConnectionPlan plan = MakePlan(kDetours);
  for (const char* leaf : {"leaf0", "leaf1"}) {
    for (const char* spine : {"spine0", "spine2"}) plan.Leaves(leaf, spine, true);
  }
  EXPECT_EQ(plan.Now(plan.text().flows[0].way).choices[0].to, "spine1");
  EXPECT_EQ(plan.Now(plan.text().flows[1].way).choices[0].to, "spine1");
  EXPECT_EQ(plan.Now(plan.text().flows[0].way).ToString(), "leaf0:0/1");
}

// Another line of the plan has three members at the same switch, which mean other next hops.
TEST(ConnectionPlan, WhereASwitchHasLeftTwoNextHopsChoicesAreThoseOfTheHashOverTheRest) {
  ConnectionPlan plan = MakePlan(R"(weft-paths 1
ranks 2
host h0 10.1.0.1 leaf0
host h1 10.1.1.1 leaf1
hash leaf0 linux:seed=1000
flow 0 1 h0:0 h1:0 0.5 leaf0:3/4>spine3
spare leaf0 leaf1 0.1 leaf0:0/4>spine0
spare leaf0 leaf1 0.2 leaf0:1/4>spine1
spare leaf0 leaf1 0.3 leaf0:2/4>spine2
spare leaf0 leaf1 0.4 leaf0:3/4>spine3
spare leaf0 leaf2 0.1 leaf0:2/3>spine2
)");
  const IpAddress target = *IpAddress::Parse("10.1.1.1");
  for (const char* spine : {"spine0", "spine2"}) plan.Leaves("leaf0", spine, true);
  const PathWay now = plan.Now(plan.text().flows[0].way);
  EXPECT_EQ(now.ToString(), "leaf0:1/2");  // spine3 of spine1 and spine3
  EXPECT_EQ(Names(*plan.Spares({kH0, target})),
            (std::vector<std::string>{"leaf0:0/2", "leaf0:1/2"}));
  FiveTuple tuple{kH0, target, 0, 9999, kProtocolTcp, 0};
  tuple.source_port = *plan.Port(now, tuple, 1, 0, 16'384, 32'767);
  EXPECT_EQ(plan.text().hashes.at("leaf0").Select(tuple, 2), 1u);
  plan.Leaves("leaf0", "spine1", true);
  EXPECT_EQ(plan.Now(plan.text().flows[0].way).ToString(), "leaf0:0/1");
}

TEST(ConnectionPlan, ANextHopThatIsLeftTakesAllItsCablesWithIt) {
  ConnectionPlan plan = MakePlan(R"(weft-paths 1
ranks 2
host h0 10.1.0.1 leaf0
host h1 10.1.1.1 leaf1
hash leaf0 linux:seed=1000
flow 0 1 h0:0 h1:0 0.5 leaf0:2/4>spine1
spare leaf0 leaf1 0.1 leaf0:0/4>spine0
spare leaf0 leaf1 0.2 leaf0:1/4>spine0
spare leaf0 leaf1 0.3 leaf0:2/4>spine1
spare leaf0 leaf1 0.4 leaf0:3/4>spine1
)");
  plan.Leaves("leaf0", "spine0", true);
  EXPECT_EQ(plan.Now(plan.text().flows[0].way).ToString(), "leaf0:0/2");
  EXPECT_EQ(Names(*plan.Spares({kH0, *IpAddress::Parse("10.1.1.1")})),
            (std::vector<std::string>{"leaf0:0/2", "leaf0:1/2"}));
}

// leaf1 is reached over spines 0 to 2, leaf2 over spines 1 to 3.
TEST(ConnectionPlan, NextHopsAreThoseTowardsTheTarget) {
  ConnectionPlan plan = MakePlan(R"(weft-paths 1
ranks 3
host h0 10.1.0.1 leaf0
host h1 10.1.1.1 leaf1
host h2 10.1.2.1 leaf2
hash leaf0 linux:seed=1000
flow 0 1 h0:0 h1:0 0.5 leaf0:2/3>spine2
flow 0 2 h0:0 h2:0 0.5 leaf0:2/3>spine3
spare leaf0 leaf1 0.1 leaf0:0/3>spine0
spare leaf0 leaf1 0.2 leaf0:1/3>spine1
spare leaf0 leaf2 0.1 leaf0:0/3>spine1
spare leaf0 leaf2 0.2 leaf0:1/3>spine2
)");
  const std::vector<ConnectionPlanFlow>& flows = plan.text().flows;
  plan.Leaves("leaf0", "spine0", true);
  EXPECT_EQ(plan.Now(flows[0].way).ToString(), "leaf0:1/2");
  EXPECT_EQ(plan.Now(flows[1].way).ToString(), "leaf0:2/3");
  plan.Leaves("leaf0", "spine0", false);
  plan.Leaves("leaf0", "spine1", true);
  EXPECT_EQ(plan.Now(flows[0].way).ToString(), "leaf0:1/2");
  EXPECT_EQ(plan.Now(flows[1].way).ToString(), "leaf0:1/2");
}

TEST(ConnectionPlan, SparesComeBestFirstAndFailedOnesLast) {
  ConnectionPlan plan = MakePlan(kFourWays);
  ASSERT_TRUE(plan.Instead({kH0, kH2}, {.choices = {{"leaf0", 2, 4}}}, absl::UnixEpoch()).ok());
  const std::vector<PathWay> spares = *plan.Spares({kH0, kH2});
  EXPECT_THAT(spares, SizeIs(4));
  EXPECT_EQ(spares.back().ToString(), "leaf0:2/4");
  EXPECT_TRUE(std::is_sorted(spares.begin(), spares.end() - 1,
                             [](const auto& a, const auto& b) { return a.seconds < b.seconds; }));
}

TEST(ConnectionPlan, SparesPassNoSwitchThatCarriesNothingAndAreNumberedByWhatIsLeft) {
  ConnectionPlan plan = MakePlan(R"(weft-paths 1
host h0 10.1.0.1 leaf0
host h2 10.1.1.1 leaf1
hash leaf0 linux:seed=1000
spare leaf0 leaf1 0.1 leaf0:0/3>spine0
spare leaf0 leaf1 0.2 leaf0:1/3>spine1
spare leaf0 leaf1 0.3 leaf0:2/3>spine2
)");
  ASSERT_TRUE(plan.Hear("dropping spine1 leaf0 leaf1 1\ndropping spine1 leaf2 leaf3 2\n").ok());
  EXPECT_EQ(Names(*plan.Spares({kH0, kH2})), (std::vector<std::string>{"leaf0:0/3", "leaf0:2/3"}));
  plan.Leaves("leaf0", "spine1", true);
  EXPECT_EQ(Names(*plan.Spares({kH0, kH2})), (std::vector<std::string>{"leaf0:0/2", "leaf0:1/2"}));
}

TEST(ConnectionPlan, AQueuePairLeavesWaysInTurn) {
  ConnectionPlan plan = MakePlan(kFourWays);
  std::vector<PathWay> left{{.choices = {{"leaf0", 0, 4}}}};
  std::set<std::string> taken;
  for (int i = 0; i < 3; ++i) {
    left.push_back(*plan.Another({kH0, kH2}, left));
    taken.insert(left.back().ToString());
  }
  EXPECT_EQ(taken, (std::set<std::string>{"leaf0:1/4", "leaf0:2/4", "leaf0:3/4"}));
  EXPECT_EQ(plan.Another({kH0, kH2}, left)->ToString(), "leaf0:0/4");
  EXPECT_EQ(plan.failed(), 0u);  // for others they are as good as before
}

TEST(ConnectionPlan, TheOnlyWayStays) {
  ConnectionPlan plan = MakePlan();
  PathWay only = plan.Answer({kH2, kH0}, 1)->front();
  EXPECT_EQ(plan.Instead({kH2, kH0}, only, absl::UnixEpoch())->ToString(), only.ToString());
}

TEST(ConnectionPlan, PortsTakeTheWayWhateverTheOtherPortIs) {
  ConnectionPlan plan = MakePlan();
  const SwitchHash hash = *ParseHash("linux:seed=1000");
  const PathWay way = plan.Take({kH0, kH2, 1, 2}, 1)->front();
  for (uint16_t target_port : {4791, 7000, 50001}) {
    FiveTuple tuple{kH0, kH2, 0, target_port, kProtocolTcp, 0};
    std::set<uint16_t> ports;
    for (int nth = 0; nth < 20; ++nth) {
      tuple.source_port = *plan.Port(way, tuple, 7, nth, 20000, 29999);
      EXPECT_EQ(hash.Select(tuple, 4), 2u);
      EXPECT_TRUE(plan.Takes(way, tuple));
      EXPECT_TRUE(tuple.source_port >= 20000 && tuple.source_port <= 29999);
      EXPECT_TRUE(ports.insert(tuple.source_port).second);
    }
  }
  FiveTuple tuple{kH0, kH2, 0, 4791, kProtocolUdp, 0};
  EXPECT_FALSE(plan.Port(way, tuple, 7, 100, 20000, 20010).has_value());
}

TEST(ConnectionPlan, RefusesOtherHostsByName) {
  ConnectionPlan plan = MakePlan();
  EXPECT_TRUE(plan.CheckHost(kH0).ok());
  const IpAddress other = *IpAddress::Parse("10.9.9.9");
  for (const absl::Status& status :
       {plan.CheckHost(other), plan.Take({kH0, other}, 1).status(),
        plan.Instead({other, kH0}, PathWay(), absl::UnixEpoch()).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not name 10.9.9.9"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("h0 (10.1.0.1), h1 (10.1.0.2)"));
  }
}

TEST(ConnectionPlan, RefusesOtherRanksByName) {
  ConnectionPlan plan = MakePlan();
  EXPECT_TRUE(plan.CheckRank(kH0, 1, 4).ok());
  EXPECT_TRUE(plan.CheckRank(kH1, 3, 4).ok());  // it has no flow, so any host will do
  const auto refused = [&](const IpAddress& own, int rank, int ranks) {
    const absl::Status status = plan.CheckRank(own, rank, ranks);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(kH0, 1, 2), HasSubstr("plan is a plan for 4 ranks; this job has 2"));
  EXPECT_THAT(refused(kH0, 2, 4), HasSubstr("plan has rank 2 on h2, but it runs on h0 (10.1.0.1)"));
  EXPECT_THAT(refused(*IpAddress::Parse("10.9.9.9"), 0, 4), HasSubstr("does not name 10.9.9.9"));
}

class PlanFolder : public ::testing::Test {
 protected:
  PlanFolder()
      : folder_(absl::StrCat(::testing::TempDir(), "plan_", getpid(), "_",
                             ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(folder_);
    Write("fabric.toml", "a fabric\n");
    Write("hashes.txt", "hashes\n");
    Write("paths.txt",
          absl::StrReplaceAll(kPlan, {{"0123456789abcdef", Fingerprint("a fabric\nhashes\n")}}));
  }
  ~PlanFolder() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
  }
  std::string Refused() const {
    const absl::Status status = ConnectionPlan::Load(folder_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  }
  const std::string folder_;
};

TEST_F(PlanFolder, IsLoadedOnceForAllOfAProcess) {
  auto a = *ConnectionPlan::Load(folder_), b = *ConnectionPlan::Load(folder_);
  EXPECT_EQ(a, b);
  absl::Status missing = ConnectionPlan::Load(folder_ + "-none").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("-none/paths.txt"));
}

TEST_F(PlanFolder, IsRefusedWhenTheFabricOrTheHashesAreOthers) {
  for (const char* name : {"fabric.toml", "hashes.txt"}) {
    EXPECT_TRUE(ConnectionPlan::Load(folder_).ok());
    const std::string before = name == std::string("fabric.toml") ? "a fabric\n" : "hashes\n";
    Write(name, before + "# learned again\n");
    EXPECT_THAT(Refused(), HasSubstr(folder_ + "/paths.txt is stale: it was planned for another "
                                               "fabric.toml or hashes.txt"));
    std::filesystem::remove(folder_ + "/" + name);
    EXPECT_THAT(Refused(),
                ::testing::AllOf(HasSubstr("/paths.txt cannot be told from a stale plan"),
                                 HasSubstr(std::string("/") + name)));
    Write(name, before);
  }
}

}  // namespace
}  // namespace weft::topology
