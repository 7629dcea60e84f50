#include "base/host_name.h"

#include <gtest/gtest.h>

#include "base/first_line.h"

namespace weft {
namespace {

TEST(HostName, IsTheKernels) { EXPECT_EQ(HostName(), FirstLine("/proc/sys/kernel/hostname")); }

}  // namespace
}  // namespace weft
