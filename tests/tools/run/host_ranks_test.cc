#include "tools/run/host_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace weft::run {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// While it lives, nobody is told that the process has ended, as where a device keeps it within the
// kernel: whoever traces a process is told of its end first, and this tracer does not ask.
pid_t Trace(pid_t pid) {
  int ready[2];
  if (pipe(ready) != 0) return -1;
  const pid_t tracer = fork();
  if (tracer == 0) {
    const char traces = ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0 ? 'y' : 'n';
    (void)!write(ready[1], &traces, 1);
    while (traces == 'y') pause();
    _exit(0);
  }
  char traces = 'n';
  (void)!read(ready[0], &traces, 1);
  close(ready[0]);
  close(ready[1]);
  if (tracer > 0 && traces != 'y') waitpid(tracer, nullptr, 0);
  return traces == 'y' ? tracer : -1;
}

TEST(HostRanks, GiveUpARankThatDoesNotEndOfSigkill) {
  RunOptions options;
  options.command = {"sleep", "1000"};
  options.output = OutputMode::kNone;
  options.kill_patience = absl::Seconds(2);  // in which it is to get as far as state Z
  testing::internal::CaptureStderr();
  HostRanks host("weft-test", options);
  ASSERT_TRUE(host.Open().ok());
  ASSERT_TRUE(host.Assign(0, ProcessVariables()).ok());
  RankProcess& rank = host.ranks().front();
  ASSERT_TRUE(host.Start(rank).ok());
  const pid_t tracer = Trace(rank.pid);
  host.End(SIGKILL, absl::ZeroDuration());
  while (host.alive() > 0) host.Turn(absl::InfiniteFuture());
  const std::string said = testing::internal::GetCapturedStderr();
  if (tracer < 0) GTEST_SKIP() << "processes may not be traced here";
  EXPECT_THAT(host.TakeEnded(), ElementsAre(&rank));
  EXPECT_EQ(rank.exit_status(), 128 + SIGKILL);
  EXPECT_THAT(said, HasSubstr(absl::StrCat("weft-test: rank 0 (pid ", rank.pid,
                                           ") has not ended 2s after SIGKILL, in state Z")));
  kill(tracer, SIGKILL);
  host.Finish();
}

// One that writes more than its pipe holds (64 KiB) gets as far as the wait for its place.
TEST(HostRanks, ReadWhatASpareProcessWritesBeforeItsPlaceIsThere) {
  const std::string written = absl::StrCat(testing::TempDir(), "/written-", getpid());
  RunOptions options;
  options.command = {"sh", "-c",
                     absl::StrCat("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; "
                                  ": > ",
                                  written, "; head -c 1 > /dev/null; echo in place")};
  options.spares = 1;
  testing::internal::CaptureStdout();
  HostRanks host("weft-test", options);
  ASSERT_TRUE(host.Open().ok());
  host.Warm(ProcessVariables());
  SystemClock clock;  // the host's, which is not absl::Now()'s
  const absl::Time patience = clock.Now() + absl::Minutes(1);
  const auto turn = [&] { host.Turn(clock.Now() + absl::Milliseconds(20)); };
  while (!std::filesystem::exists(written) && clock.Now() < patience) turn();
  const bool waits = std::filesystem::exists(written);
  if (waits) {
    EXPECT_TRUE(host.Assign(0, ProcessVariables()).ok());
    EXPECT_TRUE(host.Start(host.ranks().front()).ok());
    while (host.alive() > 0 && clock.Now() < patience) turn();
  }
  host.Finish();
  host.FlushOutput();
  const std::string shown = testing::internal::GetCapturedStdout();
  std::filesystem::remove(written);
  ASSERT_TRUE(waits);
  EXPECT_THAT(shown, AllOf(HasSubstr("[spare] line 0\n"), HasSubstr("line 19999\n"),
                           HasSubstr("[rank 0] in place\n")));
}

}  // namespace
}  // namespace weft::run
