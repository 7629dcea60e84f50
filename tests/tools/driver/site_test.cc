// The options of weft-driver that say which site's scheduler is told.
#include "tools/driver/site.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace weft::driver {
namespace {

using ::testing::HasSubstr;

TEST(SiteTest, AServiceAccountWithoutKubernetesIsRefused) {
  for (const std::string name : {"none", "slurm"}) {
    const absl::Status refused = FindSite(name, "/run/account", "").status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("--service-account /run/account has no effect with --site " + name));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("give --site kubernetes"));
  }
  EXPECT_TRUE(FindSite("none", "", "").ok());
}

}  // namespace
}  // namespace weft::driver
