#include "tools/init/measure.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/rendezvous/job_environment.h"
#include "collectives/rendezvous/store_server.h"
#include "tools/init/worker.h"

namespace weft::init {
namespace {

using collectives::FileDescriptor;
using collectives::StoreServer;

constexpr int kSpareDescriptors = 256;

// A worker's process; ended and reaped when this goes.
class Process {
 public:
  static absl::StatusOr<std::unique_ptr<Process>> Start(const WorkerPlan& plan) {
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
      RunWorker(plan, ends[1], ends[1]);
      _exit(0);
    }
    close(ends[1]);
    return std::unique_ptr<Process>(new Process(pid, FileDescriptor(ends[0])));
  }

  ~Process() {
    socket_.Reset();
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void Tell(const std::string& what) const {
    (void)!send(socket_.get(), what.data(), what.size(), MSG_NOSIGNAL);
  }

  // A whole line, or nothing yet.
  absl::StatusOr<std::string> Read() {
    std::array<char, 4096> buffer;
    ssize_t got = recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got <= 0) {
      return absl::InternalError(absl::StrCat("worker ", pid_, " has died"));
    }
    line_.append(buffer.data(), static_cast<size_t>(got));
    size_t end = line_.find('\n');
    if (end == std::string::npos) return std::string();
    std::string line = line_.substr(0, end);
    line_.erase(0, end + 1);
    return line;
  }

  int fd() const { return socket_.get(); }

 private:
  Process(pid_t pid, FileDescriptor socket) : pid_(pid), socket_(std::move(socket)) {}
  const pid_t pid_;
  FileDescriptor socket_;
  std::string line_;
};

// Until every worker has said `word`; anything else is an error.
absl::Status AwaitAll(const std::vector<std::unique_ptr<Process>>& workers, absl::string_view word,
                      absl::Duration timeout, const std::function<void()>& tick) {
  SystemClock clock;
  absl::Time deadline = clock.Now() + timeout;
  std::vector<bool> done(workers.size(), false);
  size_t left = workers.size();
  while (left > 0) {
    if (clock.Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(left, " workers are not through after ", absl::FormatDuration(timeout)));
    }
    std::vector<pollfd> waits;
    for (size_t i = 0; i < workers.size(); ++i) {
      waits.push_back({done[i] ? -1 : workers[i]->fd(), POLLIN, 0});
    }
    poll(waits.data(), waits.size(), 200);
    tick();
    for (size_t i = 0; i < workers.size(); ++i) {
      if (done[i] || waits[i].revents == 0) continue;
      WEFT_ASSIGN_OR_RETURN(std::string line, workers[i]->Read());
      if (line.empty()) continue;
      if (line != word) return absl::InternalError(line);
      done[i] = true;
      --left;
    }
  }
  return absl::OkStatus();
}

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

void Summarise(const Options& options, Shared& shared, Measurement& m) {
  int64_t begin = std::numeric_limits<int64_t>::max();
  for (int rank = 0; rank < options.ranks; ++rank) {
    begin = std::min(begin, shared.times()[rank].begin);
  }
  int64_t before = begin;
  for (size_t p = 0; p < kPhases; ++p) {
    Measurement::PhaseTimes& phase = m.phases[p];
    std::vector<int64_t> own;
    int64_t last = 0;
    for (int rank = 0; rank < options.ranks; ++rank) {
      const RankTimes& times = shared.times()[rank];
      int64_t from = p == 0 ? times.begin : times.end[p - 1];
      own.push_back(times.end[p] - from);
      if (Seconds(own.back()) > phase.max) {
        phase.max = Seconds(own.back());
        phase.slowest = rank;
      }
      last = std::max(last, times.end[p]);
    }
    std::sort(own.begin(), own.end());
    phase.p50 = Seconds(own[own.size() / 2]);
    phase.p99 = Seconds(own[(own.size() - 1) * 99 / 100]);
    phase.seconds = Seconds(std::max<int64_t>(0, last - before));
    before = std::max(before, last);
  }
  m.total_seconds = Seconds(before - begin);
}

// Descriptors that a host needs in its worker: both ends of each rank's connection, and its relay's
// listener, uplink, spare one and reply.
int DescriptorsOfHost(const Options& options) {
  return options.relay ? 2 * options.ranks_per_host() + 5 : options.ranks_per_host();
}

absl::StatusOr<int> WorkersFor(const Options& options, int64_t limit) {
  int64_t server = (options.relay ? options.hosts : options.ranks) + kSpareDescriptors;
  if (server > limit) {
    return absl::ResourceExhaustedError(absl::StrCat("the server needs ", server,
                                                     " file descriptors and this process may have ",
                                                     limit, ": raise the hard limit (ulimit -Hn)"));
  }
  int64_t hosts = (limit - kSpareDescriptors) / DescriptorsOfHost(options);
  if (hosts < 1) {
    return absl::ResourceExhaustedError(absl::StrCat("a host needs ", DescriptorsOfHost(options),
                                                     " file descriptors, more than the limit of ",
                                                     limit, ": raise the hard limit (ulimit -Hn)"));
  }
  auto least = static_cast<int>((options.hosts + hosts - 1) / hosts);
  return std::min(options.hosts, std::max({2, least, options.workers}));
}

// Not before every survivor's watch is at the store.
absl::Status Replace(const Options& options, Shared& shared,
                     const std::vector<std::unique_ptr<Process>>& workers, const StoreServer& store,
                     Measurement& m) {
  SystemClock clock;
  auto tick = [] {};
  for (const auto& worker : workers) worker->Tell("w");
  WEFT_RETURN_IF_ERROR(AwaitAll(workers, "ok", options.timeout, tick));
  m.watches = shared.watches;
  absl::Time deadline = clock.Now() + options.timeout;
  while (store.statistics().waiting != m.watches) {
    if (clock.Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "of ", m.watches, " watches ", store.statistics().waiting, " have come to the store"));
    }
    poll(nullptr, 0, 5);
  }
  int64_t begin = SystemClock::Nanoseconds();
  for (const auto& worker : workers) worker->Tell("r");
  WEFT_RETURN_IF_ERROR(AwaitAll(workers, "ok", options.timeout, tick));
  m.replace_seconds = Seconds(shared.replace_end - begin);
  return absl::OkStatus();
}

}  // namespace

int64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
}

absl::StatusOr<Measurement> Measure(const Options& options,
                                    const std::function<void(int64_t)>& progress) {
  Measurement m;
  m.ranks = options.ranks;
  m.hosts = options.hosts;
  WEFT_ASSIGN_OR_RETURN(m.workers, WorkersFor(options, RaiseDescriptorLimit()));
  WEFT_ASSIGN_OR_RETURN(SharedMemory shared, MapShared(options.ranks));
  WorkerPlan plan;
  plan.options = &options;
  plan.shared = shared.get();
  plan.secret = collectives::NewJobSecret();
  // Before the server's thread: a fork copies no other.
  std::vector<std::unique_ptr<Process>> workers;
  for (int i = 0; i < m.workers; ++i) {
    plan.host_first = static_cast<int>(int64_t{options.hosts} * i / m.workers);
    plan.host_end = static_cast<int>(int64_t{options.hosts} * (i + 1) / m.workers);
    WEFT_ASSIGN_OR_RETURN(auto worker, Process::Start(plan));
    workers.push_back(std::move(worker));
  }
  auto tick = [&] { progress(shared->finished); };
  WEFT_RETURN_IF_ERROR(AwaitAll(workers, "ready", absl::Minutes(1), tick));
  collectives::StoreServerOptions server;
  server.core.secret = plan.secret;
  server.core.description = absl::StrCat("weft-init pid ", getpid());
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<StoreServer> store, StoreServer::Start(server));
  for (const auto& worker : workers) worker->Tell(store->address());
  WEFT_RETURN_IF_ERROR(AwaitAll(workers, "ok", 2 * options.timeout, tick));
  m.server_cpu_seconds = absl::ToDoubleSeconds(store->statistics().cpu);
  m.messages = shared->messages_sent + shared->messages_received + shared->relay_messages;
  m.root_messages = options.relay ? shared->relay_messages.load()
                                  : shared->messages_sent + shared->messages_received;
  Summarise(options, *shared, m);
  if (options.replace > 0) WEFT_RETURN_IF_ERROR(Replace(options, *shared, workers, *store, m));
  return m;
}

}  // namespace weft::init
