#include "collectives/store/client/store_client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/store/client/store_addresses.h"
#include "collectives/store/client/store_client_core.h"
#include "collectives/store/protocol/store_connection.h"
#include "collectives/store/protocol/store_exchange.h"
#include "collectives/store/protocol/store_hello.h"
#include "collectives/store/protocol/store_protocol.h"

namespace weft::collectives {
namespace {

// The server watches the timeouts; this much later, we stop waiting for it to say so.
constexpr absl::Duration kGrace = absl::Seconds(2);
constexpr size_t kReadBytes = size_t{256} << 10;
constexpr size_t kParts = 64;
// Between attempts to dial: doubles from the first to the last.
constexpr absl::Duration kRetryFirst = absl::Milliseconds(5);
constexpr absl::Duration kRetryLast = absl::Milliseconds(250);

bool Hopeless(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status) ||
         absl::IsInvalidArgument(status);
}

// Dials until it succeeds, patience ends, or an error that will stay.
absl::StatusOr<StoreConnection> DialUntil(StoreAddresses& addresses, const net::JobSecret& secret,
                                          const std::string& parameters,
                                          const StorePatience& patience, absl::Duration silence) {
  SystemClock clock;
  absl::Duration pause = kRetryFirst;
  while (true) {
    absl::StatusOr<StoreConnection> connection = absl::UnknownError("");
    if (auto known = addresses.Await(patience.deadline); known.ok()) {
      connection = DialStore(*known, secret, parameters, patience, silence);
      if (!connection.ok()) addresses.Refresh();
    } else {
      connection = known.status();
    }
    if (connection.ok() || Hopeless(connection.status())) return connection;
    const absl::Time next = std::min(clock.Now() + pause, patience.deadline);
    absl::Status paused = AwaitReady(-1, 0, {next, patience.interrupt});
    if (absl::IsCancelled(paused)) return paused;
    if (clock.Now() >= patience.deadline) return connection;
    pause = std::min(pause * 2, kRetryLast);
  }
}

class Client final : public StoreClient {
 public:
  Client(StoreClientOptions options, std::string parameters, StoreAddresses addresses,
         StoreConnection connection)
      : options_(std::move(options)),
        parameters_(std::move(parameters)),
        server_(connection.server),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        core_(options_.secret, StoreHello()),
        socket_(std::move(connection.socket)),
        local_(connection.local),
        addresses_(std::move(addresses)) {
    (void)core_.Adopt(connection.server_id, connection.server);
  }

  ~Client() override {
    if (getpid() != owner_) {
      // The session is our parent's, and so are the threads that may have waited here.
      (void)std::make_unique<Waiting>(std::move(pending_)).release();
      return;
    }
    std::lock_guard lock(mutex_);
    if (!socket_) return;
    core_.Goodbye();
    (void)Flush();
  }

  std::string server() const override { return server_; }

  void RefuseWaits(StoreWaits which, const absl::Status& why) override {
    std::lock_guard lock(mutex_);
    refused_[static_cast<size_t>(which)] = why;
    for (const auto& [id, pending] : pending_) {
      if (pending->waits != which || pending->outcome.has_value() || why.ok()) continue;
      pending->outcome = why;
      pending->changed.notify_one();
    }
    // One of them may be the thread that reads for all, asleep.
    if (reading_) Wake();
  }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    return Call(Request(StoreOp::kSet, {std::string(key)}, {std::string(value)})).status();
  }

  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    return OneValue(Call(Request(StoreOp::kGet, {std::string(key)}, {}), timeout));
  }

  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override {
    StoreRequest request = Request(StoreOp::kAdd, {std::string(key)}, {});
    request.number = amount;
    return NumberOf(Call(std::move(request)));
  }

  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    return OneValue(Call(Request(StoreOp::kCompareSet, {std::string(key)},
                                 {std::string(expected), std::string(desired)})));
  }

  absl::StatusOr<bool> Delete(absl::string_view key) override {
    WEFT_ASSIGN_OR_RETURN(StoreResult result,
                          Call(Request(StoreOp::kDelete, {std::string(key)}, {})));
    return result.number != 0;
  }

  absl::StatusOr<int64_t> KeyCount() override {
    return NumberOf(Call(Request(StoreOp::kKeyCount, {}, {})));
  }

  absl::StatusOr<bool> Check(const std::vector<std::string>& keys) override {
    WEFT_ASSIGN_OR_RETURN(StoreResult result, Call(Request(StoreOp::kCheck, keys, {})));
    return result.number != 0;
  }

  absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    return Call(Request(StoreOp::kWait, keys, {}), timeout).status();
  }

  absl::Status Append(absl::string_view key, absl::string_view value) override {
    return Call(Request(StoreOp::kAppend, {std::string(key)}, {std::string(value)})).status();
  }

  absl::StatusOr<std::vector<std::string>> MultiGet(const std::vector<std::string>& keys,
                                                    absl::Duration timeout) override {
    return Values(Call(Request(StoreOp::kMultiGet, keys, {}), timeout), keys.size());
  }

  absl::Status MultiSet(const std::vector<std::string>& keys,
                        const std::vector<std::string>& values) override {
    if (keys.size() != values.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("multi-set of ", keys.size(), " keys and ", values.size(), " values"));
    }
    return Call(Request(StoreOp::kMultiSet, keys, values)).status();
  }

  absl::StatusOr<StoreWatched> Watch(absl::string_view key, int64_t known,
                                     absl::Duration timeout) override {
    StoreRequest request = Request(StoreOp::kWatch, {std::string(key)}, {});
    request.number = known;
    WEFT_ASSIGN_OR_RETURN(StoreResult result, Call(std::move(request), timeout));
    StoreWatched watched;
    watched.version = result.number;
    if (!result.values.empty()) watched.value = std::move(result.values[0]);
    return watched;
  }

  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view key, int rank, int size,
                                                  int root, absl::string_view value,
                                                  absl::Duration timeout) override {
    StoreRequest request = Request(StoreOp::kGather, {std::string(key)}, {std::string(value)});
    request.rank = rank;
    request.size = size;
    request.number = root;
    size_t count = rank == root ? static_cast<size_t>(size) : 0;
    return Values(Call(std::move(request), timeout), count);
  }

  absl::Status Barrier(absl::string_view key, int rank, int size, absl::Duration timeout) override {
    StoreRequest request = Request(StoreOp::kBarrier, {std::string(key)}, {});
    request.rank = rank;
    request.size = size;
    return Call(std::move(request), timeout).status();
  }

  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view key, int rank, int size,
                                                     absl::string_view value,
                                                     absl::Duration timeout) override {
    StoreRequest request = Request(StoreOp::kAllGather, {std::string(key)}, {std::string(value)});
    request.rank = rank;
    request.size = size;
    return Values(Call(std::move(request), timeout), static_cast<size_t>(size));
  }

  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view key, int rank, int size,
                                                    absl::string_view value, const RankSet& wanted,
                                                    absl::Duration timeout) override {
    StoreRequest request =
        Request(StoreOp::kExchange, {std::string(key)}, {std::string(value), wanted.Encode()});
    request.rank = rank;
    request.size = size;
    WEFT_ASSIGN_OR_RETURN(StoreResult result, Call(std::move(request), timeout));
    WEFT_ASSIGN_OR_RETURN(
        std::vector<absl::string_view> values,
        PickExchanged({result.values.begin(), result.values.end()}, size, wanted));
    return std::vector<std::string>(values.begin(), values.end());
  }

 private:
  // A call that waits for its reply.
  struct Pending {
    std::optional<StoreWaits> waits;  // none: it is answered at once
    std::optional<absl::StatusOr<StoreResult>> outcome;
    std::condition_variable changed;  // its outcome has come, or it shall read for all
  };

  using Waiting = std::map<uint64_t, std::shared_ptr<Pending>>;

  static StoreRequest Request(StoreOp op, std::vector<std::string> keys,
                              std::vector<std::string> values) {
    StoreRequest request;
    request.op = op;
    request.keys.assign(std::move_iterator(keys.begin()), std::move_iterator(keys.end()));
    request.values.assign(std::move_iterator(values.begin()), std::move_iterator(values.end()));
    return request;
  }

  static absl::StatusOr<int64_t> NumberOf(absl::StatusOr<StoreResult> result) {
    if (!result.ok()) return result.status();
    return result->number;
  }

  static absl::StatusOr<std::vector<std::string>> Values(absl::StatusOr<StoreResult> result,
                                                         size_t count) {
    if (!result.ok()) return result.status();
    if (result->values.size() != count) {
      return absl::InternalError(absl::StrCat("the store answered with ", result->values.size(),
                                              " values instead of ", count));
    }
    return std::move(result->values);
  }

  static absl::StatusOr<std::string> OneValue(absl::StatusOr<StoreResult> result) {
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> values, Values(std::move(result), 1));
    return std::move(values[0]);
  }

  static absl::Status CheckLimits(const StoreRequest& request) {
    size_t total = 0;
    for (const auto& key : request.keys) {
      total += key.size();
      if (key.size() > kStoreKeyBytesMax) {
        return absl::InvalidArgumentError(absl::StrCat("a key of ", key.size(), " bytes; at most ",
                                                       kStoreKeyBytesMax, " are allowed"));
      }
    }
    for (const auto& value : request.values) {
      total += value.size();
      if (value.size() > kStoreValueBytesMax) {
        return absl::InvalidArgumentError(absl::StrCat("'", request.keys[0], "': a value of ",
                                                       value.size(), " bytes; at most ",
                                                       kStoreValueBytesMax, " are allowed"));
      }
    }
    total += 64 + sizeof(uint32_t) * (request.keys.size() + request.values.size());
    if (total <= kStoreRequestBytesMax) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("a ", ToString(request.op), " of ", total,
                                                   " bytes; at most ", kStoreRequestBytesMax,
                                                   " are allowed: use several"));
  }

  absl::StatusOr<StoreResult> Call(StoreRequest request,
                                   std::optional<absl::Duration> timeout = std::nullopt) {
    if ((request.op == StoreOp::kMultiGet || request.op == StoreOp::kMultiSet) &&
        request.keys.empty()) {
      return StoreResult();
    }
    if (getpid() != owner_) {
      return absl::FailedPreconditionError(
          absl::StrCat("this connection to the store at ", options_.address, " is process ", owner_,
                       "'s; a process that was forked makes its own"));
    }
    WEFT_RETURN_IF_ERROR(CheckLimits(request));
    request.timeout = timeout.value_or(absl::ZeroDuration());
    absl::Time deadline = clock_.Now() + (timeout ? *timeout + kGrace : options_.call_timeout);
    std::string what = absl::StrCat(
        ToString(request.op), request.keys.empty() ? "" : absl::StrCat(" '", request.keys[0], "'"));

    std::unique_lock lock(mutex_);
    if (core_.state() == StoreClientCore::State::kGone) return Annotate(core_.gone(), what);
    auto pending = std::make_shared<Pending>();
    if (timeout.has_value()) {
      pending->waits = request.op == StoreOp::kWatch ? StoreWaits::kWatches : StoreWaits::kOthers;
      const absl::Status& refused = refused_[static_cast<size_t>(*pending->waits)];
      if (!refused.ok()) return Annotate(refused, what);
    }
    uint64_t id = core_.Call(std::move(request));
    pending_.emplace(id, pending);
    // While somebody dials, it will be sent with all others that have no reply.
    if (socket_ && (!Flush() || core_.HasOutput()) && reading_) Wake();

    while (!pending->outcome.has_value()) {
      if (clock_.Now() >= deadline) {
        pending->outcome = absl::DeadlineExceededError(
            absl::StrCat("the store at ", options_.address, " (", server_, ") does not answer"));
      } else if (!reading_) {
        reading_ = true;
        ReadForAll(lock, *pending, deadline);
        reading_ = false;
      } else {
        pending->changed.wait_for(
            lock, absl::ToChronoNanoseconds(std::min(deadline - clock_.Now(), absl::Hours(1))));
      }
    }
    pending_.erase(id);
    core_.Forget(id);
    if (!reading_ && !pending_.empty()) pending_.begin()->second->changed.notify_one();
    absl::StatusOr<StoreResult> outcome = *std::move(pending->outcome);
    lock.unlock();
    if (!outcome.ok()) return Annotate(outcome.status(), what);
    if (!outcome->status.ok()) return outcome->status;
    WEFT_RETURN_IF_ERROR(LoadFile(*outcome));
    return outcome;
  }

  void Wake() {
    uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
  }

  void TakeWake() {
    uint64_t count = 0;
    (void)!read(wake_.get(), &count, sizeof(count));
  }

  // Writes what the socket takes. False: the connection is lost.
  bool Flush() {
    while (core_.HasOutput()) {
      std::array<iovec, kParts> parts;
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = core_.Gather(parts.data(), parts.size());
      ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN;
      core_.Wrote(static_cast<size_t>(sent));
    }
    return true;
  }

  // Moves bytes for everybody until `own` has its outcome. The lock is held but while it sleeps.
  void ReadForAll(std::unique_lock<std::mutex>& lock, Pending& own, absl::Time deadline) {
    while (!own.outcome.has_value() && clock_.Now() < deadline) {
      absl::Status status = Turn(lock, deadline);
      if (!status.ok()) Reconnect(lock, status, deadline);
    }
  }

  absl::Status Turn(std::unique_lock<std::mutex>& lock, absl::Time deadline) {
    if (!socket_ || !Flush()) return absl::UnavailableError("the connection was lost");
    std::array<pollfd, 2> waits = {
        pollfd{socket_.get(), static_cast<short>(POLLIN | (core_.HasOutput() ? POLLOUT : 0)), 0},
        pollfd{wake_.get(), POLLIN, 0}};
    absl::Duration left =
        std::min(deadline - clock_.Now(), absl::Hours(1)) + absl::Microseconds(999);
    lock.unlock();
    int ready = poll(waits.data(), waits.size(), static_cast<int>(absl::ToInt64Milliseconds(left)));
    ssize_t got = -1;
    int error = EAGAIN;
    if (ready > 0 && waits[0].revents != 0) {
      got = Read(waits[0].fd);
      error = errno;
    }
    if (ready > 0 && waits[1].revents != 0) TakeWake();
    lock.lock();
    for (FileDescriptor& file : std::exchange(files_, {})) core_.ReceiveFile(std::move(file));
    if (got == 0) return absl::UnavailableError("the server closed the connection");
    if (got < 0 && error != EAGAIN && error != EINTR) return ErrnoStatus(error, "receive");
    if (got > 0) return Dispatch(absl::string_view(buffer_.data(), static_cast<size_t>(got)));
    return absl::OkStatus();
  }

  ssize_t Read(int fd) {
    if (!local_) return recv(fd, buffer_.data(), buffer_.size(), 0);
    return ReceiveWithFiles(fd, buffer_.data(), buffer_.size(),
                            [this](FileDescriptor file) { files_.push_back(std::move(file)); });
  }

  absl::Status Dispatch(absl::string_view bytes) {
    absl::Status status = core_.Receive(bytes);
    TakeAnswers();
    return status;
  }

  void TakeAnswers() {
    for (StoreClientCore::Answer& answer : core_.TakeAnswers()) {
      auto found = pending_.find(answer.id);
      // Its caller has given up, or was told to.
      if (found == pending_.end() || found->second->outcome.has_value()) continue;
      found->second->outcome = std::move(answer.result);
      found->second->changed.notify_one();
    }
  }

  // There is no connection; `cause` broke it where it has just been lost. Dials, without the lock:
  // others may queue their calls meanwhile. Ends by `deadline`, or when it is woken; whoever reads
  // for all then dials on, until all of them together have dialled for options_.reconnect.
  void Reconnect(std::unique_lock<std::mutex>& lock, const absl::Status& cause,
                 absl::Time deadline) {
    if (socket_) {
      socket_.Reset();
      files_.clear();
      core_.Lost();
      lost_ = cause;
      patience_ = options_.reconnect;
    }
    const absl::Time begin = clock_.Now();
    lock.unlock();
    auto connection =
        DialUntil(addresses_, options_.secret, parameters_,
                  {std::min(deadline, begin + patience_), wake_.get()}, options_.silence);
    TakeWake();
    lock.lock();
    patience_ -= clock_.Now() - begin;
    const bool goes_on =
        !connection.ok() && !Hopeless(connection.status()) && patience_ > absl::ZeroDuration();
    if (goes_on) return;
    if (!connection.ok() || connection->server_id != core_.server_id()) {
      core_.GiveUp(absl::UnavailableError(absl::StrCat(
          "the store at ", options_.address, " is gone; it was served by ", server_, " (",
          lost_.message(), "; ",
          connection.ok() ? absl::StrCat("now ", connection->server, " serves an empty one there")
                          : std::string(connection.status().message()),
          ")")));
      return TakeAnswers();
    }
    socket_ = std::move(connection->socket);
    (void)core_.Adopt(connection->server_id, connection->server);
  }

  const pid_t owner_ = getpid();
  const StoreClientOptions options_;
  const std::string parameters_;  // of our handshake
  const std::string server_;
  const FileDescriptor wake_;
  SystemClock clock_;

  std::mutex mutex_;
  StoreClientCore core_;
  FileDescriptor socket_;  // invalid while somebody dials, and once the store is gone
  const bool local_;
  Waiting pending_;
  std::array<absl::Status, 2> refused_;  // by StoreWaits: why; OK: not
  bool reading_ = false;                 // a thread reads for all; it alone uses what follows
  StoreAddresses addresses_;
  absl::Status lost_;        // what broke the connection last
  absl::Duration patience_;  // since then: how long it may still be dialled for
  std::vector<FileDescriptor> files_;
  std::vector<char> buffer_ = std::vector<char>(kReadBytes);
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoreClient>> StoreClient::Connect(StoreClientOptions options) {
  SystemClock clock;
  if (options.job.size() > kStoreJobBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a job's name of ", options.job.size(),
                                                   " bytes; at most ", kStoreJobBytesMax,
                                                   " are allowed"));
  }
  StoreHello hello;
  hello.id = NewStoreId();
  hello.name = options.name;
  hello.job = options.job;
  hello.host = options.host;
  hello.rank = options.rank.value();
  hello.ranks = options.rank.value() >= 0 ? 1 : 0;
  hello.generation = options.generation;
  std::string parameters = EncodeHello(hello);
  StoreAddresses addresses(options.address);
  WEFT_ASSIGN_OR_RETURN(StoreConnection connection,
                        DialUntil(addresses, options.secret, parameters,
                                  clock.Now() + options.connect_timeout, options.silence));
  return std::make_unique<Client>(std::move(options), std::move(parameters), std::move(addresses),
                                  std::move(connection));
}

}  // namespace weft::collectives
