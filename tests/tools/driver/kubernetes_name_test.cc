#include <gtest/gtest.h>

#include <string>

#include "tools/driver/kubernetes.h"

namespace weft::driver {
namespace {

TEST(IsDnsSubdomain, TakesNamesOfPodsAndNodes) {
  for (const char* name : {"a", "7", "a-b", "a--b", "ip-10-0-0-1.ec2.internal", "0.0"}) {
    EXPECT_TRUE(IsDnsSubdomain(name)) << name;
  }
  EXPECT_TRUE(IsDnsSubdomain(std::string(253, 'a')));
}

TEST(IsDnsSubdomain, RefusesWhatWouldBeAnotherPathOfTheApi) {
  for (const char* name : {"", ".", "..", "a..b", ".a", "a.", "-a", "a-", "a.-b", "a-.b", "A",
                           "a_b", "a/b", "a%2fb", "a?b", "a b", "a\n", "\xC3\xA4"}) {
    EXPECT_FALSE(IsDnsSubdomain(name)) << name;
  }
  EXPECT_FALSE(IsDnsSubdomain(std::string(254, 'a')));
}

}  // namespace
}  // namespace weft::driver
