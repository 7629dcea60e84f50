// A server, a client and a relay that are killed while processes that they forked live on: whoever
// has a connection to them learns of it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/relay/store_relay.h"
#include "collectives/store/server/store_server.h"
#include "tests/collectives/store/store_fixture.h"

namespace weft::collectives {
namespace {

constexpr unsigned kAlarmSeconds = 300;  // no process outlives a test that was killed

struct Lines {
  int in = -1, out = -1;
  void Say(const std::string& line) const {
    const std::string text = line + "\n";
    EXPECT_EQ(write(out, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  std::string Hear() const {
    std::string line;
    for (char c = 0; read(in, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
};

// A process that runs `body`, then forks one that does nothing, once it is told to. Made before
// this process has threads.
class Forker {
 public:
  explicit Forker(const std::function<void(const Lines&)>& body) {
    std::array<int, 2> down{}, up{};
    EXPECT_EQ(pipe(down.data()), 0);
    EXPECT_EQ(pipe(up.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      alarm(kAlarmSeconds);
      close(down[1]);
      close(up[0]);
      const Lines lines{down[0], up[1]};
      body(lines);
      _exit(1);
    }
    close(down[0]);
    close(up[1]);
    lines = {up[0], down[1]};
  }
  ~Forker() {
    Kill();
    if (worker_ > 0) kill(worker_, SIGKILL);
    close(lines.in);
    close(lines.out);
  }
  // For `body`, as its last.
  static void ForkWhenTold(const Lines& lines) {
    lines.Hear();
    const pid_t worker = fork();
    if (worker == 0) {
      alarm(kAlarmSeconds);
      while (true) pause();
    }
    lines.Say(absl::StrCat(worker));
    while (true) pause();
  }
  void Fork() {
    lines.Say("fork");
    EXPECT_TRUE(absl::SimpleAtoi(lines.Hear(), &worker_));
    EXPECT_GT(worker_, 0);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  Lines lines;

 private:
  pid_t pid_ = -1, worker_ = -1;
};

StoreClientOptions ClientOf(const std::string& address) {
  StoreClientOptions options;
  options.address = address;
  options.name = "test";
  options.reconnect = absl::Milliseconds(500);
  return options;
}

bool AwaitConnections(const StoreServer& server, int64_t count) {
  SystemClock clock;
  const absl::Time end = clock.Now() + kPatience;
  while (server.statistics().connections != count) {
    if (clock.Now() > end) return false;
    usleep(1000);
  }
  return true;
}

TEST(StoreFork, AServerThatIsKilledIsNoticedThoughAForkedProcessLives) {
  Forker serves([](const Lines& lines) {
    auto server = StoreServer::Start({});
    lines.Say(server.ok() ? (*server)->address() : "");
    Forker::ForkWhenTold(lines);
  });
  auto client = StoreClient::Connect(ClientOf(serves.lines.Hear()));
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->Set("k", "v").ok());
  serves.Fork();
  serves.Kill();
  const absl::Status told = (*client)->Get("never", kPatience).status();
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
}

TEST(StoreFork, AClientAndARelayThatAreKilledAreNoticedThoughAForkedProcessLives) {
  for (const bool relays : {false, true}) {
    Forker asks([relays](const Lines& lines) {
      std::string address = lines.Hear();
      StoreRelayOptions options;
      options.up = address;
      absl::StatusOr<std::unique_ptr<StoreRelay>> relay = std::unique_ptr<StoreRelay>();
      if (relays) relay = StoreRelay::Start(options);
      if (!relay.ok()) _exit(2);
      if (relays) address = (*relay)->address();
      auto client = StoreClient::Connect(ClientOf(address));
      const bool is_set = client.ok() && (*client)->Set("k", "v").ok();
      lines.Say(is_set ? "set" : "not set");
      Forker::ForkWhenTold(lines);
    });
    auto server = StoreServer::Start({});
    ASSERT_TRUE(server.ok()) << server.status();
    asks.lines.Say((*server)->address());
    ASSERT_EQ(asks.lines.Hear(), "set");
    EXPECT_TRUE(AwaitConnections(**server, 1)) << relays;
    asks.Fork();
    asks.Kill();
    EXPECT_TRUE(AwaitConnections(**server, 0)) << relays;
  }
}

}  // namespace
}  // namespace weft::collectives
