#include "topology/sim/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "topology/fabric/clos.h"
#include "topology/sim/dependents.h"
#include "topology/sim/in_order.h"

namespace weft::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Fabric TwoRails() {
  ClosSpec spec;
  spec.groups = 1;
  spec.hosts_per_group = 4;
  spec.nics = 2;
  spec.spines = 1;
  return *BuildClos(spec);
}

TEST(Workload, ExpandedRingSendsOnceItHasReceived) {
  Workload workload;
  const uint32_t ring = workload.AddRing({{NodeId(0), 0}, {NodeId(1), 0}, {NodeId(2), 0}});
  const OperationId first = workload.Add({.kind = OperationKind::kCompute});
  const OperationId operation = workload.Add(
      {.kind = OperationKind::kRing, .bytes = Bytes(7), .ring = ring, .steps = 2}, {first});
  const OperationId last = workload.Add({.kind = OperationKind::kJoin}, {operation});
  EXPECT_FALSE(workload.simple());
  EXPECT_EQ(workload.transfers(), 6);

  absl::StatusOr<Expansion> expansion = Expand(workload);
  ASSERT_TRUE(expansion.ok());
  const Workload& all = expansion->workload;
  EXPECT_TRUE(all.simple());
  EXPECT_EQ(all.transfers(), 6);
  // compute, begin, three sends, three sends, end, join.
  ASSERT_EQ(all.size(), 10U);
  EXPECT_THAT(all.After(1), ElementsAre(0U));
  for (OperationId id = 2; id < 5; ++id) EXPECT_THAT(all.After(id), ElementsAre(1U));
  EXPECT_THAT(all.After(5), ElementsAre(4U));  // member 0 has received from member 2
  EXPECT_THAT(all.After(6), ElementsAre(2U));
  EXPECT_THAT(all.After(7), ElementsAre(3U));
  EXPECT_EQ(all.operation(7).source.host, NodeId(2));
  EXPECT_EQ(all.operation(7).target.host, NodeId(0));
  EXPECT_EQ(expansion->first[operation], 1U);
  EXPECT_EQ(expansion->last[operation], 8U);
  EXPECT_THAT(all.After(expansion->last[last]), ElementsAre(8U));
}

TEST(Workload, ExpandedWideTransferKeepsStartGroupAndPort) {
  Workload workload;
  const uint32_t group = workload.AddGroup("a job");
  workload.Add({.width = 2,
                .source_port = 77,
                .source = {NodeId(0), 0},
                .target = {NodeId(1), 0},
                .bytes = Bytes(5),
                .start = absl::Microseconds(3),
                .group = group});
  absl::StatusOr<Expansion> expansion = Expand(workload);
  ASSERT_TRUE(expansion.ok());
  const Workload& all = expansion->workload;
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all.operation(0).start, absl::Microseconds(3));
  EXPECT_EQ(all.operation(2).source.nic, 1);
  EXPECT_EQ(all.operation(2).target.nic, 1);
  EXPECT_EQ(all.operation(2).source_port, 77);
  EXPECT_EQ(all.group(all.operation(2).group), "a job");
}

TEST(Dependents, AreThoseThatWait) {
  Workload workload;
  for (int i = 0; i < 2; ++i) workload.Add({.kind = OperationKind::kJoin});
  workload.Add({.kind = OperationKind::kJoin}, {0, 1});
  workload.Add({.kind = OperationKind::kJoin}, {0});
  const Dependents dependents(workload);
  EXPECT_THAT(dependents.Of(0), ElementsAre(2U, 3U));
  EXPECT_THAT(dependents.Of(1), ElementsAre(2U));
  EXPECT_THAT(dependents.Of(3), ElementsAre());
}

TEST(InOrderQueues, LetOneOfAConnectionLeaveAtATime) {
  Workload workload;
  const Operation transfer{.width = 2, .source = {NodeId(0), 0}, .target = {NodeId(1), 0}};
  for (int i = 0; i < 2; ++i) workload.Add(transfer);
  Operation other = transfer;
  other.source_port = 7;
  workload.Add(other);
  InOrderQueues queues(workload);
  EXPECT_TRUE(queues.Enter({0, 0}));
  EXPECT_TRUE(queues.Enter({0, 1}));  // another NIC
  EXPECT_TRUE(queues.Enter({2, 0}));  // another port
  EXPECT_FALSE(queues.Enter({1, 0}));
  const std::optional<InOrderQueues::Lane> next = queues.Leave({0, 0});
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->operation, 1U);
  EXPECT_EQ(next->number, 0U);
  EXPECT_FALSE(queues.Leave({1, 0}).has_value());
  EXPECT_TRUE(queues.Enter({1, 0}));
}

TEST(Workload, ExpansionBeyondTheLimitIsRefused) {
  Workload workload;
  const uint32_t ring = workload.AddRing({{NodeId(0), 0}, {NodeId(1), 0}});
  workload.Add({.kind = OperationKind::kRing, .ring = ring, .steps = 1000});
  EXPECT_EQ(Expand(workload, 1000).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(Expand(workload, 1000).status().message()), HasSubstr("2000 transfers"));
}

TEST(Workload, ValidateNamesTheOperationAndItsFault) {
  const Fabric fabric = TwoRails();
  auto message = [&](const Operation& operation) {
    Workload workload;
    workload.AddRing({{NodeId(0), 0}, {NodeId(9999), 0}});
    workload.Add(operation);
    return std::string(Validate(workload, fabric).message());
  };
  const Endpoint a{NodeId(0), 0}, b{NodeId(1), 0};
  EXPECT_EQ(message({.width = 2, .source = a, .target = b}), "");
  EXPECT_THAT(message({.width = 3, .source = a, .target = b}),
              HasSubstr("operation 0: NICs 0 to 2 are wanted, and h0 has 2"));
  EXPECT_THAT(message({.source = a, .target = {NodeId(4), 0}}), HasSubstr("is a switch"));
  EXPECT_THAT(message({.source = a, .target = {NodeId(), 0}}), HasSubstr("no node -1"));
  EXPECT_THAT(message({.source = a, .target = b, .bytes = Bytes(-1)}), HasSubstr("-1 bytes"));
  EXPECT_THAT(message({.kind = OperationKind::kCompute, .duration = -absl::Seconds(1)}),
              HasSubstr("takes -1s"));
  EXPECT_THAT(message({.source = a, .target = b, .start = -absl::Seconds(1)}),
              HasSubstr("starts at -1s"));
  EXPECT_THAT(message({.kind = OperationKind::kRing, .steps = 1}), HasSubstr("no node 9999"));
  EXPECT_THAT(message({.kind = OperationKind::kRing, .steps = 0}), HasSubstr("0 steps"));
  EXPECT_THAT(message({.width = 0, .source = a, .target = b}), HasSubstr("width 0"));
}

}  // namespace
}  // namespace weft::topology
