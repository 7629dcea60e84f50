// Writers that are killed, and disks that are full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/scratch_folder.h"
#include "tests/trainer/checkpoint/training_state.h"
#include "trainer/checkpoint/local_tier.h"
#include "trainer/checkpoint/mirror.h"
#include "trainer/checkpoint/retention.h"

namespace weft::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A child process that ends by itself or is killed.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ == 0) _exit(body());
  }
  void Kill() const { kill(pid_, SIGKILL); }
  int Wait() const {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }

 private:
  pid_t pid_;
};

// Writes one checkpoint after the other, each step's number into the pipe once it is committed.
[[noreturn]] void WriteForEver(const std::string& folder, int64_t first, int pipe) {
  Retention retention(folder, 2);
  for (int64_t step = first;; ++step) {
    if (!WriteCheckpoint(folder, step, 2).ok()) _exit(1);
    retention.Committed(step);
    if (!retention.Prune(/*gives_up=*/false).ok()) _exit(1);
    if (write(pipe, &step, sizeof(step)) != sizeof(step)) _exit(1);
  }
}

// The last number in the pipe; `none` when there is none.
int64_t LastNumber(int pipe, int64_t none) {
  int64_t step = none;
  while (read(pipe, &step, sizeof(step)) == sizeof(step)) {
  }
  return step;
}

TEST(CheckpointFaults, AWriterKilledAtAnyMomentLeavesAWholeCheckpoint) {
  constexpr int kRounds = 50;
  ScratchFolder folder;
  Random random(2024);
  int64_t committed = 0;
  int in_the_middle = 0;
  const absl::Time start = absl::Now();
  ASSERT_TRUE(WriteCheckpoint(folder.path(), 0, 2).ok());
  // So that a slow machine, too, gets as far as the commit in some rounds.
  const int64_t latest_kill =
      std::clamp<int64_t>(5 * absl::ToInt64Microseconds(absl::Now() - start), 10000, 150000);
  for (int round = 0; round < kRounds; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    Child writer([&]() -> int { WriteForEver(folder.path(), committed + 1, ends[1]); });
    close(ends[1]);
    // Not a synchronisation: the moment itself is what is drawn.
    absl::SleepFor(absl::Microseconds(random.Below(static_cast<uint64_t>(latest_kill))));
    writer.Kill();
    ASSERT_TRUE(WIFSIGNALED(writer.Wait())) << "the writer failed by itself in round " << round;
    const int64_t reported = LastNumber(ends[0], committed);
    close(ends[0]);

    auto latest = FindLatest(folder.path());
    ASSERT_TRUE(latest.ok()) << latest.status();
    ASSERT_GE(latest->step, reported) << "round " << round << " lost a committed checkpoint";
    ASSERT_LE(latest->step, reported + 1);
    auto reader = CheckpointReader::Open(latest->path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    ASSERT_EQ(Compare(**reader, latest->step), "") << "round " << round;
    EXPECT_TRUE(latest->passed_over.empty());  // nothing broken under a real name
    const auto unfinished = ListUnfinished(folder.path());
    ASSERT_TRUE(unfinished.ok()) << unfinished.status();
    in_the_middle += static_cast<int>(unfinished->size());
    committed = latest->step;
  }
  EXPECT_GT(in_the_middle, 0) << "no kill fell into a write: the test tested nothing";
  ASSERT_TRUE(RemoveLeftovers(folder.path()).ok());
}

// Runs `body` in a child and kills it at its `stop`-th entry to or return from the kernel. False
// when it ended before. Nothing happens to a file between two of them.
enum class KillResult { kKilled, kEnded, kNoTracing };
KillResult KillAtSystemCall(const std::function<int()>& body, int stop) {
  pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(99);
    raise(SIGSTOP);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) return KillResult::kNoTracing;
  ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_EXITKILL);
  for (int i = 0; i < stop; ++i) {
    if (ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) != 0) break;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the writer failed by itself";
      return KillResult::kEnded;
    }
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return KillResult::kKilled;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kStopStride =
    7;  // a child is slow to start there, and the order of calls is the same
#else
constexpr int kStopStride = 1;
#endif

// Every point at which a kill can make a difference, one after the other: `prepare` makes a folder,
// `body` works in it until it is killed, `check` looks at what is left.
void KillAtEverySystemCall(const std::function<bool(const ScratchFolder& folder)>& prepare,
                           const std::function<int(const ScratchFolder& folder)>& body,
                           const std::function<void(const ScratchFolder&, bool has_ended)>& check) {
  int stop = 1;
  for (;; stop += kStopStride) {
    ASSERT_LT(stop, 5000);
    SCOPED_TRACE(absl::StrCat("system call stop ", stop));
    const ScratchFolder folder;
    ASSERT_TRUE(prepare(folder));
    const KillResult result = KillAtSystemCall([&] { return body(folder); }, stop);
    if (result == KillResult::kNoTracing) GTEST_SKIP() << "this system forbids ptrace";
    const bool has_ended = result == KillResult::kEnded;
    ASSERT_NO_FATAL_FAILURE(check(folder, has_ended));
    if (has_ended) break;
  }
  EXPECT_GT(stop, 100) << "so few system calls cannot be three checkpoints";
}

// The newest checkpoint in `folder` is whole, and not older than `newest`, which it becomes.
void ExpectWhole(const std::string& folder, int64_t& newest) {
  const auto latest = FindLatest(folder);
  ASSERT_TRUE(latest.ok()) << latest.status();
  ASSERT_GE(latest->step, newest);
  newest = latest->step;
  ASSERT_TRUE(latest->passed_over.empty());
  const auto reader = CheckpointReader::Open(latest->path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ(Compare(**reader, latest->step), "");
}

// From a folder with step 1, `write` writes step 2 there, and replaces step 2 by one of other
// ranks; then step 1 is pruned.
void KillAtEverySystemCall(const std::function<bool(const std::string& folder)>& write) {
  int64_t newest = 1;  // once step 2 is there, some step 2 always is
  KillAtEverySystemCall(
      [](const ScratchFolder& folder) { return WriteCheckpoint(folder.path(), 1, 1).ok(); },
      [&](const ScratchFolder& folder) {
        if (!write(folder.path())) return 1;
        Retention retention(folder.path(), 1);
        retention.Committed(2);
        return retention.Prune(/*gives_up=*/false).ok() ? 0 : 2;
      },
      [&](const ScratchFolder& folder, bool has_ended) {
        ExpectWhole(folder.path(), newest);
        if (has_ended) {
          EXPECT_EQ(newest, 2);
        }
      });
}

// What a host with both ranks of a job does with a step that goes to its own disk and from there to
// the run's folder and the remote one: all tiers, one after the other.
bool WriteThroughTheTiers(const ScratchFolder& tiers, int64_t step) {
  CheckpointWriter local(tiers / "local", step, 2);
  std::vector<std::string> notes;
  for (int rank = 0; rank < 2; ++rank) {
    if (!WriteRank(local, step, rank, 2).ok()) return false;
    const auto note = local.Note(rank);
    if (!note.ok()) return false;
    notes.push_back(*note);
  }
  const auto manifest = local.MakeManifest(notes, StateAt(step));
  if (!manifest.ok() || !local.CommitCopy(*manifest).ok() ||
      !PruneLocal(tiers / "local", 1, step).ok()) {
    return false;
  }
  CheckpointWriter run(tiers / "run", step, 2);
  if (!MakeFolders(run.temporary()).ok()) return false;
  for (const ShardInfo& shard : manifest->shards) {
    const auto from =
        MappedFile::Open(absl::StrCat(tiers / "local", "/", CheckpointName(step), "/", shard.file));
    if (!from.ok() ||
        !CopyShard(*from, shard, absl::StrCat(run.temporary(), "/", shard.file), false).ok()) {
      return false;
    }
  }
  const auto path = run.CommitCopy(*manifest);
  return path.ok() && CopyCheckpoint(*path, tiers / "remote").ok();
}

void KillWriterAtEverySystemCall(const ExchangeNames& exchange) {
  KillAtEverySystemCall([&](const std::string& folder) {
    return WriteCheckpoint(folder, 2, 2).ok() && WriteCheckpoint(folder, 2, 1, exchange).ok();
  });
}

TEST(CheckpointFaults, AWriterKilledAtEverySystemCallLeavesAWholeCheckpoint) {
  KillWriterAtEverySystemCall(ExchangeNamesByKernel);
}

TEST(CheckpointFaults, AWriterKilledAtEverySystemCallWithoutExchangeLeavesAWholeCheckpoint) {
  KillWriterAtEverySystemCall([](const std::string&, const std::string&) {
    errno = EINVAL;  // as NFS says
    return -1;
  });
}

TEST(CheckpointFaults, ACopyKilledAtEverySystemCallLeavesAWholeCheckpoint) {
  ScratchFolder two, one;
  ASSERT_TRUE(WriteCheckpoint(two.path(), 2, 2).ok());
  ASSERT_TRUE(WriteCheckpoint(one.path(), 2, 1).ok());
  KillAtEverySystemCall([&](const std::string& folder) {
    return CopyCheckpoint(two / CheckpointName(2), folder).ok() &&
           CopyCheckpoint(one / CheckpointName(2), folder).ok();
  });
}

TEST(CheckpointFaults, TiersKilledAtEverySystemCallLeaveAWholeCheckpointEach) {
  int64_t local = 1, run = 1, remote = 1;
  KillAtEverySystemCall(
      [](const ScratchFolder& tiers) { return WriteThroughTheTiers(tiers, 1); },
      [](const ScratchFolder& tiers) { return WriteThroughTheTiers(tiers, 2) ? 0 : 1; },
      [&](const ScratchFolder& tiers, bool has_ended) {
        const LocalCheckpoint newest = NewestLocal({DescribeLocal(tiers / "local")}, {});
        ASSERT_NO_FATAL_FAILURE(ExpectWhole(tiers / "local", local));
        EXPECT_EQ(newest.step, local);
        ASSERT_NO_FATAL_FAILURE(ExpectWhole(tiers / "run", run));
        ASSERT_NO_FATAL_FAILURE(ExpectWhole(tiers / "remote", remote));
        EXPECT_GE(local, run);
        EXPECT_GE(run, remote);
        if (has_ended) {
          EXPECT_EQ(remote, 2);
        }
      });
}

// In a child, because the limit cannot be taken back: files may not grow over 50 kB.
TEST(CheckpointFaults, AWriteThatFailsIsNamedAndLeavesTheOldCheckpoint) {
  ScratchFolder folder;
  ASSERT_TRUE(WriteCheckpoint(folder.path(), 1, 2).ok());
  Child child([&] {
    signal(SIGXFSZ, SIG_IGN);
    rlimit limit{50000, 50000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    absl::Status status = WriteCheckpoint(folder.path(), 2, 2);
    bool named = status.message().find("File too large") != absl::string_view::npos &&
                 status.message().find("rank-00000-of-00002") != absl::string_view::npos;
    return named ? 0 : 3;
  });
  int status = child.Wait();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  auto latest = FindLatest(folder.path());
  ASSERT_TRUE(latest.ok());
  EXPECT_EQ(latest->step, 1);
  EXPECT_EQ(Compare(**CheckpointReader::Open(latest->path), 1), "");
}

TEST(CheckpointFaults, AFullDiskIsNamedAndLeavesTheOldCheckpoint) {
  ScratchFolder folder;
  const std::string disk = folder / "disk";
  ASSERT_TRUE(fs::create_directory(disk));
  // One checkpoint takes some 180 kB.
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=300k") != 0) {
    GTEST_SKIP() << "cannot mount a small disk (needs root): " << std::strerror(errno);
  }
  EXPECT_TRUE(WriteCheckpoint(disk, 1, 2).ok());
  absl::Status status = WriteCheckpoint(disk, 2, 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("No space left on device"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(".tmp-step-00000002"));
  EXPECT_EQ(FindLatest(disk)->step, 1);
  CheckpointWriter(disk, 2, 2).Abandon();
  EXPECT_EQ(Compare(**CheckpointReader::Open(FindLatest(disk)->path), 1), "");
  EXPECT_EQ(umount2(disk.c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace weft::train
