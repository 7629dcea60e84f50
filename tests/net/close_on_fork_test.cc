// What a process that is forked and calls no exec has of its parent's sockets: nothing.
#include "net/tcp/close_on_fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "tests/net/harness.h"
#include "tests/net/scene.h"

namespace weft::net {
namespace {

FileDescriptor NewSocket() {
  return FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

bool IsSocket(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode);
}

TEST(CloseOnFork, AChildLosesTheSocketAndNothingThatHasTheNumberOfAClosedOne) {
  const FileDescriptor mine = NewSocket(), other = NewSocket();
  FileDescriptor closed = NewSocket();
  ASSERT_TRUE(mine && other && closed);
  SetCloseOnFork(mine.get());
  SetCloseOnFork(closed.get());
  const int number = closed.get();
  closed.Reset();
  const FileDescriptor later(fcntl(other.get(), F_DUPFD_CLOEXEC, number));
  ASSERT_EQ(later.get(), number);
  Child child([&](Child::Channel&) {
    if (IsSocket(mine.get())) return 1;
    if (fcntl(mine.get(), F_GETFD) != FD_CLOEXEC) return 2;  // the number is still taken
    return IsSocket(number) && IsSocket(other.get()) ? 0 : 3;
  });
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_TRUE(IsSocket(mine.get()));
}

// As workers that load data, and outlive who forked them.
TEST(CloseOnFork, LinksEndWhenTheirPeerIsKilledThoughAForkedProcessLivesOn) {
  Scene scene(TransportKind::kTcp, [](ChildNode& child, const Child::Channel& channel) {
    const pid_t worker = fork();
    if (worker == 0) {
      alarm(300);  // never outlives a test that was killed
      while (true) pause();
    }
    channel.Say(absl::StrCat(worker));
    DriveUntil({&child.node}, [] { return false; });
    return 1;
  });
  pid_t worker = 0;
  ASSERT_TRUE(scene.DriveUntilHeard());
  ASSERT_TRUE(absl::SimpleAtoi(scene.Hear(), &worker));
  ASSERT_GT(worker, 0);
  EXPECT_TRUE(scene.KillAndBreak());
  kill(worker, SIGKILL);
}

}  // namespace
}  // namespace weft::net
