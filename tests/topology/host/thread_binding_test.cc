#include "topology/host/thread_binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

std::vector<CpuSet> Cpus(const Host& host, const std::vector<ThreadShare>& processes) {
  std::vector<CpuSet> out;
  for (size_t i = 0; i < processes.size(); ++i) {
    const absl::StatusOr<Host> own = host.Within(processes[i].allowed);
    const absl::StatusOr<CpuSet> cpus = CpusOfThreads(*own, processes, i);
    out.push_back(cpus.ok() ? *cpus : CpuSet());
  }
  return out;
}

TEST(CpusOfThreads, ProcessesWithOneMaskShareItsCoresWhereTheyFillThem) {
  const Host host = *Host::FromSynthetic("pack:2 core:2 pu:2");
  const CpuSet all = host.cpus();
  EXPECT_EQ(Cpus(host, {{all, 4, 2}, {all, 4, 2}}), (std::vector<CpuSet>{{0, 2}, {4, 6}}));
  EXPECT_EQ(Cpus(host, {{all, 4, 1}, {all, 4, 3}}), (std::vector<CpuSet>{{0}, {2, 4, 6}}));
}

TEST(CpusOfThreads, ProcessesThatLeaveCoresOrNeedMoreAreNotBound) {
  const Host host = *Host::FromSynthetic("core:4 pu:1");
  const CpuSet all = host.cpus();
  EXPECT_EQ(Cpus(host, {{all, 4, 1}, {all, 4, 1}}), (std::vector<CpuSet>{{}, {}}));
  EXPECT_EQ(Cpus(host, {{all, 4, 4}, {all, 4, 4}}), (std::vector<CpuSet>{{}, {}}));
  const auto why = CpusOfThreads(host, {{all, 4, 4}, {all, 4, 4}}, 0).status();
  EXPECT_THAT(std::string(why.message()), HasSubstr("8 threads and 4 cores"));
}

TEST(CpusOfThreads, ProcessesWithCpusOfTheirOwnKeepThem) {
  const Host host = *Host::FromSynthetic("core:4 pu:1");
  EXPECT_EQ(Cpus(host, {{{2, 3}, 2, 1}, {{0, 1}, 2, 2}}), (std::vector<CpuSet>{{2}, {0, 1}}));
  // What one cannot, none does.
  EXPECT_EQ(Cpus(host, {{{2, 3}, 2, 1}, {{0, 1}, 2, 3}}), (std::vector<CpuSet>{{}, {}}));
  EXPECT_EQ(Cpus(host, {{{1, 2, 3}, 3, 1}, {{0, 1}, 2, 1}}), (std::vector<CpuSet>{{}, {}}));
}

TEST(ThreadBinding, HoldsItsThreadAndLetsWorkInTheBackgroundGo) {
  const CpuSet all = *AllowedCpus();
  if (all.size() < 2) GTEST_SKIP() << "one CPU alone";
  {
    const absl::StatusOr<ThreadBinding> binding = ThreadBinding::To(all[1]);
    ASSERT_TRUE(binding.ok()) << binding.status();
    EXPECT_EQ(*AllowedCpus(), CpuSet{all[1]});
    EXPECT_EQ(StartUnbound([] { return *AllowedCpus(); }).get(), all);
    EXPECT_EQ(std::async(std::launch::async, [] { return *AllowedCpus(); }).get(), CpuSet{all[1]});
  }
  EXPECT_EQ(*AllowedCpus(), all);
  EXPECT_EQ(StartUnbound([] { return *AllowedCpus(); }).get(), all);
}

// By another thread, as only it may see what happens to it meanwhile.
TEST(NearBinding, GivesWayWhileComputeThreadsAreBound) {
  const CpuSet all = *AllowedCpus();
  if (all.size() < 2) GTEST_SKIP() << "one CPU alone";
  std::promise<int> number;
  std::promise<void> end;
  std::thread near([&] {
    const absl::StatusOr<NearBinding> binding = NearBinding::To({all[0]});
    ASSERT_TRUE(binding.ok()) << binding.status();
    EXPECT_EQ(*AllowedCpus(), CpuSet{all[0]});
    number.set_value(gettid());
    end.get_future().wait();
  });
  const int thread = number.get_future().get();
  const auto allowed = [&] {
    std::ifstream status(absl::StrCat("/proc/self/task/", thread, "/status"));
    std::string line, text;
    while (std::getline(status, line)) {
      if (absl::StartsWith(line, "Cpus_allowed_list:")) text = line.substr(line.find('\t') + 1);
    }
    return text;
  };
  EXPECT_EQ(allowed(), absl::StrCat(all[0]));
  {
    const absl::StatusOr<ThreadBinding> compute = ThreadBinding::To(all[1]);
    ASSERT_TRUE(compute.ok());
    EXPECT_EQ(allowed(), ToString(all));
    EXPECT_EQ(*ProcessCpus(), all);
    EXPECT_EQ(*AllowedCpus(), CpuSet{all[1]});
  }
  EXPECT_EQ(allowed(), absl::StrCat(all[0]));
  end.set_value();
  near.join();
}

}  // namespace
}  // namespace weft
