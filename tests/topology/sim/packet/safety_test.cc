// Whatever links do: every transfer completes; and the same seed gives the same run.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "base/random.h"
#include "tests/topology/sim/packet/fabrics.h"
#include "topology/sim/packet/event_wheel.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

Workload Permutation(int hosts, int64_t bytes) {
  Workload workload;
  for (int i = 0; i < hosts; ++i) workload.Add(Send(i, (i + hosts / 2) % hosts, bytes));
  return workload;
}

constexpr TransportKind kTransports[] = {TransportKind::kGoBackN, TransportKind::kSelective,
                                         TransportKind::kCredit};

TEST(Faults, EveryTransferCompletesWhateverLinksDo) {
  Fabric fabric = LeafSpine(2, 4, 2);
  Workload workload = Permutation(8, 300'000);
  for (TransportKind transport : kTransports) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      PacketOptions options;
      options.seed = seed;
      options.transport = transport;
      options.load_balance = static_cast<LoadBalance>(seed % 3);
      if (transport == TransportKind::kGoBackN) options.load_balance = LoadBalance::kEcmp;
      options.trimming = seed % 2 == 0;
      options.port_buffer = Bytes(60'000);
      LinkNoise noise;
      noise.loss = noise.corruption = noise.duplication = noise.reordering = 0.005;
      options.noise.push_back(noise);
      LinkId link = *fabric.FindLink(*fabric.Find("leaf0"), *fabric.Find("spine0"));
      bool reroute = seed % 4 < 2;
      options.faults.push_back({absl::Microseconds(5), link, LinkFault::Kind::kDown, {}, reroute});
      options.faults.push_back({absl::Microseconds(90), link, LinkFault::Kind::kUp, {}, reroute});
      SimulationResult result = Simulated(fabric, workload, options);
      EXPECT_EQ(result.unfinished, 0)
          << "seed " << seed << ", transport " << static_cast<int>(transport);
      EXPECT_GT(Dropped(result), 0);
    }
  }
}

TEST(Faults, PausesAndFailuresTogetherLeaveNothingStuck) {
  Fabric fabric = LeafSpine(2, 4, 2);
  Workload workload;
  for (int i = 1; i < 8; ++i) workload.Add(Send(i, 0, 500'000));
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    PacketOptions options;
    options.seed = seed;
    options.pfc.enabled = true;
    options.pfc.xoff = Bytes(30'000);
    Random random(seed);
    LinkId link = *fabric.FindLink(*fabric.Find("leaf1"), *fabric.Find("spine1"));
    auto when = static_cast<int64_t>(random.Below(40));
    options.faults.push_back({absl::Microseconds(when), link, LinkFault::Kind::kDown, {}, true});
    options.faults.push_back({absl::Microseconds(when + 30), link, LinkFault::Kind::kUp, {}, true});
    SimulationResult result = Simulated(fabric, workload, options);
    EXPECT_EQ(result.unfinished, 0) << "seed " << seed;
  }
}

TEST(Faults, ASlowerLinkSlowsItsFlow) {
  Fabric fabric = Star({100, 100}, absl::Microseconds(1));
  Workload workload;
  workload.Add(Send(0, 1, 4096 * 1000));
  PacketOptions options;
  LinkId link = *fabric.FindLink(NodeId(0), NodeId(2));
  options.faults.push_back({absl::ZeroDuration(), link, LinkFault::Kind::kBandwidth,
                            Bandwidth::GigabitsPerSecond(25), true});
  SimulationResult result = Simulated(fabric, workload, options);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(result.end), 1000 * kFrame * 320e-6 + 2.33, 1);
}

TEST(Faults, ALinkThatIsDownFromTheStartLosesNothing) {
  Fabric fabric = Star({100, 100}, absl::Microseconds(1));
  Workload workload;
  workload.Add(Send(0, 1, 4096 * 10));
  PacketOptions options;
  LinkId link = *fabric.FindLink(NodeId(0), NodeId(2));
  options.faults.push_back({absl::ZeroDuration(), link, LinkFault::Kind::kDown, {}, true});
  options.faults.push_back({absl::Microseconds(5), link, LinkFault::Kind::kUp, {}, true});
  SimulationResult result = Simulated(fabric, workload, options);
  EXPECT_EQ(Dropped(result), 0);
  EXPECT_EQ(result.operations[0].picoseconds, 7'000'000 + 11 * kFrame * 80);
}

// Switches that hash onto a dead link go on to do so when another link fails.
TEST(Faults, WithoutReroutingALinkStaysInUseWhateverOthersDo) {
  Fabric fabric = LeafSpine(2, 1, 2);
  Workload workload;
  workload.Add(Send(0, 1, 4096 * 1000));
  PacketOptions options;
  options.limit = absl::Milliseconds(5);
  SimulationResult whole = Simulated(fabric, workload, options);
  bool is_first = LinkBetween(fabric, whole, "leaf0", "spine0").packets >= 1000;
  auto uplink = [&](const char* spine) {
    return *fabric.FindLink(*fabric.Find("leaf0"), *fabric.Find(spine));
  };
  LinkId used = uplink(is_first ? "spine0" : "spine1");
  LinkId unused = uplink(is_first ? "spine1" : "spine0");
  options.faults.push_back({absl::Microseconds(10), used, LinkFault::Kind::kDown, {}, false});
  options.faults.push_back({absl::Microseconds(20), unused, LinkFault::Kind::kDown, {}, true});
  options.faults.push_back({absl::Microseconds(30), unused, LinkFault::Kind::kUp, {}, true});
  EXPECT_EQ(Simulated(fabric, workload, options).unfinished, 1);
}

std::vector<int64_t> Fingerprint(const SimulationResult& result) {
  std::vector<int64_t> all = {result.events, result.link_traversals, result.retransmissions};
  for (const OperationResult& one : result.operations) all.push_back(one.picoseconds);
  for (const LinkResult& one : result.links) {
    all.insert(all.end(), {one.packets, one.queue_max.count(), one.marked, one.dropped});
  }
  return all;
}

TEST(Determinism, TheSameSeedGivesTheSameRunAndAnotherSeedAnother) {
  Fabric fabric = LeafSpine(4, 4, 4);
  Workload workload = Permutation(16, 400'000);
  for (TransportKind transport : kTransports) {
    PacketOptions options;
    options.transport = transport;
    options.load_balance =
        transport == TransportKind::kGoBackN ? LoadBalance::kEcmp : LoadBalance::kSpray;
    LinkNoise noise;
    noise.loss = 0.002;
    options.noise.push_back(noise);
    options.seed = 3;
    auto first = Fingerprint(Simulated(fabric, workload, options));
    EXPECT_EQ(first, Fingerprint(Simulated(fabric, workload, options)));
    options.seed = 4;
    EXPECT_NE(first, Fingerprint(Simulated(fabric, workload, options)));
  }
}

TEST(LoadBalance, TheEmptiestQueueStaysShorterThanARandomOne) {
  Fabric fabric = LeafSpine(2, 16, 16);
  Workload workload = Permutation(32, 1'000'000);
  int64_t most[3] = {};
  for (int balance = 0; balance < 3; ++balance) {
    PacketOptions options;
    options.transport = TransportKind::kSelective;
    options.load_balance = static_cast<LoadBalance>(balance);
    SimulationResult result = Simulated(fabric, workload, options);
    for (int spine = 0; spine < 16; ++spine) {
      std::string name = absl::StrCat("spine", spine);
      most[balance] = std::max(
          most[balance], LinkBetween(fabric, result, "leaf0", name.c_str()).queue_max.count());
    }
  }
  EXPECT_LT(most[2], most[1]);
  EXPECT_LT(most[1], most[0]);
}

// A burst of 400 Gb/s that one uplink drops most of leaves it empty, and in use, soon after.
TEST(LoadBalance, WhatAQueueDropsDoesNotCountAsWaiting) {
  FabricBuilder builder;
  NodeId fast = AddNode(builder, "fast", NodeKind::kHost);
  NodeId slow = AddNode(builder, "slow", NodeKind::kHost);
  NodeId near = AddNode(builder, "near", NodeKind::kHost);
  NodeId far = AddNode(builder, "far", NodeKind::kHost);
  NodeId leaf = AddNode(builder, "leaf", NodeKind::kSwitch);
  NodeId left = AddNode(builder, "left", NodeKind::kSwitch);
  NodeId right = AddNode(builder, "right", NodeKind::kSwitch);
  NodeId last = AddNode(builder, "last", NodeKind::kSwitch);
  Connect(builder, fast, leaf, 400, absl::Microseconds(1), 0);
  Connect(builder, slow, leaf, 100, absl::Microseconds(1), 0);
  Connect(builder, leaf, left, 100, absl::Microseconds(1));
  Connect(builder, leaf, right, 100, absl::Microseconds(1));
  Connect(builder, left, last, 100, absl::Microseconds(1));
  Connect(builder, right, last, 100, absl::Microseconds(1));
  Connect(builder, near, left, 100, absl::Microseconds(1), 0);
  Connect(builder, far, last, 100, absl::Microseconds(1), 0);
  Fabric fabric = *std::move(builder).Build();
  Workload workload;
  workload.Add(Send(0, 2, 4096 * 200));  // all by the left
  workload.Add(Send(1, 3, 4096 * 60, absl::Microseconds(25)));
  PacketOptions options;
  options.transport = TransportKind::kSelective;
  options.load_balance = LoadBalance::kAdaptive;
  options.window = Bytes(1000 * kFrame);
  options.port_buffer = Bytes(10 * kFrame);
  options.timeout = absl::Milliseconds(1);
  options.limit = absl::Microseconds(60);  // before what was lost is sent again
  SimulationResult result = Simulated(fabric, workload, options);
  EXPECT_GT(LinkBetween(fabric, result, "leaf", "left").dropped, 100);
  EXPECT_GT(LinkBetween(fabric, result, "left", "last").packets, 15);
}

TEST(Nic, UsesBothPortsOfADualTorNic) {
  Fabric fabric = LeafSpine(2, 4, 4, /*ports=*/2);
  Workload workload = Permutation(8, 400'000);
  for (LoadBalance balance : {LoadBalance::kEcmp, LoadBalance::kSpray}) {
    PacketOptions options;
    options.transport = TransportKind::kSelective;
    options.load_balance = balance;
    SimulationResult result = Simulated(fabric, workload, options);
    EXPECT_EQ(result.unfinished, 0);
    int64_t first = 0, second = 0;
    for (NodeId host : fabric.hosts()) {
      absl::Span<const LinkId> ports = fabric.Ports({host, 0});
      ASSERT_EQ(ports.size(), 2);
      first += result.links[ports[0].index()].packets;
      second += result.links[ports[1].index()].packets;
    }
    EXPECT_GT(first, 0);
    EXPECT_GT(second, 0);
  }
}

TEST(Nic, GetsCreditsForAllItsPorts) {
  Fabric fabric = LeafSpine(2, 4, 4, /*ports=*/2);
  Workload workload;
  for (int i = 4; i < 8; ++i) workload.Add(Send(i, 0, 4096 * 1000));
  PacketOptions options;
  options.transport = TransportKind::kCredit;
  options.load_balance = LoadBalance::kSpray;
  SimulationResult result = Simulated(fabric, workload, options);
  EXPECT_EQ(result.unfinished, 0);
  Bandwidth all;
  for (LinkId port : fabric.Ports({NodeId(0), 0})) {
    all = Bandwidth::BytesPerSecond(all.bytes_per_second() +
                                    fabric.link(port).bandwidth.bytes_per_second());
  }
  EXPECT_LT(result.end, 1.2 * (Bytes(4000 * kFrame) / all));
}

// For a while neither port has a way to the target.
TEST(Nic, GoesOnOverItsPortsOnceThereIsAWayAgain) {
  FabricBuilder builder;
  NodeId source = AddNode(builder, "source", NodeKind::kHost);
  NodeId target = AddNode(builder, "target", NodeKind::kHost);
  NodeId spine = AddNode(builder, "spine", NodeKind::kSwitch);
  LinkId uplinks[2];
  for (LinkId& uplink : uplinks) {
    NodeId leaf = AddNode(builder, absl::StrCat("leaf", &uplink - uplinks), NodeKind::kSwitch);
    Connect(builder, source, leaf, 100, absl::Microseconds(1), 0);
    uplink = Connect(builder, leaf, spine, 100, absl::Microseconds(1));
  }
  Connect(builder, target, spine, 100, absl::Microseconds(1), 0);
  Fabric fabric = *std::move(builder).Build();
  Workload workload;
  workload.Add(Send(0, 1, 4096 * 100));
  for (TransportKind transport : kTransports) {
    PacketOptions options;
    options.transport = transport;
    for (LinkId uplink : uplinks) {
      options.faults.push_back({absl::Microseconds(10), uplink, LinkFault::Kind::kDown, {}, true});
    }
    for (LinkId uplink : uplinks) {
      options.faults.push_back({absl::Milliseconds(3), uplink, LinkFault::Kind::kUp, {}, true});
    }
    EXPECT_EQ(Simulated(fabric, workload, options).unfinished, 0) << static_cast<int>(transport);
  }
}

TEST(Nic, SendsOverItsOwnPortsInWhateverOrderTheyAreListed) {
  FabricBuilder builder;
  NodeId hosts[2], leaves[2];
  for (int i = 0; i < 2; ++i) hosts[i] = AddNode(builder, absl::StrCat("h", i), NodeKind::kHost);
  for (int i = 0; i < 2; ++i) {
    leaves[i] = AddNode(builder, absl::StrCat("leaf", i), NodeKind::kSwitch);
  }
  for (NodeId leaf : leaves) {
    for (int nic = 0; nic < 2; ++nic) {
      for (NodeId host : hosts) Connect(builder, host, leaf, 400, absl::Microseconds(1), nic);
    }
  }
  auto fabric = std::move(builder).Build();
  ASSERT_TRUE(fabric.ok()) << fabric.status();
  Workload workload;
  workload.Add(Send(0, 1, 400'000));
  PacketOptions options;
  options.transport = TransportKind::kSelective;
  options.load_balance = LoadBalance::kSpray;
  SimulationResult result = Simulated(*fabric, workload, options);
  EXPECT_EQ(result.unfinished, 0);
  for (NodeId host : hosts) {
    for (LinkId port : fabric->Ports({host, 1})) {
      EXPECT_EQ(result.links[port.index()].packets, 0) << fabric->Name(port);
    }
  }
  for (LinkId port : fabric->Ports({hosts[0], 0})) {
    EXPECT_GT(result.links[port.index()].packets, 0) << fabric->Name(port);
  }
}

// What a switch cuts the data off is at least as long as Ethernet's shortest frame.
TEST(Trimming, LeavesAFrame) {
  Fabric fabric = Star(std::vector<double>(9, 100), absl::Microseconds(1));
  Workload workload;
  for (int i = 1; i < 9; ++i) workload.Add(Send(i, 0, 4096 * 50));
  PacketOptions options;
  options.transport = TransportKind::kSelective;
  options.trimming = true;
  options.header = Bytes(0);
  options.port_buffer = Bytes(20'000);
  SimulationResult result = Simulated(fabric, workload, options);
  EXPECT_EQ(result.unfinished, 0);
  const LinkResult& link = LinkBetween(fabric, result, "hub", "h0");
  EXPECT_GT(link.dropped, 0);
  EXPECT_GE(link.bytes.count(), 4096 * (link.packets - link.dropped) + 64 * link.dropped);
}

TEST(Credit, KeepsTheQueueOfTheLastHopToTheFirstWindows) {
  constexpr int kSenders = 16;
  Fabric fabric = Star(std::vector<double>(kSenders + 1, 100), absl::Microseconds(1));
  Workload workload;
  for (int i = 1; i <= kSenders; ++i) workload.Add(Send(i, 0, 4096 * 400));
  PacketOptions options;
  options.transport = TransportKind::kCredit;
  options.window = Bytes(4 * kFrame);
  SimulationResult result = Simulated(fabric, workload, options);
  EXPECT_EQ(result.unfinished, 0);
  EXPECT_EQ(result.retransmissions, 0);
  EXPECT_LE(LinkBetween(fabric, result, "hub", "h0").queue_max, Bytes((kSenders * 4 + 1) * kFrame));
}

TEST(Errors, AnUnreachableTargetIsNamed) {
  Fabric fabric = Star({100, 100}, absl::Microseconds(1));
  fabric.SetUp(*fabric.FindLink(NodeId(1), NodeId(2)), false);
  Workload workload;
  workload.Add(Send(0, 1, 1000));
  auto result = SimulatePackets(fabric, workload, PacketOptions());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(result.status().message()).find("no way from h0 to h1"), std::string::npos)
      << result.status();
}

TEST(Errors, AnOptionOutOfItsRangeIsNamed) {
  Fabric fabric = Star({100, 100}, absl::Microseconds(1));
  Workload workload;
  workload.Add(Send(0, 1, 1000));
  auto error = [&](void (*change)(PacketOptions&)) {
    PacketOptions options;
    change(options);
    return std::string(SimulatePackets(fabric, workload, options).status().message());
  };
  using Options = PacketOptions;
  EXPECT_THAT(error([](Options& o) { o.payload = Bytes(INT64_MAX); }), HasSubstr("payload is "));
  EXPECT_THAT(error([](Options& o) { o.header = Bytes(62'000); }), HasSubstr("0 to 61439"));
  EXPECT_THAT(error([](Options& o) { o.pfc.dynamic_shift = 64; }), HasSubstr("64; it must be"));
  EXPECT_THAT(error([](Options& o) { o.pfc.dynamic_shift = -1; }), HasSubstr("-1; it must be"));
  EXPECT_THAT(error([](Options& o) { o.ecn.probability_max = 2; }), HasSubstr("it must be 0 to 1"));
  EXPECT_THAT(error([](Options& o) { o.reordering = -3; }), HasSubstr("it must be at least 0"));
}

struct WheelCase {
  int width_bits, bucket_bits;
  uint32_t slots;
  uint64_t span, step;  // picoseconds: how far ahead, and in multiples of what
};

class EventWheelOrder : public testing::TestWithParam<WheelCase> {};

TEST_P(EventWheelOrder, GivesEventsInOrderOfTimeThenSlotHoweverFarAhead) {
  const WheelCase& shape = GetParam();
  packet::EventWheel wheel(shape.width_bits, shape.bucket_bits);
  Random random(5);
  std::set<packet::Event> pending;
  auto schedule = [&](uint32_t slot, int64_t now) {
    uint64_t ahead = random.Below(shape.span / shape.step) * shape.step;
    packet::Event event{now + static_cast<int64_t>(ahead), slot};
    wheel.Schedule(slot, event.time);
    pending.insert(event);
  };
  for (uint32_t slot = 0; slot < shape.slots; ++slot) schedule(slot, 0);
  for (int i = 0; i < 50'000; ++i) {
    if (!wheel.HasNext()) {
      ASSERT_TRUE(wheel.Open());
    }
    packet::Event event = wheel.Take();
    ASSERT_EQ(event.time, pending.begin()->time);
    ASSERT_EQ(event.slot, pending.begin()->slot);
    pending.erase(pending.begin());
    schedule(event.slot, event.time);
  }
}

// Few to a bucket; hundreds; hundreds at one time; nearly all in the bucket that is open.
INSTANTIATE_TEST_SUITE_P(Shapes, EventWheelOrder,
                         testing::Values(WheelCase{4, 6, 200, 3'000, 1},
                                         WheelCase{10, 10, 5'000, 30'000, 1},
                                         WheelCase{10, 10, 100'000, 50'000, 400},
                                         WheelCase{12, 6, 300, 2'000, 1}));

}  // namespace
}  // namespace weft::topology
