#include "net/roce/interface_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>

#include <cstdlib>
#include <optional>
#include <thread>

#include "net/roce/counters.h"

namespace weft::net {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(InterfaceStatistics, OfNoInterfaceAreRefusedByName) {
  EXPECT_TRUE(absl::IsNotFound(ReadInterfaceStatistics("weft-none").status()));
  EXPECT_TRUE(absl::IsNotFound(ReadInterfaceStatistics("").status()));
  EXPECT_TRUE(absl::IsNotFound(ReadInterfaceStatistics("a-name-of-17-byte").status()));
  EXPECT_TRUE(ReadInterfaceStatistics("lo").ok());
}

// A veth's driver tells the index of its other end.
TEST(InterfaceStatistics, AreTheDrivers) {
  std::optional<absl::StatusOr<std::map<std::string, int64_t>>> statistics;
  unsigned peer = 0;
  std::thread([&] {
    if (unshare(CLONE_NEWNET) != 0) return;
    if (std::system("ip link add weft0 type veth peer name weft1 2> /dev/null") != 0) return;
    peer = if_nametoindex("weft1");
    statistics = ReadInterfaceStatistics("weft0");
  }).join();
  if (!statistics.has_value()) GTEST_SKIP() << "no network namespaces, or no ip command, here";
  ASSERT_TRUE(statistics->ok()) << statistics->status();
  EXPECT_EQ((**statistics)["peer_ifindex"], peer);
}

TEST(InterfaceStatistics, PausesAreSummedOverPriorities) {
  std::map<std::string, int64_t> counters;
  AddPauses({{"rx_prio0_pause", 1},
             {"rx_prio3_pause", 2},
             {"rx_prio3_pause_duration", 99},
             {"tx_prio3_pause", 4},
             {"rx_global_pause", 8}},
            &counters);
  EXPECT_THAT(counters, ElementsAre(Pair("pauses_received", 11), Pair("pauses_sent", 4)));
  counters.clear();
  AddPauses({{"rx_pfc_ena_frames_pri3", 1}, {"tx_pfc_ena_frames_pri7", 2}}, &counters);
  EXPECT_THAT(counters, ElementsAre(Pair("pauses_received", 1), Pair("pauses_sent", 2)));
  counters.clear();
  AddPauses({{"tx_priority_3_xoff.nic", 3}, {"port.rx_priority_0_xoff", 5}}, &counters);
  EXPECT_THAT(counters, ElementsAre(Pair("pauses_received", 5), Pair("pauses_sent", 3)));
  counters.clear();
  AddPauses({{"rx_prio8_pause", 1}, {"rx_packets", 7}}, &counters);
  EXPECT_THAT(counters, IsEmpty());
  EXPECT_NE(FindCounter("pauses_received"), nullptr);
  EXPECT_NE(FindCounter("pauses_sent"), nullptr);
}

}  // namespace
}  // namespace weft::net
