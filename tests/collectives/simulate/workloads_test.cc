// The collectives as workloads by name: the algorithms' own schedules against the textbooks'
// formulas, run at flow level on fabrics where nothing collides.
#include "collectives/simulate/workloads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "topology/fabric/clos.h"
#include "topology/sim/flow/flow.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::Ge;
using ::testing::HasSubstr;
using topology::Fabric;
using topology::Workload;

constexpr double kRate = 50e9;                   // bytes a second of 400 Gbit/s
constexpr double kBeta = 4160.0 / 4096 / kRate;  // seconds a byte, header included
// Two links of 1 us under one switch, and a packet that is stored there.
constexpr double kAlpha = 2e-6 + 4160 / kRate;
constexpr double kS = 64 << 20;

Fabric Switch(int hosts, int nics = 1) {
  topology::ClosSpec spec;
  spec.groups = 1;
  spec.hosts_per_group = hosts;
  spec.nics = nics;
  spec.rail_leaves = nics > 1;
  spec.spines = 1;
  spec.leaf.delay = spec.spine.delay = absl::Microseconds(1);
  return *BuildClos(spec);
}

absl::StatusOr<Workload> Named(const std::string& text, const Fabric& fabric) {
  return topology::MakeWorkload(text, fabric, 1, CollectiveWorkloads());
}

double Seconds(const std::string& text, const Fabric& fabric) {
  const absl::StatusOr<Workload> workload = Named(text, fabric);
  EXPECT_TRUE(workload.ok()) << workload.status();
  const absl::StatusOr<topology::SimulationResult> result = SimulateFlows(fabric, *workload, {});
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->unfinished, 0);
  return absl::ToDoubleSeconds(result->end);
}

void ExpectSeconds(const std::string& text, const Fabric& fabric, double formula) {
  EXPECT_THAT(Seconds(text, fabric), DoubleNear(formula, formula * 0.01)) << text;
}

TEST(CollectiveWorkloads, RingTakesItsFormulasTime) {
  for (int n : {2, 8, 32}) {
    const double one = (n - 1) * kAlpha + (n - 1.0) / n * kS * kBeta;
    const Fabric fabric = Switch(n);
    const std::string whole = ":algorithm=ring,bytes=64MiB,chunk=64MiB";
    ExpectSeconds("all_reduce" + whole, fabric, 2 * one);
    ExpectSeconds("all_gather" + whole, fabric, one);
    ExpectSeconds("reduce_scatter" + whole, fabric, one);
  }
}

// The shorthand against the schedule: a count that does not divide by the ranks has none.
TEST(CollectiveWorkloads, ARingInOneOperationTakesTheTimeOfItsSchedule) {
  for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter"}) {
    for (int n : {2, 3, 7, 16}) {
      const Fabric fabric = Switch(n);
      const int64_t bytes = int64_t{4} * n * 5000;
      auto text = [&](const char* more) {
        return absl::StrCat(kind, ":algorithm=ring,bytes=", bytes, more);
      };
      EXPECT_EQ(Named(text(""), fabric)->rings(), 1) << kind << " " << n;
      // Memory that takes a nanosecond in all keeps the schedule.
      EXPECT_EQ(Named(text(",memory=1000000Gbps"), fabric)->rings(), 0);
      const double written_out = Seconds(text(",memory=1000000Gbps"), fabric);
      EXPECT_THAT(Seconds(text(""), fabric), DoubleNear(written_out, written_out * 0.005))
          << kind << " " << n;
    }
  }
}

// An owner reduces one contribution after the other, in the order of ranks; results leave at once.
TEST(CollectiveWorkloads, DirectTakesItsFormulasTime) {
  for (int n : {2, 8, 32}) {
    ExpectSeconds("all_reduce:algorithm=direct,bytes=64MiB,chunk=64MiB", Switch(n),
                  n * kAlpha + 2 * (n - 1.0) / n * kS * kBeta);
  }
}

TEST(CollectiveWorkloads, DoublingTakesItsFormulasTime) {
  for (int n : {2, 8, 32}) {
    const double rounds = std::log2(n);
    ExpectSeconds("all_reduce:algorithm=halving_doubling,bytes=64MiB,chunk=64MiB", Switch(n),
                  2 * rounds * kAlpha + 2 * (n - 1.0) / n * kS * kBeta);
    ExpectSeconds("all_reduce:algorithm=recursive_doubling,bytes=64MiB,chunk=64MiB", Switch(n),
                  rounds * (kAlpha + kS * kBeta));
  }
}

// Hosts of 8 NICs on 8 rails: inside, every part is read from its owner at 300 GB/s.
TEST(CollectiveWorkloads, HierarchicalIsBoundByItsRails) {
  const double g = 8, m = 4;
  const double across = 2 * (m - 1) / m * (kS / g) * kBeta;
  const double time = Seconds("all_reduce:algorithm=hierarchical,bytes=64MiB", Switch(4, 8));
  EXPECT_THAT(time, Ge(across));
  EXPECT_LT(time, across * 1.25 + 2 * kS / 300e9);
  EXPECT_LT(time, Seconds("all_reduce:algorithm=ring,bytes=64MiB", Switch(4, 8)));
}

// A latency that occupies nobody is paid once a hop; the last rank then gets a chunk a chunk's
// time.
TEST(CollectiveWorkloads, ChainBroadcastIsAPipelineOfItsChunks) {
  for (int n : {2, 4, 16}) {
    for (double chunks : {1, 4, 64, 512}) {
      ExpectSeconds(absl::StrCat("broadcast:algorithm=chain,bytes=64MiB,chunk=",
                                 static_cast<int64_t>(kS / chunks)),
                    Switch(n), (chunks + n - 2) * kS * kBeta / chunks + (n - 1) * kAlpha);
    }
  }
}

// Round the hosts' ring go all rounds at once: none waits for another's last turn.
TEST(CollectiveWorkloads, RoundsOfAHierarchicalAllReduceOverlap) {
  for (const char* algorithm : {"hierarchical", "ring"}) {
    const double time = Seconds(
        absl::StrCat("all_reduce:bytes=64MiB,chunk=1MiB,algorithm=", algorithm), Switch(16));
    const double bytes = 2 * 15 / 16.0 * kS * kBeta;
    EXPECT_GE(time, bytes) << algorithm;
    EXPECT_LE(time, bytes * 1.1) << algorithm;
  }
}

TEST(CollectiveWorkloads, TwoTreesApproachTwiceTheBytes) {
  for (int n : {8, 15, 32}) {
    const double bandwidth = 2 * kS * kBeta;
    const double time = Seconds("all_reduce:algorithm=tree,bytes=64MiB,chunk=128KiB", Switch(n));
    EXPECT_THAT(time, Ge(2 * (n - 1.0) / n * kS * kBeta));
    // Filling and draining: some chunks and latencies a level, up and down. What goes up and what
    // comes down between two ranks leaves in one order, so that links are not always full.
    const double levels = 2 * std::ceil(std::log2(n));
    EXPECT_LE(time, bandwidth * 1.15 + levels * (kAlpha + 4 * 131072 * kBeta)) << n;
  }
}

TEST(CollectiveWorkloads, SmallAllReducesRankByTurns) {
  const Fabric fabric = Switch(16);
  auto time = [&](const char* algorithm) {
    return Seconds(absl::StrCat("all_reduce:bytes=64,algorithm=", algorithm), fabric);
  };
  EXPECT_LT(time("oneshot"), time("recursive_doubling"));
  EXPECT_LT(time("recursive_doubling"), time("halving_doubling"));
  EXPECT_LT(time("halving_doubling"), time("ring"));
}

TEST(CollectiveWorkloads, EveryKindRunsWithEveryAlgorithmThatItNames) {
  const Fabric fabric = Switch(3, 2);
  for (const topology::WorkloadKind& kind : CollectiveWorkloads()) {
    const std::string choices = kind.parameters[0].choices;
    EXPECT_THAT(choices, HasSubstr("auto|")) << kind.name;
    for (absl::string_view algorithm : absl::StrSplit(choices, '|')) {
      const std::string text =
          absl::StrCat(kind.name, ":bytes=100KB,repeat=2,algorithm=", algorithm);
      EXPECT_GT(Seconds(text, fabric), 0) << text;
    }
  }
}

TEST(CollectiveWorkloads, TheChoiceOfThePlannerGrowsWithTheSize) {
  auto chosen = [](const char* bytes) {
    const Workload workload = *Named(absl::StrCat("all_reduce:bytes=", bytes), Switch(16));
    return workload.group(1);
  };
  EXPECT_NE(chosen("64"), chosen("256MiB"));
}

TEST(CollectiveWorkloads, ErrorsNameTheKeyOrValueAndWhatWouldBeRight) {
  auto error = [](const std::string& text) {
    return std::string(Named(text, Switch(4)).status().message());
  };
  EXPECT_THAT(error("all_reduce:algorithm=chain"),
              AllOf(HasSubstr("algorithm=chain: wanted is one of auto, "), HasSubstr("ring")));
  EXPECT_THAT(error("broadcast:root=4"), HasSubstr("root=4: there are 4 ranks"));
  EXPECT_THAT(error("all_reduce:ranks=9"), HasSubstr("the fabric has 4 NICs"));
  EXPECT_THAT(error("all_redcue"), HasSubstr("nearest: all_reduce"));
}

}  // namespace
}  // namespace weft::collectives
