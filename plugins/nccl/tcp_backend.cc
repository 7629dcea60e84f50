// net/tcp's links, one event loop for each connection: whoever tests a request drives its
// connection and no other, so that threads of different communicators share nothing but the shared
// listener (tcp_shared_listener.h), where connections are set up and their lost sockets replaced.
// Links that nobody tests are driven by the idle progress thread: what their peers have lost is
// sent again.
#include <sodium.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "net/tcp/link_session.h"
#include "net/tcp/receive_link.h"
#include "net/tcp/send_link.h"
#include "plugins/nccl/backend.h"
#include "plugins/nccl/idle_progress_thread.h"
#include "plugins/nccl/tcp_shared_listener.h"

namespace weft::nccl {
namespace {

// `Base` is SendConnection or ReceiveConnection, `LinkType` net/tcp's link that it carries.
template <typename Base, typename LinkType>
class TcpConnection final : public Base,
                            public net::TransportEvents,
                            private IdleProgressThread::Client {
 public:
  // Without a shared listener and idle thread: it connects to be refused, and is never established.
  TcpConnection(std::shared_ptr<TcpSharedListener> shared_listener, IdleProgressThread* idle_thread)
      : shared_listener_(std::move(shared_listener)), idle_thread_(idle_thread) {}
  ~TcpConnection() override {
    if (idle_thread_ != nullptr) idle_thread_->Remove(*this);
    link_.reset();
    context_.lingering.AwaitDelivery();
    context_.lingering.clear();
  }
  std::mutex& mutex() override { return mutex_; }
  LinkType& link() override { return *link_; }
  bool Progress(absl::Time now) override {
    if (idle_thread_ != nullptr) idle_thread_->NoteDriven(*this);
    return Turn(now);
  }
  absl::Status Established() override { return idle_thread_->Add(*this); }
  bool TakeNotice(std::string* text) override {
    if (notices_.empty()) return false;
    *text = std::move(notices_.front());
    notices_.pop_front();
    return true;
  }
  absl::StatusOr<net::Region> Register(void* data, size_t size) override {
    return net::Region(static_cast<std::byte*>(data), size, nullptr);
  }

  net::TcpContext& context() { return context_; }
  absl::Status Open(const Settings& settings, const Device& device, Rank self,
                    const net::JobSecret& secret) {
    if (shared_listener_ != nullptr) {
      context_.book = shared_listener_->book();
      context_.listens_at = shared_listener_->address();
    }
    return Prepare(context_, settings, device, self, secret, this);
  }
  void SetLink(std::unique_ptr<LinkType> link) { link_ = std::move(link); }
  // The accepting end's: new sockets for it come to the shared listener, in any thread.
  void AwaitArrivals() {
    context_.on_arrival = [this] {
      arrived_.store(true);
      idle_thread_->Call(*this);
    };
  }

 private:
  static constexpr int kTurnsAtOnce = 16;  // of the idle progress thread, with the mutex

  int wait_fd() const override { return context_.poller->fd(); }
  absl::Time ProgressIdle(absl::Time now) override {
    std::lock_guard lock(mutex_);
    for (int turn = 0; turn < kTurnsAtOnce; ++turn) {
      if (!Turn(now)) return context_.poller->NextDeadline();
      now = SystemClock().Now();
    }
    return now;
  }
  // Threads read the clock before they get the mutex.
  bool Turn(absl::Time now) {
    now_ = std::max(now_, now);
    if (arrived_.load(std::memory_order_relaxed) && arrived_.exchange(false)) {
      link_->TakeArrivals(now_);
    }
    return context_.poller->Turn(now_);
  }
  void OnAccepted(std::unique_ptr<net::ReceiveLink> /*link*/) override {}
  void OnNotice(net::Link& /*link*/, absl::string_view bytes) override {
    if (notices_.size() < 4) notices_.emplace_back(bytes);  // no honest peer sends more than one
  }
  void OnBroken(net::Link& /*link*/, const absl::Status& /*status*/) override {}

  const std::shared_ptr<TcpSharedListener> shared_listener_;
  IdleProgressThread* const idle_thread_;
  std::mutex mutex_;  // of all below, but for arrived_
  absl::Time now_ = absl::InfinitePast();
  std::atomic<bool> arrived_ = false;
  net::TcpContext context_;
  std::unique_ptr<LinkType> link_;
  std::deque<std::string> notices_;
};
using TcpSendConnection = TcpConnection<SendConnection, net::SessionSendLink>;
using TcpReceiveConnection = TcpConnection<ReceiveConnection, net::SessionReceiveLink>;

class TcpListener final : public Listener {
 public:
  TcpListener(const Settings& settings, const Device& device,
              std::shared_ptr<TcpSharedListener> shared_listener, uint32_t number,
              IdleProgressThread& idle_thread)
      : settings_(settings),
        device_(device),
        shared_listener_(std::move(shared_listener)),
        number_(number),
        idle_thread_(idle_thread) {}
  ~TcpListener() override { shared_listener_->RemoveListener(number_); }
  const SocketAddress& address() const override { return shared_listener_->address(); }
  const net::JobSecret& secret() const override { return shared_listener_->secret(); }
  uint32_t number() const override { return number_; }

  absl::StatusOr<std::unique_ptr<ReceiveConnection>> Accept(absl::Time now) override {
    WEFT_ASSIGN_OR_RETURN(TcpSharedListener::Peer peer, shared_listener_->Next(number_, now));
    if (peer.sockets.empty()) return nullptr;
    auto connection = std::make_unique<TcpReceiveConnection>(shared_listener_, &idle_thread_);
    WEFT_RETURN_IF_ERROR(connection->Open(settings_, device_, Rank(0), shared_listener_->secret()));
    connection->AwaitArrivals();
    connection->SetLink(
        std::make_unique<net::SessionReceiveLink>(connection->context(), peer.rank, nullptr));
    connection->link().NamePeer("its sender");
    connection->link().UseResumption(peer.parameters, peer.sockets);
    connection->link().Start(std::move(peer.sockets));
    return connection;
  }

 private:
  const Settings& settings_;
  const Device& device_;
  const std::shared_ptr<TcpSharedListener> shared_listener_;
  const uint32_t number_;
  IdleProgressThread& idle_thread_;
};

// With both null: to be refused.
absl::StatusOr<std::unique_ptr<TcpSendConnection>> Dial(
    std::shared_ptr<TcpSharedListener> shared_listener, IdleProgressThread* idle_thread,
    const Settings& settings, const Device& local, const Handle& handle,
    net::HandshakePurpose purpose, absl::Time now) {
  auto connection = std::make_unique<TcpSendConnection>(std::move(shared_listener), idle_thread);
  WEFT_RETURN_IF_ERROR(connection->Open(settings, local, DrawRank(handle.listener), handle.secret));
  connection->context().purpose = purpose;
  connection->SetLink(std::make_unique<net::SessionSendLink>(connection->context(), Rank(0)));
  connection->link().Start(AddressOf(handle, local.name).ToString(), now);
  return connection;
}

class TcpBackend final : public Backend {
 public:
  TcpBackend(const Settings& settings, std::vector<Device> devices)
      : settings_(settings), devices_(std::move(devices)) {}

  HandleTransport transport() const override { return HandleTransport::kTcp; }
  const DeviceList& devices() const override { return devices_; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const Scope& /*scope*/, int device) override {
    WEFT_ASSIGN_OR_RETURN(std::shared_ptr<TcpSharedListener> shared_listener,
                          SharedListenerOf(device));
    WEFT_ASSIGN_OR_RETURN(const uint32_t number, shared_listener->AddListener());
    return std::make_unique<TcpListener>(settings_, devices_[device], std::move(shared_listener),
                                         number, idle_thread_);
  }

  absl::StatusOr<std::unique_ptr<SendConnection>> Connect(const Scope& /*scope*/, int device,
                                                          const Handle& handle,
                                                          absl::Time now) override {
    // This side's own shared listener is for the other to see whether this process lives.
    WEFT_ASSIGN_OR_RETURN(std::shared_ptr<TcpSharedListener> shared_listener,
                          SharedListenerOf(device));
    return Dial(std::move(shared_listener), &idle_thread_, settings_, devices_[device], handle,
                net::HandshakePurpose::kTcpLink, now);
  }

  absl::StatusOr<int> Merge(const std::vector<int>& parts) override {
    for (int part : parts) WEFT_RETURN_IF_ERROR(devices_.Check(part));
    if (parts.size() == 1) return parts.front();
    return absl::UnimplementedError(
        "tcp does not merge interfaces: NCCL spreads its channels over them by itself");
  }
  void EndIdleProgress() override { idle_thread_.End(); }
  absl::Duration connect_timeout() const override {
    return settings_.Duration("transport.connect_timeout");
  }
  std::string Describe() const override {
    int64_t sockets = settings_.Integer("tcp.sockets");
    return absl::StrCat(sockets, sockets == 1 ? " socket" : " sockets", " a connection, ",
                        settings_.ValueText("tcp.frame_bytes"), " frames");
  }

 private:
  absl::StatusOr<std::shared_ptr<TcpSharedListener>> SharedListenerOf(int device) {
    std::lock_guard lock(mutex_);
    if (std::shared_ptr<TcpSharedListener> shared_listener = shared_listeners_[device].lock())
      return shared_listener;
    WEFT_ASSIGN_OR_RETURN(std::shared_ptr<TcpSharedListener> shared_listener,
                          TcpSharedListener::Open(settings_, devices_[device], idle_thread_));
    shared_listeners_[device] = shared_listener;
    return shared_listener;
  }

  const Settings settings_;
  const DeviceList devices_;
  IdleProgressThread idle_thread_;
  std::mutex mutex_;
  std::map<int, std::weak_ptr<TcpSharedListener>> shared_listeners_;  // by device
};

net::HandshakePurpose PurposeOf(HandleTransport transport) {
  switch (transport) {
    case HandleTransport::kVerbs:
      return net::HandshakePurpose::kVerbsLink;
    case HandleTransport::kUcx:
      return net::HandshakePurpose::kUcxLink;
    case HandleTransport::kMultipath:
      return net::HandshakePurpose::kMultipathLink;
    default:
      return net::HandshakePurpose::kTcpLink;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateTcpBackend(const Settings& settings,
                                                          std::vector<Device> devices) {
  if (sodium_init() < 0) return absl::InternalError("libsodium finds no source of randomness");
  return std::make_unique<TcpBackend>(settings, std::move(devices));
}

absl::StatusOr<std::unique_ptr<SendConnection>> ConnectToBeRefused(HandleTransport own,
                                                                   const Settings& settings,
                                                                   const Device& device,
                                                                   const Handle& handle,
                                                                   absl::Time now) {
  return Dial(/*shared_listener=*/nullptr, /*idle_thread=*/nullptr, settings, device, handle,
              PurposeOf(own), now);
}

}  // namespace weft::nccl
