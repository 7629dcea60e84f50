// net/tcp's links, one event loop for each connection: whoever tests a request drives its
// connection and no other, so that threads of different communicators share nothing.
#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/tcp/acceptor.h"
#include "net/tcp/link_core.h"
#include "net/tcp/receive_link.h"
#include "net/tcp/send_link.h"
#include "plugins/nccl/backend.h"

namespace weft::nccl {
namespace {

// The handshake wants ranks. The listener is 0; a connector draws another number, so that sockets
// of two connectors to one listener are told apart.
constexpr int kRanks = 1 << 30;

Rank DrawRank() {
  net::Nonce random = net::NewNonce();
  uint32_t number = 0;
  std::memcpy(&number, random.data(), sizeof(number));
  return Rank(static_cast<int32_t>(1 + number % (kRanks - 1)));
}

absl::Status Prepare(net::TcpContext& context, const Settings& settings, const Device& device,
                     Rank self, const net::JobSecret& secret, net::TransportEvents* events) {
  WEFT_ASSIGN_OR_RETURN(context.poller, net::Poller::Create());
  context.options.self = self;
  context.options.world_size = kRanks;
  context.options.secret = secret;
  context.options.events = events;
  context.interface = device.name;
  context.await_goodbyes = false;  // NCCL closes hundreds, one after the other
  context.tuning = {settings.ByteCount("tcp.buffer_bytes"), settings.Duration("tcp.dead_after")};
  context.sockets = static_cast<int>(settings.Integer("tcp.sockets"));
  context.frame_bytes =
      static_cast<uint64_t>(settings.ByteCount("tcp.frame_bytes").count()) / 64 * 64;
  // Never fewer than NCCL may have in flight.
  context.requests_max =
      std::max<size_t>(static_cast<size_t>(settings.Integer("transport.requests")),
                       static_cast<size_t>(abi::kRequestsMax) * abi::kGroupedReceivesMax);
  context.connect_timeout = settings.Duration("transport.connect_timeout");
  return absl::OkStatus();
}

// `Base` is SendWire or ReceiveWire, `LinkType` net/tcp's link that it carries.
template <typename Base, typename LinkType>
class TcpWire final : public Base, public net::TransportEvents {
 public:
  ~TcpWire() override {
    link_.reset();
    context_.lingering.AwaitDelivery();
    context_.lingering.clear();
  }
  LinkType& link() override { return *link_; }
  bool Progress(absl::Time now) override { return context_.poller->Turn(now); }
  bool TakeNotice(std::string* text) override {
    if (notices_.empty()) return false;
    *text = std::move(notices_.front());
    notices_.pop_front();
    return true;
  }
  void SetPeerName(const std::string& name) override { context_.peer_name = name; }

  net::TcpContext& context() { return context_; }
  void SetLink(std::unique_ptr<LinkType> link) { link_ = std::move(link); }

 private:
  void OnAccepted(std::unique_ptr<net::ReceiveLink> /*link*/) override {}
  void OnNotice(net::Link& /*link*/, absl::string_view bytes) override {
    if (notices_.size() < 4) notices_.emplace_back(bytes);  // no honest peer sends more than one
  }
  void OnBroken(net::Link& /*link*/, const absl::Status& /*status*/) override {}

  net::TcpContext context_;
  std::unique_ptr<LinkType> link_;
  std::deque<std::string> notices_;
};
using TcpSendWire = TcpWire<SendWire, net::TcpSendLink>;
using TcpReceiveWire = TcpWire<ReceiveWire, net::TcpReceiveLink>;

class TcpListener final : public Listener,
                          private net::AcceptorOwner,
                          private net::TransportEvents {
 public:
  TcpListener(const Settings& settings, const Device& device)
      : settings_(settings), device_(device) {}
  absl::Status Open(const net::JobSecret& secret) {
    WEFT_RETURN_IF_ERROR(Prepare(context_, settings_, device_, Rank(0), secret, this));
    WEFT_ASSIGN_OR_RETURN(acceptor_, net::Acceptor::Create(context_, device_.address, *this));
    address_ = acceptor_->address();
    return absl::OkStatus();
  }
  const net::SocketAddress& address() const override { return address_; }

  std::unique_ptr<ReceiveWire> Accept(absl::Time now) override {
    if (arrived_.empty()) context_.poller->Turn(now);
    if (arrived_.empty()) return nullptr;
    std::unique_ptr<ReceiveWire> wire = std::move(arrived_.front());
    arrived_.pop_front();
    return wire;
  }

 private:
  void OnPeer(Rank peer, std::vector<net::FileDescriptor> sockets, absl::Time) override {
    auto wire = std::make_unique<TcpReceiveWire>();
    absl::Status ready =
        Prepare(wire->context(), settings_, device_, Rank(0), context_.options.secret, wire.get());
    if (!ready.ok())
      return;  // out of descriptors: the peer sees its connection closed, and says so
    wire->context().peer_name = "its sender";
    wire->SetLink(std::make_unique<net::TcpReceiveLink>(wire->context(), peer, nullptr));
    wire->link().Start(std::move(sockets));
    arrived_.push_back(std::move(wire));
  }
  void OnAccepted(std::unique_ptr<net::ReceiveLink> /*link*/) override {}
  void OnNotice(net::Link& /*link*/, absl::string_view /*bytes*/) override {}
  void OnBroken(net::Link& /*link*/, const absl::Status& /*status*/) override {}

  const Settings& settings_;
  const Device& device_;
  net::TcpContext context_;
  std::unique_ptr<net::Acceptor> acceptor_;
  net::SocketAddress address_;
  std::deque<std::unique_ptr<ReceiveWire>> arrived_;
};

class TcpBackend final : public Backend {
 public:
  TcpBackend(const Settings& settings, std::vector<Device> devices)
      : settings_(settings), devices_(std::move(devices)) {}

  const char* name() const override { return "tcp"; }
  const std::vector<Device>& devices() const override { return devices_; }
  int pointer_support() const override { return abi::kPointerHost; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(int device,
                                                   const net::JobSecret& secret) override {
    auto listener = std::make_unique<TcpListener>(settings_, devices_[static_cast<size_t>(device)]);
    WEFT_RETURN_IF_ERROR(listener->Open(secret));
    return listener;
  }

  absl::StatusOr<std::unique_ptr<SendWire>> Connect(int device, const Handle& handle,
                                                    absl::Time now) override {
    const Device& local = devices_[static_cast<size_t>(device)];
    auto wire = std::make_unique<TcpSendWire>();
    WEFT_RETURN_IF_ERROR(
        Prepare(wire->context(), settings_, local, DrawRank(), handle.secret, wire.get()));
    wire->SetLink(std::make_unique<net::TcpSendLink>(wire->context(), Rank(0)));
    wire->link().Start(AddressOf(handle, local.name).ToString(), now);
    return wire;
  }

  absl::StatusOr<net::Region> Register(void* data, size_t size) override {
    return net::Region(static_cast<std::byte*>(data), size, nullptr);
  }
  absl::Duration connect_timeout() const override {
    return settings_.Duration("transport.connect_timeout");
  }
  std::string Describe() const override {
    int64_t sockets = settings_.Integer("tcp.sockets");
    return absl::StrCat(sockets, sockets == 1 ? " socket" : " sockets", " a connection, ",
                        settings_.ValueText("tcp.frame_bytes"), " frames");
  }

 private:
  const Settings settings_;
  const std::vector<Device> devices_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateTcpBackend(const Settings& settings,
                                                          std::vector<Device> devices) {
  if (sodium_init() < 0) return absl::InternalError("libsodium finds no source of randomness");
  return std::make_unique<TcpBackend>(settings, std::move(devices));
}

}  // namespace weft::nccl
