#include "base/command.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft {
namespace {

constexpr size_t kTextMax = 1 << 20;
constexpr absl::Duration kLook = absl::Milliseconds(1), kDeath = absl::Seconds(1);

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& arguments, int out) {
  std::vector<char*> words;
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A group of its own, so that its children can be killed with it; no signal blocked or ignored.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  pid_t child = 0;
  const int error = posix_spawnp(&child, words[0], &actions, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("start ", arguments[0]));
  return child;
}

}  // namespace

bool ReadPipe(int fd, absl::Duration limit, std::string* text) {
  const SystemClock clock;
  const absl::Time deadline = clock.Now() + limit;
  for (;;) {
    const absl::Duration left = deadline - clock.Now();
    if (left <= absl::ZeroDuration() || text->size() > kTextMax) return false;
    pollfd waiting{fd, POLLIN, 0};
    const auto wait =
        static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
    if (poll(&waiting, 1, wait) <= 0) continue;
    std::array<char, 4096> buffer;
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    text->append(buffer.data(), static_cast<size_t>(n));
  }
}

absl::Status CancellableCommand::Start(const std::vector<std::string>& arguments, int out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_cancelled_) return absl::CancelledError(absl::StrCat(arguments[0], " was not started"));
  wait_error_ = 0;
  WEFT_ASSIGN_OR_RETURN(child_, Spawn(arguments, out));
  return absl::OkStatus();
}

bool CancellableCommand::Reap() {
  if (child_ == 0) return true;
  const pid_t reaped = waitpid(child_, &status_, WNOHANG);
  if (reaped == 0) return false;
  if (reaped < 0) wait_error_ = errno;
  child_ = 0;
  return true;
}

bool CancellableCommand::HasEnded() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return Reap();
}

void CancellableCommand::Kill() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (child_ != 0) kill(-child_, SIGKILL);
  // One that waits for a device within the kernel does not end, and is left behind.
  const SystemClock clock;
  const absl::Time end = clock.Now() + kDeath;
  while (!Reap() && clock.Now() < end) absl::SleepFor(kLook);
}

void CancellableCommand::Cancel() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_cancelled_ = true;
  }
  Kill();
}

absl::StatusOr<CommandOutput> CancellableCommand::Run(const std::vector<std::string>& arguments,
                                                      absl::Duration limit) {
  const SystemClock clock;
  const absl::Time deadline = clock.Now() + limit;
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  const absl::Status started = Start(arguments, ends[1]);
  close(ends[1]);
  CommandOutput output;
  bool in_time = started.ok() && ReadPipe(ends[0], limit, &output.text);
  close(ends[0]);
  WEFT_RETURN_IF_ERROR(started);
  while (in_time && !HasEnded()) {  // it said its last word
    in_time = clock.Now() < deadline;
    absl::SleepFor(kLook);
  }
  if (!in_time) Kill();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_cancelled_) return absl::CancelledError(absl::StrCat(arguments[0], " was ended"));
  if (!in_time && output.text.size() > kTextMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(arguments[0], " said more than 1 MiB, and was ended"));
  }
  if (!in_time) {
    return absl::DeadlineExceededError(absl::StrCat(
        arguments[0], " was not through within ", absl::FormatDuration(limit), ", and was ended"));
  }
  if (wait_error_ != 0) return ErrnoStatus(wait_error_, absl::StrCat("wait for ", arguments[0]));
  if (WIFSIGNALED(status_)) {
    return absl::AbortedError(
        absl::StrCat(arguments[0], " was ended by a signal: ", strsignal(WTERMSIG(status_))));
  }
  output.status = WEXITSTATUS(status_);
  return output;
}

absl::StatusOr<CommandOutput> RunCommand(const std::vector<std::string>& arguments,
                                         absl::Duration limit) {
  return CancellableCommand().Run(arguments, limit);
}

}  // namespace weft
