#include "tools/driver/host_executor.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/open_files.h"
#include "base/read_file.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/process_end.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/relay/store_relay.h"
#include "net/secret.h"
#include "tools/driver/etcd.h"
#include "tools/driver/fence.h"
#include "tools/driver/host_link.h"
#include "tools/driver/orders.h"
#include "tools/driver/side_tasks.h"
#include "tools/run/host_ranks.h"
#include "tools/run/host_store.h"
#include "tools/run/observer.h"
#include "tools/run/process.h"
#include "tools/run/rank_environment.h"
#include "tools/run/rank_process.h"

namespace weft::driver {
namespace {

// Between two looks at leases, self-tests and records, where nothing else happens.
constexpr absl::Duration kTick = absl::Milliseconds(200);
// For the last report, and for the driver to place the ranks of a host that leaves elsewhere.
constexpr absl::Duration kFlushPatience = absl::Seconds(2);

// One try to reach the store that etcd names; between two looks at which one that is, and for one.
constexpr absl::Duration kConnectMost = absl::Seconds(2), kEtcdPeriod = absl::Seconds(1);
constexpr absl::Duration kEtcdMost = absl::Seconds(5);
constexpr Bytes kCommandLineMost = MiB(2);  // Linux' own bound

class Executor {
 public:
  explicit Executor(ExecutorOptions options)
      : options_(std::move(options)),
        host_("weft-executor", options_.run),
        tasks_(options_, host_) {}

  absl::StatusOr<int> Run() {
    WEFT_RETURN_IF_ERROR(Connect());
    WEFT_RETURN_IF_ERROR(host_.Open());
    WEFT_ASSIGN_OR_RETURN(link_, HostLink::Join(store_.get(), options_.host, options_.period));
    local_.host = options_.host;
    local_.incarnation = link_->incarnation();
    host_.Say(absl::StrCat("joined ", options_.run.store, " as ", options_.host, " (incarnation ",
                           local_.incarnation, ")"));
    Prepare(-1);
    StartObserver();
    WatchEtcd();
    Report(/*urgent=*/true);
    while (!exit_status_.has_value() || host_.alive() > 0) Turn();
    if (moves_) {
      host_.Finish();
      host_.FlushOutput();
      return BeginAnew();
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
    WEFT_ASSIGN_OR_RETURN(const net::JobSecret secret, net::SecretFromEnvironment());
    secret_ = secret;
    secret_hex_ = net::SecretToHex(secret);
    if (secret == net::JobSecret{}) {
      return absl::InvalidArgumentError(
          "WEFT_JOB_SECRET is not set; the driver and all executors of a job need the same 64 "
          "hexadecimal digits (openssl rand -hex 32)");
    }
    collectives::StoreClientOptions client;
    client.address = options_.run.store;
    client.secret = secret;
    client.name = absl::StrCat("weft-executor ", options_.host, " pid ", getpid());
    client.job = options_.run.job;
    client.host = options_.host;
    client.connect_timeout = options_.join_patience;
    client.reconnect = options_.run.store_patience;
    if (options_.etcd.empty()) {
      WEFT_ASSIGN_OR_RETURN(store_, collectives::StoreClient::Connect(client));
    } else {
      WEFT_RETURN_IF_ERROR(ConnectByEtcd(client));
    }
    WEFT_ASSIGN_OR_RETURN(const std::string text, store_->Get(kStateKey, options_.join_patience));
    WEFT_ASSIGN_OR_RETURN(record_, ParseDriverRecord(text));
    WEFT_RETURN_IF_ERROR(CheckPeriod());
    run::RunOptions& run = options_.run;
    run.ranks = record_.policy.ranks_per_node;
    run.nodes = record_.policy.nodes;
    run.recover = std::max(1, record_.policy.restarts_most);
    spares_ = run.spares;
    const auto addresses = ResolveHostPort(run.store);
    is_alone_ = run.nodes == 1 && addresses.ok() &&
                std::all_of(addresses->begin(), addresses->end(),
                            [](const SocketAddress& address) { return address.is_loopback(); });
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

  // To the store that etcd names, and again to what it names then, until one answers: it may name
  // one whose driver is dead, while another is being started.
  absl::Status ConnectByEtcd(collectives::StoreClientOptions client) {
    WEFT_ASSIGN_OR_RETURN(const EtcdPlace place, ParseEtcdPlace(options_.etcd));
    const Etcd etcd(place, options_.run.job, secret_, options_.join_patience);
    const absl::Time end = clock_.Now() + options_.join_patience;
    absl::Status last = absl::UnavailableError(
        absl::StrCat("no driver has written etcd's key ", etcd.KeyOf(kEtcdAddress)));
    client.connect_timeout = kConnectMost;
    do {
      WEFT_ASSIGN_OR_RETURN(const Etcd::Held held, etcd.Read(kEtcdAddress));
      if (held.revision == 0) {
        absl::SleepFor(kTick);
        continue;
      }
      client.address = held.value;
      auto connected = collectives::StoreClient::Connect(client);
      if (absl::IsPermissionDenied(connected.status())) return connected.status();
      last = connected.status();
      if (!connected.ok()) continue;
      store_ = *std::move(connected);
      options_.run.store = client.address;
      return absl::OkStatus();
    } while (clock_.Now() < end);
    return last;
  }

  // Whether etcd names another store than the one that was joined. Begins once signals are taken.
  void WatchEtcd() {
    const absl::StatusOr<EtcdPlace> place = ParseEtcdPlace(options_.etcd);
    if (!place.ok()) return;  // there is none
    watch_ = std::jthread([this, place = *place](const std::stop_token& stop) {
      const Etcd etcd(place, options_.run.job, secret_, kEtcdMost);
      while (!stop.stop_requested() && !moved_.load()) {
        absl::SleepFor(kEtcdPeriod);
        const absl::StatusOr<Etcd::Held> now = etcd.Read(kEtcdAddress);
        if (now.ok() && now->revision > 0 && now->value != options_.run.store) moved_.store(true);
      }
    });
  }

  // As if it had been started now; there is nothing left of the ranks.
  absl::Status BeginAnew() const {
    WEFT_ASSIGN_OR_RETURN(const std::string line, ReadFile("/proc/self/cmdline", kCommandLineMost));
    std::vector<std::string> words = absl::StrSplit(line, '\0');
    if (!words.empty()) words.pop_back();  // behind the last word's end
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    // What lasts over exec: a signal ends a program that is still looking for its driver.
    RestoreOpenFilesLimit(options_.run.rank_open_files);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execv("/proc/self/exe", arguments.data());
    return ErrnoStatus(errno, "begin anew");
  }

  // Pages that cannot be served cost the diagnosis of the whole job, not the job.
  void StartObserver() {
    const auto folder = variables_.find("WEFT_RECORDS_FOLDER");
    observer_ = std::make_unique<run::Observer>(folder == variables_.end() ? "" : folder->second,
                                                options_.run.job);
    agent_token_ = net::SecretToHex(net::NewJobSecret());
    // "::" is every address of both families, where the host has IPv6.
    absl::StatusOr<std::string> served = observer_->ServeAgent("[::]:0", agent_token_);
    if (!served.ok()) served = observer_->ServeAgent("0.0.0.0:0", agent_token_);
    if (!served.ok()) return host_.Say(absl::StrCat("records: ", served.status().message()));
    agent_ = JoinHostPort(options_.address, observer_->agent_port());
  }

  // The variables of the ranks of `node`; -1: of spare processes, as far as they are known.
  void Prepare(int node) {
    run::RunOptions& run = options_.run;
    run.node_rank = std::max(0, node);
    // A spare host would start all ranks of a node at once.
    run.spares = node < 0 && spares_ > 0 ? std::max(spares_, run.ranks) : spares_;
    run.master_addr = MasterAddress();
    variables_ = run::JobVariables(run, relay_ == nullptr ? run.store : relay_->address(),
                                   secret_hex_, run.master_port);
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
      observer_->OnEnded(rank->pid, rank->status, rank->told_to_end);
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
    for (std::string& line : observer_->Look(clock_.Now())) {
      host_.Say(line);
      findings_.push_back(std::move(line));
    }
    if (findings_.size() > 10) findings_.erase(findings_.begin(), findings_.end() - 10);
    ObserveFence();
  }

  // What the records show of the ranks' going on with those of other nodes.
  void ObserveFence() {
    uint64_t bytes = 0;
    int64_t step = INT64_MAX;
    absl::Duration step_time;
    for (const run::RankProcess& rank : host_.ranks()) {
      const auto view = observer_->view().ranks.find(rank.rank);
      if (view == observer_->view().ranks.end() || view->second.steps.empty()) {
        step = -1;
        continue;
      }
      const observe::StepTimes& last = view->second.steps.back();
      step = std::min(step, last.step);
      step_time = std::max(step_time, absl::Seconds(last.total()));
      for (const auto& [end, flow] : view->second.flows) {
        const auto& [peer, sends] = end;
        if (!sends && peer / options_.run.ranks != local_.node) bytes += flow.record.bytes_done;
      }
    }
    fence_.Observe(clock_.Now(), bytes, step, step_time);
  }

  void CheckLink() {
    const absl::Time now = clock_.Now();
    if (const absl::Status status = link_->status(); !status.ok() && !exit_status_.has_value()) {
      host_.Say(absl::StrCat("ending all ranks: ", status.message()));
      host_.End(SIGKILL, absl::ZeroDuration());
      exit_status_ = absl::IsAborted(status) ? kReplacedStatus : 1;
      moves_ = !options_.etcd.empty() && !absl::IsAborted(status) && !leaves_;
    }
    if (moved_.load() && !exit_status_.has_value() && !leaves_) {
      host_.Say(absl::StrCat("the driver is not at ", options_.run.store,
                             " any more: ending all ranks, and joining where it is now"));
      host_.End(SIGKILL, absl::ZeroDuration());
      exit_status_ = 1;
      moves_ = true;
    }
    const bool is_away = now - link_->contact() > record_.lease;
    // With the job's only host and the driver on one machine, no network can fail between them.
    const bool is_cut =
        is_away && !is_alone_ && fence_.MustEnd(now, link_->contact(), record_.lease);
    if (is_cut && host_.alive() > 0 && !cut_) {
      host_.Say(absl::StrCat("the store at ", options_.run.store, " was not reached for ",
                             absl::FormatDuration(record_.lease),
                             " (the job's lease), and these ranks do not go on with those of other "
                             "nodes: ending all ranks, which others may have replaced"));
      host_.Signal(SIGKILL);
    }
    if (is_away && !is_cut && host_.alive() > 0 && !away_) {
      host_.Say(absl::StrCat(
          "the driver at ", options_.run.store, " was not reached for ",
          absl::FormatDuration(record_.lease), " (the job's lease); the ranks go on, ",
          is_alone_ ? "for they are all of the job, and the driver is to be on this host"
                    : "for they do steps with those of other nodes, so that none was replaced",
          "; it may take ", absl::FormatDuration(options_.run.store_patience),
          " to come back (--store-patience)"));
    }
    away_ = is_away;
    cut_ = is_cut;
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
    collectives::StoreRelayOptions relay = run::HostRelay(run, "weft-executor", run.store, secret_);
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
    report.agent = agent_;
    report.agent_token = agent_token_;
    report.leaves = leaves_;
    report.over = over_;
    report.spares = host_.spares();
    tasks_.Report(report);
    report.findings = findings_;
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
      line.step = observer_->LastStep(rank.rank);
      const auto view = observer_->view().ranks.find(rank.rank);
      if (view != observer_->view().ranks.end()) {
        for (const auto& [_, flow] : view->second.flows) {
          report.bytes += static_cast<int64_t>(flow.record.bytes_done);
        }
      }
      report.ranks.push_back(std::move(line));
    }
    link_->Tell(std::move(report), urgent);
  }

  ExecutorOptions options_;
  SystemClock clock_;
  net::JobSecret secret_{};
  std::string secret_hex_;
  std::string agent_, agent_token_;
  int spares_ = 0;  // processes, of a host with a node
  std::unique_ptr<collectives::StoreClient> store_;
  std::unique_ptr<collectives::StoreRelay> relay_;  // null: ranks ask the store themselves
  run::HostRanks host_;
  SideTasks tasks_;
  std::unique_ptr<HostLink> link_;
  std::unique_ptr<run::Observer> observer_;
  run::Variables variables_;
  DriverRecord record_;
  LocalState local_;
  bool leaves_ = false, ends_ = false, over_ = false, urgent_ = false;
  Fence fence_;
  std::atomic<bool> moved_{false};  // etcd names another store than the one that was joined
  bool moves_ = false;              // begins anew once all ranks have ended
  bool is_alone_ = false;           // the job has one node, and its driver is on this host
  bool away_ = false;               // the driver was not reached for the lease
  bool cut_ = false;                // and the ranks were ended for that
  int leave_status_ = 0;
  absl::Time leave_at_ = absl::InfiniteFuture();
  std::vector<std::string> findings_;
  std::optional<int> exit_status_;
  std::jthread watch_;  // of etcd
};

}  // namespace

absl::StatusOr<int> RunExecutor(ExecutorOptions options) {
  return Executor(std::move(options)).Run();
}

}  // namespace weft::driver
