#include "collectives/store/server/store_server.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/poller.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/store/server/store_journal.h"
#include "collectives/store/server/store_service.h"

namespace weft::collectives {
namespace {

// A journal is replaced by a snapshot once it is this long and twice as long as that.
constexpr size_t kJournalBytes = size_t{64} << 20;

absl::Duration CpuOf(std::thread& thread) {
  clockid_t clock = 0;
  timespec time{};
  if (pthread_getcpuclockid(thread.native_handle(), &clock) == 0) clock_gettime(clock, &time);
  return absl::DurationFromTimespec(time);
}

StoreCoreOptions CoreOptions(const StoreServerOptions& options) {
  StoreCoreOptions core = options.core;
  core.journal = core.journal || !options.state_dir.empty();
  return core;
}

class Server final : public StoreServer {
 public:
  Server(StoreServerOptions options, FileDescriptor listener, const SocketAddress& address)
      : options_(std::move(options)),
        core_(CoreOptions(options_)),
        listener_(std::move(listener)),
        socket_address_(address),
        address_(address.ToString()),
        port_(address.port()) {}

  absl::Status Begin() {
    WEFT_ASSIGN_OR_RETURN(poller_, Poller::Create());
    if (!options_.state_dir.empty()) WEFT_RETURN_IF_ERROR(Recover());
    WEFT_ASSIGN_OR_RETURN(waker_, PollWaker::Create(*poller_));
    service_ = std::make_unique<StoreService>(*poller_, core_, std::move(listener_),
                                              socket_address_, options_.connections_max);
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  ~Server() override {
    // In a forked process there is no such thread.
    if (getpid() != owner_) {
      if (thread_.joinable()) thread_.detach();
      return;
    }
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    if (waker_ != nullptr) waker_->Wake();  // null: it has not begun
    if (thread_.joinable()) thread_.join();
  }

  const std::string& address() const override { return address_; }
  int port() const override { return port_; }

  StoreServerStatistics statistics() const override {
    std::lock_guard lock(mutex_);
    StoreServerStatistics now = statistics_;
    now.cpu = CpuOf(thread_);
    return now;
  }

  void Drain(absl::Duration timeout) override {
    std::unique_lock lock(mutex_);
    turned_.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                     [this] { return statistics_.connections == 0; });
  }

 private:
  absl::Status Recover() {
    WEFT_ASSIGN_OR_RETURN(journal_, StoreJournal::Open(options_.state_dir));
    absl::Time now = poller_->now();
    WEFT_RETURN_IF_ERROR(
        journal_->Read([&](const StoreRecord& record) { return core_.Replay(record, now); }));
    core_.Advance(now);
    if (journal_->bytes() > 0) (void)core_.TakeJournal();
    // A history that was read is not read again.
    return journal_->Replace(core_.Snapshot());
  }

  void Run() {
    while (true) {
      ++waits_;
      poller_->Sleep(std::min(core_.deadline(), service_->deadline()));
      service_->Settle(poller_->now(), [this] {
        Record();
        Publish();  // who has an answer finds it in the statistics
      });
      Record();
      if (Publish()) return;
    }
  }

  // What was decided is written down before anybody hears of it.
  void Record() {
    std::string records = core_.TakeJournal();
    if (journal_ == nullptr || abandoned_ || records.empty()) return;
    if (absl::Status status = journal_->Append(records); !status.ok()) return Abandon(status);
    if (journal_->bytes() <= kJournalBytes || journal_->bytes() <= next_snapshot_) return;
    size_t snapshot = core_.SnapshotBytes();
    if (snapshot < journal_->bytes() / 2) {
      absl::Status status = journal_->Replace(core_.Snapshot());
      if (!status.ok()) {
        WEFT_LOG_WARN("store ", address_, ": ", status.message(),
                      "; its journal stays as long as it is");
      }
    }
    next_snapshot_ = std::max(kJournalBytes, 2 * std::max(snapshot, journal_->bytes()));
  }

  // It goes on without: a full disk must not end a job that runs. But what the journal holds is old
  // from now on, and nobody may take it for the state.
  void Abandon(const absl::Status& why) {
    abandoned_ = true;
    absl::Status invalid = journal_->Invalidate();
    WEFT_LOG_ERROR(
        "store ", address_, ": ", why.message(),
        "; from here on its state would not survive it, and a store that is started "
        "again with ",
        options_.state_dir, " begins empty",
        invalid.ok() ? ""
                     : absl::StrCat(", once the journal is removed by hand: ", invalid.message()));
  }

  // True: stop.
  bool Publish() {
    std::lock_guard lock(mutex_);
    statistics_.connections = core_.connections().size();
    statistics_.sessions = core_.sessions();
    statistics_.keys = core_.keys();
    statistics_.waiting = core_.waiting();
    statistics_.memory = core_.memory();
    statistics_.accepted = service_->accepted();
    statistics_.refused = service_->refused();
    statistics_.last_refusal = service_->last_refusal();
    statistics_.requests = core_.requests();
    statistics_.reads = service_->reads();
    statistics_.writes = service_->writes();
    statistics_.waits = waits_;
    statistics_.bytes_sent = service_->bytes_sent();
    turned_.notify_all();
    return stop_;
  }

  const pid_t owner_ = getpid();
  const StoreServerOptions options_;
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<PollWaker> waker_;
  int64_t waits_ = 0;  // rounds of the poller
  StoreCore core_;
  FileDescriptor listener_;
  const SocketAddress socket_address_;
  const std::string address_;
  const int port_;
  std::unique_ptr<StoreJournal> journal_;
  bool abandoned_ = false;  // the journal, which could not be written any more
  size_t next_snapshot_ = 0;
  std::unique_ptr<StoreService> service_;

  mutable std::mutex mutex_;
  std::condition_variable turned_;
  StoreServerStatistics statistics_;
  bool stop_ = false;
  mutable std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(StoreServerOptions options) {
  WEFT_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, ResolveHostPort(options.listen));
  bool secret = options.core.secret != net::JobSecret{};
  absl::Status status;
  for (SocketAddress& address : addresses) {
    if (!secret && !address.is_loopback() && !options.open_to_unauthenticated) {
      return absl::InvalidArgumentError(
          absl::StrCat("a store at ", address.ToString(),
                       " without a secret would serve unauthenticated clients; give it a secret "
                       "(WEFT_JOB_SECRET), or let it listen on a loopback address"));
    }
    auto socket = ListenForStore(address, options.silence);
    if (!socket.ok()) {
      status = socket.status();
      continue;
    }
    auto server = std::make_unique<Server>(std::move(options), *std::move(socket), address);
    WEFT_RETURN_IF_ERROR(server->Begin());
    return server;
  }
  return status;
}

}  // namespace weft::collectives
