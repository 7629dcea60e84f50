// weft-driver: one a job. Decides what runs where, and keeps that in the job's store, which it
// serves itself or is given.
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/first_line.h"
#include "base/host_name.h"
#include "base/log.h"
#include "base/open_files.h"
#include "base/settings.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/store/client/store_addresses.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/server/store_server.h"
#include "net/secret.h"
#include "tools/command_line.h"
#include "tools/driver/driver.h"
#include "tools/driver/etcd.h"
#include "tools/driver/page.h"
#include "tools/driver/site.h"
#include "tools/driver/state_folder.h"
#include "tools/observe/http.h"
#include "tools/recovery/job_diagnosis.h"
#include "tools/run/rank_process.h"

namespace weft::driver {
namespace {

// How long the driver waits for executors to learn that the job is over.
constexpr absl::Duration kPartingMost = absl::Seconds(10);
// How long the store knows which requests of a client that is away it has answered: more than the
// time for which executors and ranks try to reach it.
constexpr absl::Duration kSessionLinger = absl::Minutes(5);
// How long the driver, once the job is over, waits for the site to take its notices.
constexpr absl::Duration kSitePatience = absl::Minutes(1);
// Exit status where the job of the state is over.
constexpr int kOverStatus = 5;

struct Options {
  DriverOptions driver;
  std::string job = "weft";
  std::string listen = "127.0.0.1:29501";
  std::string store;      // that somebody else serves; empty: this process
  std::string state_dir;  // of the store that this process serves
  std::string etcd;       // where the state is instead; empty: nowhere
  std::string address;    // of the driver's host, for executors that find it through etcd
  absl::Duration store_patience = absl::Minutes(2);
  absl::Duration period = absl::Milliseconds(250);
  std::optional<observe::HttpAddress> page;
  std::string token_file;
  absl::Duration still;  // of the diagnosis; 0: there is none
  Site site;
};

void Say(absl::string_view text) {
  std::fprintf(stderr, "weft-driver: %s\n", std::string(text).c_str());
}

class Program {
 public:
  explicit Program(const Options& options) : options_(options) {}

  absl::StatusOr<int> Run() {
    WEFT_RETURN_IF_ERROR(TakeSecret());
    WEFT_ASSIGN_OR_RETURN(const bool is_over, CheckState());
    if (is_over) return kOverStatus;
    WEFT_RETURN_IF_ERROR(OpenStore());
    absl::StatusOr<std::unique_ptr<Driver>> opened =
        Driver::Open(store_.get(), options_.driver, Now(), etcd_);
    if (absl::IsAlreadyExists(opened.status())) {
      Say(absl::StrCat(opened.status().message(), ". Nothing is run; give another --job name"));
      return kOverStatus;
    }
    WEFT_RETURN_IF_ERROR(opened.status());
    driver_ = *std::move(opened);
    WEFT_ASSIGN_OR_RETURN(const std::string reached, ReachedAt());
    WEFT_RETURN_IF_ERROR(driver_->Announce(reached));
    Say(absl::StrCat("serving job '", options_.job, "' at ", address_, ", incarnation ",
                     driver_->record().incarnation));
    for (const std::string& change : driver_->changes()) {
      Say(absl::StrCat("from here on ", change));
    }
    if (driver_->job().outcome.has_value()) {
      Say(absl::StrCat("the job ", OverText(driver_->job()),
                       "; the driver before this one has not told everybody"));
    }
    WEFT_RETURN_IF_ERROR(OpenPage());
    if (options_.still > absl::ZeroDuration()) {
      diagnosis_ = std::make_unique<recovery::JobDiagnosis>(options_.job, options_.still);
    }
    absl::Time over_at = absl::InfiniteFuture();
    while (true) {
      WEFT_ASSIGN_OR_RETURN(const std::vector<recovery::Action> done, driver_->Turn(Now()));
      Tell(done);
      WEFT_RETURN_IF_ERROR(TakeDiagnosis());
      ServePage();
      WEFT_RETURN_IF_ERROR(TellSite());
      if (driver_->job().outcome.has_value()) {
        over_at = std::min(over_at, Now());
        const bool all_know = driver_->all_know(Now()) || Now() >= over_at + kPartingMost;
        const bool site_knows = driver_->job().notices.empty() || Now() >= over_at + kSitePatience;
        if (all_know && site_knows) break;
      }
      switch (const int signal = TakeSignal(); signal) {
        case SIGINT: {
          WEFT_ASSIGN_OR_RETURN(const std::vector<recovery::Action> stopped,
                                driver_->Stop(128 + SIGINT, "interrupted", Now()));
          Tell(stopped);
          break;
        }
        case SIGTERM:
        case SIGHUP:
          Say("ends without ending the job: started again, it goes on");
          return 128 + signal;
        default:
          break;
      }
      Wait();
    }
    const int exit_status = driver_->job().outcome->exit_status;
    const Errand requeue = RequeueErrand(options_.site);
    if (exit_status == recovery::kNoHostsStatus && requeue != nullptr) {
      Say("queues the job again");
      site_.Push(0, "queue the job again", requeue);
    }
    for (const recovery::Notice& notice : driver_->job().notices) {
      Say(absl::StrCat("the site was not told that ", notice.host, " is gone (", notice.why,
                       "); a driver started again tells it"));
    }
    if (driver_->job().notices.empty()) {
      if (const absl::Status closed = driver_->Close(); !closed.ok()) Say(closed.message());
    }
    return exit_status;
  }

 private:
  // As people and other hosts count it when this driver began, and steady from there.
  absl::Time Now() const { return clock_.Now() + ahead_; }

  // For this thread and all that it starts.
  static FileDescriptor TakeSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    return FileDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  // 0: none has come.
  int TakeSignal() {
    signalfd_siginfo info{};
    if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return 0;
    return static_cast<int>(info.ssi_signo);
  }

  absl::Status TakeSecret() {
    WEFT_ASSIGN_OR_RETURN(secret_, net::SecretFromEnvironment());
    if (secret_ != net::JobSecret{}) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "WEFT_JOB_SECRET is not set; the driver and all executors of a job need the same 64 "
        "hexadecimal digits (openssl rand -hex 32)");
  }

  // What is known of the job before anybody is served, since executors that find a job that is over
  // end with it. Says so and returns true where it is over.
  absl::StatusOr<bool> CheckState() {
    std::optional<DriverRecord> in_folder, in_etcd;
    if (!options_.state_dir.empty()) {
      WEFT_ASSIGN_OR_RETURN(in_folder, RecordInFolder(options_.state_dir, options_.job));
    }
    if (!options_.etcd.empty()) {
      WEFT_ASSIGN_OR_RETURN(EtcdPlace place, ParseEtcdPlace(options_.etcd));
      etcd_ =
          std::make_shared<Etcd>(std::move(place), options_.job, secret_, options_.store_patience);
      WEFT_ASSIGN_OR_RETURN(const Etcd::Held held, etcd_->Read(kEtcdState));
      if (held.revision > 0) {
        absl::StatusOr<DriverRecord> record = ParseDriverRecord(held.value);
        if (!record.ok()) {
          return Annotate(record.status(), absl::StrCat("etcd's ", etcd_->KeyOf(kEtcdState)));
        }
        in_etcd = *std::move(record);
      }
    }
    const std::optional<DriverRecord>& known = in_etcd.has_value() ? in_etcd : in_folder;
    if (!known.has_value()) return false;
    const std::string where =
        in_etcd.has_value() ? etcd_->KeyOf(kEtcdState) + " of etcd" : options_.state_dir;
    const bool is_stale = in_folder.has_value() && in_folder->incarnation < known->incarnation;
    if (known->closed && !options_.driver.anew) {
      Say(absl::StrCat("job '", options_.job, "', whose state is in ", where, ", ",
                       OverText(known->job), ". Nothing is run: give another ",
                       in_etcd.has_value() ? "--job name" : "--state-dir or --job name",
                       " to run it again, or --anew, which forgets this one"));
      return true;
    }
    if (known->closed) {
      Say(absl::StrCat("job '", options_.job, "', whose state is in ", where, ", ",
                       OverText(known->job), "; beginning it anew (--anew)"));
    } else if (is_stale) {
      Say(absl::StrCat("the store in ", options_.state_dir, " is that of driver incarnation ",
                       in_folder->incarnation, ", and the job has gone on without it to ",
                       known->incarnation, ": emptying it"));
    }
    if (in_folder.has_value() && (known->closed || is_stale)) {
      WEFT_RETURN_IF_ERROR(EmptyFolder(options_.state_dir));
    }
    return false;
  }

  // Where executors reach the store.
  absl::StatusOr<std::string> ReachedAt() const {
    if (server_ == nullptr) return address_;
    WEFT_ASSIGN_OR_RETURN(const auto listens, SplitHostPort(options_.listen));
    std::string host = options_.address.empty() ? listens.first : options_.address;
    if (host.empty() || host == "0.0.0.0" || host == "::") host = HostName();
    return JoinHostPort(host, server_->port());
  }

  absl::Status OpenStore() {
    address_ = options_.store;
    if (address_.empty()) {
      collectives::StoreServerOptions server;
      server.listen = options_.listen;
      server.state_dir = options_.state_dir;
      server.core.secret = secret_;
      // An executor that comes back within its patience has its replies, so that nothing is done
      // twice.
      server.core.session_linger = std::max(kSessionLinger, 2 * options_.store_patience);
      server.core.description = absl::StrCat("weft-driver pid ", getpid());
      WEFT_ASSIGN_OR_RETURN(server_, collectives::StoreServer::Start(server));
      address_ = server_->address();
    }
    collectives::StoreClientOptions client;
    client.address = address_;
    client.secret = secret_;
    client.name = absl::StrCat("weft-driver pid ", getpid());
    client.job = options_.job;
    client.reconnect = options_.store_patience;
    WEFT_ASSIGN_OR_RETURN(store_, collectives::StoreClient::Connect(client));
    return absl::OkStatus();
  }

  absl::Status OpenPage() {
    if (!options_.page.has_value()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(std::string token, PageToken(options_.token_file));
    WEFT_ASSIGN_OR_RETURN(observe::HttpServer page, observe::HttpServer::Listen(PageServer(
                                                        *options_.page, std::move(token))));
    page_ = std::make_unique<observe::HttpServer>(std::move(page));
    Say(absl::StrCat("page at http://", JoinHostPort(options_.page->host, page_->port()),
                     "/, its token in ", options_.token_file));
    return absl::OkStatus();
  }

  void ServePage() {
    if (page_ == nullptr) return;
    std::vector<recovery::Action> done;
    page_->Turn(
        [&](const observe::HttpRequest& request) { return Answer(*driver_, request, Now(), done); },
        absl::ZeroDuration());
    Tell(done);
  }

  // Until an executor rings, or for one period.
  void Wait() {
    const auto rung = store_->Watch(kBellKey, bell_, options_.period);
    if (rung.ok()) bell_ = rung->version;
  }

  void Tell(const std::vector<recovery::Action>& done) {
    for (const recovery::Action& action : done) Say(ToText(action));
  }

  absl::Status TakeDiagnosis() {
    if (diagnosis_ == nullptr) return absl::OkStatus();
    std::map<std::string, std::string> agents;
    for (const auto& [name, heard] : driver_->heard()) {
      const auto host = driver_->job().hosts.find(name);
      const bool has_ranks = host != driver_->job().hosts.end() && host->second.node >= 0;
      if (has_ranks && !heard.report.agent.empty()) {
        agents.emplace(heard.report.agent, heard.report.agent_token);
      }
    }
    diagnosis_->SetAgents(std::move(agents));
    const recovery::JobDiagnosis::News news = diagnosis_->Take();
    if (driver_->job().outcome.has_value()) return absl::OkStatus();  // executors end
    for (const std::string& line : news.lines) Say(absl::StrCat("diagnosis: ", line));
    for (const recovery::Diagnosed& one : news.diagnosed) {
      WEFT_ASSIGN_OR_RETURN(const std::vector<recovery::Action> done,
                            driver_->Diagnosed(one.ranks, one.blame, one.text, Now()));
      Tell(done);
    }
    return absl::OkStatus();
  }

  // Begins with the notices that are new to this driver, and writes down those that the site has
  // got. One of which a driver died before that was written down is told again by the next driver.
  absl::Status TellSite() {
    for (const int64_t told : site_.TakeDone()) {
      WEFT_RETURN_IF_ERROR(driver_->SiteTold(told, Now()));
    }
    for (const recovery::Notice& notice : driver_->job().notices) {
      if (notice.number <= begun_) continue;
      begun_ = notice.number;
      site_.Push(notice.number, absl::StrCat("eviction of ", notice.host),
                 EvictionErrand(options_.site, notice.host, notice.why));
    }
    return absl::OkStatus();
  }

  const Options& options_;
  const SystemClock clock_;
  const absl::Duration ahead_ = absl::Now() - clock_.Now();
  const FileDescriptor signals_ = TakeSignals();  // before the queue's thread
  net::JobSecret secret_{};
  std::shared_ptr<const Etcd> etcd_;  // null: the state is in the store
  std::string address_;
  std::unique_ptr<collectives::StoreServer> server_;
  std::unique_ptr<collectives::StoreClient> store_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<observe::HttpServer> page_;
  std::unique_ptr<recovery::JobDiagnosis> diagnosis_;  // null: not asked for
  int64_t bell_ = 0;
  int64_t begun_ = 0;  // the newest notice of which the site is being told
  ErrandQueue site_{[](const std::string& text) { Say(text); }};
};

// weft-driver replay: asks a driver's page for it.
int AskForReplay(int argc, char** argv) {
  CLI::App app(
      "Has a weft-driver that runs, with --page and --replay-hosts, replay a step on two groupings "
      "of its hosts,\nwhich names a host that computes wrongly: that host is evicted, and the job "
      "goes on (docs/recovery.md).\n"
      "Exit status: 0: the replay has begun; 1: it has not, and why.\n"
      "Example: weft-driver replay --page 127.0.0.1:9402 --token-file state/page-token",
      "weft-driver replay");
  std::string page, token_file;
  observe::HttpAddress address;
  app.add_option("--page", page, "where the driver's page is")->required();
  app.add_option("--token-file", token_file, "file whose first line is the page's token")
      ->required();
  const int status_of_usage = ReadCommandLine(app, argc, argv, [&]() -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(address, observe::ParseHttpAddress(page));
    return absl::OkStatus();
  });
  if (status_of_usage != kGoOn) return status_of_usage;
  const absl::StatusOr<std::string> said = observe::HttpFetch(
      address, {.method = "POST", .path = "/replay", .token = FirstLine(token_file)});
  if (said.ok()) std::fputs(said->c_str(), stdout);
  if (!said.ok()) Say(said.status().message());
  return said.ok() ? 0 : 1;
}

int Main(int argc, char** argv) {
  if (argc > 1 && absl::string_view(argv[1]) == "replay") return AskForReplay(argc - 1, argv + 1);
  CLI::App app(
      "Drives a job: NODES hosts join with weft-executor, each runs RANKS ranks; further hosts are "
      "spares.\nA rank that dies is started anew in its place; a host that is lost, drained or bad "
      "is replaced by a\nspare (docs/recovery.md). Serves the job's store, or uses --store. Killed "
      "and started again with the\nsame --state-dir or --store, it goes on where it was: SIGTERM "
      "ends the driver alone, SIGINT the job.\nWEFT_JOB_SECRET: 64 hexadecimal digits, the same "
      "for all (openssl rand -hex 32).\n"
      "Exit status: the job's: 0, that of the rank that failed for good (128 + signal), 75 for "
      "want of hosts;\n5: the job of this state is over already, and nothing is run.\n"
      "Example: weft-driver --nodes 2 --ranks 8 --recover 20 --listen :29501 --state-dir state",
      "weft-driver");
  Options options;
  recovery::Policy& policy = options.driver.policy;
  policy.restarts_most = 100;
  std::string lease = "5s", vacancy = "5m", patience = "2m", page;
  std::string backoff = "500ms", backoff_most = "15s", still = "30s";
  app.add_option("--nodes", policy.nodes, "hosts that have ranks")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("-n,--ranks", policy.ranks_per_node, "ranks on each of them")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--recover", policy.restarts_most,
                 "how many times in all, over all ranks, a rank that died is started anew")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--backoff", backoff,
                 "pause before the third start of a rank that ends soon after its start, without a "
                 "new step; twice as long each time from there; 0s: none")
      ->capture_default_str();
  app.add_option("--backoff-most", backoff_most, "the longest pause of --backoff")
      ->capture_default_str();
  app.add_option("--job", options.job, "the job's name (WEFT_JOB_ID)")
      ->check(CheckJobName)
      ->capture_default_str();
  app.add_option("--listen", options.listen, "host:port of the store; \":29501\": every address")
      ->capture_default_str();
  app.add_option("--state-dir", options.state_dir,
                 "folder for the store's journal; without one, the job ends when the driver dies");
  app.add_flag("--anew", options.driver.anew,
               "where the job of --state-dir or --etcd is over, forget it and begin anew (without: "
               "say so and end with status 5); one that is not over goes on");
  app.add_option("--etcd", options.etcd,
                 "etcd://HOST:PORT[,HOST:PORT...]/PREFIX: keeps the driver's state there, so that "
                 "a driver that is started on any host goes on; weft-executor --driver takes the "
                 "same and finds the driver (docs/recovery.md)");
  app.add_option("--address", options.address,
                 "with --etcd: this host, as executors reach it (default: its name, or that of "
                 "--listen)")
      ->needs("--etcd");
  app.add_option("--store", options.store,
                 "host:port of a store that runs already (weft-store), instead of serving one")
      ->excludes("--listen")
      ->excludes("--state-dir");
  app.add_option("--store-patience", patience,
                 "how long the store of --store, or etcd, may take to come back")
      ->capture_default_str();
  app.add_option(
         "--lease", lease,
         "an executor that has not reached the store for so long ends its ranks, unless they "
         "go on with those of other hosts; after a quarter more its host counts as lost")
      ->capture_default_str();
  app.add_option(
         "--vacancy", vacancy,
         "how long a node may be without a host until the job stops; at the job's start, and "
         "after a start of the driver, this time begins anew")
      ->capture_default_str();
  app.add_option(
         "--still", still,
         "how long a job may stand still until the driver diagnoses it from the records of all "
         "ranks, and starts the rank that the others wait for anew. Where records blame the "
         "devices of a host, that host tests itself at once, and wrong numbers are replayed "
         "at once; 0s: the driver does not read records")
      ->capture_default_str();
  app.add_flag("--self-tests,!--no-self-tests", policy.self_tests,
               "a host with a device fault, or with three deaths by signals such as SIGSEGV, tests "
               "itself and stays where it passes (default); without: a host with a device fault "
               "is evicted at once where there is a spare");
  app.add_option(
         "--replay-hosts", policy.replay_hosts,
         "hosts in a group of a replay: as many as one replica of the model needs. Where a "
         "rank fails twice in one step, or by hand, two groupings of all hosts replay a "
         "step, which names a host that computes wrongly (weft-executor --replay); 0: there "
         "are no replays")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  app.add_option("--page", page,
                 "where the page with the job's state is served, and hosts are evicted by hand: "
                 "127.0.0.1:9402 (default: nowhere)");
  app.add_option("--token-file", options.token_file,
                 "file whose first line is the page's token; made where it is not there (default: "
                 "page-token in --state-dir)");
  std::string site = "none", account, on_evict;
  app.add_option(
         "--site", site,
         "slurm: drain an evicted host (whose name is its node's), and queue the job of this "
         "allocation again where it stops for want of hosts; kubernetes: cordon its node and "
         "delete its pod (whose name is the host's); none")
      ->check(CLI::IsMember({"none", "slurm", "kubernetes"}))
      ->capture_default_str();
  app.add_option(
      "--service-account", account,
      "with --site kubernetes: folder of token, ca.crt and namespace (default: the pod's)");
  app.add_option(
      "--on-evict", on_evict,
      "a shell's command for each host that is evicted, with WEFT_EVICTED_HOST and "
      "WEFT_EVICTED_REASON; done again until it ends with status 0; may run twice for one");
  const int status_of_usage = ReadCommandLine(app, argc, argv, [&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(TakeDuration("--lease", lease, options.driver.lease));
    WEFT_RETURN_IF_ERROR(TakeDuration("--still", still, options.still));
    WEFT_RETURN_IF_ERROR(TakeDuration("--backoff", backoff, policy.backoff_first));
    WEFT_RETURN_IF_ERROR(TakeDuration("--backoff-most", backoff_most, policy.backoff_most));
    WEFT_RETURN_IF_ERROR(TakeDuration("--vacancy", vacancy, policy.vacancy_most));
    WEFT_RETURN_IF_ERROR(TakeDuration("--store-patience", patience, options.store_patience));
    WEFT_ASSIGN_OR_RETURN(options.site, FindSite(site, account, on_evict));
    if (options.driver.lease < absl::Seconds(1)) {
      return absl::InvalidArgumentError(absl::StrCat("--lease ", lease, " is below 1s"));
    }
    if (!options.store.empty()) {
      WEFT_RETURN_IF_ERROR(collectives::CheckStoreAddress(options.store));
    }
    if (!options.etcd.empty()) {
      WEFT_RETURN_IF_ERROR(ParseEtcdPlace(options.etcd).status());
    }
    if (options.driver.anew && !options.store.empty()) {
      return absl::InvalidArgumentError(
          "--anew needs a store that the driver serves, as it cannot empty another one");
    }
    for (const char* name : {"--recover", "--self-tests", "--replay-hosts", "--backoff",
                             "--backoff-most", "--vacancy", "--lease"}) {
      if (app.count(name) > 0) options.driver.given.insert(name);
    }
    if (page.empty()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(options.page, observe::ParseHttpAddress(page));
    if (options.token_file.empty() && !options.state_dir.empty()) {
      options.token_file = options.state_dir + "/page-token";
    }
    if (options.token_file.empty()) {
      return absl::InvalidArgumentError("--page needs --token-file, or a --state-dir for one");
    }
    return absl::OkStatus();
  });
  if (status_of_usage != kGoOn) return status_of_usage;
  RaiseOpenFilesLimit();
  signal(SIGXFSZ, SIG_IGN);  // a journal at the limit of file sizes is one on a full disk
  signal(SIGPIPE, SIG_IGN);  // the job goes on where nobody reads what is said any more
  InitLog("weft-driver", EnvironmentLogLevel(LogLevel::kWarn));
  const absl::StatusOr<int> exit_status = Program(options).Run();
  if (exit_status.ok()) return *exit_status;
  Say(exit_status.status().message());
  return absl::IsInvalidArgument(exit_status.status()) ? kWrongUsage : 1;
}

}  // namespace
}  // namespace weft::driver

int main(int argc, char** argv) { return weft::driver::Main(argc, argv); }
