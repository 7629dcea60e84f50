// What a link's queue pairs carry, each by its speed, on UDP source ports and in traffic classes of
// their own, and what is told of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "tests/net/roce/fake_firmware.h"
#include "tests/net/verbs/world.h"
#include "topology/ecmp/roce.h"

namespace weft::net {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(VerbsStriping, AFasterRailCarriesMoreByItsSpeed) {
  WorldOptions options = QuickWorld();
  options.settings.push_back("verbs.piece_min=64KiB");
  options.settings.push_back("verbs.piece_max=64KiB");
  options.step = absl::Microseconds(100);
  World world(options);
  ASSERT_TRUE(world.Connect());
  world.fabric.SetRate(World::Device(0, 0), 3e9);
  world.fabric.SetRate(World::Device(0, 1), 1e9);
  std::vector<uint8_t> from(32 << 20), to(from.size());
  auto source = world.a->transport().Register(from.data(), from.size());
  auto target = world.b->transport().Register(to.data(), to.size());
  Request send, receive;
  for (int round = 0; round < 4; ++round) {
    const uint64_t before[2] = {world.fabric.bytes_from(World::Device(0, 0)),
                                world.fabric.bytes_from(World::Device(0, 1))};
    const absl::Time start = world.now();
    ASSERT_EQ(world.a->out->PostSend({1, 1}, source->view(), &send), Posted::kAccepted);
    ASSERT_EQ(world.b->accepted->PostReceive({1, 1}, {target->view()}, &receive),
              Posted::kAccepted);
    ASSERT_TRUE(world.Until([&] { return send.done() && receive.done(); }));
    ASSERT_TRUE(receive.status().ok()) << receive.status();
    if (round == 0) continue;  // learns
    const double fast =
        static_cast<double>(world.fabric.bytes_from(World::Device(0, 0)) - before[0]);
    const double slow =
        static_cast<double>(world.fabric.bytes_from(World::Device(0, 1)) - before[1]);
    EXPECT_NEAR(fast / (fast + slow), 0.75, 0.05);
    const double rate = (fast + slow) / absl::ToDoubleSeconds(world.now() - start);
    EXPECT_GT(rate, 0.9 * 4e9) << "of the sum of both";
  }
}

TEST(VerbsPaths, EveryQueuePairHasAPortOfItsOwnAndAReplacementAnother) {
  WorldOptions options = QuickWorld(1);
  options.settings.push_back("verbs.queue_pairs=4");
  World world(options);
  std::map<uint32_t, uint32_t> labels;  // by queue pair
  bool fail = false;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    if (transfer.from == World::Device(0, 0)) labels[transfer.queue_pair] = transfer.flow_label;
    ScriptedFate fate;
    fate.fails = std::exchange(fail, false);
    return fate;
  });
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world), "");
  ASSERT_EQ(labels.size(), 4u);
  std::set<uint16_t> ports;
  for (const auto& [pair, label] : labels) ports.insert(topology::RoceSourcePort(label));
  EXPECT_EQ(ports.size(), 4u);
  const std::string described = world.a->out->Describe();
  for (uint16_t port : ports) {
    EXPECT_THAT(described, HasSubstr(absl::StrCat("source port ", port)));
  }
  fail = true;
  for (uint64_t round = 2; round < 30 && labels.size() < 5; ++round) {
    ASSERT_EQ(Exchange(world, round), "");
  }
  ASSERT_EQ(labels.size(), 5u);
  for (const auto& [pair, label] : labels) ports.insert(topology::RoceSourcePort(label));
  EXPECT_EQ(ports.size(), 5u);
}

TEST(VerbsPaths, InfinibandPortsThatNeedGlobalRouteHeadersGetThem) {
  for (const bool needs_global : {false, true}) {
    WorldOptions options = QuickWorld();
    options.tweak = [&](int, std::vector<ScriptedDeviceOptions>* devices) {
      for (ScriptedDeviceOptions& one : *devices) {
        one.ethernet = false, one.needs_global = needs_global;
      }
    };
    World world(options);
    ASSERT_TRUE(world.Connect());
    EXPECT_EQ(Exchange(world), "") << needs_global;
  }
}

TEST(VerbsPaths, DevicesAreToldTheirPortsWhereThatIsAskedFor) {
  for (const bool asked : {false, true}) {
    WorldOptions options = QuickWorld(1);
    if (asked) options.settings.push_back("verbs.source_port_by=mlx5dv");
    World world(options);
    std::set<uint16_t> told, by_label;
    world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
      told.insert(transfer.udp_source_port);
      by_label.insert(topology::RoceSourcePort(transfer.flow_label));
      return ScriptedFate{};
    });
    ASSERT_TRUE(world.Connect());
    ASSERT_EQ(Exchange(world), "");
    EXPECT_EQ(told, asked ? by_label : std::set<uint16_t>{0});
  }
}

// Each host has a device of its own that takes it, and a second that has no PCI address.
TEST(VerbsFirmware, AdaptiveRetransmissionIsSetWhereThatIsAskedFor) {
  for (const std::string asked : {"leave", "on", "off"}) {
    FakeFirmware firmware;
    firmware.Set("0000:10:00.0", false);
    firmware.Set("0000:11:00.0", true);
    WorldOptions options = QuickWorld();
    options.settings.push_back("verbs.adaptive_retransmission=" + asked);
    options.tweak = [](int host, std::vector<ScriptedDeviceOptions>* devices) {
      devices->front().pci_address = absl::StrCat("0000:1", host, ":00.0");
      SetLogLevel(LogLevel::kWarn);  // a world is silent
    };
    static std::string warnings;
    warnings.clear();
    SetLogSink([](LogLevel level, absl::string_view text) {
      if (level == LogLevel::kWarn) absl::StrAppend(&warnings, text, "\n");
    });
    World world(options);
    SetLogSink(nullptr);
    ASSERT_TRUE(world.a->created().ok());
    EXPECT_EQ(firmware.Get("0000:10:00.0"), asked == "on" ? "0x1" : "0x0") << asked;
    EXPECT_EQ(firmware.Get("0000:11:00.0"), asked == "off" ? "0x0" : "0x1") << asked;
    EXPECT_EQ(firmware.calls().empty(), asked == "leave");
    if (asked == "leave") {
      EXPECT_EQ(warnings, "");
    } else {
      EXPECT_THAT(warnings, HasSubstr(absl::StrCat("host1_rail1 is not turned ", asked,
                                                   " (verbs.adaptive_retransmission): it is no PCI "
                                                   "device")));
      EXPECT_THAT(warnings, Not(HasSubstr("rail0")));
    }
    ASSERT_TRUE(world.Connect());
    EXPECT_EQ(Exchange(world), "");
  }
}

TEST(VerbsFaults, ALinkTellsWhatEachOfItsLanesCarriedAndSentAgain) {
  World world(QuickWorld());
  int left = 1;
  std::set<uint32_t> labels;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    ScriptedFate fate;
    if (!absl::StartsWith(transfer.from, "host0")) return fate;
    labels.insert(transfer.flow_label);
    fate.fails = transfer.length > 4000 && left-- > 0, fate.arrives = false;
    return fate;
  });
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world), "");
  for (int turn = 0; turn < 20; ++turn) world.Turn();  // nothing is under way any more
  const std::vector<LaneReport> lanes = world.a->out->Lanes();
  ASSERT_EQ(lanes.size(), 2u);
  uint64_t bytes = 0, again = 0;
  for (const LaneReport& lane : lanes) {
    EXPECT_THAT(lane.name,
                testing::AllOf(HasSubstr("host0_rail"), HasSubstr(" -> ::ffff:10.0.1.")));
    EXPECT_EQ(labels.count(topology::RoceFlowLabel(static_cast<uint16_t>(lane.source_port))), 1u);
    ASSERT_TRUE(lane.rtt.has_value());
    bytes += lane.bytes;
    again += *lane.retransmissions;
  }
  uint64_t left_the_host = 0;
  for (int rail : {0, 1}) left_the_host += world.fabric.bytes_from(World::Device(0, rail));
  EXPECT_EQ(bytes, left_the_host);
  EXPECT_GT(again, 0u);
}

TEST(VerbsFaults, ReceiversSendInATrafficClassOfTheirOwn) {
  WorldOptions options = QuickWorld();
  options.settings.insert(options.settings.end(),
                          {"verbs.traffic_class=106", "verbs.clear_to_send_traffic_class=184"});
  World world(options);
  std::set<int> data, clear_to_sends;
  world.fabric.set_on_transfer([&](const ScriptedTransfer& transfer) {
    (absl::StartsWith(transfer.from, "host0") ? data : clear_to_sends)
        .insert(transfer.traffic_class);
    return ScriptedFate{};
  });
  ASSERT_TRUE(world.Connect());
  ASSERT_EQ(Exchange(world), "");
  EXPECT_EQ(data, std::set<int>{106});
  EXPECT_EQ(clear_to_sends, std::set<int>{184});
}

}  // namespace
}  // namespace weft::net
