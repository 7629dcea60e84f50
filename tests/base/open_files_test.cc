#include "base/open_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

namespace weft {
namespace {

TEST(OpenFiles, RaisesTheSoftLimitToTheHardOne) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < 100) GTEST_SKIP() << "the hard limit is " << before.rlim_max;
  rlimit few = before;
  few.rlim_cur = 99;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_EQ(OpenFilesLimit(), 99);
  const int64_t most = static_cast<int64_t>(std::min<rlim_t>(before.rlim_max, 1 << 30));
  EXPECT_EQ(RaiseOpenFilesLimit(), most);
  EXPECT_EQ(OpenFilesLimit(), most);
  rlimit after{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  EXPECT_EQ(after.rlim_max, before.rlim_max);
  RestoreOpenFilesLimit(99);
  EXPECT_EQ(OpenFilesLimit(), 99);
  RestoreOpenFilesLimit(100);  // never higher
  EXPECT_EQ(OpenFilesLimit(), 99);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace weft
