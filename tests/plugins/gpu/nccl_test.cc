// Real NCCL over the plugin on a real GPU: two processes on one GPU, which NCCL takes for two
// hosts.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plugins/gpu/nccl_job.h"

namespace weft {
namespace {

bool HasGpu(void* cuda) {
  auto get_count = reinterpret_cast<int (*)(int*)>(dlsym(cuda, "cudaGetDeviceCount"));
  int devices = 0;
  return get_count != nullptr && get_count(&devices) == 0 && devices > 0;
}

TEST(RealNccl, CollectivesOfTwoProcessesGoOverWeft) {
  void* cuda = LoadCuda(/*scripted=*/false);
  if (cuda == nullptr) GTEST_SKIP() << "no CUDA runtime (WEFT_TEST_CUDART)";
  if (!HasGpu(cuda)) GTEST_SKIP() << "no GPU";
  if (LoadNccl() == nullptr) GTEST_SKIP() << "no NCCL (WEFT_TEST_NCCL)";
  for (const NcclRankEnd& end : RunNcclJob({.environment = {{"NCCL_NET_PLUGIN", WEFT_PLUGIN}}})) {
    EXPECT_TRUE(end.succeeded) << end.status << "\n" << end.log;
    EXPECT_THAT(end.log, testing::HasSubstr("Using network weft"));
  }
}

}  // namespace
}  // namespace weft
