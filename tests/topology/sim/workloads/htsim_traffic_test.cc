#include "topology/sim/workloads/htsim_traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "topology/fabric/clos.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

Fabric Hosts16() {
  ClosSpec spec;
  spec.groups = 4;
  spec.hosts_per_group = 4;
  spec.spines = 2;
  return *BuildClos(spec);
}

std::string Error(absl::string_view text) {
  return std::string(ParseHtsimTraffic(text, "x.cm", Hosts16()).status().message());
}

TEST(HtsimTraffic, ReadsConnectionsWithStartInPicoseconds) {
  absl::StatusOr<Workload> workload = ParseHtsimTraffic(
      "Nodes 16\nConnections 2\n# a comment\n0->13 id 1 start 0 size 2000000\n"
      "13->0 start 1500000 size 7 prio 3\n\n",
      "x.cm", Hosts16());
  ASSERT_TRUE(workload.ok()) << workload.status();
  ASSERT_EQ(workload->size(), 2U);
  EXPECT_EQ(workload->operation(0).target.host, NodeId(13));
  EXPECT_EQ(workload->operation(0).bytes, Bytes(2'000'000));
  EXPECT_EQ(workload->operation(1).start, absl::Nanoseconds(1500));
  EXPECT_THAT(workload->After(1), IsEmpty());
}

TEST(HtsimTraffic, OneshotStartsAllThatWaitForIt) {
  absl::StatusOr<Workload> workload = ParseHtsimTraffic(
      "Nodes 16\nConnections 3\nTriggers 1\n"
      "2->11 id 1 start 0 size 5 send_done_trigger 4\n2->4 id 2 trigger 4 size 6\n"
      "3->4 id 3 trigger 4 size 7\ntrigger id 4 oneshot\n",
      "x.cm", Hosts16());
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_THAT(workload->After(1), ElementsAre(0U));
  EXPECT_THAT(workload->After(2), ElementsAre(0U));
}

TEST(HtsimTraffic, BarrierWaitsForAllAndMultishotStartsOneEach) {
  absl::StatusOr<Workload> workload = ParseHtsimTraffic(
      "Nodes 16\nConnections 7\nTriggers 2\n"
      "0->1 id 1 start 0 size 5 recv_done_trigger 1\n1->2 id 2 start 0 size 5 recv_done_trigger 1\n"
      "2->3 id 3 trigger 1 size 5\n"
      "4->5 id 4 start 0 size 5 send_done_trigger 2\n5->6 id 5 start 0 size 5 send_done_trigger 2\n"
      "6->7 id 6 trigger 2 size 5\n7->8 id 7 trigger 2 size 5\n"
      "trigger id 1 barrier count 2\ntrigger id 2 multishot\n",
      "x.cm", Hosts16());
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_THAT(workload->After(2), UnorderedElementsAre(0U, 1U));
  EXPECT_THAT(workload->After(5), ElementsAre(3U));
  EXPECT_THAT(workload->After(6), ElementsAre(4U));
}

TEST(HtsimTraffic, ConnectionMayWaitForALaterLine) {
  absl::StatusOr<Workload> workload = ParseHtsimTraffic(
      "Nodes 16\nConnections 2\nTriggers 1\n1->2 id 1 trigger 9 size 11\n"
      "3->4 id 2 start 0 size 22 send_done_trigger 9\ntrigger id 9 oneshot\n",
      "x.cm", Hosts16());
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_EQ(workload->operation(0).bytes, Bytes(22));
  EXPECT_THAT(workload->After(1), ElementsAre(0U));
}

TEST(HtsimTraffic, ErrorsNameLineAndReason) {
  const std::string head = "Nodes 16\nConnections 1\n";
  EXPECT_THAT(Error(""), HasSubstr("x.cm: no connection"));
  EXPECT_THAT(Error(head + "0->16 start 0 size 1"), HasSubstr("x.cm:3: node \"16\""));
  EXPECT_THAT(Error("Nodes 64\n0->16 start 0 size 1"),
              HasSubstr("x.cm:2: node 16 in a fabric of 16"));
  EXPECT_THAT(Error(head + "0->x start 0 size 1"), HasSubstr("x.cm:3: node \"x\""));
  EXPECT_THAT(Error(head + "0->1 size 1"), HasSubstr("x.cm:3: neither start nor trigger"));
  EXPECT_THAT(Error(head + "0->1 start 0 trigger 1 size 1"), HasSubstr("both start and trigger"));
  EXPECT_THAT(Error(head + "0->1 start 0 size -1"), HasSubstr("size -1"));
  EXPECT_THAT(Error(head + "0->1 start 0 size"), HasSubstr("no number behind \"size\""));
  EXPECT_THAT(Error(head + "0->1 start 1e30 size 1"), HasSubstr("start"));
  EXPECT_THAT(Error(head + "0->1 start 0 sise 1"), HasSubstr("\"sise\" is none of"));
  EXPECT_THAT(Error("Knots 16\n"), HasSubstr("x.cm:1: \"Knots\" is none of"));
  EXPECT_THAT(Error("Nodes 16\nConnections 2\n0->1 start 0 size 1"),
              HasSubstr("Connections 2, and 1 follow"));
  EXPECT_THAT(Error(head + "0->1 start 0 size 1 send_done_trigger 3"),
              HasSubstr("no line says what trigger 3 is"));
  EXPECT_THAT(Error(head + "0->1 start 0 size 1\ntrigger id 3"), HasSubstr("x.cm:4: a trigger"));
  EXPECT_THAT(Error(head + "0->1 trigger 3 size 1\ntrigger id 3 oneshot"),
              HasSubstr("a oneshot with 0 connections"));
  EXPECT_THAT(Error(head + "0->1 trigger 3 size 1 send_done_trigger 3\ntrigger id 3 oneshot"),
              HasSubstr("waits, through triggers, for itself"));
  EXPECT_THAT(Error(head + "0->1 start 0 size 1\nfailure switch_type TOR"),
              HasSubstr("x.cm:4: fail"));
  EXPECT_THAT(Error(head + "0->1 start 0 size 1 send_done_trigger 3\ntrigger id 3 oneshot barrier"),
              HasSubstr("two kinds"));
  EXPECT_THAT(std::string(ReadHtsimTraffic("/nowhere.cm", Hosts16()).status().message()),
              HasSubstr("/nowhere.cm"));
}

TEST(HtsimTraffic, RandomBytesAndBrokenLinesNeverBreakIt) {
  const Fabric fabric = Hosts16();
  static constexpr absl::string_view kPieces[] = {"Nodes",
                                                  "Connections",
                                                  "Triggers",
                                                  "trigger",
                                                  "0->1",
                                                  "1->0",
                                                  "->",
                                                  "id",
                                                  "start",
                                                  "size",
                                                  "send_done_trigger",
                                                  "oneshot",
                                                  "barrier",
                                                  "multishot",
                                                  "count",
                                                  "0",
                                                  "1",
                                                  "2",
                                                  "-3",
                                                  "1e9",
                                                  "99999999999999999999",
                                                  "\xff\x01",
                                                  " ",
                                                  " ",
                                                  " ",
                                                  "\n",
                                                  "\n",
                                                  "#"};
  Random random(3);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    const uint64_t pieces = random.Below(40);
    for (uint64_t k = 0; k < pieces; ++k) {
      absl::StrAppend(&text, kPieces[random.Below(std::size(kPieces))], " ");
    }
    absl::StatusOr<Workload> workload = ParseHtsimTraffic(text, "x.cm", fabric);
    EXPECT_TRUE(!workload.ok() || workload->size() > 0);
  }
}

}  // namespace
}  // namespace weft::topology
