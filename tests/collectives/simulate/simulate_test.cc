#include "collectives/simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "topology/fabric/clos.h"
#include "topology/sim/flow/flow.h"
#include "topology/sim/packet/options.h"

namespace weft::collectives {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using topology::Fabric;
using topology::Workload;

constexpr double kRate = 50e9;           // bytes a second of 400 Gbit/s
constexpr double kWire = 4160.0 / 4096;  // bytes on the wire of one of payload

// One switch, links of 1 us.
Fabric Switch(int hosts) {
  topology::ClosSpec spec;
  spec.groups = 1;
  spec.hosts_per_group = hosts;
  spec.spines = 1;
  spec.leaf.delay = spec.spine.delay = absl::Microseconds(1);
  absl::StatusOr<Fabric> fabric = BuildClos(spec);
  EXPECT_TRUE(fabric.ok()) << fabric.status();
  return *std::move(fabric);
}

double Microseconds(const Fabric& fabric, absl::string_view algorithm, CollectiveKind kind, int n,
                    uint64_t count, uint64_t chunk) {
  SimulationPlacement placement{.endpoints = fabric.Endpoints()};
  placement.endpoints.resize(static_cast<size_t>(n));
  const CollectiveSpec spec{.kind = kind, .size = n, .count = count, .chunk = chunk};
  const Algorithm* found = FindAlgorithm(algorithm, kind);
  EXPECT_NE(found, nullptr);
  Workload workload;
  const absl::Status added = AddCollective(workload, *found, spec, placement, "test").status();
  EXPECT_TRUE(added.ok()) << added;
  absl::StatusOr<topology::SimulationResult> result = SimulateFlows(fabric, workload, {});
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->unfinished, 0);
  return absl::ToDoubleMicroseconds(result->end);
}

TEST(Simulate, EveryAlgorithmOfEveryKindRunsAndBeatsNoBound) {
  const Fabric fabric = Switch(8);
  for (const Algorithm* algorithm : Algorithms()) {
    for (int kind = 0; kind < static_cast<int>(CollectiveKind::kAllGatherV); ++kind) {
      const CollectiveKind which = static_cast<CollectiveKind>(kind);
      if (!algorithm->has(which)) continue;
      for (int n : {2, 5, 8}) {
        constexpr uint64_t kCount = 200'000;
        const double time = Microseconds(fabric, algorithm->name, which, n, kCount, 4096);
        // What some rank must at least send or receive.
        const bool all_reduce = which == CollectiveKind::kAllReduce;
        const bool one = which == CollectiveKind::kBroadcast || which == CollectiveKind::kReduce;
        const double bytes = 4.0 * kCount;
        const double least = all_reduce ? 2 * bytes * (n - 1) / n : one ? bytes : bytes * (n - 1);
        EXPECT_GE(time, least * kWire / kRate * 1e6) << algorithm->name << " " << ToString(which);
      }
    }
  }
}

TEST(Simulate, RingAllReduceTakesItsFormulasTime) {
  const Fabric fabric = Switch(8);
  const double alpha = 2 + 4160 / kRate * 1e6;
  for (int n : {2, 4, 8}) {
    // Parts of 64 packets, each in one piece: 2(n - 1) turns of a part and a message's latency.
    const uint64_t count = static_cast<uint64_t>(n) * 65536;
    const double bytes = 4.0 * static_cast<double>(count);
    const double formula = 2 * (n - 1) * (alpha + bytes / n * kWire / kRate * 1e6);
    EXPECT_THAT(Microseconds(fabric, "ring", CollectiveKind::kAllReduce, n, count, 1 << 20),
                DoubleNear(formula, formula * 0.01));
  }
}

TEST(Simulate, ChunksHideTheLatencyOfARing) {
  const Fabric fabric = Switch(8);
  constexpr uint64_t kCount = 8 * 65536;
  const double whole = Microseconds(fabric, "ring", CollectiveKind::kAllReduce, 8, kCount, 1 << 20);
  const double chunked = Microseconds(fabric, "ring", CollectiveKind::kAllReduce, 8, kCount, 8192);
  const double bytes = 2 * 7 * 4.0 * 65536 * kWire / kRate * 1e6;
  EXPECT_LT(chunked, whole);
  EXPECT_GE(chunked, bytes);
  EXPECT_LE(chunked, bytes * 1.06);  // a chunk and a latency at either end
}

TEST(Simulate, SmallSizesRankAlgorithmsByTurns) {
  const Fabric fabric = Switch(8);
  auto time = [&](const char* algorithm) {
    return Microseconds(fabric, algorithm, CollectiveKind::kAllReduce, 8, 64, 65536);
  };
  EXPECT_LT(time("oneshot"), time("direct"));
  EXPECT_LT(time("direct"), time("ring"));
}

TEST(Simulate, MemoryTimeComesOnTop) {
  const Fabric fabric = Switch(2);
  SimulationPlacement placement{.endpoints = fabric.Endpoints()};
  ScheduleBuilder first, second;
  first.Send(1, {Buffer::kInput, 0}, 1024);
  const uint32_t got = second.Receive(0, {Buffer::kScratch, 0}, 1024);
  second.Copy({Buffer::kOutput, 0}, {Buffer::kScratch, 0}, 1024, {got});
  const std::vector<RankSchedule> schedules{std::move(first).Finish(), std::move(second).Finish()};
  auto end = [&] {
    Workload workload;
    EXPECT_TRUE(AddSchedules(workload, schedules, placement, "test", {}).ok());
    return absl::ToDoubleMicroseconds(SimulateFlows(fabric, workload, {})->end);
  };
  const double without = end();
  placement.memory = Bandwidth::BytesPerSecond(4096e6);
  EXPECT_THAT(end() - without, DoubleNear(1, 1e-3));
}

// Software's part of a message: before it leaves for another host, and between ranks of one.
TEST(Simulate, MessagesTakeTheirLatencies) {
  const Fabric fabric = Switch(2);
  SimulationPlacement placement{.endpoints = fabric.Endpoints()};
  const CollectiveSpec spec{
      .kind = CollectiveKind::kBroadcast, .size = 2, .count = 1024, .chunk = 1024};
  auto end = [&] {
    Workload workload;
    EXPECT_TRUE(AddCollective(workload, kBinomial, spec, placement, "test").ok());
    return absl::ToDoubleMicroseconds(SimulateFlows(fabric, workload, {})->end);
  };
  const double across = end();
  placement.send_latency = absl::Microseconds(5);
  EXPECT_THAT(end() - across, DoubleNear(5, 1e-3));
  placement.endpoints[1] = placement.endpoints[0];
  EXPECT_THAT(end(), DoubleNear(0, 1e-3));
  placement.local_latency = absl::Microseconds(3);
  EXPECT_THAT(end(), DoubleNear(3, 1e-3));
  placement.local = Bandwidth::BytesPerSecond(4096e6);
  EXPECT_THAT(end(), DoubleNear(4, 1e-3));
}

// A scatter's root hands over seven messages one after the other; what a core does for another
// rank's messages waits as well where two ranks share it.
TEST(Simulate, MessagesTakeTheirCoresTimeOneAfterTheOther) {
  const Fabric fabric = Switch(8);
  auto time = [&](bool packets, absl::Duration message, int cores) {
    Workload workload;
    SimulationPlacement placement{.endpoints = fabric.Endpoints(), .message = message};
    std::vector<uint32_t> numbers;
    for (int c = 0; c < cores; ++c) numbers.push_back(workload.AddCore());
    for (int r = 0; r < 8; ++r) {
      placement.cores.push_back(numbers[static_cast<size_t>(r % cores)]);
    }
    const CollectiveSpec spec{.kind = CollectiveKind::kScatter, .size = 8, .count = 1};
    EXPECT_TRUE(AddCollective(workload, kDirect, spec, placement, "test").ok());
    const auto result = packets ? SimulatePackets(fabric, workload, {})
                                : SimulateFlows(fabric, workload, topology::FlowOptions());
    EXPECT_TRUE(result.ok()) << result.status();
    return absl::ToDoubleMicroseconds(result->end);
  };
  for (bool packets : {false, true}) {
    const double none = time(packets, absl::ZeroDuration(), 8);
    // Seven halves at the root, and one at the last that receives.
    EXPECT_NEAR(time(packets, absl::Microseconds(20), 8) - none, 8 * 10, 0.2) << packets;
    EXPECT_NEAR(time(packets, absl::Microseconds(20), 1) - none, 14 * 10, 3) << packets;
  }
}

// A message that is short enough is on its way while its receiver is busy.
TEST(Simulate, ShortMessagesDoNotWaitForTheirReceives) {
  const Fabric fabric = Switch(2);
  SimulationPlacement placement{.endpoints = fabric.Endpoints(),
                                .memory = Bandwidth::BytesPerSecond(4096e6)};
  ScheduleBuilder first, second;
  first.Send(1, {Buffer::kInput, 0}, 1024);
  const uint32_t busy = second.Copy({Buffer::kOutput, 0}, {Buffer::kInput, 0}, 16 << 10);
  second.Receive(0, {Buffer::kScratch, 0}, 1024, {busy});
  const std::vector<RankSchedule> schedules{std::move(first).Finish(), std::move(second).Finish()};
  auto end = [&] {
    Workload workload;
    EXPECT_TRUE(AddSchedules(workload, schedules, placement, "test", {}).ok());
    return absl::ToDoubleMicroseconds(SimulateFlows(fabric, workload, {})->end);
  };
  EXPECT_GT(end(), 17.9);  // 16 us of copying, and 2 us of cables behind it
  placement.eager = Bytes(4096);
  EXPECT_THAT(end(), DoubleNear(16, 1e-3));
  placement.eager = Bytes(4095);
  EXPECT_GT(end(), 17.9);
}

// Two messages go between the same ranks. The second one is ready at once, the first one when its
// sender or its receiver has copied for 16 us.
TEST(Simulate, MessagesBetweenTwoRanksLeaveInTheOrderOfTheSchedule) {
  const Fabric fabric = Switch(2);
  auto end = [&](bool sender_is_late, uint64_t first_length, Bytes eager) {
    constexpr uint64_t kLong = 128 << 10;
    ScheduleBuilder sends, receives;
    ScheduleBuilder& late = sender_is_late ? sends : receives;
    const uint32_t busy = late.Copy({Buffer::kOutput, 0}, {Buffer::kInput, 0}, 16 << 10);
    const uint32_t none = kNone;
    sends.Send(1, {Buffer::kInput, 0}, first_length, {sender_is_late ? busy : none});
    sends.Send(1, {Buffer::kInput, 0}, kLong);
    receives.Receive(0, {Buffer::kScratch, 0}, first_length, {sender_is_late ? none : busy});
    receives.Receive(0, {Buffer::kScratch, first_length}, kLong);
    const std::vector<RankSchedule> schedules{std::move(sends).Finish(),
                                              std::move(receives).Finish()};
    Workload workload;
    const SimulationPlacement placement{.endpoints = fabric.Endpoints(),
                                        .memory = Bandwidth::BytesPerSecond(4096e6),
                                        .eager = eager};
    EXPECT_TRUE(AddSchedules(workload, schedules, placement, "test", {}).ok());
    return absl::ToDoubleMicroseconds(SimulateFlows(fabric, workload, {})->end);
  };
  // The cables' 2 us, and 4 KiB and 512 KiB at 50 GB/s behind the copy.
  const double behind = 16 + 2 + (4096 + 524288) * kWire / kRate * 1e6;
  EXPECT_THAT(end(true, 1024, Bytes(0)), DoubleNear(behind, 0.2));
  EXPECT_THAT(end(false, 1024, Bytes(0)), DoubleNear(behind, 0.2));
  // A short message waits for its sender all the same, and the long one for both posts.
  EXPECT_THAT(end(true, 1024, Bytes(4096)), DoubleNear(behind, 0.2));
  EXPECT_THAT(end(false, 1024, Bytes(4096)), DoubleNear(behind - 4096 * kWire / kRate * 1e6, 0.2));
}

TEST(Simulate, SchedulesThatDoNotMeetAreRefused) {
  const Fabric fabric = Switch(2);
  const SimulationPlacement placement{.endpoints = fabric.Endpoints()};
  auto error = [&](ScheduleBuilder first, ScheduleBuilder second) {
    Workload workload;
    const std::vector<RankSchedule> schedules{std::move(first).Finish(),
                                              std::move(second).Finish()};
    return std::string(AddSchedules(workload, schedules, placement, "test", {}).status().message());
  };
  ScheduleBuilder sends, receives, nothing, shorter;
  sends.Send(1, {Buffer::kInput, 0}, 8);
  receives.Receive(0, {Buffer::kOutput, 0}, 8);
  shorter.Receive(0, {Buffer::kOutput, 0}, 7);
  EXPECT_THAT(error(sends, nothing),
              HasSubstr("rank 0 sends 1 messages to rank 1, which receives 0"));
  EXPECT_THAT(error(sends, shorter), HasSubstr("sends 8 elements"));
  EXPECT_EQ(error(sends, receives), "");
  ScheduleBuilder a, b;  // each receives before it sends
  const uint32_t at_a = a.Receive(1, {Buffer::kOutput, 0}, 8);
  a.Send(1, {Buffer::kInput, 0}, 8, {at_a});
  const uint32_t at_b = b.Receive(0, {Buffer::kOutput, 0}, 8);
  b.Send(0, {Buffer::kInput, 0}, 8, {at_b});
  EXPECT_THAT(error(a, b), HasSubstr("wait for each other"));
  Workload workload;
  EXPECT_THAT(std::string(AddSchedules(workload, {}, placement, "test", {}).status().message()),
              HasSubstr("0 ranks on 2 endpoints"));
}

}  // namespace
}  // namespace weft::collectives
