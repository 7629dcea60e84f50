// The driver's page: what its requests show and do, and the token that they need.
#include "tools/driver/page.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/first_line.h"
#include "base/random.h"
#include "base/write_file.h"
#include "tests/fuzz_budget.h"
#include "tests/scratch_folder.h"
#include "tests/tools/driver/driven_hosts.h"

namespace weft::driver {
namespace {

using ::testing::HasSubstr;

TEST_F(DriverTest, ThePageShowsTheJobAndEvicts) {
  Add("a");
  Add("b");
  Add("c");
  Turns(4);
  std::vector<recovery::Action> said;
  const auto ask = [&](const std::string& method, const std::string& path) {
    return Answer(*driver_, {.method = method, .path = path}, now_, said);
  };
  EXPECT_THAT(ask("GET", "/job.json").body, HasSubstr(R"("nodes":["a","b"])"));
  EXPECT_EQ(ask("POST", "/evict/nobody").status, 404);
  EXPECT_EQ(ask("GET", "/evict/a").status, 404);
  EXPECT_THAT(ask("POST", "/evict/a").body, HasSubstr("place node 0 on c"));
  EXPECT_FALSE(said.empty());
  Turns(3);
  EXPECT_EQ(Alive(), 4);
  EXPECT_EQ(hosts_[0]->exit_status(), kEvictedStatus);
  EXPECT_EQ(ask("POST", "/stop").status, 200);
  Turns(2);
  EXPECT_EQ(Alive(), 0);
  EXPECT_EQ(hosts_[2]->exit_status(), 1);
}

// Requests that any client with the token may send: what is no route changes nothing.
TEST_F(DriverTest, AnyRequestIsAnsweredAndOnlyARouteActs) {
  Add("a");
  Add("b");
  Turns(4);
  const std::vector<std::string> routes = {
      "GET /", "GET /job.json", "POST /evict/c", "POST /evict/a%20", "POST /replay", "POST /stop/"};
  FuzzBudget budget(5000);
  while (const auto seed = budget.Next()) {
    Random random(*seed);
    std::string text = absl::StrCat(routes[random.Below(routes.size())],
                                    " HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    for (uint64_t i = random.Below(6); i > 0; --i) {
      text[random.Below(text.size())] = static_cast<char>(random.Below(256));
    }
    if (random.Below(4) == 0) text.insert(random.Below(text.size()), "/../%00%2fevict/");
    observe::HttpRequest request;
    if (observe::ParseHttpRequest(text, &request) != observe::HttpParse::kDone) continue;
    const bool acts =
        request.method == "POST" &&
        (request.path == "/stop" || request.path == "/evict/a" || request.path == "/evict/b");
    if (acts) continue;
    const recovery::JobState before = driver_->job();
    std::vector<recovery::Action> said;
    const observe::HttpResponse answer = Answer(*driver_, request, now_, said);
    EXPECT_TRUE(answer.status == 200 || answer.status == 404 || answer.status == 409)
        << answer.status << " to " << request.method << " " << request.path;
    if (answer.status == 200) {
      EXPECT_EQ(request.method, "GET") << request.path;
    }
    EXPECT_TRUE(said.empty()) << ToText(said.front());
    ASSERT_EQ(driver_->job(), before) << request.method << " " << request.path;
  }
}

// As on a full disk: a file without its token would end every later driver.
TEST(PageTokenTest, WhatCannotBeWrittenLeavesNoFile) {
  ScratchFolder folder;
  const std::string file = folder / "page-token";
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const rlim_t room : {0, 10}) {
    const rlimit small{room, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const absl::Status full = PageToken(file).status();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_THAT(std::string(full.message()), HasSubstr("write the page's token to"));
  }
  const absl::StatusOr<std::string> token = PageToken(file);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(*PageToken(file), *token);
  EXPECT_THAT(std::string(PageToken(folder / "none/page-token").status().message()),
              HasSubstr("none/page-token"));
}

// As where the host of an earlier driver lost power before the token was on the disk.
TEST(PageTokenTest, AFileThatIsEmptyGetsAToken) {
  ScratchFolder folder;
  const std::string file = folder / "page-token";
  ASSERT_TRUE(WriteFile(file, "").ok());
  const absl::StatusOr<std::string> token = PageToken(file);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(*PageToken(file), *token);
  ASSERT_TRUE(WriteFile(file, "short\n").ok());
  EXPECT_THAT(std::string(PageToken(file).status().message()), HasSubstr("has 5 characters"));
}

// A pipe has no size, and yet a token that is read, as of `--token-file <(...)`; a device may have
// none, and none is written there.
TEST(PageTokenTest, WhatIsNoFileIsReadAndNotWritten) {
  ScratchFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  FileDescriptor both(open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(both);
  const std::string line = "the token of a pipe\n";
  ASSERT_EQ(write(both.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
  EXPECT_EQ(*PageToken(pipe), "the token of a pipe");
  EXPECT_THAT(std::string(PageToken("/dev/null").status().message()),
              HasSubstr("the token in /dev/null has 0 characters"));
}

// As another driver that has just begun to write: its file is neither removed nor written.
TEST(PageTokenTest, AFileThatAnotherDriverHasLockedIsLeftToIt) {
  ScratchFolder folder;
  const std::string file = folder / "page-token";
  FileDescriptor other(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
  const absl::Status locked = PageToken(file, absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsUnavailable(locked)) << locked;
  EXPECT_THAT(std::string(locked.message()), HasSubstr(file + " is empty, and another process"));
  EXPECT_THAT(std::string(locked.message()), HasSubstr("end that process, delete the file"));
  const std::string line = "the other driver's token\n";
  ASSERT_EQ(write(other.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
  EXPECT_EQ(*PageToken(file, absl::ZeroDuration()), "the other driver's token");
}

// With an empty file, and without any.
TEST(PageTokenTest, DriversThatStartAtOnceHaveOneToken) {
  ScratchFolder folder;
  constexpr int kRounds = 100, kDrivers = 4;
  for (int round = 0; round < kRounds; ++round) {
    const std::string file = folder / absl::StrCat("page-token-", round);
    if (round % 2 == 0) {
      ASSERT_TRUE(WriteFile(file, "").ok());
    }
    std::vector<absl::StatusOr<std::string>> tokens(kDrivers);
    std::atomic<int> ready = 0;
    std::vector<std::thread> drivers;
    for (auto& token : tokens) {
      drivers.emplace_back([&] {
        ++ready;
        while (ready < kDrivers) std::this_thread::yield();
        token = PageToken(file);
      });
    }
    for (std::thread& driver : drivers) driver.join();
    for (const auto& token : tokens) {
      ASSERT_TRUE(token.ok()) << token.status();
      EXPECT_EQ(*token, FirstLine(file)) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace weft::driver
