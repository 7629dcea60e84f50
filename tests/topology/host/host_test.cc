#include "topology/host/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Host Synthetic(const char* description) {
  absl::StatusOr<Host> host = Host::FromSynthetic(description);
  EXPECT_TRUE(host.ok()) << host.status();
  return *host;
}

std::vector<CpuSet> Slices(const Host& host, int count) {
  std::vector<CpuSet> slices;
  for (int i = 0; i < count; ++i) slices.push_back(*host.Slice(i, count));
  return slices;
}

TEST(Host, CountsWhatADescriptionHas) {
  Host host = Synthetic("pack:2 numa:1 core:8 pu:2");
  EXPECT_EQ(host.packages(), 2);
  EXPECT_EQ(host.numa_nodes(), 2);
  EXPECT_THAT(host.cores(), SizeIs(16));
  EXPECT_THAT(host.cpus(), SizeIs(32));
  EXPECT_EQ(host.cores()[9].package, 1);
  EXPECT_EQ(host.cores()[9].numa_node, 1);
  EXPECT_THAT(host.cores()[9].cpus, ElementsAre(18, 19));
  EXPECT_EQ(host.Describe(), "2 packages, 2 NUMA nodes, 16 cores, 32 CPUs (0-31)");
}

TEST(Host, SeveralNumaNodesInAPackage) {
  Host host = Synthetic("pack:2 numa:2 core:2 pu:1");
  EXPECT_EQ(host.numa_nodes(), 4);
  EXPECT_EQ(host.cores()[3].package, 0);
  EXPECT_EQ(host.cores()[3].numa_node, 1);
}

TEST(Host, RefusesWhatIsNoDescription) {
  absl::StatusOr<Host> host = Host::FromSynthetic("two packages");
  EXPECT_TRUE(absl::IsInvalidArgument(host.status()));
  EXPECT_THAT(std::string(host.status().message()), HasSubstr("two packages"));
}

TEST(Slice, TwoOfTwoPackagesIsOnePackageEach) {
  Host host = Synthetic("pack:2 numa:1 core:8 pu:2");
  EXPECT_EQ(ToString(*host.Slice(0, 2)), "0-15");
  EXPECT_EQ(ToString(*host.Slice(1, 2)), "16-31");
}

TEST(Slice, KeepsHyperthreadsOfACoreTogetherWhateverTheirNumbers) {
  // As Linux numbers them: the second hyperthreads come after all first ones.
  Host host = Synthetic("pack:1 numa:1 core:4 pu:2(indexes=0,4,1,5,2,6,3,7)");
  EXPECT_THAT(Slices(host, 2), ElementsAre(CpuSet{0, 1, 4, 5}, CpuSet{2, 3, 6, 7}));
  EXPECT_THAT(Slices(host, 4), ElementsAre(CpuSet{0, 4}, CpuSet{1, 5}, CpuSet{2, 6}, CpuSet{3, 7}));
}

TEST(Slice, PartitionsTheCpusEvenly) {
  Host host = Synthetic("pack:2 numa:1 core:5 pu:1");
  for (int count = 1; count <= 10; ++count) {
    std::map<int, int> uses;
    size_t smallest = 100;
    size_t largest = 0;
    for (const CpuSet& slice : Slices(host, count)) {
      smallest = std::min(smallest, slice.size());
      largest = std::max(largest, slice.size());
      for (int cpu : slice) ++uses[cpu];
    }
    EXPECT_THAT(uses, SizeIs(10)) << count;
    for (const auto& [cpu, used] : uses) EXPECT_EQ(used, 1) << "CPU " << cpu << " of " << count;
    EXPECT_LE(largest - smallest, 1u) << count;
  }
}

TEST(Slice, DividesCoresOnceProcessesOutnumberThem) {
  Host host = Synthetic("pack:1 numa:1 core:2 pu:2");
  EXPECT_THAT(Slices(host, 4), ElementsAre(CpuSet{0}, CpuSet{1}, CpuSet{2}, CpuSet{3}));
}

TEST(Slice, SharesCpusOnceProcessesOutnumberThem) {
  Host host = Synthetic("pack:1 numa:1 core:2 pu:1");
  EXPECT_THAT(Slices(host, 4), ElementsAre(CpuSet{0}, CpuSet{0}, CpuSet{1}, CpuSet{1}));
  EXPECT_THAT(Slices(host, 3), ElementsAre(CpuSet{0}, CpuSet{0}, CpuSet{1}));
}

TEST(Slice, RefusesAnIndexOutsideTheCount) {
  Host host = Synthetic("pack:1 numa:1 core:2 pu:1");
  EXPECT_TRUE(absl::IsInvalidArgument(host.Slice(2, 2).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(host.Slice(-1, 2).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(host.Slice(0, 0).status()));
}

TEST(Discover, ShowsExactlyTheAllowedCpus) {
  absl::StatusOr<Host> host = Host::Discover();
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ(host->cpus(), *AllowedCpus());
  EXPECT_GE(host->packages(), 1);
  EXPECT_GE(host->numa_nodes(), 1);
}

TEST(Discover, IsCutToTheMaskOfTheCallingThread) {
  CpuSet one = {AllowedCpus()->back()};
  std::thread([&] {
    ASSERT_TRUE(BindThread(one).ok());
    absl::StatusOr<Host> host = Host::Discover();
    ASSERT_TRUE(host.ok()) << host.status();
    EXPECT_EQ(host->cpus(), one);
    EXPECT_THAT(host->cores(), SizeIs(1));
  }).join();
}

}  // namespace
}  // namespace weft
