// Four processes of NCCL's in an all-reduce, seen by its profiler interface only, of which one is
// killed: no launcher of ours, no training loop. The rest wait, and the dead one is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "plugins/nccl/abi/profiler.h"
#include "tests/scratch_folder.h"
#include "tools/observe/diagnose.h"

extern "C" {
extern const weft::nccl::abi::ProfilerV5 ncclProfiler_v6;  // NOLINT: NCCL's name
}

namespace weft::observe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr int kRanks = 4, kDead = 2;

// As NCCL does in a process of its own: init, and an all-reduce that is enqueued and does not end.
[[noreturn]] void BeRank(int rank) {
  namespace abi = nccl::abi;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(kRanks).c_str(), 1);
  void* context = nullptr;
  int mask = 0;
  if (ncclProfiler_v6.init(&context, 0x1234, &mask, "pg", 1, kRanks, rank, nullptr) !=
      abi::kSuccess) {
    _exit(1);
  }
  abi::ProfilerEventV5 event = {};
  event.type = abi::kEventCollective;
  event.rank = rank;
  event.collective = {};
  event.collective.function = "AllReduce";
  event.collective.type = "ncclFloat32";
  event.collective.count = 1000;
  void* call = nullptr;
  (void)ncclProfiler_v6.start_event(context, &call, &event);
  event = {};
  event.type = abi::kEventProxyOperation;
  event.rank = rank;
  event.parent = call;
  event.operation = {.pid = getpid(),
                     .channel = 0,
                     .peer = (rank + 1) % kRanks,
                     .steps = 4,
                     .chunk_bytes = 1024,
                     .is_send = 1};
  void* operation = nullptr;
  (void)ncclProfiler_v6.start_event(context, &operation, &event);
  (void)ncclProfiler_v6.stop_event(call);  // enqueued
  while (true) pause();
}

TEST(NcclRecords, NameADeadRankAmongThoseThatWaitForIt) {
  ScratchFolder folder;
  const std::string rings = folder / "rings";
  setenv("WEFT_JOB_ID", "test", 1);
  setenv("WEFT_RECORDS_FOLDER", rings.c_str(), 1);
  setenv("WEFT_NCCL_PROFILER", "kernels", 1);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < kRanks; ++rank) {
    processes.push_back(fork());
    if (processes.back() == 0) BeRank(rank);
    ASSERT_GT(processes.back(), 0);
  }
  JobWatch watch(rings, "test");
  const auto until = [&](auto condition) {
    for (int tries = 0; tries < 600; ++tries) {
      watch.Update(/*live=*/true, SystemClock::Nanoseconds());
      if (condition(watch.view())) return watch.view();
      absl::SleepFor(absl::Milliseconds(100));
    }
    return watch.view();
  };
  const JobView begun = until([](const JobView& view) {
    size_t waiting = 0;
    for (const auto& [number, rank] : view.ranks) waiting += rank.open.empty() ? 0 : 1;
    return waiting == kRanks;
  });
  EXPECT_THAT(begun.ranks, SizeIs(kRanks));
  kill(processes[kDead], SIGKILL);
  const JobView view = until([](const JobView& now) {
    const std::vector<Finding> findings = Diagnose(now);
    return !findings.empty() && findings[0].fault == Fault::kDeadRank;
  });
  const std::vector<Finding> findings = Diagnose(view);
  for (const pid_t process : processes) {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].fault, Fault::kDeadRank);
  EXPECT_THAT(findings[0].culprits, ElementsAre(kDead));
  EXPECT_THAT(findings[0].victims, ElementsAre(0, 1, 3));
  EXPECT_THAT(absl::StrJoin(findings[0].evidence, "\n"), HasSubstr("it was in all_reduce #0"));
}

}  // namespace
}  // namespace weft::observe
