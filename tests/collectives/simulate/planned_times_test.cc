// What the planner says that a collective takes (planner/cost.h) against its schedules' time on a
// simulated fabric, where neither cores nor latencies count.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/planner/cost.h"
#include "collectives/planner/fabric_network.h"
#include "collectives/simulate/simulate.h"
#include "topology/fabric/clos.h"
#include "topology/sim/flow/flow.h"

namespace weft::collectives {
namespace {

using topology::Fabric;

constexpr uint64_t kPart = 65536;        // elements of 4 bytes
constexpr double kWire = 4160.0 / 4096;  // bytes on the wire of one of payload

// Hosts with a NIC of 100 Mbit/s under some switches; the cable of each to the others carries as
// much as `cable` NICs.
struct Layout {
  int switches = 0, hosts = 0, cable = 0;
};

std::string ToString(const Layout& layout) {
  return absl::StrCat(layout.switches, " switches with ", layout.hosts, " hosts, cables of ",
                      layout.cable, " NICs");
}

class PlannedTimes {
 public:
  explicit PlannedTimes(const Layout& layout) : fabric_(Build(layout)) {
    const auto network = planner::NetworkOf(fabric_, fabric_.hosts());
    EXPECT_TRUE(network.ok()) << network.status();
    std::vector<RankPlace> places = network->places;
    for (size_t r = 0; r < places.size(); ++r) places[r].host = absl::StrCat(r);
    place_ = std::make_shared<const GroupPlace>(places);
    EXPECT_EQ(place_->switches.size(), static_cast<size_t>(layout.switches));
  }

  CollectiveSpec Spec(CollectiveKind kind, uint64_t chunk) const {
    const int n = static_cast<int>(place_->host.size());
    return {.kind = kind, .size = n, .count = kPart, .chunk = chunk, .place = place_};
  }

  static double Planned(const Algorithm& algorithm, const CollectiveSpec& spec) {
    planner::CostTable table;
    table.cores = spec.size;
    return static_cast<double>(planner::TimeOf(algorithm.cost(spec), spec, 4, table)) / 1e9;
  }

  double Simulated(const Algorithm& algorithm, const CollectiveSpec& spec) const {
    topology::Workload workload;
    const absl::Status added =
        AddCollective(workload, algorithm, spec, {.endpoints = fabric_.Endpoints()}, "test")
            .status();
    EXPECT_TRUE(added.ok()) << added;
    const auto result = SimulateFlows(fabric_, workload, {});
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->unfinished, 0);
    return absl::ToDoubleSeconds(result->end) / kWire;
  }

 private:
  static Fabric Build(const Layout& layout) {
    topology::ClosSpec spec;
    spec.groups = layout.switches;
    spec.hosts_per_group = layout.hosts;
    spec.spines = 1;
    spec.leaf.bandwidth = Bandwidth::GigabitsPerSecond(0.1);
    spec.spine.bandwidth = Bandwidth::GigabitsPerSecond(0.1 * layout.cable);
    spec.leaf.delay = spec.spine.delay = absl::Nanoseconds(100);
    absl::StatusOr<Fabric> fabric = BuildClos(spec);
    EXPECT_TRUE(fabric.ok()) << fabric.status();
    return *std::move(fabric);
  }

  const Fabric fabric_;
  std::shared_ptr<const GroupPlace> place_;
};

// Gathered or reduced by three levels. What a rank passes on comes while it sends its own: chunks
// leave a switch in the order in which they come, so that none waits behind one that has further to
// come.
TEST(PlannedTimesTest, ThreeLevelsKeepTheLinksOfAnyNumberOfSwitchesFull) {
  for (const Layout& layout :
       {Layout{2, 2, 2}, {2, 4, 4}, {2, 4, 1}, {3, 2, 2}, {3, 4, 2}, {4, 4, 1}}) {
    const PlannedTimes times(layout);
    for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
      const CollectiveSpec spec = times.Spec(kind, kPart / 16);
      const double planned = PlannedTimes::Planned(kThreeLevel, spec);
      EXPECT_NEAR(times.Simulated(kThreeLevel, spec), planned, 0.03 * planned)
          << ToString(kind) << " " << ToString(layout);
    }
  }
}

// With a host under each switch three levels are a ring.
TEST(PlannedTimesTest, ThreeLevelsWithOneHostASwitchSendTheirOwnPartsFirst) {
  const PlannedTimes times({3, 1, 1});
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    const CollectiveSpec spec = times.Spec(kind, kPart);
    EXPECT_NEAR(times.Simulated(kThreeLevel, spec), times.Simulated(kRing, spec), 1e-3)
        << ToString(kind);
  }
}

// The last chunk of all is passed on when nothing else is left to send, over cables that the hosts
// under a switch share.
TEST(PlannedTimesTest, APartOfOneChunkIsPassedOnAtTheEnd) {
  for (const Layout& layout : {Layout{2, 2, 2}, {2, 4, 4}, {2, 4, 1}, {3, 2, 2}, {3, 4, 2}}) {
    const PlannedTimes times(layout);
    const CollectiveSpec spec = times.Spec(CollectiveKind::kAllGather, kPart);
    const double planned = PlannedTimes::Planned(kThreeLevel, spec);
    EXPECT_NEAR(times.Simulated(kThreeLevel, spec), planned, 0.1 * planned) << ToString(layout);
    EXPECT_GT(planned, 1.04 * PlannedTimes::Planned(kRing, spec)) << ToString(layout);
  }
}

}  // namespace
}  // namespace weft::collectives
