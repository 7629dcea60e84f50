// The flow level against the packet level: the same workload over the same fabric, with the same
// choice of paths. What differs is documented in docs/simulator-flow.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "collectives/simulate/workloads.h"
#include "topology/fabric/clos.h"
#include "topology/sim/flow/flow.h"
#include "topology/sim/packet/options.h"
#include "topology/sim/workloads/registry.h"

namespace weft::topology {
namespace {

using ::testing::DoubleNear;

// 4 leaves of 8 hosts, 8 spines; 400 Gbit/s and 1 us everywhere.
const Fabric& Hosts32() {
  static const Fabric* fabric = [] {
    ClosSpec spec;
    spec.groups = 4;
    spec.hosts_per_group = 8;
    spec.spines = 8;
    spec.leaf.delay = spec.spine.delay = absl::Microseconds(1);
    return new Fabric(*BuildClos(spec));
  }();
  return *fabric;
}

struct Outcome {
  double end = 0;  // microseconds
  double p99 = 0;  // of transfers, from when they could start
  std::vector<Bytes> carried;
};

Outcome Summarize(const Workload& workload, const absl::StatusOr<SimulationResult>& result) {
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->unfinished, 0);
  Outcome outcome{.end = absl::ToDoubleMicroseconds(result->end), .carried = {}};
  std::vector<double> times;
  for (OperationId i = 0; i < workload.size(); ++i) {
    if (workload.operation(i).kind != OperationKind::kTransfer) continue;
    const OperationResult& one = result->operations[i];
    times.push_back(absl::ToDoubleMicroseconds(one.ended - one.started));
  }
  std::sort(times.begin(), times.end());
  if (!times.empty()) outcome.p99 = times[(times.size() - 1) * 99 / 100];
  for (const LinkResult& link : result->links) outcome.carried.push_back(link.bytes);
  return outcome;
}

Workload Named(const std::string& text, uint64_t seed) {
  return *MakeWorkload(text, Hosts32(), seed, collectives::CollectiveWorkloads());
}

Outcome Flow(const std::string& text, LoadBalance balance, uint64_t seed = 1) {
  const Workload workload = Named(text, seed);
  FlowOptions options;
  options.seed = seed;
  options.load_balance = balance;
  options.ack = Bytes(64);
  return Summarize(workload, SimulateFlows(Hosts32(), workload, options));
}

// Go-back-N with one path a flow; selective repeat where packets of a flow part. No loss. A flow
// has at most 1.5 times in flight what the longest path holds in a round trip, as selective repeat
// has by itself: senders without any bound fill queues without end, and share a link by who came
// first.
Outcome Packet(const std::string& text, LoadBalance balance, uint64_t seed = 1) {
  const Workload workload = Named(text, seed);
  PacketOptions options;
  options.seed = seed;
  options.load_balance = balance;
  if (balance != LoadBalance::kEcmp) options.transport = TransportKind::kSelective;
  if (balance == LoadBalance::kEcmp) options.window = Bytes(600'000);
  return Summarize(workload, SimulatePackets(Hosts32(), workload, options));
}

TEST(Levels, CollectiveTimesAgreeWithinThreePercent) {
  for (const char* text :
       {"all_reduce:algorithm=ring,bytes=16MiB", "all_reduce:algorithm=ring,bytes=64KiB",
        "all_to_all:algorithm=direct,bytes=4MiB", "all_reduce:algorithm=direct,bytes=64KiB",
        "all_reduce:algorithm=hierarchical,group=8,bytes=8MiB,local=40000Gbps",
        "broadcast:algorithm=chain,bytes=8MiB", "all_reduce:algorithm=tree,bytes=8MiB,chunk=256KiB",
        "all_reduce:algorithm=halving_doubling,bytes=64KiB",
        "all_reduce:algorithm=halving_doubling,bytes=16MiB", "full_mesh:bytes=64KiB",
        "full_mesh:shape=shifted,bytes=64KiB"}) {
    const double flow = Flow(text, LoadBalance::kEcmp).end;
    const double packet = Packet(text, LoadBalance::kEcmp).end;
    EXPECT_THAT(flow, DoubleNear(packet, packet * 0.03)) << text;
  }
}

// A chain of transfers that meet others on their links: with packets some go first and free those
// that wait for them, with rates all get the same share.
TEST(Levels, ChainsOfTransfersThatCollideAgreeWithinFifteenPercent) {
  const std::string text = "all_reduce:algorithm=direct,bytes=4MiB";
  for (uint64_t seed : {1, 2, 3}) {
    const double packet = Packet(text, LoadBalance::kEcmp, seed).end;
    EXPECT_THAT(Flow(text, LoadBalance::kEcmp, seed).end, DoubleNear(packet, packet * 0.15));
  }
}

TEST(Levels, SprayedCollectiveTimesAgreeWithinThreePercent) {
  for (const char* text :
       {"all_reduce:algorithm=ring,bytes=16MiB", "all_reduce:algorithm=direct,bytes=4MiB",
        "all_reduce:algorithm=tree,bytes=8MiB,chunk=128KiB",
        "all_reduce:algorithm=halving_doubling,bytes=16MiB", "permutation:bytes=2MB"}) {
    const double flow = Flow(text, LoadBalance::kAdaptive).end;
    const double packet = Packet(text, LoadBalance::kAdaptive).end;
    EXPECT_THAT(flow, DoubleNear(packet, packet * 0.03)) << text;
  }
}

TEST(Levels, TailOfCompletionTimesAgreesWithinTenPercent) {
  for (const char* text : {"permutation:bytes=2MB", "permutation:bytes=200KB",
                           "all_reduce:algorithm=halving_doubling,bytes=16MiB",
                           "incast:fan_in=16,bytes=500KB", "full_mesh:bytes=32KiB"}) {
    for (uint64_t seed : {1, 2, 3}) {
      const double flow = Flow(text, LoadBalance::kEcmp, seed).p99;
      const double packet = Packet(text, LoadBalance::kEcmp, seed).p99;
      EXPECT_THAT(flow, DoubleNear(packet, packet * 0.1)) << text << " seed " << seed;
    }
  }
}

TEST(Levels, BothRankTheAlgorithmsAlike) {
  for (const char* bytes : {"4KiB", "256KiB", "8MiB"}) {
    struct Row {
      std::string algorithm;
      double flow, packet;
    };
    std::vector<Row> rows;
    for (const char* algorithm :
         {"ring", "direct", "halving_doubling", "recursive_doubling", "tree,chunk=64KiB"}) {
      const std::string text = std::string("all_reduce:bytes=") + bytes + ",algorithm=" + algorithm;
      rows.push_back(
          {algorithm, Flow(text, LoadBalance::kEcmp).end, Packet(text, LoadBalance::kEcmp).end});
    }
    for (const Row& a : rows) {
      for (const Row& b : rows) {
        if (a.packet > b.packet * 0.95) continue;  // as good as equal
        EXPECT_LT(a.flow, b.flow) << bytes << ": " << a.algorithm << " against " << b.algorithm;
      }
    }
  }
}

TEST(Levels, SameFlowTakesTheSamePath) {
  const std::string text = "permutation:bytes=40960";
  for (uint64_t seed : {1, 7}) {
    const Workload workload = Named(text, seed);
    const Outcome flow = Flow(text, LoadBalance::kEcmp, seed);
    const Outcome packet = Packet(text, LoadBalance::kEcmp, seed);
    for (size_t i = 0; i < flow.carried.size(); ++i) {
      // Besides data, a link carries acknowledgements of 64 bytes for each packet the other way.
      const int64_t acks = packet.carried[i].count() - flow.carried[i].count();
      EXPECT_GE(acks, 0) << Hosts32().Name(LinkId(static_cast<int>(i)));
      EXPECT_EQ(acks % 64, 0);
    }
  }
}

TEST(Levels, LoneTransfersAgreeToAPacketsTime) {
  for (const char* text : {"incast:fan_in=1,bytes=2MB", "incast:fan_in=1,bytes=1",
                           "incast:fan_in=1,bytes=4097,target=31"}) {
    const Workload workload = Named(text, 1);
    const double flow = absl::ToDoubleMicroseconds(SimulateFlows(Hosts32(), workload, {})->end);
    const double packet = absl::ToDoubleMicroseconds(SimulatePackets(Hosts32(), workload, {})->end);
    EXPECT_THAT(flow, DoubleNear(packet, 0.002)) << text;
  }
}

TEST(Levels, RingsMayBeWrittenOutAtEitherLevel) {
  // A small training step: rings, wide transfers and computations.
  ClosSpec spec;
  spec.groups = 2;
  spec.hosts_per_group = 2;
  spec.nics = 4;
  spec.rail_leaves = true;
  spec.spines = 2;
  const Fabric fabric = *BuildClos(spec);
  const Workload workload = *MakeWorkload(
      "step:layers=4,hidden=512,heads=8,vocabulary=1000,sequence=256,tp=4,pp=2,dp=2,"
      "micro_batches=4,efficiency=0.01",
      fabric, 1, {});
  FlowOptions flow;
  flow.ack = Bytes(64);
  const double fluid = absl::ToDoubleMicroseconds(SimulateFlows(fabric, workload, flow)->end);
  const double packet = absl::ToDoubleMicroseconds(SimulatePackets(fabric, workload, {})->end);
  EXPECT_THAT(fluid, DoubleNear(packet, packet * 0.03));
}

}  // namespace
}  // namespace weft::topology
