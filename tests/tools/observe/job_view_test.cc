// From rings to a view.
#include "tools/observe/job_view.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "tests/scratch_folder.h"

namespace weft::observe {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

std::unique_ptr<Records> Ring(const std::string& folder, const std::string& job, int rank) {
  auto records = Records::Open({.folder = folder, .job = job, .rank = rank, .world_size = 4});
  EXPECT_TRUE(records.ok()) << records.status();
  return *std::move(records);
}

CallRecord CallOf(Records& records, uint32_t sequence, int64_t start_ns) {
  CallRecord call;
  call.name = records.Name("all_reduce");
  call.group = records.Name("world");
  call.sequence = sequence;
  call.start_ns = start_ns;
  return call;
}

// NCCL's: whose members are numbered by the communicator, and said by each ring of its own.
TEST(JobView, FindsRanksByTheirNumbersInACommunicator) {
  ScratchFolder folder;
  std::vector<std::unique_ptr<Records>> rings;
  for (int rank : {3, 1}) rings.push_back(Ring(folder / "rings", "job", rank));
  for (size_t i : {0u, 1u}) {
    for (const char* group : {"a", "b"})
      rings[i]->Say(absl::StrCat("member ", group, " ", i, " 2"));
  }
  Records& ring = *rings[1];  // of rank 1; number 0 is rank 3
  FlowRecord flow;
  flow.sends = 1;
  flow.peer = 0;
  flow.bytes_done = 5;
  for (const char* name : {"nccl a", "nccl b", "nccl a"}) {  // the newest of each counts
    flow.name = ring.Name(name);
    flow.bytes_done += 10;
    ring.Write(flow);
  }
  CallRecord send = CallOf(ring, 0, 10);
  send.name = ring.Name("send");
  send.group = ring.Name("a");
  send.peer = 0;
  ring.Write(send);
  send.peer = 5;  // whose ring is not here
  send.start_ns = 11;
  ring.Write(send);
  JobWatch watch(folder / "rings", "");
  watch.Update(true, SystemClock::Nanoseconds());
  const JobView& view = watch.view();
  EXPECT_THAT(view.groups.at("a"), ElementsAre(3, 1));
  const RankView& rank = view.ranks.at(1);
  ASSERT_THAT(rank.flows, SizeIs(1));
  const Flow& sum = rank.flows.at({3, true});
  EXPECT_EQ(sum.transport, "nccl");
  EXPECT_EQ(sum.record.bytes_done, 35u + 25u);
  ASSERT_THAT(rank.open, SizeIs(2));
  EXPECT_EQ(rank.open[0].record.peer, 3);
  EXPECT_EQ(rank.open[1].record.peer, -1);
}

TEST(JobView, PairsCallsWithTheirEnds) {
  ScratchFolder folder;
  auto ring = Ring(folder / "rings", "job", 1);
  ring->Say("group world 0-1 3");
  ring->Say("mesh tp1,dp4,pp1");
  for (uint32_t sequence : {0u, 1u}) ring->Write(CallOf(*ring, sequence, 10 + sequence));
  CallRecord done = CallOf(*ring, 0, 10);
  done.kind = RecordKind::kDone;
  done.end_ns = 30;
  ring->Write(done);
  JobWatch watch(folder / "rings", "");
  watch.Update(true, SystemClock::Nanoseconds());
  ASSERT_TRUE(watch.found());
  const JobView& view = watch.view();
  EXPECT_EQ(view.job, "job");
  EXPECT_EQ(view.mesh, "tp1,dp4,pp1");
  EXPECT_THAT(view.groups.at("world"), ElementsAre(0, 1, 3));
  const RankView& rank = view.ranks.at(1);
  ASSERT_THAT(rank.open, SizeIs(1));
  EXPECT_EQ(rank.open[0].record.sequence, 1u);
  EXPECT_EQ(rank.next.at("world"), 2u);
  EXPECT_EQ(rank.moved_ns, 30);
  EXPECT_TRUE(rank.state.exists);
  EXPECT_TRUE(rank.blocked());
}

// The end of the call may have been overwritten before it was read.
TEST(JobView, KeepsNoCallOpenAcrossLostRecords) {
  ScratchFolder folder;
  auto ring = Ring(folder / "rings", "job", 0);
  CallRecord call = CallOf(*ring, 0, 10);
  ring->Write(call);
  JobWatch watch(folder / "rings", "");
  watch.Update(true, SystemClock::Nanoseconds());
  ASSERT_THAT(watch.view().ranks.at(0).open, SizeIs(1));
  call.kind = RecordKind::kDone;
  call.end_ns = 11;
  ring->Write(call);
  for (int i = 0; i < 5000; ++i) ring->Write(StepRecord{.kind = RecordKind::kStep});
  ring->Write(CallOf(*ring, 1, 12));
  watch.Update(true, SystemClock::Nanoseconds());
  ASSERT_THAT(watch.view().ranks.at(0).open, SizeIs(1));
  EXPECT_EQ(watch.view().ranks.at(0).open[0].record.sequence, 1u);
}

TEST(JobView, CountsAPhaseWithoutThoseWithinIt) {
  ScratchFolder folder;
  auto ring = Ring(folder / "rings", "job", 0);
  const auto phase = [&](const char* name, int64_t start_ms, int64_t end_ms) {
    PhaseRecord record;
    record.name = ring->Name(name);
    record.start_ns = start_ms * 1'000'000;
    record.end_ns = end_ms * 1'000'000;
    ring->Write(record);
  };
  phase("wait_all_gather", 12, 15);
  phase("forward", 10, 20);
  phase("backward", 20, 40);
  StepRecord step;
  step.step = 9;
  step.start_ns = 10'000'000;
  step.end_ns = 40'000'000;
  ring->Write(step);
  JobWatch watch(folder / "rings", "job");
  watch.Update(false, 0);
  const std::deque<StepTimes>& steps = watch.view().ranks.at(0).steps;
  ASSERT_THAT(steps, SizeIs(1));
  EXPECT_NEAR(steps[0].seconds.at("forward"), 0.007, 1e-9);
  EXPECT_NEAR(steps[0].waiting(), 0.003, 1e-9);
  EXPECT_NEAR(steps[0].own(), 0.027, 1e-9);
  EXPECT_EQ(watch.view().now_ns, std::max<int64_t>(40'000'000, watch.view().now_ns));
}

TEST(JobView, KeepsJobsApartAndTakesTheNewestByDefault) {
  ScratchFolder folder;
  auto first = Ring(folder / "rings", "first", 0);
  auto second = Ring(folder / "rings", "second/weft-bw", 0);
  EXPECT_THAT(JobsIn(folder / "rings"), SizeIs(2));
  JobWatch newest(folder / "rings", "");
  newest.Update(true, 0);
  EXPECT_EQ(newest.view().job, "second");
  JobWatch named(folder / "rings", "first");
  named.Update(true, 0);
  EXPECT_EQ(named.view().ranks.at(0).process.job, "first");
  JobWatch none(folder / "nothing", "");
  none.Update(true, 0);
  EXPECT_FALSE(none.found());
}

TEST(JobView, TakesAJobThatIsAliveBeforeANewerOneThatIsNot) {
  ScratchFolder folder;
  auto alive = Ring(folder / "rings", "alive", 0);
  auto older = Ring(folder / "rings", "also", 0);
  auto newest = Ring(folder / "rings", "newest", 0);
  const pid_t child = fork();
  if (child == 0) {
    auto dead = Records::Open({.folder = folder / "rings", .job = "zdead", .world_size = 4});
    _exit(dead.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  JobWatch live(folder / "rings", "");
  live.Update(true, 0);
  EXPECT_EQ(live.view().job, "newest");
  EXPECT_THAT(live.view().other_jobs, ElementsAre("alive", "also"));
  JobWatch replayed(folder / "rings", "");
  replayed.Update(false, 0);
  EXPECT_EQ(replayed.view().job, "zdead");
  EXPECT_THAT(replayed.view().other_jobs, IsEmpty());
  JobWatch named(folder / "rings", "zdead");
  named.Update(true, 0);
  EXPECT_EQ(named.view().job, "zdead");
}

// Three ranks died; then the job ran anew under its name, with two.
TEST(JobView, LeavesOutWhatAnEarlierRunOfTheNameHasLeft) {
  ScratchFolder folder;
  for (int rank = 0; rank < 3; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      auto ring = Records::Open({.folder = folder / "rings", .job = "job", .rank = rank});
      _exit(ring.ok() && kill(getpid(), SIGKILL) == 0 ? 0 : 1);
    }
    waitpid(child, nullptr, 0);
  }
  auto first = Ring(folder / "rings", "job", 0);
  auto second = Ring(folder / "rings", "job", 1);
  JobWatch watch(folder / "rings", "job");
  watch.Update(true, SystemClock::Nanoseconds());
  watch.Update(true, SystemClock::Nanoseconds());
  EXPECT_THAT(watch.view().ranks, SizeIs(2));
  EXPECT_EQ(watch.view().ranks.count(2), 0u);
}

// Has the ring say that its process began when the wall clock showed another time.
void SetWallClock(const std::string& path, absl::Duration ahead) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  int64_t realtime_ns = 0;
  const off_t at = offsetof(RecordFileHeader, realtime_ns);
  ASSERT_EQ(pread(fd, &realtime_ns, sizeof(realtime_ns), at), 8);
  realtime_ns += absl::ToInt64Nanoseconds(ahead);
  ASSERT_EQ(pwrite(fd, &realtime_ns, sizeof(realtime_ns), at), 8);
  close(fd);
}

// The wall clock was set back by an hour between the death of a rank and its next start; then that
// process dies as well.
TEST(JobView, TakesTheProcessThatIsThereForTheLaterOneWhateverTheWallClock) {
  ScratchFolder folder;
  int64_t step = 0;
  const auto die = [&] {
    const pid_t child = fork();
    if (child == 0) {
      auto ring = Ring(folder / "rings", "job", 0);
      ring->Write(StepRecord{.step = step});
      SetWallClock(ring->path(), step == 0 ? absl::Hours(1) : absl::ZeroDuration());
      kill(getpid(), SIGSTOP);
      kill(getpid(), SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
    return child;
  };
  const auto end = [](pid_t child) {
    kill(child, SIGCONT);
    waitpid(child, nullptr, 0);
  };
  JobWatch watch(folder / "rings", "job");
  const auto last_step = [&] {
    watch.Update(true, SystemClock::Nanoseconds());
    return watch.view().ranks.at(0).steps.back().step;
  };
  const pid_t first = die();
  EXPECT_EQ(last_step(), 0);
  end(first);
  step = 7;
  const pid_t second = die();
  EXPECT_EQ(last_step(), 7);
  end(second);
  EXPECT_EQ(last_step(), 7);
  EXPECT_EQ(last_step(), 7);
}

// A rank has moved to a host whose wall clock is an hour behind.
TEST(JobView, TakesTheLaterOfTwoProcessesOfOtherHostsByThisHostsClock) {
  ScratchFolder folder;
  auto first = Ring(folder / "rings", "job", 0);
  auto second = Ring(folder / "rings", "job", 0);
  second->Write(StepRecord{.step = 7});
  SetWallClock(second->path(), -absl::Hours(1));
  JobWatch watch(folder / "rings", "job");
  watch.Tell(first->path(), {.shift_ns = 0});
  watch.Tell(second->path(), {.shift_ns = 1000});
  for (int look = 0; look < 2; ++look) {
    watch.Update(true, SystemClock::Nanoseconds());
    EXPECT_EQ(watch.view().ranks.at(0).path, second->path());
  }
}

// A ring that was fetched from a host whose clock shows another time.
TEST(JobView, BringsAnotherHostsTimesToThisClock) {
  ScratchFolder folder;
  auto ring = Ring(folder / "rings", "job", 0);
  ring->Write(CallOf(*ring, 0, 5000));
  JobWatch watch(folder / "rings", "job");
  JobWatch::Told told;
  told.shift_ns = 1000;
  told.state.known = true;
  told.state.state = 'T';
  told.state.exists = true;
  watch.Tell(ring->path(), told);
  watch.Update(true, 9000);
  const RankView& rank = watch.view().ranks.at(0);
  EXPECT_EQ(rank.open.at(0).record.start_ns, 6000);
  EXPECT_TRUE(rank.state.stopped());
}

// What is no reading and no error is passed over; a line counts once.
TEST(JobView, ReadsWhatAProcessSaysOfCountersAndErrors) {
  ScratchFolder folder;
  auto ring = Ring(folder / "rings", "job", 0);
  for (const char* line :
       {"reading 10 nic/a link_downed 2", "reading 20 nic/a link_downed 5", "reading x nic/a y 1",
        "reading 30 nic/a", "error 40 7 DATA_LOSS checkpoint shard 3 is short", "error 1 2"}) {
    ring->Say(line);
  }
  JobWatch watch(folder / "rings", "job");
  for (int times = 0; times < 2; ++times) watch.Update(false, 0);
  const RankView& rank = watch.view().ranks.at(0);
  const Reading* downed = rank.FindReading("nic/a", "link_downed");
  ASSERT_NE(downed, nullptr);
  EXPECT_EQ(downed->grew(), 3);
  EXPECT_EQ(downed->changed_ns, 20);
  EXPECT_EQ(rank.FindReading("nic/a", "y"), nullptr);
  ASSERT_THAT(rank.errors, SizeIs(1));
  EXPECT_EQ(rank.errors[0].step, 7);
  EXPECT_EQ(rank.errors[0].text, "shard 3 is short");
}

TEST(JobView, ReadsAndWritesListsOfRanks) {
  EXPECT_THAT(ParseRanks("0-2 7 x 9-8 2-3-4", 100), ElementsAre(0, 1, 2, 7));
  EXPECT_THAT(ParseRanks("0-999999999", 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(ParseRanks("-5", 3), IsEmpty());
  EXPECT_EQ(RanksText({0, 1, 2, 3, 8, 9}), "0-3,8,9");
}

TEST(ProcessState, ReadsStatWhateverTheName) {
  ProcessState state;
  uint64_t start = 0;
  EXPECT_TRUE(ParseStat("7 (a ) R 1) T 1 2 3 4 5 6 7 8 9 10 100 50 13 14 15 16 4 18 4711 20 30",
                        &start, &state));
  EXPECT_TRUE(state.state == 'T' && start == 4711 && state.threads == 4);
  EXPECT_TRUE(state.minor_faults == 7 && state.major_faults == 9);
  EXPECT_FALSE(ParseStat("", &start, &state));
  EXPECT_FALSE(ParseStat("7 (x) S 1 2", &start, &state));
  EXPECT_TRUE(ReadProcessState(getpid(), ProcessStart(getpid())).exists);
  EXPECT_TRUE(ReadProcessState(getpid(), 1).gone());
}

// Two threads share a core that only one of them can have, while the first thread sleeps.
TEST(ProcessState, SumsTheWaitsOfAllThreadsForACore) {
  cpu_set_t allowed, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed) && CPU_COUNT(&one) == 0) CPU_SET(core, &one);
  }
  const auto waited = [] {
    return ReadProcessState(getpid(), ProcessStart(getpid())).run_queue_seconds;
  };
  const double before = waited();
  std::atomic<bool> stop = false;
  const auto spin = [&] {
    EXPECT_EQ(pthread_setaffinity_np(pthread_self(), sizeof one, &one), 0);
    while (!stop) {
    }
  };
  std::thread first(spin), second(spin);
  const absl::Time until = absl::Now() + absl::Seconds(30);
  double grew = 0;
  while (grew < 0.2 && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(10));
    grew = waited() - before;
  }
  stop = true;
  first.join();
  second.join();
  EXPECT_GE(grew, 0.2);
}

}  // namespace
}  // namespace weft::observe
