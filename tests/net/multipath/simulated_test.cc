// The protocol as a transport of the packet simulator.
#include "net/multipath/simulated.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/status.h"
#include "topology/fabric/faults.h"
#include "topology/fabric/load.h"
#include "topology/sim/workloads/registry.h"

namespace weft::net::multipath {
namespace {

using topology::Fabric;
using topology::PacketOptions;
using topology::SimulationResult;
using topology::Workload;

struct Simulated {
  Fabric fabric;
  Workload workload;
  SimulationResult result;
};

Simulated Simulate(const std::string& fabric, const std::string& workload,
                   const std::string& controller, PolicyKind policy, PacketOptions packet = {},
                   SimulatedOptions options = {}) {
  auto loaded = topology::LoadFabric(fabric);
  WEFT_CHECK(loaded.ok(), loaded.status());
  auto made = topology::MakeWorkload(workload, *loaded, packet.seed, {});
  WEFT_CHECK(made.ok(), made.status());
  options.controller = *ParseController(controller);
  options.policy = policy;
  packet.make_transports = SimulatedTransports(options);
  auto result = SimulatePackets(*loaded, *made, packet);
  WEFT_CHECK(result.ok(), result.status());
  return {*std::move(loaded), *std::move(made), *std::move(result)};
}

double Longest(const SimulationResult& result) {
  double longest = 0;
  for (const auto& one : result.operations) {
    longest = std::max(longest, absl::ToDoubleMicroseconds(one.acknowledged - one.started));
  }
  return longest;
}

const char kFabric[] = "leaf-spine:leaves=4,hosts_per_leaf=8,spines=8,delay=1us";

// 1 MB at 400 Gb/s and its headers take 20.3 us; the way there and back of four cables 8.3 us.
TEST(SimulatedMultipathTest, OneTransferTakesWhatTheWireTakes) {
  Simulated run = Simulate("leaf-spine:leaves=2,hosts_per_leaf=1,spines=1,delay=1us",
                           "incast:fan_in=1,target=1,bytes=1MB", "fixed", PolicyKind::kSingle);
  double wire = (1e6 + 245 * 64) / 50e3;             // us
  double way = 8 + 3 * 4160 / 50e3 + 4 * 64 / 50e3;  // the last packet, and its acknowledgement
  EXPECT_NEAR(Longest(run.result), wire + way, 0.2);
  EXPECT_EQ(run.result.retransmissions, 0);
}

class SimulatedControllerTest : public testing::TestWithParam<ControllerKind> {};

// Every controller brings every transfer home over a network that loses, doubles and reorders.
TEST_P(SimulatedControllerTest, EverythingArrivesOverANoisyNetwork) {
  PacketOptions packet;
  packet.ecn.enabled = true;
  packet.noise.push_back(
      {.loss = 0.002, .corruption = 0.001, .duplication = 0.002, .reordering = 0.01});
  packet.limit = absl::Seconds(2);
  Simulated run = Simulate(kFabric, "permutation:bytes=300KB", std::string(ToString(GetParam())),
                           PolicyKind::kReps, packet);
  EXPECT_EQ(run.result.unfinished, 0);
  EXPECT_GT(run.result.retransmissions, 0);
  for (const auto& one : run.result.operations) {
    ASSERT_NE(one.acknowledged, absl::InfiniteDuration());
    ASSERT_GE(one.acknowledged, one.ended);
  }
}

INSTANTIATE_TEST_SUITE_P(All, SimulatedControllerTest, testing::ValuesIn(AllControllers()),
                         [](const auto& info) { return std::string(ToString(info.param)); });

TEST(SimulatedMultipathTest, TheSameSeedGivesTheSameTimes) {
  auto times = [] {
    Simulated run = Simulate(kFabric, "permutation:bytes=300KB", "nscc", PolicyKind::kReps);
    std::vector<int64_t> all;
    for (const auto& one : run.result.operations) all.push_back(one.picoseconds);
    return all;
  };
  EXPECT_EQ(times(), times());
}

// A sender that waits for its pacer alone is asked again though nothing arrives: at a window of a
// small part of a packet nothing is in flight in between.
TEST(SimulatedMultipathTest, APacedSenderGoesOnByItself) {
  Simulated run = Simulate("leaf-spine:leaves=1,hosts_per_leaf=33,spines=1,delay=1us",
                           "incast:fan_in=32,bytes=40KB", "swift:window_start=0.0001,ai=0.01",
                           PolicyKind::kSingle);
  EXPECT_EQ(run.result.unfinished, 0);
}

// Credits: once the first windows have passed, the last hop holds next to nothing.
TEST(SimulatedMultipathTest, CreditsEmptyTheLastQueue) {
  auto mean = [](const char* controller) {
    Simulated run = Simulate("leaf-spine:leaves=1,hosts_per_leaf=17,spines=1,delay=1us",
                             "incast:fan_in=16,bytes=4MB", controller, PolicyKind::kSingle);
    EXPECT_EQ(run.result.unfinished, 0);
    double most = 0;
    for (const auto& link : run.result.links) most = std::max(most, link.queue_mean);
    return most;
  };
  EXPECT_LT(mean("credit"), 0.15 * mean("fixed"));
}

// A link that dies unannounced: whoever used it goes on over the others.
TEST(SimulatedMultipathTest, TransfersOutliveADeadLink) {
  PacketOptions packet;
  auto fabric = topology::LoadFabric(kFabric);
  ASSERT_TRUE(fabric.ok());
  auto links = topology::CablesNamed("leaf0>spine0", *fabric);
  ASSERT_TRUE(links.ok());
  for (LinkId link : *links) {
    packet.faults.push_back({.at = absl::Microseconds(10), .link = link, .reroute = false});
  }
  ASSERT_FALSE(packet.faults.empty());
  packet.limit = absl::Milliseconds(50);
  for (PolicyKind policy : AllPolicies()) {
    Simulated run = Simulate(kFabric, "permutation:bytes=2MB", "nscc", policy, packet);
    EXPECT_EQ(run.result.unfinished, 0) << ToString(policy);
    EXPECT_LT(Longest(run.result), 5'000) << ToString(policy);
  }
}

// The same controllers under the simulator's own transports.
TEST(SimulatedControllersTest, DcqcnHoldsAGoBackNIncastBelowLineRate) {
  auto fabric = topology::LoadFabric("leaf-spine:leaves=1,hosts_per_leaf=17,spines=1,delay=1us");
  ASSERT_TRUE(fabric.ok());
  auto mean = [&](bool controlled) {
    PacketOptions packet;
    packet.ecn.enabled = true;
    packet.pfc.enabled = true;
    packet.switch_buffer = Bytes(64'000'000);
    if (controlled) packet.make_congestion = SimulatedControllers(*ParseController("dcqcn"), 1);
    auto workload = topology::MakeWorkload("incast:fan_in=16,bytes=8MB", *fabric, 1, {});
    auto result = SimulatePackets(*fabric, *workload, packet);
    EXPECT_EQ(result->unfinished, 0);
    double paused = 0;
    for (const auto& link : result->links) paused += absl::ToDoubleMicroseconds(link.paused);
    return paused;
  };
  EXPECT_LT(mean(true), 0.5 * mean(false));
}

// htsim's UEC, whose mean is 0.92 to 0.94 of its maximum here, treats the senders of a large incast
// about alike.
TEST(SimulatedControllersTest, NsccSharesALargeIncastOfSprayedPackets) {
  auto fabric = topology::LoadFabric("leaf-spine:leaves=4,hosts_per_leaf=32,spines=32,delay=1us");
  ASSERT_TRUE(fabric.ok());
  auto workload = topology::MakeWorkload("incast:fan_in=96,bytes=500KB", *fabric, 1, {});
  ASSERT_TRUE(workload.ok()) << workload.status();
  PacketOptions packet;
  packet.transport = topology::TransportKind::kSelective;
  packet.make_congestion = SimulatedControllers(*ParseController("nscc"), 3);
  packet.load_balance = topology::LoadBalance::kSpray;
  packet.trimming = packet.ecn.enabled = true;
  packet.ecn.min_round_trips = 0.2;
  packet.ecn.max_round_trips = 0.8;
  packet.ecn.probability_max = 1;
  auto result = SimulatePackets(*fabric, *workload, packet);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->unfinished, 0);
  double sum = 0;
  for (const auto& one : result->operations) {
    sum += absl::ToDoubleMicroseconds(one.acknowledged - one.started);
  }
  EXPECT_GT(sum / 96, 0.86 * Longest(*result));
}

// On every wire: a window of a packet and a half lets one packet out at a time.
TEST(SimulatedControllersTest, APacketLeavesOnlyIfAllOfItFitsTheWindow) {
  auto window = [](const char* controller, int64_t round_trip) {
    const topology::FlowFacts facts{.round_trip = round_trip,
                                    .bytes_per_picosecond = 0.05,
                                    .packet_bytes = 4000,
                                    .trimming = false};
    return SimulatedControllers(*ParseController(controller), 1)(facts)->window();
  };
  // The simulator sends while less than this is in flight.
  EXPECT_EQ(window("nscc", 8'000'000), 600'000 - 4000 + 1);
  EXPECT_EQ(window("nscc", 80'000), 6000 - 4000 + 1);
  EXPECT_EQ(window("nscc:window_max=0.5", 80'000), 1);
}

}  // namespace
}  // namespace weft::net::multipath
