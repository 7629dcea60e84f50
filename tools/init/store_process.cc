#include "tools/init/store_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/store/protocol/store_connection.h"
#include "collectives/store/server/store_server.h"

namespace weft::init {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(60);
constexpr int kPortTries = 5;

// Prints "port N", and serves until its standard input is closed.
constexpr const char* kTorchServer = R"(
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=True)
print("port", store.port, flush=True)
sys.stdin.read()
)";

class WeftStore final : public StoreProcess {
 public:
  explicit WeftStore(std::unique_ptr<collectives::StoreServer> server)
      : server_(std::move(server)) {}
  const std::string& address() const override { return server_->address(); }
  double cpu_seconds() const override { return absl::ToDoubleSeconds(server_->statistics().cpu); }
  ServerCalls calls() const override {
    collectives::StoreServerStatistics s = server_->statistics();
    return {static_cast<double>(s.reads), static_cast<double>(s.writes),
            static_cast<double>(s.waits)};
  }
  int64_t bytes_sent() const override { return server_->statistics().bytes_sent.count(); }
  int64_t waiting() const override { return server_->statistics().waiting; }

 private:
  std::unique_ptr<collectives::StoreServer> server_;
};

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

class Running final : public StoreProcess {
 public:
  explicit Running(std::string address) : address_(std::move(address)) {}
  const std::string& address() const override { return address_; }
  double cpu_seconds() const override { return -1; }
  std::string note() const override {
    return absl::StrCat("the server at ", address_, " was there before; its CPU time is not known");
  }

 private:
  const std::string address_;
};

// A program of somebody else's, with pipes to its standard input and from its output.
class Child {
 public:
  // kNotFound: there is no such program.
  static absl::StatusOr<std::unique_ptr<Child>> Start(const std::vector<std::string>& words,
                                                      const std::string& hosts_file) {
    WEFT_ASSIGN_OR_RETURN(Pipe in, Pipe::Make());
    WEFT_ASSIGN_OR_RETURN(Pipe out, Pipe::Make());
    WEFT_ASSIGN_OR_RETURN(Pipe failure, Pipe::Make());  // closed by a successful exec
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) return ErrnoStatus(errno, "fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      dup2(in.read.get(), STDIN_FILENO);
      dup2(out.write.get(), STDOUT_FILENO);
      dup2(out.write.get(), STDERR_FILENO);
      NoReverseLookUps(hosts_file);
      execvp(arguments[0], arguments.data());
      int error = errno;
      (void)!write(failure.write.get(), &error, sizeof(error));
      _exit(127);
    }
    std::unique_ptr<Child> child(new Child(pid, std::move(in.write), std::move(out.read)));
    failure.write.Reset();
    int error = 0;
    if (read(failure.read.get(), &error, sizeof(error)) == sizeof(error)) {
      return absl::NotFoundError(absl::StrCat("cannot run ", words[0], ": ", strerror(error)));
    }
    return child;
  }

  ~Child() {
    in_.Reset();
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  // What follows `beginning` in a line of its output. kUnavailable: it ended before, and its last
  // line was this.
  absl::StatusOr<std::string> Await(absl::string_view beginning, absl::Time deadline) {
    std::vector<std::string> lines = {""};
    while (true) {
      WEFT_RETURN_IF_ERROR(collectives::AwaitReady(out_.get(), POLLIN, deadline));
      std::array<char, 4096> buffer;
      ssize_t got = ::read(out_.get(), buffer.data(), buffer.size());
      if (got <= 0) {
        while (lines.size() > 1 && lines.back().empty()) lines.pop_back();
        return absl::UnavailableError(lines.back());
      }
      for (ssize_t i = 0; i < got; ++i) {
        if (buffer[static_cast<size_t>(i)] != '\n') {
          lines.back().push_back(buffer[static_cast<size_t>(i)]);
          continue;
        }
        absl::string_view line = lines.back();
        if (absl::ConsumePrefix(&line, beginning)) return std::string(line);
        lines.emplace_back();
      }
    }
  }

  bool ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid_;
  }

  double cpu_seconds() const {
    clockid_t clock = 0;
    timespec time{};
    if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) return -1;
    return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
  }

 private:
  struct Pipe {
    FileDescriptor read;
    FileDescriptor write;
    static absl::StatusOr<Pipe> Make() {
      std::array<int, 2> ends{};
      if (pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
      return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
    }
  };

  Child(pid_t pid, FileDescriptor in, FileDescriptor out)
      : pid_(pid), in_(std::move(in)), out_(std::move(out)) {}

  // TCPStore's server looks every client's name up, and stands still meanwhile: a lost answer of
  // the name server costs all clients 5 s. In a mount name space of its own it asks /etc/hosts
  // only.
  static void NoReverseLookUps(const std::string& hosts_file) {
    if (hosts_file.empty() || unshare(CLONE_NEWNS) != 0) return;
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return;
    mount(hosts_file.c_str(), "/etc/nsswitch.conf", nullptr, MS_BIND, nullptr);
  }

  const pid_t pid_;
  FileDescriptor in_;
  FileDescriptor out_;
};

class Foreign final : public StoreProcess {
 public:
  Foreign(StoreKind kind, std::unique_ptr<Child> child, int port, std::string note)
      : kind_(kind),
        child_(std::move(child)),
        address_(absl::StrCat("127.0.0.1:", port)),
        note_(std::move(note)),
        before_(child_->cpu_seconds()) {}
  const std::string& address() const override { return address_; }
  double cpu_seconds() const override {
    double now = child_->cpu_seconds();
    return now < 0 || before_ < 0 ? -1 : now - before_;
  }
  ServerCalls calls() const override {
    return kind_ == StoreKind::kRedis ? CallsOfRedis(address_) : ServerCalls{};
  }
  std::string note() const override { return note_; }

 private:
  const StoreKind kind_;
  std::unique_ptr<Child> child_;
  const std::string address_;
  const std::string note_;
  const double before_;  // starting is not serving
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

absl::StatusOr<std::unique_ptr<StoreProcess>> StartRedis(const Options& options) {
  SystemClock clock;
  for (int i = 0; i < kPortTries; ++i) {
    WEFT_ASSIGN_OR_RETURN(int port, FreePort());
    // Bound to loopback; "protected mode" would take clients of 127.0.0.1 only.
    auto child =
        Child::Start({options.redis_server, "--port", absl::StrCat(port), "--bind", "127.0.0.1",
                      "--protected-mode", "no", "--save", "", "--appendonly", "no", "--tcp-backlog",
                      "4096", "--maxclients", absl::StrCat(options.ranks + 1024)},
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
        return std::make_unique<Foreign>(StoreKind::kRedis, *std::move(child), port, "");
      }
      poll(nullptr, 0, 5);
    }
  }
  return absl::UnavailableError(
      absl::StrCat("--store redis: ", options.redis_server, " ends as soon as it is started"));
}

// A file that says that names are looked up in /etc/hosts only; gone with this.
class HostsFile {
 public:
  HostsFile() {
    if (fd_ < 0) return;
    constexpr absl::string_view kText = "hosts: files\n";
    (void)!write(fd_, kText.data(), kText.size());
  }
  ~HostsFile() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(name_.c_str());
  }
  std::string name() const { return fd_ < 0 ? "" : name_; }

 private:
  std::string name_ = "/tmp/weft-init-hosts-XXXXXX";
  int fd_ = mkstemp(name_.data());
};

absl::StatusOr<std::unique_ptr<StoreProcess>> StartTorch(const Options& options) {
  HostsFile hosts;
  bool may_mount = geteuid() == 0;
  auto child = Child::Start({options.torch_python, "-u", "-c", kTorchServer}, hosts.name());
  std::string more =
      "; name an interpreter that has PyTorch 2 with --torch-python (`tools/dev bench init` makes "
      "one: .deps/bench-venv/bin/python), or a server that runs with --address";
  if (absl::IsNotFound(child.status())) {
    return absl::NotFoundError(absl::StrCat("--store torch: ", child.status().message(), more));
  }
  WEFT_RETURN_IF_ERROR(child.status());
  auto line = (*child)->Await("port ", SystemClock().Now() + kStartTimeout);
  int port = 0;
  if (!line.ok() || !absl::SimpleAtoi(*line, &port)) {
    return absl::NotFoundError(absl::StrCat("--store torch: ", options.torch_python,
                                            " serves no TCPStore (", line.status().message(), ")",
                                            more));
  }
  std::string note;
  if (!may_mount) {
    note =
        "TCPStore looks every client's name up, which only root can keep from a name server here";
  }
  return std::make_unique<Foreign>(StoreKind::kTorch, *std::move(child), port, note);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreProcess>> StoreProcess::Start(const Options& options,
                                                                  const net::JobSecret& secret) {
  if (!options.address.empty()) return std::make_unique<Running>(options.address);
  switch (options.store) {
    case StoreKind::kRedis:
      return StartRedis(options);
    case StoreKind::kTorch:
      return StartTorch(options);
    case StoreKind::kWeft:
      break;
  }
  collectives::StoreServerOptions server;
  server.core.secret = secret;
  server.core.description = absl::StrCat("weft-init pid ", getpid());
  WEFT_ASSIGN_OR_RETURN(auto started, collectives::StoreServer::Start(server));
  return std::make_unique<WeftStore>(std::move(started));
}

}  // namespace weft::init
