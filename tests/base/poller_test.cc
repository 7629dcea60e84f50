#include "base/poller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kPatience = absl::Seconds(30);

std::array<FileDescriptor, 2> SocketPair() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {FileDescriptor(fds[0]), FileDescriptor(fds[1])};
}

void Say(const FileDescriptor& fd) { EXPECT_EQ(write(fd.get(), "x", 1), 1); }

// Notes what happens to it in a list that several share.
class Noted final : public PollHandler {
 public:
  Noted(Poller& poller, std::string name, std::vector<std::string>* log)
      : PollHandler(poller), name_(std::move(name)), log_(log) {}
  ~Noted() override { log_->push_back(name_ + " goes"); }
  using PollHandler::SetDeadline;
  using PollHandler::WantTurn;
  void OnEvents(uint32_t, absl::Time) override {
    log_->push_back(name_ + " ready");
    if (other) poller().DeferDelete(std::move(other));
  }
  void OnDeadline(absl::Time) override { log_->push_back(name_ + " due"); }
  bool OnTurn(absl::Time) override {
    log_->push_back(name_ + " turn");
    return true;
  }
  std::unique_ptr<Noted> other;

 private:
  const std::string name_;
  std::vector<std::string>* const log_;
};

TEST(Poller, CallsWhatIsReadyAndThenWhatIsDue) {
  auto poller = Poller::Create().value();
  std::vector<std::string> log;
  auto [near, far] = SocketPair();
  Noted a(*poller, "a", &log), b(*poller, "b", &log);
  ASSERT_TRUE(poller->Add(near.get(), EPOLLIN, &a).ok());
  const absl::Time now = poller->now();
  b.SetDeadline(now + absl::Seconds(1));
  EXPECT_FALSE(poller->Turn(now));
  Say(far);
  b.WantTurn();
  EXPECT_TRUE(poller->Turn(now + absl::Seconds(1)));
  EXPECT_THAT(log, ElementsAre("b turn", "a ready", "b due"));
  EXPECT_EQ(poller->now(), now + absl::Seconds(1));
  EXPECT_EQ(poller->NextDeadline(), absl::InfiniteFuture());
}

TEST(Poller, DestroysAHandlerOnlyWhenTheRoundIsOver) {
  auto poller = Poller::Create().value();
  std::vector<std::string> log;
  auto [near_a, far_a] = SocketPair();
  auto [near_b, far_b] = SocketPair();
  Noted a(*poller, "a", &log);
  a.other = std::make_unique<Noted>(*poller, "b", &log);
  ASSERT_TRUE(poller->Add(near_a.get(), EPOLLIN, &a).ok());
  ASSERT_TRUE(poller->Add(near_b.get(), EPOLLIN, a.other.get()).ok());
  Say(far_a);
  Say(far_b);
  poller->Turn(poller->now());
  EXPECT_THAT(log, ElementsAre("a ready", "b ready", "b goes"));
  poller->Remove(near_b.get());
}

TEST(Poller, SleepsUntilADeadlineThoughMoreTimeIsGiven) {
  auto poller = Poller::Create().value();
  std::vector<std::string> log;
  Noted a(*poller, "a", &log);
  a.SetDeadline(poller->now() + absl::Milliseconds(5));
  poller->Sleep(absl::InfiniteFuture());
  EXPECT_THAT(log, ElementsAre("a due"));
}

TEST(Poller, DoesNotSleepWhileATurnIsWanted) {
  auto poller = Poller::Create().value();
  std::vector<std::string> log;
  Noted a(*poller, "a", &log);
  a.WantTurn();
  poller->Sleep(absl::InfiniteFuture());
  EXPECT_THAT(log, ElementsAre("a turn"));
}

TEST(PollWaker, EndsASleepOnce) {
  auto poller = Poller::Create().value();
  auto waker = PollWaker::Create(*poller).value();
  std::thread other([&] { waker->Wake(); });
  const absl::Time begin = SystemClock().Now();
  poller->Sleep(begin + kPatience);
  other.join();
  EXPECT_LT(SystemClock().Now() - begin, kPatience);
  EXPECT_FALSE(poller->Turn(poller->now())) << "it was read";
}

TEST(Epoll, OfSeveralDescriptorsIsReadableWhenOneIs) {
  auto [near_a, far_a] = SocketPair();
  auto [near_b, far_b] = SocketPair();
  auto both = Epoll::Watching({near_a.get(), near_b.get()}).value();
  std::array<epoll_event, 4> events;
  EXPECT_EQ(both.Wait(absl::MakeSpan(events), absl::ZeroDuration()), 0);
  Say(far_b);
  ASSERT_EQ(both.Wait(absl::MakeSpan(events), kPatience), 1);
  EXPECT_EQ(events[0].data.fd, near_b.get());
  both.Remove(near_b.get());
  EXPECT_EQ(both.Wait(absl::MakeSpan(events), absl::ZeroDuration()), 0);
}

TEST(Epoll, OfAParentIsLeftAloneByAForkedProcess) {
  auto [near, far] = SocketPair();
  auto epoll = Epoll::Watching({near.get()}).value();
  const pid_t child = fork();
  if (child == 0) {
    epoll.Remove(near.get());
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  Say(far);
  std::array<epoll_event, 1> events;
  EXPECT_EQ(epoll.Wait(absl::MakeSpan(events), kPatience), 1);
}

TEST(Epoll, SaysWhatItCannotWatch) {
  auto epoll = Epoll::Create().value();
  const absl::Status added = epoll.Add(1 << 28, EPOLLIN, {.fd = 0});
  EXPECT_FALSE(added.ok());
  EXPECT_THAT(std::string(added.message()), ::testing::HasSubstr("add descriptor 268435456"));
}

}  // namespace
}  // namespace weft
