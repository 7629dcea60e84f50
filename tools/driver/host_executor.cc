#include "tools/driver/host_executor.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/open_files.h"
#include "base/read_file.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/process_end.h"
#include "collectives/store/relay/store_relay.h"
#include "tools/driver/driver_absence.h"
#include "tools/driver/driver_store.h"
#include "tools/driver/host_link.h"
#include "tools/driver/orders.h"
#include "tools/driver/rank_records.h"
#include "tools/driver/side_tasks.h"
#include "tools/run/host_ranks.h"
#include "tools/run/host_store.h"
#include "tools/run/process.h"
#include "tools/run/rank_environment.h"
#include "tools/run/rank_process.h"

namespace weft::driver {
namespace {

// Between two looks at leases, self-tests and records, where nothing else happens.
constexpr absl::Duration kTick = absl::Milliseconds(200);
// For the last report, and for the driver to place the ranks of a host that leaves elsewhere.
constexpr absl::Duration kFlushPatience = absl::Seconds(2);
constexpr Bytes kCommandLineMost = MiB(2);  // Linux' own bound

// Executes this program anew with its command line. Returns where that fails. `open_files`: the
// soft limit of descriptors that it begins with.
absl::Status BeginAnew(int64_t open_files) {
  WEFT_ASSIGN_OR_RETURN(const std::string line, ReadFile("/proc/self/cmdline", kCommandLineMost));
  std::vector<std::string> words = absl::StrSplit(line, '\0');
  if (!words.empty()) words.pop_back();  // behind the last word's end
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  // What lasts over exec: a signal ends a program that is still looking for its driver.
  RestoreOpenFilesLimit(open_files);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv("/proc/self/exe", arguments.data());
  return ErrnoStatus(errno, "begin anew");
}

class Executor {
 public:
  explicit Executor(ExecutorOptions options)
      : options_(std::move(options)),
        host_("weft-executor", options_.run),
        tasks_(options_, host_) {}

  absl::StatusOr<int> Run() {
    WEFT_RETURN_IF_ERROR(Connect());
    WEFT_RETURN_IF_ERROR(host_.Open());
    WEFT_ASSIGN_OR_RETURN(link_, HostLink::Join(driver_->client(), options_.host, options_.period));
    local_.host = options_.host;
    local_.incarnation = link_->incarnation();
    host_.Say(absl::StrCat("joined ", options_.run.store, " as ", options_.host, " (incarnation ",
                           local_.incarnation, ")"));
    Prepare(-1);
    OpenRecords();
    driver_->WatchEtcd();
    Report(/*urgent=*/true);
    while (!exit_status_.has_value() || host_.alive() > 0) Turn();
    if (moves_) {
      host_.Finish();
      host_.FlushOutput();
      return BeginAnew(options_.run.rank_open_files);
    }
    over_ = true;
    Report(/*urgent=*/true);
    (void)link_->Flush(kFlushPatience);
    host_.Finish();
    host_.FlushOutput();
    // Calls on a store that has ended with its driver would hold up the end for their patience.
    _exit(*exit_status_);
  }

 private:
  // To the store, and until there is a driver.
  absl::Status Connect() {
    WEFT_ASSIGN_OR_RETURN(driver_, DriverStore::Connect(options_));
    options_.run.store = driver_->address();
    WEFT_ASSIGN_OR_RETURN(const std::string text,
                          driver_->client()->Get(kStateKey, options_.join_patience));
    WEFT_ASSIGN_OR_RETURN(record_, ParseDriverRecord(text));
    WEFT_RETURN_IF_ERROR(CheckPeriod());
    run::RunOptions& run = options_.run;
    run.ranks = record_.policy.ranks_per_node;
    run.nodes = record_.policy.nodes;
    run.recover = std::max(1, record_.policy.restarts_most);
    spares_ = run.spares;
    const auto addresses = ResolveHostPort(run.store);
    const bool is_alone =
        run.nodes == 1 && addresses.ok() &&
        std::all_of(addresses->begin(), addresses->end(),
                    [](const SocketAddress& address) { return address.is_loopback(); });
    absence_.emplace(run.store, run.store_patience, is_alone);
    return absl::OkStatus();
  }

  // A host that lets the lease pass between two heartbeats counts as lost.
  absl::Status CheckPeriod() const {
    if (options_.period < record_.lease) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--period ", absl::FormatDuration(options_.period),
                     " is not below the driver's --lease, ", absl::FormatDuration(record_.lease),
                     ": this host would count as lost between two "
                     "heartbeats; right is a quarter of it or less"));
  }

  void OpenRecords() {
    const auto folder = variables_.find("WEFT_RECORDS_FOLDER");
    records_.Open(folder == variables_.end() ? "" : folder->second, options_.run.job);
    const absl::Status served = records_.Serve(options_.address);
    if (!served.ok()) host_.Say(absl::StrCat("records: ", served.message()));
  }

  // The variables of the ranks of `node`; -1: of spare processes, as far as they are known.
  void Prepare(int node) {
    run::RunOptions& run = options_.run;
    run.node_rank = std::max(0, node);
    // A spare host would start all ranks of a node at once.
    run.spares = node < 0 && spares_ > 0 ? std::max(spares_, run.ranks) : spares_;
    run.master_addr = MasterAddress();
    variables_ = run::JobVariables(run, relay_ == nullptr ? run.store : relay_->address(),
                                   driver_->secret_hex(), run.master_port);
    host_.Warm(variables_);
  }

  // The address of the host that has node 0.
  std::string MasterAddress() const {
    const std::string& first = record_.job.nodes.front().host;
    const auto host = record_.job.hosts.find(first);
    return host == record_.job.hosts.end() ? options_.address : host->second.address;
  }

  void Turn() {
    host_.Turn(clock_.Now() + kTick, link_->wake_fd());
    for (int signal : host_.TakeSignals()) Take(signal);
    TakeEnded();
    urgent_ = tasks_.Take() || urgent_;
    Look();
    CheckLink();
    if (auto record = link_->Take(); record.has_value()) Take(*std::move(record));
    if (!exit_status_.has_value()) {
      local_.helps = tasks_.helps();
      for (const Order& order : OrdersFor(record_, local_)) Do(order);
      // Nobody waits for the ranks of a host of which the driver knows that it leaves.
      const bool is_out = record_.job.hosts.count(options_.host) == 0;
      if (leaves_ && is_out && host_.alive() == 0) exit_status_ = leave_status_;
    }
    Report(std::exchange(urgent_, false));
  }

  void Take(DriverRecord record) {
    const absl::Duration before = std::exchange(record_, std::move(record)).lease;
    const absl::Status period = CheckPeriod();
    if (!period.ok() && record_.lease != before) host_.Say(period.message());
  }

  // A signal to end: the host is to be drained, and the job goes on elsewhere.
  void Take(int signal) {
    if (!run::EndsJob(signal)) return host_.Signal(signal);
    if (leaves_) {
      host_.Say(absl::StrCat("got ", run::SignalName(signal), " again: killing all ranks"));
      host_.End(SIGKILL, absl::ZeroDuration());
      exit_status_ = 128 + signal;
      return;
    }
    host_.Say(
        absl::StrCat("got ", run::SignalName(signal),
                     ": this host leaves the job; its ranks end once the driver knows, or in ",
                     absl::FormatDuration(options_.run.grace)));
    leaves_ = true;
    leave_status_ = 128 + signal;
    leave_at_ = clock_.Now() + options_.run.grace;
    urgent_ = true;
  }

  void TakeEnded() {
    for (run::RankProcess* rank : host_.TakeEnded()) {
      records_.OnEnded(*rank);
      local_.ranks[static_cast<size_t>(rank->local_rank)].alive = false;
      urgent_ = true;
      if (rank->failed()) {
        host_.Say(absl::StrCat("rank ", rank->rank, " (pid ", rank->pid, ") ", rank->Outcome()));
      }
    }
  }

  // What the ranks record, for the reports, once a second; and what it says that people should see.
  void Look() {
    if (host_.alive() == 0) return;
    host_.SayAll(records_.Look(clock_.Now()));
    const RankRecords::Progress progress =
        records_.ProgressOf(host_.ranks(), local_.node, options_.run.ranks);
    absence_->fence().Observe(clock_.Now(), progress.bytes, progress.step, progress.step_time);
  }

  void CheckLink() {
    const absl::Time now = clock_.Now();
    if (const absl::Status status = link_->status(); !status.ok() && !exit_status_.has_value()) {
      host_.Say(absl::StrCat("ending all ranks: ", status.message()));
      host_.End(SIGKILL, absl::ZeroDuration());
      exit_status_ = absl::IsAborted(status) ? kReplacedStatus : 1;
      moves_ = !options_.etcd.empty() && !absl::IsAborted(status) && !leaves_;
    }
    if (driver_->moved() && !exit_status_.has_value() && !leaves_) {
      host_.Say(absl::StrCat("the driver is not at ", options_.run.store,
                             " any more: ending all ranks, and joining where it is now"));
      host_.End(SIGKILL, absl::ZeroDuration());
      exit_status_ = 1;
      moves_ = true;
    }
    const DriverAbsence::Answer answer =
        absence_->Look(now, link_->contact(), record_.lease, host_.alive() > 0);
    if (!answer.text.empty()) host_.Say(answer.text);
    if (answer.must_end) host_.Signal(SIGKILL);
    if (now < leave_at_) return;
    leave_at_ = absl::InfiniteFuture();
    host_.End(SIGKILL, absl::ZeroDuration());
    exit_status_ = leave_status_;
  }

  // ---- Orders

  void Do(const Order& order) {
    switch (order.kind) {
      case OrderKind::kKillAll:
        host_.Signal(SIGKILL);
        break;
      case OrderKind::kEndAll:
        if (!std::exchange(ends_, true)) host_.End(SIGTERM, options_.run.grace);
        break;
      case OrderKind::kTakeNode:
        TakeNode(order.node);
        break;
      case OrderKind::kKillRank:
        host_.Kill(host_.ranks()[static_cast<size_t>(order.local_rank)]);
        break;
      case OrderKind::kStartRank:
        StartRank(order);
        break;
      case OrderKind::kTest:
        local_.test = order.test;
        tasks_.BeginTest(order, variables_);
        break;
      case OrderKind::kHelp:
        local_.helped = order.test;
        tasks_.Help(order, variables_);
        break;
      case OrderKind::kReplay:
        local_.replayed = order.test;
        tasks_.BeginReplay(order);
        break;
      case OrderKind::kExit:
        host_.Say(order.text);
        exit_status_ = order.exit_status;
        break;
    }
  }

  // Between the ranks of `node` and the job's store. The store turns away the relay of an earlier
  // host of that node, and who still asks through it: all ranks of a node that has another host
  // are of later generations, and so is the relay.
  absl::Status ServeRelay(int node) {
    run::RunOptions run = options_.run;
    run.node_rank = node;
    collectives::StoreRelayOptions relay =
        run::HostRelay(run, "weft-executor", run.store, driver_->secret());
    for (int rank = relay.first_rank; rank < relay.first_rank + run.ranks; ++rank) {
      relay.generation =
          std::max(relay.generation, record_.job.ranks[static_cast<size_t>(rank)].generation);
    }
    WEFT_ASSIGN_OR_RETURN(relay_, collectives::StoreRelay::Start(relay));
    return absl::OkStatus();
  }

  void TakeNode(int node) {
    host_.Say(absl::StrCat("this host is node ", node, " of ", record_.policy.nodes));
    // One rank alone is as good as its relay.
    if (options_.run.relay.value_or(false) && options_.run.ranks > 1) {
      if (const absl::Status served = ServeRelay(node); !served.ok()) return GiveUp(served);
    }
    Prepare(node);
    local_.node = node;
    local_.ranks.assign(static_cast<size_t>(options_.run.ranks), LocalRank{});
    const absl::Status assigned = host_.Assign(node * options_.run.ranks, variables_);
    if (!assigned.ok()) GiveUp(assigned);
  }

  void StartRank(const Order& order) {
    run::RankProcess& rank = host_.ranks()[static_cast<size_t>(order.local_rank)];
    rank.restarts = order.generation;
    rank.last_end = order.last_end;
    const absl::Status started = host_.Start(rank);
    local_.ranks[static_cast<size_t>(order.local_rank)] = {order.generation, started.ok()};
    if (!started.ok()) return FailedToStart(rank, started);
    if (order.generation > 0) {
      host_.Say(absl::StrCat("rank ", rank.rank, " starts anew, in generation ", order.generation,
                             " (pid ", rank.pid, ")"));
    }
  }

  // As if it had been started and had ended so, as a shell has it.
  void FailedToStart(run::RankProcess& rank, const absl::Status& why) {
    rank.status = W_EXITCODE(run::StatusOfFailedStart(why), 0);
    rank.started = rank.ended = clock_.Now();
    rank.output->Feed(run::Stream::kError, absl::StrCat(why.message(), "\n"));
    urgent_ = true;
  }

  // This host cannot run ranks; another one may.
  void GiveUp(const absl::Status& why) {
    host_.Say(why.message());
    leaves_ = true;
    exit_status_ = 1;
  }

  // ---- Reports

  void Report(bool urgent) {
    HostReport report;
    report.address = options_.address;
    report.rack = options_.rack;
    report.lease = record_.lease;
    report.leaves = leaves_;
    report.over = over_;
    report.spares = host_.spares();
    tasks_.Report(report);
    records_.Report(report);
    for (const run::RankProcess& rank : host_.ranks()) {
      const LocalRank& mine = local_.ranks[static_cast<size_t>(rank.local_rank)];
      if (mine.generation < 0) continue;
      RankReport line{.rank = rank.rank,
                      .generation = mine.generation,
                      .pid = rank.pid,
                      .alive = mine.alive,
                      .errors = rank.output->ErrorLines()};
      if (!mine.alive) line.end = collectives::ToText(rank.LastEnd());
      for (std::string& told : rank.output->RecoveryLines()) {
        report.recoveries.push_back(std::move(told));
      }
      line.step = records_.LastStep(rank.rank);
      report.bytes += records_.BytesOf(rank.rank);
      report.ranks.push_back(std::move(line));
    }
    link_->Tell(std::move(report), urgent);
  }

  ExecutorOptions options_;
  SystemClock clock_;
  int spares_ = 0;  // processes, of a host with a node
  std::unique_ptr<DriverStore> driver_;
  std::unique_ptr<collectives::StoreRelay> relay_;  // null: ranks ask the store themselves
  run::HostRanks host_;
  SideTasks tasks_;
  std::unique_ptr<HostLink> link_;
  RankRecords records_;
  run::Variables variables_;
  DriverRecord record_;
  LocalState local_;
  bool leaves_ = false, ends_ = false, over_ = false, urgent_ = false;
  std::optional<DriverAbsence> absence_;
  bool moves_ = false;  // begins anew once all ranks have ended
  int leave_status_ = 0;
  absl::Time leave_at_ = absl::InfiniteFuture();
  std::optional<int> exit_status_;
};

}  // namespace

absl::StatusOr<int> RunExecutor(ExecutorOptions options) {
  return Executor(std::move(options)).Run();
}

}  // namespace weft::driver
