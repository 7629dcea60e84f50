#include "tests/bench/init/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "collectives/store/protocol/store_connection.h"

namespace weft::init {
namespace {

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
  static absl::StatusOr<Pipe> Make() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
    return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  }
};

// TCPStore's server looks every client's name up, and stands still meanwhile: a lost answer of
// the name server costs all clients 5 s. In a mount name space of its own it asks /etc/hosts
// only.
void NoReverseLookUps(const std::string& hosts_file) {
  if (hosts_file.empty() || unshare(CLONE_NEWNS) != 0) return;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return;
  mount(hosts_file.c_str(), "/etc/nsswitch.conf", nullptr, MS_BIND, nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Child>> Child::Start(const std::vector<std::string>& words,
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

Child::~Child() {
  in_.Reset();
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::StatusOr<std::string> Child::Await(absl::string_view beginning, absl::Time deadline) {
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

bool Child::ended() const {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

double Child::cpu_seconds() const {
  clockid_t clock = 0;
  timespec time{};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) return -1;
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
}

}  // namespace weft::init
