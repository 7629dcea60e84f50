#include "tools/run/host_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/first_line.h"
#include "base/open_files.h"
#include "base/status.h"
#include "tools/observe/process_state.h"

namespace weft::run {
namespace {

// For what is still in the pipes of ranks that have ended.
constexpr absl::Duration kDrain = absl::Milliseconds(500);
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kPipeBytesMost = size_t{1} << 20;  // Linux' fs.pipe-max-size
constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// Descriptors of this process: standard streams, signals, /dev/null, the store's or relays'
// listeners and wake-ups, and what starting a rank takes for a moment; further for each rank its
// two streams and its log, and a connection of each client of the store; for each spare process its
// two streams, its log and the pipe for its place.
constexpr int64_t kOwnFiles = 32;

int64_t OpenFilesNeeded(const RunOptions& options) {
  const int64_t ranks = options.ranks;
  const int64_t clients = !options.store.empty() && !options.relay.value_or(ranks > 1) ? 0 : ranks;
  const int64_t logs = options.log_dir.empty() ? 0 : 1;  // of each process
  return kOwnFiles + (2 + logs) * ranks + clients + (3 + logs) * int64_t{options.spares};
}

// "D (a device or a file system keeps it)": of the thread that is kept, as /proc has it.
std::string StateOf(pid_t pid) {
  char state = '?';
  std::error_code error;
  for (std::filesystem::directory_iterator thread(absl::StrCat("/proc/", pid, "/task"), error), end;
       !error && thread != end; thread.increment(error)) {
    uint64_t start = 0;
    observe::ProcessState read;
    const std::string line = FirstLine(thread->path().string() + "/stat");
    if (!observe::ParseStat(line, &start, &read)) continue;
    if (state == '?' || read.state == 'D') state = read.state;
  }
  std::string text(1, state);
  if (state == 'D') text += " (a device or a file system keeps it)";
  return text;
}

}  // namespace

bool EndsJob(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

HostRanks::HostRanks(std::string program, const RunOptions& options)
    : program_(std::move(program)),
      options_(options),
      spares_(options, terminal_),
      buffer_(kReadBytes) {}

absl::Status HostRanks::Open() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : kForwarded) sigaddset(&set, signal);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGWINCH);
  // Never read, blocked is ignored: a reader that is gone, a log at the limit of file sizes.
  for (int signal : {SIGPIPE, SIGXFSZ}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  for (int signal : {SIGPIPE, SIGXFSZ}) sigdelset(&set, signal);
  signals_ = FileDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return ErrnoStatus(errno, "signalfd");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const int64_t limit = OpenFilesLimit();
  const int64_t needed = OpenFilesNeeded(options_);
  if (needed > limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options_.ranks, " ranks here, with their output and the store, take ", needed,
        " open files, but the limit is ", limit, " (ulimit -Hn); set it to ", needed, " or more"));
  }
  input_ = FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return absl::OkStatus();
}

// ---- Starting

absl::Status HostRanks::Assign(int first, const Variables& job_variables) {
  variables_ = job_variables;
  if (!options_.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.log_dir, error);
    if (error) {
      return ErrnoStatus(error.value(), absl::StrCat("make the folder ", options_.log_dir));
    }
  }
  if (options_.bind == BindMode::kCore) {
    WEFT_ASSIGN_OR_RETURN(host_, Host::Discover());
  }
  ranks_.clear();
  ranks_.resize(static_cast<size_t>(options_.ranks));
  for (int i = 0; i < options_.ranks; ++i) {
    RankProcess& rank = ranks_[static_cast<size_t>(i)];
    rank.local_rank = i;
    rank.rank =
        options_.planned.ranks.empty() ? first + i : options_.planned.ranks[static_cast<size_t>(i)];
    rank.output = std::make_unique<RankOutput>(
        &terminal_, options_.prefix ? absl::StrCat("[rank ", rank.rank, "] ") : "",
        std::array{StyleOf(rank.rank, Stream::kOutput), StyleOf(rank.rank, Stream::kError)});
    if (options_.log_dir.empty()) continue;
    WEFT_RETURN_IF_ERROR(
        rank.output->OpenLog(absl::StrCat(options_.log_dir, "/rank-", rank.rank, ".log")));
  }
  spares_.RefillLater(clock_.Now());
  return absl::OkStatus();
}

Style HostRanks::StyleOf(int rank, Stream stream) const {
  if (options_.output == OutputMode::kNone) return Style::kNone;
  if (options_.output == OutputMode::kRank0) return rank == 0 ? Style::kRaw : Style::kNone;
  return rank == 0 && terminal_.is_terminal(stream) ? Style::kRaw : Style::kLines;
}

bool HostRanks::Draws(int rank) const {
  for (Stream stream : {Stream::kOutput, Stream::kError}) {
    if (StyleOf(rank, stream) == Style::kRaw && terminal_.is_terminal(stream)) return true;
  }
  return false;
}

absl::Status HostRanks::Start(RankProcess& rank) {
  const bool is_spare = !Draws(rank.rank) && spares_.Use(rank, variables_, clock_.Now());
  if (!is_spare) WEFT_RETURN_IF_ERROR(StartProcessOf(rank));
  rank.output->Finish();  // what the process before had started may have written more
  rank.output->ForgetLines();
  rank.alive = true;
  rank.told_to_end = false;
  rank.give_up_at = absl::InfiniteFuture();
  rank.status = 0;
  rank.started = clock_.Now();
  ++alive_;
  return absl::OkStatus();
}

absl::Status HostRanks::StartProcessOf(RankProcess& rank) {
  // A rank that may draw sees a terminal where we have one; both of its streams are then one.
  std::array<FileDescriptor, 2> ends;
  FileDescriptor slave;
  for (Stream stream : {Stream::kOutput, Stream::kError}) {
    auto index = static_cast<size_t>(stream);
    bool draws = StyleOf(rank.rank, stream) == Style::kRaw && terminal_.is_terminal(stream);
    if (!draws) {
      WEFT_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
      rank.streams[index] = std::move(pipe.read);
      ends[index] = std::move(pipe.write);
    } else if (!slave) {
      WEFT_ASSIGN_OR_RETURN(PseudoTerminal terminal,
                            MakePseudoTerminal(static_cast<int>(index) + STDOUT_FILENO));
      rank.streams[index] = std::move(terminal.master);
      slave = std::move(terminal.slave);
    }
  }
  ProcessOptions process;
  process.command = options_.command;
  process.environment = Lines(RankVariables(variables_, rank), variables_);
  process.standard_input = input_.get();
  process.standard_output = ends[0] ? ends[0].get() : slave.get();
  process.standard_error = ends[1] ? ends[1].get() : slave.get();
  process.open_files = options_.rank_open_files;
  if (host_.has_value()) {
    WEFT_ASSIGN_OR_RETURN(process.cpus, host_->Slice(rank.local_rank, options_.ranks));
  }
  WEFT_ASSIGN_OR_RETURN(StartedProcess started, StartProcess(process));
  rank.pid = started.pid;
  rank.keeper = started.keeper;
  return absl::OkStatus();
}

// ---- Beside the ranks

absl::Status HostRanks::StartAside(const std::vector<std::string>& command,
                                   const Variables& variables) {
  auto aside = std::make_unique<RankProcess>();
  aside->output =
      std::make_unique<RankOutput>(&terminal_, "", std::array{Style::kNone, Style::kNone});
  std::array<FileDescriptor, 2> ends;
  for (size_t index = 0; index < ends.size(); ++index) {
    WEFT_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
    aside->streams[index] = std::move(pipe.read);
    ends[index] = std::move(pipe.write);
  }
  ProcessOptions process;
  process.command = command;
  process.environment = Lines({}, variables);
  process.standard_input = input_.get();
  process.standard_output = ends[0].get();
  process.standard_error = ends[1].get();
  WEFT_ASSIGN_OR_RETURN(StartedProcess started, StartProcess(process));
  aside->pid = started.pid;
  aside->keeper = started.keeper;
  aside->alive = true;
  aside->started = clock_.Now();
  aside_ = std::move(aside);
  return absl::OkStatus();
}

void HostRanks::KillAside() {
  if (runs_aside()) Kill(*aside_);
}

std::unique_ptr<RankProcess> HostRanks::TakeAside() {
  if (aside_ == nullptr || aside_->alive) return nullptr;
  aside_->output->Finish();
  return std::move(aside_);
}

std::vector<RankProcess*> HostRanks::Processes() {
  std::vector<RankProcess*> all;
  for (RankProcess& rank : ranks_) all.push_back(&rank);
  if (aside_ != nullptr) all.push_back(aside_.get());
  return all;
}

std::vector<RankProcess*> HostRanks::Writers() {
  std::vector<RankProcess*> all = Processes();
  for (RankProcess* spare : spares_.Processes()) all.push_back(spare);
  return all;
}

void HostRanks::Warm(const Variables& job_variables) {
  variables_ = job_variables;
  spares_.RefillNow(clock_.Now());
}

// ---- The loop

// Everybody is dead, so the ends of the pipes are near; but a descriptor may have been handed to
// a process that is no rank, which is not waited for.
bool HostRanks::Draining() const {
  bool open = false;
  for (const RankProcess& rank : ranks_) {
    open = open || rank.streams[0] || rank.streams[1];
  }
  return open && !output_given_up_ && (terminal_.congested() || clock_.Now() < *drain_until_);
}

// Milliseconds until something is due.
int HostRanks::Patience(absl::Time due) {
  absl::Time now = clock_.Now();
  due = std::min({due, kill_at_, spares_.due()});
  for (const RankProcess* process : Processes()) {
    if (process->alive) due = std::min(due, process->give_up_at);
  }
  if (drain_until_.has_value() && now < *drain_until_) due = std::min(due, *drain_until_);
  absl::Duration left = due - now;
  if (left > absl::Hours(1)) return -1;
  return static_cast<int>(
      std::max<int64_t>(0, absl::ToInt64Milliseconds(left + absl::Microseconds(999))));
}

void HostRanks::Turn(absl::Time due, int wake) {
  std::vector<pollfd> waits = {{signals_.get(), POLLIN, 0}, {wake, POLLIN, 0}};
  const size_t first = waits.size();
  if (!terminal_.congested()) {
    for (RankProcess* process : Writers()) {
      for (FileDescriptor& stream : process->streams) {
        if (stream) waits.push_back({stream.get(), POLLIN, 0});
      }
    }
  }
  size_t streams = waits.size();
  for (int fd : terminal_.WaitingFor()) waits.push_back({fd, POLLOUT, 0});
  poll(waits.data(), waits.size(), Patience(due));
  terminal_.Flush();
  for (size_t i = first; i < streams; ++i) {
    if (waits[i].revents != 0) ReadFrom(waits[i].fd);
  }
  SayAll(terminal_.TakeLosses());
  if (waits[0].revents != 0) ReadSignals();
  if (clock_.Now() >= kill_at_) {
    kill_at_ = absl::InfiniteFuture();
    Signal(SIGKILL);
  }
  GiveUpOverdue();
  const absl::Status refilled = spares_.Refill(variables_, clock_.Now());
  if (!refilled.ok()) Say(absl::StrCat("no spare process: ", refilled.message()));
}

void HostRanks::ReadFrom(int fd) {
  for (RankProcess* process : Writers()) {
    for (size_t index = 0; index < process->streams.size(); ++index) {
      if (process->streams[index].get() == fd) return (void)ReadSome(*process, index);
    }
  }
}

// The number of bytes; 0: nothing more to read now.
size_t HostRanks::ReadSome(RankProcess& rank, size_t index) {
  FileDescriptor& stream = rank.streams[index];
  ssize_t got = read(stream.get(), buffer_.data(), buffer_.size());
  if (got > 0) {
    const auto bytes = static_cast<size_t>(got);
    rank.output->Feed(static_cast<Stream>(index), absl::string_view(buffer_.data(), bytes));
    return bytes;
  }
  // A pseudo-terminal ends with EIO.
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) stream.Reset();
  return 0;
}

// What a dead rank has left in its pipes. What it had started may go on writing as fast as this
// reads, until KillLeftBehind().
void HostRanks::ReadAll(RankProcess& rank) {
  for (size_t index = 0; index < rank.streams.size(); ++index) {
    for (size_t read = 0; read < kPipeBytesMost && rank.streams[index];) {
      const size_t bytes = ReadSome(rank, index);
      if (bytes == 0) break;
      read += bytes;
    }
  }
}

void HostRanks::ReadSignals() {
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    auto signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      Reap();
    } else if (signal == SIGWINCH) {
      for (RankProcess& rank : ranks_) {
        if (rank.streams[0]) CopyWindowSize(STDOUT_FILENO, rank.streams[0].get());
      }
    } else if (drain_until_.has_value() && EndsJob(signal)) {
      output_given_up_ = true;
    } else {
      signals_come_.push_back(signal);
    }
  }
}

void HostRanks::Kill(RankProcess& process) {
  kill(-process.pid, SIGKILL);
  process.give_up_at = std::min(process.give_up_at, clock_.Now() + options_.kill_patience);
}

void HostRanks::Signal(int signal) {
  for (RankProcess& rank : ranks_) {
    if (!rank.alive) continue;
    if (signal == SIGKILL) {
      Kill(rank);
      continue;
    }
    kill(-rank.pid, signal);
    if (EndsJob(signal)) kill(-rank.pid, SIGCONT);  // a rank that was stopped would not hear
  }
}

void HostRanks::End(int signal, absl::Duration grace) {
  for (RankProcess& rank : ranks_) rank.told_to_end = rank.told_to_end || rank.alive;
  spares_.Kill();
  Signal(signal);
  kill_at_ = signal == SIGKILL ? absl::InfiniteFuture() : clock_.Now() + grace;
}

// ---- Ends of ranks

void HostRanks::Reap() {
  bool left_behind = false;
  siginfo_t info{};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    pid_t pid = info.si_pid;
    const std::vector<RankProcess*> all = Processes();
    auto process = std::find_if(all.begin(), all.end(),
                                [pid](const RankProcess* p) { return p->alive && p->pid == pid; });
    RankProcess* const spare = spares_.Find(pid);
    // What it has started ends with it, and while it is not reaped, its number is nobody else's.
    if (process != all.end() || spare != nullptr) kill(-pid, SIGKILL);
    rusage usage{};
    int status = 0;
    wait4(pid, &status, 0, &usage);
    info = {};
    left_behind = true;
    if (spare != nullptr) {
      ReadAll(*spare);
      const std::string said = spares_.OnEnded(pid, clock_.Now());
      if (!said.empty()) Say(said);
    }
    if (process == all.end()) continue;  // an adopted child, or a keeper
    (*process)->max_rss_bytes = int64_t{usage.ru_maxrss} * 1024;
    OnEnded(**process, status);
  }
  if (left_behind) KillLeftBehind();
}

void HostRanks::OnEnded(RankProcess& process, int status) {
  process.alive = false;
  process.status = status;
  process.ended = clock_.Now();
  ReadAll(process);
  process.output->Finish();
  if (&process == aside_.get()) return;
  --alive_;
  ended_.push_back(&process);
}

// It does nothing any more: the kernel ends it before its next instruction.
void HostRanks::GiveUpOverdue() {
  for (RankProcess* process : Processes()) {
    if (!process->alive || clock_.Now() < process->give_up_at) continue;
    Say(absl::StrCat(process == aside_.get() ? "the program beside the ranks"
                                             : absl::StrCat("rank ", process->rank),
                     " (pid ", process->pid, ") has not ended ",
                     absl::FormatDuration(options_.kill_patience), " after SIGKILL, in state ",
                     StateOf(process->pid), "; it is given up, and what it holds is not free"));
    OnEnded(*process, W_EXITCODE(0, SIGKILL));
    for (FileDescriptor& stream : process->streams) stream.Reset();
  }
}

// What a dead rank had started outside of its process group. Whoever is killed leaves its own
// children to this process, which comes here again to reap it.
void HostRanks::KillLeftBehind() {
  for (pid_t child : Children()) {
    const std::vector<RankProcess*> all = Processes();
    const bool stays = std::any_of(all.begin(), all.end(), [&](const RankProcess* p) {
      return p->alive && (p->keeper == child || p->pid == child);
    });
    if (!stays && !spares_.Owns(child)) kill(child, SIGKILL);
  }
}

// Waits for what the last ranks left behind.
void HostRanks::Clean() {
  absl::Time patience = clock_.Now() + absl::Seconds(2);
  while (clock_.Now() < patience) {
    bool any = false, reaped = false;
    for (pid_t child : Children()) {
      any = true;
      kill(child, SIGKILL);
      // One that waits for a device within the kernel does not end, and is left behind.
      reaped = waitpid(child, nullptr, WNOHANG) > 0 || reaped;
    }
    if (!any) return;
    if (!reaped) absl::SleepFor(absl::Milliseconds(1));
  }
}

void HostRanks::Finish() {
  spares_.Kill();
  KillAside();
  Clean();
  drain_until_ = clock_.Now() + kDrain;
  while (Draining()) Turn(*drain_until_);
  for (RankProcess& rank : ranks_) rank.output->Finish();
}

void HostRanks::FlushOutput() {
  SayAll(terminal_.TakeLosses());
  while (terminal_.pending() && !output_given_up_) Turn(absl::InfiniteFuture());
}

}  // namespace weft::run
