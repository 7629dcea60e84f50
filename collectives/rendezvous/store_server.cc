#include "collectives/rendezvous/store_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "collectives/rendezvous/file_descriptor.h"
#include "collectives/rendezvous/socket_address.h"

namespace weft::collectives {
namespace {

constexpr size_t kReadBytes = size_t{256} << 10;
constexpr size_t kWriteParts = 256;  // of one writev; below IOV_MAX
constexpr int kEventsATurn = 256;
constexpr int kBacklog = 4096;

// Unwritten output of one connection.
struct Peer {
  FileDescriptor socket;
  std::deque<StoreFrameOut> queue;
  size_t written = 0;    // of the queue's first frame
  uint32_t watched = 0;  // epoll's events
};

class Server final : public StoreServer {
 public:
  Server(StoreServerOptions options, FileDescriptor listener, const SocketAddress& address)
      : options_(std::move(options)),
        core_(options_.core),
        listener_(std::move(listener)),
        address_(ToString(address)),
        port_(address.port()) {}

  absl::Status Begin() {
    epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
    wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    spare_ = FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!epoll_.valid() || !wake_.valid()) return ErrnoStatus(errno, "start the store");
    Watch(listener_.get(), kListener, EPOLLIN, EPOLL_CTL_ADD);
    Watch(wake_.get(), kWake, EPOLLIN, EPOLL_CTL_ADD);
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  ~Server() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
    if (thread_.joinable()) thread_.join();
  }

  const std::string& address() const override { return address_; }
  int port() const override { return port_; }

  StoreServerStatistics statistics() const override {
    std::lock_guard lock(mutex_);
    return statistics_;
  }

  void Drain(absl::Duration timeout) override {
    std::unique_lock lock(mutex_);
    turned_.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                     [this] { return statistics_.connections == 0; });
  }

 private:
  // Names of descriptors in epoll; connections are numbered from kFirst.
  static constexpr uint64_t kListener = 0;
  static constexpr uint64_t kWake = 1;
  static constexpr uint64_t kFirst = 2;

  void Watch(int fd, uint64_t name, uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = name;
    int result = epoll_ctl(epoll_.get(), operation, fd, &event);
    WEFT_CHECK(result == 0, "epoll_ctl " << operation << ": errno " << errno);
  }

  void Run() {
    std::array<epoll_event, kEventsATurn> events;
    while (true) {
      int count = epoll_wait(epoll_.get(), events.data(), kEventsATurn, Patience());
      now_ = clock_.Now();
      for (int i = 0; i < count; ++i) {
        uint64_t name = events[static_cast<size_t>(i)].data.u64;
        uint32_t what = events[static_cast<size_t>(i)].events;
        if (name == kListener) {
          Accept();
        } else if (name != kWake) {
          if ((what & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Read(name);
          if ((what & EPOLLOUT) != 0) dirty_.insert(name);
        }
      }
      core_.Advance(now_);
      Settle();
      if (Publish()) return;
    }
  }

  // Milliseconds until the core has something to do, rounded up.
  int Patience() const {
    absl::Duration left = core_.deadline() - clock_.Now();
    if (left >= absl::Hours(1)) return 3600 * 1000;
    return static_cast<int>(
        std::max<int64_t>(0, absl::ToInt64Milliseconds(left + absl::Microseconds(999))));
  }

  void Accept() {
    while (true) {
      SocketAddress from;
      from.size = sizeof(from.storage);
      int fd = accept4(listener_.get(), from.get(), &from.size, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        if ((errno == EMFILE || errno == ENFILE) && spare_.valid()) {
          DropOne();
          continue;
        }
        if (errno == EINTR || errno == ECONNABORTED) continue;
        return;
      }
      FileDescriptor socket(fd);
      std::string peer = ToString(from);
      ++statistics_of_loop_.accepted;
      if (core_.connections() >= options_.connections_max) {
        Note({0, peer, absl::StrCat("there are ", core_.connections(), " connections already")});
        continue;
      }
      int one = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
      setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
      uint64_t name = next_++;
      Peer& added = peers_[name];
      added.socket = std::move(socket);
      added.watched = EPOLLIN;
      Watch(fd, name, EPOLLIN, EPOLL_CTL_ADD);
      core_.Open(name, peer, now_);
    }
  }

  // Out of descriptors: takes one connection with the spare one, to close it, so that the listener
  // does not stay readable for ever.
  void DropOne() {
    spare_.Reset();
    FileDescriptor dropped(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    dropped.Reset();
    spare_ = FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
    Note({0, "a client", "this process is out of file descriptors"});
  }

  void Read(uint64_t name) {
    auto found = peers_.find(name);
    if (found == peers_.end()) return;
    // An error or a hang-up is reported whether we want input or not.
    if (!core_.WantsInput(name)) return Drop(name);
    ssize_t got = recv(found->second.socket.get(), buffer_.data(), buffer_.size(), 0);
    if (got > 0) {
      core_.Receive(name, absl::string_view(buffer_.data(), static_cast<size_t>(got)), now_);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      Drop(name);
    }
  }

  void Drop(uint64_t name) {
    core_.Close(name, now_);
    peers_.erase(name);
  }

  // Writes what the core has to say. Writing may wake up paused connections, whose requests then
  // have answers, and so on until nothing is left.
  void Settle() {
    while (true) {
      for (StoreCore::Output& output : core_.TakeOutput()) {
        auto found = peers_.find(output.connection);
        if (found == peers_.end()) continue;
        found->second.queue.push_back(std::move(output.frame));
        dirty_.insert(output.connection);
      }
      std::set<uint64_t> dirty = std::exchange(dirty_, {});
      if (!dirty.empty()) Publish();  // who has an answer finds it in the statistics
      for (uint64_t name : dirty) Write(name);
      std::vector<StoreCore::Closing> closings = core_.TakeClosings();
      for (const auto& closing : closings) {
        Write(closing.connection);
        if (!closing.reason.empty()) Note(closing);
        Drop(closing.connection);
      }
      if (dirty.empty() && closings.empty()) return;
      for (uint64_t name : dirty) Rewatch(name);
    }
  }

  void Write(uint64_t name) {
    auto found = peers_.find(name);
    if (found == peers_.end()) return;
    Peer& peer = found->second;
    while (!peer.queue.empty()) {
      std::array<iovec, kWriteParts> parts;
      size_t count = Gather(peer, parts);
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = count;
      ssize_t sent = sendmsg(peer.socket.get(), &message, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0) return Drop(name);
      Advance(peer, static_cast<size_t>(sent));
      core_.Sent(name, static_cast<size_t>(sent), now_);
    }
  }

  static size_t Gather(const Peer& peer, std::array<iovec, kWriteParts>& parts) {
    size_t count = 0;
    size_t skip = peer.written;
    auto add = [&](const std::string& text) {
      size_t skipped = std::min(skip, text.size());
      skip -= skipped;
      if (skipped == text.size()) return;
      parts[count++] = {const_cast<char*>(text.data()) + skipped, text.size() - skipped};
    };
    for (const StoreFrameOut& frame : peer.queue) {
      if (count + 2 > kWriteParts) break;
      add(frame.head);
      if (frame.body) add(*frame.body);
    }
    return count;
  }

  static void Advance(Peer& peer, size_t sent) {
    peer.written += sent;
    while (!peer.queue.empty() && peer.written >= peer.queue.front().size()) {
      peer.written -= peer.queue.front().size();
      peer.queue.pop_front();
    }
  }

  void Rewatch(uint64_t name) {
    auto found = peers_.find(name);
    if (found == peers_.end()) return;
    uint32_t wanted = 0;
    if (core_.WantsInput(name)) wanted |= EPOLLIN;
    if (!found->second.queue.empty()) wanted |= EPOLLOUT;
    if (wanted == found->second.watched) return;
    found->second.watched = wanted;
    Watch(found->second.socket.get(), name, wanted, EPOLL_CTL_MOD);
  }

  void Note(const StoreCore::Closing& closing) {
    ++statistics_of_loop_.refused;
    statistics_of_loop_.last_refusal = absl::StrCat(closing.peer, ": ", closing.reason);
    WEFT_LOG_WARN("store {}: closed the connection of {}: {}", address_, closing.peer,
                  closing.reason);
  }

  // True: stop.
  bool Publish() {
    std::lock_guard lock(mutex_);
    statistics_of_loop_.connections = core_.connections();
    statistics_of_loop_.sessions = core_.sessions();
    statistics_of_loop_.keys = core_.table().keys();
    statistics_of_loop_.waiting = core_.table().waiting();
    statistics_of_loop_.memory = core_.table().memory();
    statistics_ = statistics_of_loop_;
    turned_.notify_all();
    return stop_;
  }

  const StoreServerOptions options_;
  SystemClock clock_;
  absl::Time now_ = clock_.Now();
  StoreCore core_;
  FileDescriptor listener_;
  FileDescriptor epoll_;
  FileDescriptor wake_;
  FileDescriptor spare_;
  const std::string address_;
  const int port_;
  std::map<uint64_t, Peer> peers_;
  std::set<uint64_t> dirty_;
  uint64_t next_ = kFirst;
  std::vector<char> buffer_ = std::vector<char>(kReadBytes);
  StoreServerStatistics statistics_of_loop_;

  mutable std::mutex mutex_;
  std::condition_variable turned_;
  StoreServerStatistics statistics_;
  bool stop_ = false;
  std::thread thread_;
};

absl::StatusOr<FileDescriptor> Listen(const SocketAddress& address) {
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "make a socket");
  int one = 1;
  int zero = 0;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (address.family() == AF_INET6) {
    setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
  }
  if (bind(socket.get(), address.get(), address.size) != 0 || listen(socket.get(), kBacklog) != 0) {
    int error = errno;
    absl::Status status = ErrnoStatus(error, absl::StrCat("listen at ", ToString(address)));
    return error == EADDRINUSE ? absl::AlreadyExistsError(status.message()) : status;
  }
  return socket;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(StoreServerOptions options) {
  WEFT_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, Resolve(options.listen));
  bool secret = options.core.secret != net::JobSecret{};
  absl::Status status;
  for (SocketAddress& address : addresses) {
    if (!secret && !address.loopback() && !options.open_to_strangers) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a store at ", ToString(address),
          " without a secret would serve strangers; give it a secret (WEFT_JOB_SECRET), or let it "
          "listen on a loopback address"));
    }
    auto socket = Listen(address);
    if (!socket.ok()) {
      status = socket.status();
      continue;
    }
    address.size = sizeof(address.storage);
    getsockname(socket->get(), address.get(), &address.size);
    auto server = std::make_unique<Server>(std::move(options), *std::move(socket), address);
    WEFT_RETURN_IF_ERROR(server->Begin());
    return server;
  }
  return status;
}

}  // namespace weft::collectives
