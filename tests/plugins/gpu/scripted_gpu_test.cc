// Real NCCL over the plugin, without a GPU: NCCL's host code as it is shipped (its start, its
// topology search, its proxy threads, its calls of the plugin), on a CUDA runtime that is emulated
// on the CPU, kernels too (scripted/attach.cc). Each process is a host to NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/plugins/gpu/nccl_job.h"
#include "tests/plugins/gpu/scripted/nccl_device.h"

namespace weft {
namespace {

using testing::HasSubstr;

constexpr bool kHasUcx = WEFT_HAS_UCX != 0;

class ScriptedGpu : public testing::Test {
 protected:
  void SetUp() override {
#ifndef __x86_64__
    GTEST_SKIP() << "the scripted GPU writes jumps for x86-64";
#endif
    void* nccl = LoadNccl();
    if (nccl == nullptr) GTEST_SKIP() << "no NCCL (WEFT_TEST_NCCL)";
    int version = NcclVersion(nccl);
    if (version < scripted::kNcclVersionFirst || version > scripted::kNcclVersionLast) {
      GTEST_SKIP() << "the scripted GPU emulates the kernels of NCCL 2.22 to 2.32, this is "
                   << version;
    }
    job_.scripted_gpu = true;
    // What is emulated: rings, and neither of the protocols of NVLink.
    job_.environment = {{"NCCL_NET_PLUGIN", WEFT_PLUGIN}, {"NCCL_ALGO", "Ring"}};
  }

  void Set(const std::vector<std::pair<std::string, std::string>>& environment) {
    job_.environment.insert(job_.environment.end(), environment.begin(), environment.end());
  }

  void ExpectAllOverWeft(const std::string& transport) {
    for (const NcclRankEnd& end : RunNcclJob(job_)) {
      EXPECT_TRUE(end.succeeded) << end.status << "\n" << end.log;
      EXPECT_THAT(end.log, HasSubstr("Using network weft"));
      EXPECT_THAT(end.log, HasSubstr("transport " + transport + ","));
    }
  }

  NcclJob job_;
};

// NCCL's protocols that are emulated: Simple, steps of up to 512 KiB; LL, lines of data and flags.
class ScriptedGpuTransports
    : public ScriptedGpu,
      public testing::WithParamInterface<std::tuple<std::string, std::string>> {};

TEST_P(ScriptedGpuTransports, CarryAllCollectives) {
  const auto& [transport, protocol] = GetParam();
  if (transport == "ucx" && !kHasUcx) GTEST_SKIP() << "built without UCX";
  Set({{"WEFT_TRANSPORT", transport}, {"NCCL_PROTO", protocol}});
  ExpectAllOverWeft(transport);
}

// Each rank in the middle of a ring sends on what it has received and reduced.
TEST_F(ScriptedGpu, FourRanksMakeARing) {
  Set({{"WEFT_TRANSPORT", "tcp"}, {"NCCL_PROTO", "Simple"}});
  job_.ranks = 4;
  ExpectAllOverWeft("tcp");
}

// NCCL 2.27 to 2.29 forget the plugin's name with their last communicator.
TEST_F(ScriptedGpu, CommunicatorsComeAgainAfterTheLast) {
  Set({{"WEFT_TRANSPORT", "tcp"}});
  job_.counts = {1000};
  job_.lives = 3;
  for (const NcclRankEnd& end : RunNcclJob(job_)) {
    EXPECT_TRUE(end.succeeded) << end.status << "\n" << end.log;
    std::vector<std::string> parts = absl::StrSplit(end.log, "Using network weft");
    EXPECT_EQ(parts.size(), 4u);
  }
}

TEST_P(ScriptedGpuTransports, ReportAPeerThatDies) {
  const auto& [transport, protocol] = GetParam();
  if (transport == "ucx" && !kHasUcx) GTEST_SKIP() << "built without UCX";
  Set({{"WEFT_TRANSPORT", transport}, {"NCCL_PROTO", protocol}});
  job_.rounds = 3;
  job_.dies_after = 1;
  std::vector<NcclRankEnd> ends = RunNcclJob(job_);
  EXPECT_EQ(ends[0].status, absl::StrCat("exited with ", kReportedBroken)) << ends[0].log;
  EXPECT_THAT(ends[0].log, HasSubstr("its process or its host has died"));
  EXPECT_EQ(ends[1].status, absl::StrCat("killed by signal ", SIGKILL));
}

INSTANTIATE_TEST_SUITE_P(, ScriptedGpuTransports,
                         testing::Combine(testing::Values("tcp", "ucx", "multipath"),
                                          testing::Values("Simple", "LL")),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::get<1>(info.param);
                         });

}  // namespace
}  // namespace weft
