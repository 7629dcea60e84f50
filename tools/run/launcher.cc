#include "tools/run/launcher.h"

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
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/open_files.h"
#include "base/status.h"
#include "collectives/process_end.h"
#include "tools/run/host_store.h"
#include "tools/run/observer.h"
#include "tools/run/output.h"
#include "tools/run/process.h"
#include "tools/run/rank_environment.h"
#include "tools/run/rank_process.h"
#include "topology/host/host.h"

namespace weft::run {
namespace {

// From the death of a rank: the others are told to end, and after this they are killed. With this,
// a job of which a rank died is over within a second.
constexpr absl::Duration kGraceAfterFailure = absl::Milliseconds(500);
// For what is still in the pipes of ranks that have ended.
constexpr absl::Duration kDrain = absl::Milliseconds(500);
// Between two looks at what the ranks record.
constexpr absl::Duration kObserve = absl::Seconds(1);
// With which programs end when they return an error.
constexpr int kErrorStatus = 1;
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// Descriptors of this process: standard streams, signals, /dev/null, the store's or relays'
// listeners and wake-ups, and what starting a rank takes for a moment; further for each rank its
// two streams and its log, and a connection of each client of the store.
constexpr int64_t kOwnFiles = 32;

int64_t OpenFilesNeeded(const RunOptions& options) {
  const int64_t ranks = options.ranks;
  const int64_t clients = !options.store.empty() && !options.relay.value_or(ranks > 1) ? 0 : ranks;
  return kOwnFiles + 2 * ranks + (options.log_dir.empty() ? 0 : ranks) + clients;
}

bool Ends(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

class Launcher {
 public:
  explicit Launcher(const RunOptions& options) : options_(options) {}

  absl::StatusOr<int> Run() {
    WEFT_RETURN_IF_ERROR(TakeSignals());
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    WEFT_RETURN_IF_ERROR(CheckOpenFiles());
    WEFT_RETURN_IF_ERROR(Prepare());
    absl::Status started = StartRanks();
    StartObserver();
    if (!started.ok()) {
      Say(started.message());
      startup_status_ = absl::IsPermissionDenied(started) ? 126 : 127;
      End(SIGKILL, absl::ZeroDuration());
    }
    while (alive_ > 0) Turn();
    Clean();
    drain_until_ = clock_.Now() + kDrain;
    while (Draining()) Turn();
    for (RankProcess& rank : ranks_) rank.output->Finish();
    int status = Conclude();
    // As long as our reader takes, like any program in a pipe; a signal cuts it short.
    while (terminal_.pending() && !output_given_up_) Turn();
    return status;
  }

 private:
  void SayAll(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) Say(line);
  }
  void Say(absl::string_view text) { terminal_.Line(Stream::kError, "weft-run: ", text); }

  absl::Status TakeSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : kForwarded) sigaddset(&set, signal);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGWINCH);
    sigaddset(&set, SIGPIPE);  // never read: blocked is ignored
    sigprocmask(SIG_BLOCK, &set, nullptr);
    sigdelset(&set, SIGPIPE);
    signals_ = FileDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    return signals_ ? absl::OkStatus() : ErrnoStatus(errno, "signalfd");
  }

  absl::Status CheckOpenFiles() const {
    const int64_t limit = OpenFilesLimit();
    const int64_t needed = OpenFilesNeeded(options_);
    if (needed <= limit) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        options_.ranks, " ranks here, with their output and the store, take ", needed,
        " open files, but the limit is ", limit, " (ulimit -Hn); set it to ", needed, " or more"));
  }

  absl::Status Prepare() {
    WEFT_ASSIGN_OR_RETURN(store_, ServeHost(options_));
    variables_ = JobVariables(options_, store_.address, store_.secret_hex, store_.master_port);
    if (!options_.log_dir.empty()) {
      std::error_code error;
      std::filesystem::create_directories(options_.log_dir, error);
      if (error) {
        return ErrnoStatus(error.value(), absl::StrCat("make the folder ", options_.log_dir));
      }
    }
    input_ = FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
    return absl::OkStatus();
  }

  // A page that cannot be served costs the page, not the job.
  void StartObserver() {
    const auto folder = variables_.find("WEFT_RECORDS_FOLDER");
    observer_ =
        std::make_unique<Observer>(folder == variables_.end() ? "" : folder->second, options_.job);
    if (options_.agent.empty()) return;
    absl::StatusOr<std::string> served = observer_->ServeAgent(options_.agent);
    Say(served.ok() ? *served : absl::StrCat("--agent: ", served.status().message()));
  }

  // ---- Starting

  absl::Status StartRanks() {
    if (options_.bind == BindMode::kCore) {
      WEFT_ASSIGN_OR_RETURN(host_, Host::Discover());
    }
    ranks_.resize(static_cast<size_t>(options_.ranks));
    for (int i = 0; i < options_.ranks; ++i) {
      RankProcess& rank = ranks_[static_cast<size_t>(i)];
      rank.rank = options_.node_rank * options_.ranks + i;
      WEFT_RETURN_IF_ERROR(MakeOutput(rank));
    }
    for (int i = 0; i < options_.ranks; ++i) WEFT_RETURN_IF_ERROR(StartRank(i));
    return absl::OkStatus();
  }

  Style StyleOf(const RankProcess& rank, Stream stream) const {
    if (options_.output == OutputMode::kNone) return Style::kNone;
    if (options_.output == OutputMode::kRank0) return rank.rank == 0 ? Style::kRaw : Style::kNone;
    bool draws = rank.rank == 0 && terminal_.is_terminal(stream);
    return draws ? Style::kRaw : Style::kLines;
  }

  absl::Status MakeOutput(RankProcess& rank) {
    std::string prefix = options_.prefix ? absl::StrCat("[rank ", rank.rank, "] ") : "";
    rank.output = std::make_unique<RankOutput>(
        &terminal_, prefix,
        std::array{StyleOf(rank, Stream::kOutput), StyleOf(rank, Stream::kError)});
    if (options_.log_dir.empty()) return absl::OkStatus();
    return rank.output->OpenLog(absl::StrCat(options_.log_dir, "/rank-", rank.rank, ".log"));
  }

  absl::Status StartRank(int local_rank) {
    RankProcess& rank = ranks_[static_cast<size_t>(local_rank)];
    CpuSet cpus;
    if (host_.has_value()) {
      WEFT_ASSIGN_OR_RETURN(cpus, host_->Slice(local_rank, options_.ranks));
    }
    // A rank that may draw sees a terminal where we have one; both of its streams are then one.
    std::array<FileDescriptor, 2> ends;
    FileDescriptor slave;
    for (Stream stream : {Stream::kOutput, Stream::kError}) {
      auto index = static_cast<size_t>(stream);
      bool draws = StyleOf(rank, stream) == Style::kRaw && terminal_.is_terminal(stream);
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
    process.environment =
        RankVariables(variables_, options_, local_rank, rank.restarts, rank.last_end);
    process.standard_input = input_.get();
    process.standard_output = ends[0] ? ends[0].get() : slave.get();
    process.standard_error = ends[1] ? ends[1].get() : slave.get();
    process.cpus = std::move(cpus);
    process.open_files = options_.rank_open_files;
    WEFT_ASSIGN_OR_RETURN(StartedProcess started, StartProcess(process));
    rank.pid = started.pid;
    rank.keeper = started.keeper;
    rank.alive = true;
    rank.started = clock_.Now();
    ++alive_;
    return absl::OkStatus();
  }

  // ---- The loop

  // Everybody is dead, so the ends of the pipes are near; but a descriptor may have been handed to
  // a stranger, which is not waited for.
  bool Draining() const {
    bool open = false;
    for (const RankProcess& rank : ranks_) {
      open = open || rank.streams[0] || rank.streams[1];
    }
    return open && !output_given_up_ && (terminal_.congested() || clock_.Now() < *drain_until_);
  }

  // Milliseconds until something is due.
  int Patience() const {
    absl::Time now = clock_.Now();
    absl::Time due = std::min(kill_at_, now + kObserve);
    if (drain_until_.has_value() && now < *drain_until_) due = std::min(due, *drain_until_);
    absl::Duration left = due - now;
    if (left > absl::Hours(1)) return -1;
    return static_cast<int>(
        std::max<int64_t>(0, absl::ToInt64Milliseconds(left + absl::Microseconds(999))));
  }

  void Turn() {
    std::vector<pollfd> waits = {{signals_.get(), POLLIN, 0}};
    if (!terminal_.congested()) {
      for (RankProcess& rank : ranks_) {
        for (FileDescriptor& stream : rank.streams) {
          if (stream) waits.push_back({stream.get(), POLLIN, 0});
        }
      }
    }
    size_t streams = waits.size();
    for (int fd : terminal_.WaitingFor()) waits.push_back({fd, POLLOUT, 0});
    poll(waits.data(), waits.size(), Patience());
    terminal_.Flush();
    for (size_t i = 1; i < streams; ++i) {
      if (waits[i].revents != 0) ReadFrom(waits[i].fd);
    }
    if (waits[0].revents != 0) TakeSignal();
    if (first_failed_ == nullptr && ended_by_ == 0 && alive_ > 0) {
      SayAll(observer_->Look(clock_.Now()));
    }
    if (clock_.Now() >= kill_at_) {
      kill_at_ = absl::InfiniteFuture();
      SignalRanks(SIGKILL);
    }
  }

  void ReadFrom(int fd) {
    for (RankProcess& rank : ranks_) {
      for (size_t index = 0; index < rank.streams.size(); ++index) {
        if (rank.streams[index].get() == fd) return (void)ReadSome(rank, index);
      }
    }
  }

  // False: nothing more to read now.
  bool ReadSome(RankProcess& rank, size_t index) {
    FileDescriptor& stream = rank.streams[index];
    ssize_t got = read(stream.get(), buffer_.data(), buffer_.size());
    if (got > 0) {
      rank.output->Feed(static_cast<Stream>(index),
                        absl::string_view(buffer_.data(), static_cast<size_t>(got)));
      return true;
    }
    // A pseudo-terminal ends with EIO.
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) stream.Reset();
    return false;
  }

  void ReadAll(RankProcess& rank) {
    for (size_t index = 0; index < rank.streams.size(); ++index) {
      while (rank.streams[index] && ReadSome(rank, index)) {
      }
    }
  }

  void TakeSignal() {
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      auto signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) {
        Reap();
      } else if (signal == SIGWINCH) {
        for (RankProcess& rank : ranks_) {
          if (rank.streams[0]) CopyWindowSize(STDOUT_FILENO, rank.streams[0].get());
        }
      } else {
        Forward(signal);
      }
    }
  }

  void Forward(int signal) {
    if (!Ends(signal)) return SignalRanks(signal);
    if (drain_until_.has_value()) {
      output_given_up_ = true;
      return;
    }
    if (ended_by_ != 0) {
      Say(absl::StrCat("got ", SignalName(signal), " again: killing all ranks"));
      return End(SIGKILL, absl::ZeroDuration());
    }
    ended_by_ = signal;
    Say(absl::StrCat("got ", SignalName(signal), ": passed on to ", alive_,
                     " ranks, which will be killed in ", absl::FormatDuration(options_.grace)));
    End(signal, options_.grace);
  }

  void End(int signal, absl::Duration grace) {
    for (RankProcess& rank : ranks_) rank.told_to_end = rank.told_to_end || rank.alive;
    SignalRanks(signal);
    kill_at_ = signal == SIGKILL ? absl::InfiniteFuture() : clock_.Now() + grace;
  }

  void SignalRanks(int signal) {
    for (const RankProcess& rank : ranks_) {
      // A rank that was stopped would not hear.
      if (rank.alive) {
        kill(-rank.pid, signal);
        if (signal != SIGKILL && Ends(signal)) kill(-rank.pid, SIGCONT);
      }
    }
  }

  // ---- Ends of ranks

  void Reap() {
    std::vector<RankProcess*> dead;
    bool left_behind = false;
    siginfo_t info{};
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
      pid_t pid = info.si_pid;
      auto rank = std::find_if(ranks_.begin(), ranks_.end(),
                               [pid](const RankProcess& r) { return r.alive && r.pid == pid; });
      // What it has started ends with it, and while it is not reaped, its number is nobody else's.
      if (rank != ranks_.end()) kill(-pid, SIGKILL);
      rusage usage{};
      int status = 0;
      wait4(pid, &status, 0, &usage);
      info = {};
      left_behind = true;
      if (rank == ranks_.end()) continue;  // an adopted child, or a keeper
      rank->alive = false;
      rank->status = status;
      rank->ended = clock_.Now();
      observer_->OnEnded(pid, status, rank->told_to_end);
      rank->max_rss_bytes = int64_t{usage.ru_maxrss} * 1024;
      --alive_;
      ReadAll(*rank);
      if (rank->failed() && !rank->told_to_end) dead.push_back(&*rank);
    }
    if (!dead.empty() && first_failed_ == nullptr && !StartAnew(dead)) Fail(dead);
    if (left_behind) KillLeftBehind();
  }

  // Whether dead ranks were started again. One that ended by a signal or an error (status 1) may
  // be, as long as all ranks of this host are there to meet it.
  bool StartAnew(const std::vector<RankProcess*>& dead) {
    const int count = static_cast<int>(dead.size());
    const bool recoverable = std::all_of(dead.begin(), dead.end(), [](const RankProcess* rank) {
      return rank->killed() || rank->exit_status() == kErrorStatus;
    });
    if (!recoverable || ended_by_ != 0 || alive_ + count < options_.ranks) return false;
    if (options_.recover > 0 && restarts_ + count > options_.recover) {
      Say(absl::StrCat("ranks were started anew ", restarts_, " times, of ", options_.recover,
                       " (--recover)"));
    }
    if (restarts_ + count > options_.recover) return false;
    for (RankProcess* rank : dead) {
      ++restarts_;
      ++rank->restarts;
      rank->last_end = collectives::ToText(rank->LastEnd());
      rank->output->ForgetLines();
      Say(absl::StrCat("rank ", rank->rank, " (pid ", rank->pid, ") ", rank->Outcome(),
                       "; starting it anew (", restarts_, " of ", options_.recover, ")"));
      const absl::Status started = StartRank(rank->rank - options_.node_rank * options_.ranks);
      if (started.ok()) continue;
      Say(started.message());
      return false;
    }
    return true;
  }

  // What a dead rank had started outside of its process group. Whoever is killed leaves its own
  // children to this process, which comes here again to reap it.
  void KillLeftBehind() {
    for (pid_t child : Children()) {
      bool stays = std::any_of(ranks_.begin(), ranks_.end(), [child](const RankProcess& r) {
        return r.alive && (r.keeper == child || r.pid == child);
      });
      if (!stays) kill(child, SIGKILL);
    }
  }

  // Of several that died at once, one that was killed is the cause; others exit because they lost
  // their peer.
  void Fail(const std::vector<RankProcess*>& dead) {
    auto killed = std::find_if(dead.begin(), dead.end(),
                               [](const RankProcess* r) { return WIFSIGNALED(r->status); });
    first_failed_ = killed == dead.end() ? dead.front() : *killed;
    std::vector<std::string> lines = first_failed_->output->LastLines();
    Say(absl::StrCat("rank ", first_failed_->rank, " (pid ", first_failed_->pid, ") ",
                     first_failed_->Outcome(), lines.empty() ? "; it wrote nothing" : ""));
    if (!lines.empty()) {
      Say(absl::StrCat("last lines of rank ", first_failed_->rank, ":"));
      for (const std::string& line : lines) terminal_.Line(Stream::kError, "    ", line);
    }
    SayAll(observer_->Explain());
    if (alive_ > 0) Say(absl::StrCat("ending the other ", alive_, " ranks"));
    End(SIGTERM, kGraceAfterFailure);
  }

  // Waits for what the last ranks left behind.
  void Clean() {
    absl::Time patience = clock_.Now() + absl::Seconds(2);
    while (clock_.Now() < patience) {
      bool any = false;
      for (pid_t child : Children()) {
        any = true;
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
      }
      if (!any) return;
    }
  }

  int Conclude() {
    int status = startup_status_;
    if (status == 0 && first_failed_ != nullptr) status = first_failed_->exit_status();
    if (status == 0 && ended_by_ != 0) status = 128 + ended_by_;
    if (status != 0 && !options_.log_dir.empty() && startup_status_ == 0) {
      Say(absl::StrCat("the logs of all ranks are in ", options_.log_dir));
    }
    if (options_.json) {
      int first = first_failed_ == nullptr ? -1 : first_failed_->rank;
      terminal_.Line(Stream::kOutput, "", SummaryJson(status, first, ranks_));
    }
    return status;
  }

  const RunOptions& options_;
  SystemClock clock_;
  Terminal terminal_;
  FileDescriptor signals_;
  FileDescriptor input_;
  HostStore store_;
  std::unique_ptr<Observer> observer_;
  Variables variables_;
  std::optional<Host> host_;  // where ranks are bound to cores
  std::vector<RankProcess> ranks_;
  int restarts_ = 0;  // of all ranks
  std::vector<char> buffer_ = std::vector<char>(kReadBytes);
  int alive_ = 0;
  int ended_by_ = 0;        // the signal that was forwarded first
  int startup_status_ = 0;  // not 0: the program could not be started
  RankProcess* first_failed_ = nullptr;
  absl::Time kill_at_ = absl::InfiniteFuture();
  std::optional<absl::Time> drain_until_;  // once all ranks have ended
  bool output_given_up_ = false;           // a signal came while only our reader was waited for
};

}  // namespace

absl::StatusOr<int> RunJob(const RunOptions& options) { return Launcher(options).Run(); }

}  // namespace weft::run
