#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/store/protocol/store_connection.h"
#include "tests/bench/init/peer_store.h"
#include "tests/bench/init/redis_client.h"

namespace weft::init {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(60);
constexpr int kPortTries = 5;

// What a Redis at `address` says of itself: "name:12345" in its INFO.
ServerCalls CallsOfRedis(const std::string& address) {
  constexpr absl::string_view kAsk = "INFO stats\r\n";
  auto addresses = ResolveHostPort(address);
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  bool asked = addresses.ok() &&
               connect(socket.get(), (*addresses)[0].get(), (*addresses)[0].size()) == 0 &&
               send(socket.get(), kAsk.data(), kAsk.size(), MSG_NOSIGNAL) ==
                   static_cast<ssize_t>(kAsk.size());
  if (!asked) return {};
  std::string info;
  std::array<char, 4096> buffer;
  size_t end = 0;
  auto whole = [&] {  // "$LENGTH", that many bytes, each with an end of line
    size_t line = info.find("\r\n");
    bool known = line != std::string::npos && info[0] == '$' &&
                 absl::SimpleAtoi(absl::string_view(info).substr(1, line - 1), &end);
    return line != std::string::npos && (!known || info.size() >= line + 4 + end);
  };
  SystemClock clock;
  absl::Time deadline = clock.Now() + absl::Seconds(5);
  while (!whole()) {
    if (!collectives::AwaitReady(socket.get(), POLLIN, deadline).ok()) return {};
    ssize_t got = recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (got <= 0) return {};
    info.append(buffer.data(), static_cast<size_t>(got));
  }
  auto number = [&](absl::string_view name) {
    size_t at = info.find(absl::StrCat("\n", name, ":"));
    double value = -1;
    if (at == std::string::npos) return value;
    absl::string_view text = absl::string_view(info).substr(at + name.size() + 2);
    (void)absl::SimpleAtod(text.substr(0, text.find('\r')), &value);
    return value;
  };
  return {number("total_reads_processed"), number("total_writes_processed"),
          number("eventloop_cycles")};
}

class StartedRedis final : public StartedServer {
 public:
  StartedRedis(std::unique_ptr<Child> child, int port)
      : StartedServer(std::move(child), port, "") {}
  ServerCalls calls() const override { return CallsOfRedis(address()); }
};

// A port that was free a moment ago.
absl::StatusOr<int> FreePort() {
  WEFT_ASSIGN_OR_RETURN(auto addresses, ResolveHostPort("127.0.0.1:0"));
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket || bind(socket.get(), addresses[0].get(), addresses[0].size()) != 0) {
    return ErrnoStatus(errno, "find a free port");
  }
  return LocalAddress(socket.get()).port();
}

bool Answers(int port) {
  auto addresses = ResolveHostPort(absl::StrCat("127.0.0.1:", port));
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return addresses.ok() &&
         connect(socket.get(), (*addresses)[0].get(), (*addresses)[0].size()) == 0;
}

absl::StatusOr<std::unique_ptr<StoreProcess>> StartRedis(const std::string& program, int ranks) {
  SystemClock clock;
  for (int i = 0; i < kPortTries; ++i) {
    WEFT_ASSIGN_OR_RETURN(int port, FreePort());
    // Bound to loopback; "protected mode" would take clients of 127.0.0.1 only.
    auto child = Child::Start({program, "--port", absl::StrCat(port), "--bind", "127.0.0.1",
                               "--protected-mode", "no", "--save", "", "--appendonly", "no",
                               "--tcp-backlog", "4096", "--maxclients", absl::StrCat(ranks + 1024)},
                              "");
    if (absl::IsNotFound(child.status())) {
      return absl::NotFoundError(absl::StrCat(
          "--store redis: ", child.status().message(),
          "; install Debian's redis-server, name another one with --redis-server, or one that runs "
          "with --address"));
    }
    WEFT_RETURN_IF_ERROR(child.status());
    absl::Time deadline = clock.Now() + kStartTimeout;
    while (clock.Now() < deadline && !(*child)->ended()) {
      if (Answers(port)) {
        return std::make_unique<StartedRedis>(*std::move(child), port);
      }
      poll(nullptr, 0, 5);
    }
  }
  return absl::UnavailableError(
      absl::StrCat("--store redis: ", program, " ends as soon as it is started"));
}

class Redis final : public MeasuredStore {
 public:
  explicit Redis(PeerServer server) : server_(std::move(server)) {}
  const char* name() const override { return "redis"; }
  absl::StatusOr<std::unique_ptr<StoreProcess>> Start(
      int ranks, const net::JobSecret& /*secret*/) const override {
    if (!server_.address.empty()) return std::make_unique<RunningServer>(server_.address);
    return StartRedis(server_.program, ranks);
  }
  std::unique_ptr<Client> MakeClient(const ClientSetup& setup) const override {
    return std::make_unique<RedisClient>(setup);
  }

 private:
  const PeerServer server_;
};

}  // namespace

std::unique_ptr<MeasuredStore> RedisStore(const PeerServer& server) {
  return std::make_unique<Redis>(server);
}

}  // namespace weft::init
