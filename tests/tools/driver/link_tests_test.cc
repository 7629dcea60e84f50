#include "tools/driver/link_tests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::driver {
namespace {

using testing::ElementsAre;

const LinkTest kTcp{.transport = "tcp"};
LinkTest Verbs(const std::string& device) { return {.transport = "verbs", .device = device}; }

TEST(LinkTestsTest, EachDeviceOfAHostIsTestedWhereTheTransportIsLeftToUs) {
  const std::vector<std::string> host = {"mlx5_0:1", "mlx5_1:1", "mlx5_bond_0:2"};
  for (const char* transport : {"auto", "shm"}) {
    EXPECT_THAT(LinkTestsOf(transport, {host, host}, 1),
                ElementsAre(kTcp, Verbs("=mlx5_0:1"), Verbs("=mlx5_1:1"), Verbs("=mlx5_bond_0:2")));
  }
  EXPECT_THAT(LinkTestsOf("verbs", {host, host}, 0),
              ElementsAre(Verbs("=mlx5_0:1"), Verbs("=mlx5_1:1"), Verbs("=mlx5_bond_0:2")));
}

TEST(LinkTestsTest, HostsWithOtherDevicesMeetOnAsManyAsBothHave) {
  const std::vector<std::vector<std::string>> ports = {{"mlx5_0:1", "mlx5_1:1"}, {"bnxt_re0:1"}};
  EXPECT_THAT(LinkTestsOf("auto", ports, 0), ElementsAre(kTcp, Verbs("=mlx5_0:1")));
  EXPECT_THAT(LinkTestsOf("auto", ports, 1), ElementsAre(kTcp, Verbs("=bnxt_re0:1")));
}

TEST(LinkTestsTest, WithoutDevicesOnlyWhatWasAskedForIsTested) {
  EXPECT_THAT(LinkTestsOf("auto", {{}, {"mlx5_0:1"}}, 0), ElementsAre(kTcp));
  EXPECT_THAT(LinkTestsOf("verbs", {{}, {}}, 0), ElementsAre(Verbs("")));
  EXPECT_THAT(LinkTestsOf("tcp", {{"mlx5_0:1"}, {"mlx5_0:1"}}, 0), ElementsAre(kTcp));
  EXPECT_THAT(LinkTestsOf("multipath", {{"mlx5_0:1"}, {"mlx5_0:1"}}, 0),
              ElementsAre(LinkTest{.transport = "multipath"}));
}

}  // namespace
}  // namespace weft::driver
