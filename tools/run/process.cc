#include "tools/run/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/open_files.h"
#include "base/status.h"

namespace weft::run {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Signals as a fresh program expects them. Only calls that are safe after fork.
void ResetSignals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// What the parts of a start report of themselves: at most PIPE_BUF bytes, so whole or not at all.
struct Report {
  pid_t rank = -1;  // from the keeper
  int error = 0;    // errno, where the rank cannot be started
};

void Tell(int pipe, const Report& report) { (void)!write(pipe, &report, sizeof(report)); }

// In the rank. Reports only when it fails; success closes the pipe by exec.
[[noreturn]] void Become(const ProcessOptions& options, char** arguments, char** environment,
                         pid_t keeper, int report) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != keeper) _exit(1);  // it died before the line above
  ResetSignals();
  if (options.open_files > 0) RestoreOpenFilesLimit(options.open_files);
  bool ok = dup2(options.standard_input, STDIN_FILENO) >= 0 &&
            dup2(options.standard_output, STDOUT_FILENO) >= 0 &&
            dup2(options.standard_error, STDERR_FILENO) >= 0;
  if (ok && !options.cpus.empty()) ok = BindThread(options.cpus).ok();
  if (ok) execvpe(arguments[0], arguments, environment);
  Tell(report, {.error = errno});
  _exit(127);
}

// In the keeper, whose launcher is dead. Whoever is killed leaves its children to this process, so
// until there are none that may be killed.
void KillDescendants() {
  while (true) {
    bool any = false;
    for (pid_t child : Children()) any = kill(child, SIGKILL) == 0 || any;
    if (!any) return;
    waitpid(-1, nullptr, 0);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
}

constexpr int kLauncherDied = SIGTERM;  // sent to a keeper by the kernel

[[noreturn]] void Keep(pid_t rank, pid_t launcher) {
  sigset_t wakes;
  sigemptyset(&wakes);
  sigaddset(&wakes, SIGCHLD);
  sigaddset(&wakes, kLauncherDied);
  while (true) {
    if (getppid() != launcher) {
      kill(-rank, SIGKILL);
      KillDescendants();
      _exit(0);
    }
    siginfo_t info{};
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
      if (info.si_pid == rank) _exit(0);  // not waited for: the launcher will
      waitpid(info.si_pid, nullptr, 0);
      info = {};
    }
    sigwaitinfo(&wakes, nullptr);
  }
}

// In the keeper: starts the rank.
[[noreturn]] void StartAndKeep(const ProcessOptions& options, char** arguments, char** environment,
                               pid_t launcher, int report) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  setpgid(0, 0);  // what is sent to the launcher's group is not for the keeper
  prctl(PR_SET_NAME, "weft-keeper");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_PDEATHSIG, kLauncherDied);
  if (getppid() != launcher) _exit(1);  // it died before the line above
  pid_t keeper = getpid();
  pid_t rank = fork();
  if (rank == 0) Become(options, arguments, environment, keeper, report);
  if (rank < 0) {
    Tell(report, {.error = errno});
    _exit(1);
  }
  setpgid(rank, rank);  // whoever comes first; EACCES once the rank has called exec
  Tell(report, {.rank = rank});
  // The ends of pipes, sockets of the store: others wait for them to be closed.
  close_range(0, ~0U, 0);
  Keep(rank, launcher);
}

}  // namespace

absl::StatusOr<Pipe> MakePipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  Pipe made{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  fcntl(made.read.get(), F_SETFL, O_NONBLOCK);
  return made;
}

absl::StatusOr<PseudoTerminal> MakePseudoTerminal(int like) {
  int master = -1;
  int slave = -1;
  if (openpty(&master, &slave, nullptr, nullptr, nullptr) != 0) {
    return ErrnoStatus(errno, "make a pseudo-terminal");
  }
  PseudoTerminal made{FileDescriptor(master), FileDescriptor(slave)};
  fcntl(master, F_SETFD, FD_CLOEXEC);
  fcntl(slave, F_SETFD, FD_CLOEXEC);
  fcntl(master, F_SETFL, O_NONBLOCK);
  termios mode{};
  tcgetattr(slave, &mode);
  mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  mode.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  tcsetattr(slave, TCSANOW, &mode);
  CopyWindowSize(like, master);
  return made;
}

void CopyWindowSize(int from, int to) {
  winsize size{};
  if (ioctl(from, TIOCGWINSZ, &size) == 0) ioctl(to, TIOCSWINSZ, &size);
}

absl::StatusOr<StartedProcess> StartProcess(const ProcessOptions& options) {
  WEFT_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
  fcntl(pipe.read.get(), F_SETFL, 0);
  std::vector<char*> arguments = Pointers(options.command);
  std::vector<char*> environment = Pointers(options.environment);
  const std::string doing = absl::StrCat("start '", options.command[0], "'");
  pid_t launcher = getpid();
  StartedProcess started;
  started.keeper = fork();
  if (started.keeper < 0) return ErrnoStatus(errno, absl::StrCat(doing, ": fork"));
  if (started.keeper == 0) {
    StartAndKeep(options, arguments.data(), environment.data(), launcher, pipe.write.get());
  }
  pipe.write.Reset();
  int error = 0;
  Report report;
  while (true) {
    ssize_t got = read(pipe.read.get(), &report, sizeof(report));
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(report)) break;
    if (report.rank > 0) started.pid = report.rank;
    if (report.error != 0) error = report.error;
  }
  if (error == 0 && started.pid > 0) return started;
  waitpid(started.keeper, nullptr, 0);
  if (started.pid > 0) waitpid(started.pid, nullptr, 0);  // adopted from the keeper
  if (error != 0) return ErrnoStatus(error, doing);
  return absl::AbortedError(
      absl::StrCat(doing, ": its keeper, process ", started.keeper, ", was killed"));
}

int StatusOfFailedStart(const absl::Status& why) {
  if (absl::IsNotFound(why)) return 127;
  return absl::IsPermissionDenied(why) || absl::IsFailedPrecondition(why) ? 126 : 1;
}

std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return children;
  while (dirent* entry = readdir(proc)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid)) continue;
    std::FILE* file = std::fopen(absl::StrCat("/proc/", pid, "/stat").c_str(), "re");
    if (file == nullptr) continue;
    // "pid (name) state ppid ..."; the name may contain anything, so look for its last bracket.
    std::array<char, 512> line{};
    size_t got = std::fread(line.data(), 1, line.size() - 1, file);
    std::fclose(file);
    absl::string_view text(line.data(), got);
    size_t bracket = text.rfind(')');
    pid_t parent = 0;
    if (bracket != absl::string_view::npos &&
        std::sscanf(line.data() + bracket + 1, " %*c %d", &parent) == 1 && parent == getpid()) {
      children.push_back(pid);
    }
  }
  closedir(proc);
  return children;
}

}  // namespace weft::run
