// What a process that is forked and calls no exec has of its parent's sockets: nothing.
#include "net/tcp/close_on_fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/open_files.h"
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

std::set<int> Sockets() {
  std::set<int> all;
  for (int fd = 0; fd < OpenFilesLimit() && fd < 4096; ++fd) {
    if (IsSocket(fd)) all.insert(fd);
  }
  return all;
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

// A process that a test's child forks, as one that loads data, and which outlives it.
pid_t ForkWorker() {
  const pid_t worker = fork();
  if (worker == 0) {
    alarm(300);  // never outlives a test that was killed
    while (true) pause();
  }
  return worker;
}

// The sockets that listen, that were dialed and that were accepted.
TEST(CloseOnFork, AChildHasNoSocketOfATransport) {
  for (const TransportKind kind :
       {TransportKind::kShm, TransportKind::kTcp, TransportKind::kMultipath}) {
    const std::set<int> before = Sockets();
    Pair pair(kind);
    std::set<int> mine = Sockets();
    for (const int fd : before) mine.erase(fd);
    ASSERT_GE(mine.size(), 4u) << ToString(kind);  // two listeners, and a link with two ends
    Child child([&](Child::Channel&) {
      for (const int fd : mine) {
        if (IsSocket(fd)) return 1;
      }
      return 0;
    });
    EXPECT_EQ(child.Wait(), 0) << ToString(kind);
  }
}

TEST(CloseOnFork, LinksEndWhenTheirPeerIsKilledThoughAForkedProcessLivesOn) {
  Scene scene(TransportKind::kTcp, [](ChildNode& child, const Child::Channel& channel) {
    const pid_t worker = ForkWorker();
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

// A rank that dials a listener which lives on in a worker would wait for an accept that never
// comes.
TEST(CloseOnFork, NobodyListensWhereAProcessWasKilledThoughAForkedProcessLivesOn) {
  Scene scene(TransportKind::kShm, [](ChildNode& child, const Child::Channel& channel) {
    const pid_t worker = ForkWorker();
    channel.Say(absl::StrCat(worker));
    channel.Say(child.node.address());
    DriveUntil({&child.node}, [] { return false; });
    return 1;
  });
  pid_t worker = 0;
  ASSERT_TRUE(scene.DriveUntilHeard());
  ASSERT_TRUE(absl::SimpleAtoi(scene.Hear(), &worker));
  ASSERT_GT(worker, 0);
  const std::string address = scene.Hear();
  EXPECT_TRUE(scene.KillAndBreak());
  SendLink* const late = scene.parent.node.Connect(address, 1);
  EXPECT_TRUE(DriveUntil({&scene.parent.node}, [&] { return !late->status().ok(); }));
  EXPECT_TRUE(absl::IsUnavailable(late->status())) << late->status();
  kill(worker, SIGKILL);
}

}  // namespace
}  // namespace weft::net
