#include "topology/host/affinity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/scratch_folder.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(CpuSetText, JoinsRuns) {
  EXPECT_EQ(ToString(CpuSet{}), "");
  EXPECT_EQ(ToString(CpuSet{5}), "5");
  EXPECT_EQ(ToString(CpuSet{0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

TEST(CpuQuota, ReadsCpuMax) {
  EXPECT_EQ(internal::ParseCpuMax("150000 100000\n"), 1.5);
  EXPECT_EQ(internal::ParseCpuMax("200000 100000"), 2.0);
  EXPECT_EQ(internal::ParseCpuMax("max 100000\n"), std::nullopt);
  EXPECT_EQ(internal::ParseCpuMax(""), std::nullopt);
  EXPECT_EQ(internal::ParseCpuMax("-1 100000"), std::nullopt);
  EXPECT_EQ(internal::ParseCpuMax("100 0"), std::nullopt);
}

TEST(CpuQuota, IsTheTightestUpToTheRootOfEitherVersion) {
  ScratchFolder mount;
  mount.Write("slice/cpu.max", "300000 100000\n");
  mount.Write("slice/job/cpu.max", "max 100000\n");
  EXPECT_EQ(internal::ControlGroupQuota("0::/slice/job\n", mount.path()), 3);
  EXPECT_EQ(internal::ControlGroupQuota("0::/\n", mount.path()), std::nullopt);
  mount.Write("cpu/cpu.cfs_quota_us", "-1\n");
  mount.Write("cpu/cpu.cfs_period_us", "100000\n");
  mount.Write("cpu/docker/cpu.cfs_quota_us", "150000\n");
  mount.Write("cpu/docker/cpu.cfs_period_us", "100000\n");
  const char kVersion1[] = "9:cpuset:/docker/a\n4:cpu,cpuacct:/docker/a\n1:name=systemd:/a\n";
  EXPECT_EQ(internal::ControlGroupQuota(kVersion1, mount.path()), 1.5);
  EXPECT_EQ(internal::ControlGroupQuota("4:cpuacct,cpu:/\n", mount.path()), std::nullopt);
  EXPECT_EQ(internal::ControlGroupQuota(absl::StrCat(kVersion1, "0::/slice"), mount.path()), 1.5);
  EXPECT_EQ(internal::ControlGroupQuota("", mount.path()), std::nullopt);
}

TEST(AllowedCores, IsAtLeastOneAndAtMostTheMask) {
  CpuSet allowed = *AllowedCpus();
  EXPECT_FALSE(allowed.empty());
  EXPECT_TRUE(std::is_sorted(allowed.begin(), allowed.end()));
  EXPECT_GE(AllowedCores(), 1);
  EXPECT_LE(AllowedCores(), static_cast<int>(allowed.size()));
}

TEST(JobCores, AreTheLaunchersAlsoForARankThatIsBoundToOne) {
  ASSERT_EQ(setenv("WEFT_JOB_CORES", "6", 1), 0);
  std::thread([] {
    ASSERT_TRUE(BindThread({AllowedCpus()->front()}).ok());
    EXPECT_EQ(AllowedCores(), 1);
    EXPECT_EQ(JobCores(), 6);
  }).join();
  unsetenv("WEFT_JOB_CORES");
}

TEST(JobCores, AreTheAllowedOnesWithoutALauncher) {
  for (const char* value : {"", "0", "-2", "many"}) {
    ASSERT_EQ(setenv("WEFT_JOB_CORES", value, 1), 0);
    EXPECT_EQ(JobCores(), AllowedCores()) << value;
  }
  unsetenv("WEFT_JOB_CORES");
  EXPECT_EQ(JobCores(), AllowedCores());
}

TEST(JobCores, AreThoseOfTheNodeUnderSlurmAlsoForARankThatIsBoundToOne) {
  const int all = AllowedCores();
  ASSERT_EQ(setenv("SLURM_CPUS_ON_NODE", std::to_string(all).c_str(), 1), 0);
  std::thread([all] {
    ASSERT_TRUE(BindThread({AllowedCpus()->front()}).ok());
    EXPECT_EQ(AllowedCores(), 1);
    EXPECT_EQ(JobCores(), all);
  }).join();
  ASSERT_EQ(setenv("SLURM_CPUS_ON_NODE", "5000", 1), 0);  // more than the host has
  EXPECT_LE(JobCores(), sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_GE(JobCores(), all);
  ASSERT_EQ(setenv("WEFT_JOB_CORES", "6", 1), 0);
  EXPECT_EQ(JobCores(), 6);
  unsetenv("WEFT_JOB_CORES");
  ASSERT_EQ(setenv("SLURM_CPUS_ON_NODE", "0", 1), 0);
  EXPECT_EQ(JobCores(), all);
  unsetenv("SLURM_CPUS_ON_NODE");
}

// Binding is done in threads of its own, so that the test program keeps its mask.
TEST(BindThread, HoldsTheThreadAndThoseItStarts) {
  CpuSet one = {AllowedCpus()->back()};
  std::thread([&] {
    ASSERT_TRUE(BindThread(one).ok());
    EXPECT_EQ(*AllowedCpus(), one);
    EXPECT_EQ(std::async(std::launch::async, [] { return *AllowedCpus(); }).get(), one);
  }).join();
}

TEST(BindThread, RefusesWhatIsNotThere) {
  absl::Status status = BindThread({1 << 20});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no CPU 1048576"));
  EXPECT_TRUE(absl::IsInvalidArgument(BindThread({-1})));
  status = BindThread({});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("bind to the CPUs"));
}

}  // namespace
}  // namespace weft
