#include "net/roce/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "net/roce/counters.h"
#include "tests/net/roce/sys_folder.h"

namespace weft::net {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

TEST(RdmaDevices, AHostWithoutRdmaHasNone) {
  ScratchFolder root;
  auto devices = ReadRdmaDevices(root.path());
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_THAT(*devices, IsEmpty());
}

TEST(RdmaDevices, AreReadWholeFromSys) {
  ScratchFolder root;
  AddMlx5(root, 1);
  auto devices = ReadRdmaDevices(root.path());
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_THAT(*devices, SizeIs(1));
  const RdmaDevice& device = devices->front();
  EXPECT_EQ(device.name, "mlx5_1");
  EXPECT_EQ(device.firmware, "28.39.1002");
  EXPECT_EQ(device.board, "MT_0000000838");
  EXPECT_EQ(device.pci, "0000:11:00.0");
  EXPECT_EQ(device.numa, 1);
  EXPECT_THAT(device.verbs, ElementsAre("uverbs1"));
  ASSERT_THAT(device.ports, SizeIs(1));
  const RdmaPort& port = device.ports[0];
  EXPECT_TRUE(port.active());
  EXPECT_TRUE(port.ethernet);
  EXPECT_EQ(port.physical, "LinkUp");
  EXPECT_EQ(port.gbps, 400);
  ASSERT_TRUE(port.traffic_class.has_value());
  EXPECT_EQ(port.traffic_class->value, 106);
  EXPECT_EQ(port.counters.at("port_rcv_data"), 123456789);
  EXPECT_EQ(port.counters.at("out_of_sequence"), 0);
  ASSERT_THAT(port.gids, SizeIs(4));  // the fifth is not set
  EXPECT_TRUE(port.gids[0].link_local());
  EXPECT_FALSE(port.gids[0].roce_v2());
  EXPECT_TRUE(port.gids[3].roce_v2());
  EXPECT_TRUE(port.gids[3].ipv4());
  EXPECT_EQ(ShortGid(port.gids[3]), "10.1.1.1");
  EXPECT_EQ(ShortGid(port.gids[0]), port.gids[0].gid);
  ASSERT_THAT(device.interfaces, SizeIs(1));
  const NetInterface& interface = device.interfaces[0];
  EXPECT_EQ(interface.name, "ens1");
  EXPECT_EQ(interface.mtu, 9000);
  EXPECT_EQ(interface.ecn.notifies[3]->value, 1);
  EXPECT_EQ(interface.ecn.reacts[0]->value, 0);
  EXPECT_EQ(interface.ecn.parameters.at("min_time_between_cnps").value, 4);
}

TEST(RdmaDevices, ComeInTheOrderOfTheirNumbers) {
  ScratchFolder root;
  for (int index : {10, 2}) AddMlx5(root, index);
  auto devices = ReadRdmaDevices(root.path());
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_THAT(*devices, SizeIs(2));
  EXPECT_EQ((*devices)[0].name, "mlx5_2");
}

TEST(RdmaDevices, WhatIsMissingOrOddIsLeftOut) {
  ScratchFolder root;
  AddMlx5(root, 0);
  root.Write(PortFolder(0) + "rate", "fast\n");
  root.Write(PortFolder(0) + "state", "\n");
  root.Write(PortFolder(0) + "hw_counters/out_of_sequence", std::string(100000, '9'));
  root.Write("sys/class/infiniband/mlx5_0/tc/1/traffic_class", "none\n");
  auto devices = ReadRdmaDevices(root.path());
  ASSERT_TRUE(devices.ok()) << devices.status();
  const RdmaPort& port = devices->front().ports[0];
  EXPECT_EQ(port.gbps, 0);
  EXPECT_FALSE(port.active());
  EXPECT_FALSE(port.counters.contains("out_of_sequence"));
  EXPECT_FALSE(port.traffic_class.has_value());
}

// As mlx5 shows it after its start.
TEST(RdmaDevices, ATrafficClassThatNothingForcesIsNone) {
  for (const char* text : {"", "src_ip=10.1.0.1,dst_ip=10.1.0.0/16,tclass=96\n"}) {
    ScratchFolder root;
    AddMlx5(root, 0);
    root.Write("sys/class/infiniband/mlx5_0/tc/1/traffic_class", text);
    auto devices = ReadRdmaDevices(root.path());
    ASSERT_TRUE(devices.ok()) << devices.status();
    const RdmaPort& port = devices->front().ports[0];
    ASSERT_TRUE(port.traffic_class.has_value()) << text;
    EXPECT_EQ(port.traffic_class->value, kNoTrafficClass) << text;
  }
}

TEST(RdmaDevices, ASoftDeviceFindsItsInterface) {
  ScratchFolder root;
  root.Write("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
  root.Write("sys/class/infiniband/rxe0/parent", "eth0\n");
  root.Write("sys/class/net/eth0/mtu", "1500\n");
  auto devices = ReadRdmaDevices(root.path());
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_THAT(devices->front().interfaces, SizeIs(1));
  EXPECT_EQ(devices->front().interfaces[0].mtu, 1500);
  EXPECT_EQ(devices->front().pci, "");
}

// The kernel's: 1500 gives 1024, 4200 gives 4096 (seen with Soft-RoCE).
TEST(RoceMtu, LeavesRoomForTheHeaders) {
  EXPECT_EQ(RoceMtu(9000), 4096);
  EXPECT_EQ(RoceMtu(4200), 4096);
  EXPECT_EQ(RoceMtu(4192), 4096);
  EXPECT_EQ(RoceMtu(4191), 2048);
  EXPECT_EQ(RoceMtu(1500), 1024);
  EXPECT_EQ(RoceMtu(300), 0);
}

TEST(Counters, OnlyWhatTellsTroubleGrows) {
  EXPECT_THAT(
      Growth(
          {{"out_of_sequence", 3}, {"port_rcv_data", 1}, {"symbol_error", 7}},
          {{"out_of_sequence", 5}, {"port_rcv_data", 9}, {"symbol_error", 7}, {"link_downed", 1}}),
      ElementsAre(Pair("out_of_sequence", 2)));
}

TEST(Counters, EachIsKnownOnceAndSaysWhatToDo) {
  for (const CounterInfo& counter : KnownCounters()) {
    EXPECT_EQ(FindCounter(counter.name), &counter) << counter.name;
    EXPECT_FALSE(counter.meaning.empty() || counter.advice.empty()) << counter.name;
  }
}

}  // namespace
}  // namespace weft::net
