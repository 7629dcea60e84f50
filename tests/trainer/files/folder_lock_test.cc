#include "trainer/files/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "tests/scratch_folder.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

FolderLock::Options Fast() {
  FolderLock::Options options;
  options.beat = absl::Milliseconds(5);
  options.watch = absl::Milliseconds(200);
  return options;
}

constexpr char kElsewhere[] =
    R"({"host": "node7", "pid": 77, "since": "2026-01-02 03:04:05 UTC", "boot": "another"})";

class FolderLockTest : public ::testing::Test {
 protected:
  absl::Status TryTake(const FolderLock::Options& options = Fast()) {
    return FolderLock::Take(folder_.path(), options).status();
  }
  ScratchFolder folder_;
};

TEST_F(FolderLockTest, NamesTheHolderUntilItIsReleased) {
  auto held = FolderLock::Take(folder_.path(), Fast());
  ASSERT_TRUE(held.ok()) << held.status();
  const std::string before = *ReadFile(folder_ / "lock");
  absl::Status refused = TryTake();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(folder_.path() + " is in use by another job"),
                    HasSubstr(absl::StrCat("process ", getpid(), " on host ")), HasSubstr(" UTC")));
  EXPECT_EQ(*ReadFile(folder_ / "lock"), before);
  EXPECT_TRUE((*held)->Check().ok());
  held->reset();
  EXPECT_EQ(*ReadFile(folder_ / "lock"), "");
  EXPECT_TRUE(TryTake().ok());
}

TEST_F(FolderLockTest, IsFreeOnceTheHolderWasKilled) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    auto lock = FolderLock::Take(folder_.path(), Fast());
    char byte = lock.ok() ? 'y' : 'n';
    if (write(ends[1], &byte, 1) != 1) _exit(1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_THAT(std::string(TryTake().message()), HasSubstr(absl::StrCat("process ", holder)));
  kill(holder, SIGKILL);
  ASSERT_EQ(waitpid(holder, nullptr, 0), holder);
  close(ends[0]);
  close(ends[1]);
  EXPECT_NE(*ReadFile(folder_ / "lock"), "");
  FolderLock::Options never = Fast();
  never.watch = absl::InfiniteDuration();  // nothing to watch for: the kernel says that it died
  EXPECT_TRUE(TryTake(never).ok());
}

// A file system whose locks hold on one host only: the kernel grants the lock, the file names
// another host's job.
TEST_F(FolderLockTest, TakesOverFromAnotherHostThatIsSilent) {
  ASSERT_TRUE(WriteFileAtomically(folder_ / "lock", kElsewhere).ok());
  auto lock = FolderLock::Take(folder_.path(), Fast());
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_THAT(*ReadFile(folder_ / "lock"), HasSubstr(absl::StrCat(getpid())));
}

TEST_F(FolderLockTest, LeavesTheFolderToAnotherHostWhoseJobBeats) {
  ASSERT_TRUE(WriteFileAtomically(folder_ / "lock", kElsewhere).ok());
  const pid_t other = fork();
  if (other == 0) {  // its beat, without a lock in this kernel
    while (true) {
      fs::last_write_time(folder_ / "lock", fs::file_time_type::clock::now());
      usleep(1000);
    }
  }
  FolderLock::Options patient = Fast();
  patient.watch = absl::Seconds(60);  // a bound: a beat ends the watch
  absl::Status refused = TryTake(patient);
  kill(other, SIGKILL);
  ASSERT_EQ(waitpid(other, nullptr, 0), other);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("process 77 on host node7, since 2026-01-02 03:04:05 UTC"));
  EXPECT_EQ(*ReadFile(folder_ / "lock"), kElsewhere);
}

TEST_F(FolderLockTest, BeatsWhileItIsHeld) {
  auto held = FolderLock::Take(folder_.path(), Fast());
  ASSERT_TRUE(held.ok()) << held.status();
  const std::string path = folder_ / "lock";
  fs::last_write_time(path, fs::file_time_type::clock::time_point());
  bool touched = false;
  for (int i = 0; i < 60'000 && !touched; ++i) {
    usleep(1000);
    touched = fs::last_write_time(path) != fs::file_time_type::clock::time_point();
  }
  EXPECT_TRUE(touched);
}

TEST_F(FolderLockTest, CheckNamesWhoTookIt) {
  auto held = FolderLock::Take(folder_.path(), Fast());
  ASSERT_TRUE(held.ok()) << held.status();
  ASSERT_TRUE(WriteFileAtomically(folder_ / "lock", kElsewhere).ok());
  absl::Status lost = (*held)->Check();
  EXPECT_EQ(lost.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(lost.message()), HasSubstr("process 77 on host node7"));
  held->reset();
  EXPECT_EQ(*ReadFile(folder_ / "lock"), kElsewhere);  // the new holder's name stays
}

TEST_F(FolderLockTest, ErrorsNameTheFile) {
  EXPECT_THAT(std::string(FolderLock::Take("/proc/nowhere", Fast()).status().message()),
              HasSubstr("/proc/nowhere"));
  fs::create_directories(folder_ / "lock");
  EXPECT_THAT(std::string(TryTake().message()), HasSubstr(folder_ / "lock"));
}

}  // namespace
}  // namespace weft::train
