#include "tools/init/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/store/server/store_server.h"

namespace weft::init {

absl::StatusOr<std::unique_ptr<Process>> Process::Start(const std::function<void(int)>& body) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return ErrnoStatus(errno, "make a socket pair");
  }
  pid_t parent = getpid();
  pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    close(ends[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    body(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  return std::unique_ptr<Process>(new Process(pid, FileDescriptor(ends[0])));
}

Process::~Process() {
  socket_.Reset();
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Process::Tell(const std::string& what) const {
  (void)!send(socket_.get(), what.data(), what.size(), MSG_NOSIGNAL);
}

absl::StatusOr<std::string> Process::Read() {
  std::array<char, 4096> buffer;
  ssize_t got = recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (got <= 0) return absl::InternalError(absl::StrCat("process ", pid_, " has died"));
  line_.append(buffer.data(), static_cast<size_t>(got));
  size_t end = line_.find('\n');
  if (end == std::string::npos) return std::string();
  std::string line = line_.substr(0, end);
  line_.erase(0, end + 1);
  return line;
}

absl::Status AwaitAll(const Processes& processes, absl::string_view word, absl::Duration timeout,
                      const std::function<void()>& tick) {
  SystemClock clock;
  absl::Time deadline = clock.Now() + timeout;
  std::vector<bool> done(processes.size(), false);
  size_t left = processes.size();
  while (left > 0) {
    if (clock.Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(left, " processes are not through after ", absl::FormatDuration(timeout)));
    }
    std::vector<pollfd> waits;
    for (size_t i = 0; i < processes.size(); ++i) {
      waits.push_back({done[i] ? -1 : processes[i]->fd(), POLLIN, 0});
    }
    poll(waits.data(), waits.size(), 200);
    tick();
    for (size_t i = 0; i < processes.size(); ++i) {
      if (done[i] || waits[i].revents == 0) continue;
      WEFT_ASSIGN_OR_RETURN(std::string line, processes[i]->Read());
      if (line.empty()) continue;
      if (line != word) return absl::InternalError(line);
      done[i] = true;
      --left;
    }
  }
  return absl::OkStatus();
}

void Say(int socket, const std::string& line) {
  std::string text = line.substr(0, 4000) + "\n";
  (void)!send(socket, text.data(), text.size(), MSG_NOSIGNAL);
}

void SayOutcome(int socket, const absl::Status& status) {
  Say(socket, status.ok() ? "ok" : std::string(status.message()));
}

void RunWhenTold(int socket, const std::function<absl::Status(const std::string& told)>& run) {
  std::array<char, 128> told{};
  ssize_t got = read(socket, told.data(), told.size() - 1);
  if (got <= 0) return;
  SayOutcome(socket, run(std::string(told.data(), static_cast<size_t>(got))));
  (void)!read(socket, told.data(), 1);
}

absl::Status RunRanks(int ranks, const net::JobSecret& secret, absl::Duration timeout,
                      const std::function<absl::Status(int rank, const std::string& store)>& run) {
  Processes processes;
  for (int rank = 0; rank < ranks; ++rank) {
    auto body = [&, rank](int socket) {
      RunWhenTold(socket, [&](const std::string& at) { return run(rank, at); });
    };
    WEFT_ASSIGN_OR_RETURN(auto process, Process::Start(body));
    processes.push_back(std::move(process));
  }
  collectives::StoreServerOptions server;
  server.core.secret = secret;
  WEFT_ASSIGN_OR_RETURN(auto store, collectives::StoreServer::Start(server));
  for (const auto& process : processes) process->Tell(store->address());
  const absl::Status status = AwaitAll(processes, "ok", timeout, [] {});
  processes.clear();
  return status;
}

}  // namespace weft::init
