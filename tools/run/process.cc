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
#include <set>
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

// In the child. Writes errno to `report` when it fails; success closes that by exec.
[[noreturn]] void Become(const ProcessOptions& options, char** arguments, char** environment,
                         pid_t launcher, int report) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);  // it died before the line above
  ResetSignals();
  if (options.open_files > 0) RestoreOpenFilesLimit(options.open_files);
  bool ok = dup2(options.standard_input, STDIN_FILENO) >= 0 &&
            dup2(options.standard_output, STDOUT_FILENO) >= 0 &&
            dup2(options.standard_error, STDERR_FILENO) >= 0;
  if (ok && !options.cpus.empty()) ok = BindThread(options.cpus).ok();
  if (ok) execvpe(arguments[0], arguments, environment);
  int error = errno;
  (void)!write(report, &error, sizeof(error));
  _exit(127);
}

[[noreturn]] void Guard(int pipe) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  setpgid(0, 0);
  prctl(PR_SET_NAME, "weft-guardian");
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(fd);
  std::set<pid_t> groups;
  pid_t message = 0;
  while (true) {
    ssize_t got = read(pipe, &message, sizeof(message));
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(message)) break;
    if (message > 0) groups.insert(message);
    if (message < 0) groups.erase(-message);
  }
  for (pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
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

absl::StatusOr<pid_t> StartProcess(const ProcessOptions& options) {
  WEFT_ASSIGN_OR_RETURN(Pipe report, MakePipe());
  fcntl(report.read.get(), F_SETFL, 0);
  std::vector<char*> arguments = Pointers(options.command);
  std::vector<char*> environment = Pointers(options.environment);
  pid_t launcher = getpid();
  pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child == 0) {
    Become(options, arguments.data(), environment.data(), launcher, report.write.get());
  }
  setpgid(child, child);  // whoever comes first; EACCES once the child has called exec
  report.write.Reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(report.read.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(error)) {
    waitpid(child, nullptr, 0);
    return ErrnoStatus(error, absl::StrCat("start '", options.command[0], "'"));
  }
  return child;
}

absl::StatusOr<Guardian> Guardian::Start() {
  WEFT_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
  fcntl(pipe.read.get(), F_SETFL, 0);
  pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child == 0) {
    pipe.write.Reset();
    Guard(pipe.read.get());
  }
  return Guardian(child, std::move(pipe.write));
}

void Guardian::Tell(pid_t message) {
  // At most PIPE_BUF at once, so whole or not at all; a guardian that was killed is not missed.
  (void)!write(pipe_.get(), &message, sizeof(message));
}

Guardian::~Guardian() {
  if (!pipe_.valid()) return;
  pipe_.Reset();
  waitpid(pid_, nullptr, 0);
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
