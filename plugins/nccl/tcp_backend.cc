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
  std::mutex& mutex() override { return mutex_; }
  LinkType& link() override { return *link_; }
  bool Progress(absl::Time now) override { return context_.poller->Turn(now); }
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
  void SetLink(std::unique_ptr<LinkType> link) { link_ = std::move(link); }

 private:
  void OnAccepted(std::unique_ptr<net::ReceiveLink> /*link*/) override {}
  void OnNotice(net::Link& /*link*/, absl::string_view bytes) override {
    if (notices_.size() < 4) notices_.emplace_back(bytes);  // no honest peer sends more than one
  }
  void OnBroken(net::Link& /*link*/, const absl::Status& /*status*/) override {}

  std::mutex mutex_;
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
      : settings_(settings), device_(device), secret_(net::NewNonce()) {}
  absl::Status Open() {
    WEFT_RETURN_IF_ERROR(Prepare(context_, settings_, device_, Rank(0), secret_, this));
    WEFT_ASSIGN_OR_RETURN(acceptor_, net::Acceptor::Create(context_, device_.address, *this));
    address_ = acceptor_->address();
    return absl::OkStatus();
  }
  const net::SocketAddress& address() const override { return address_; }
  const net::JobSecret& secret() const override { return secret_; }
  uint32_t number() const override { return 0; }

  absl::StatusOr<std::unique_ptr<ReceiveWire>> Accept(absl::Time now) override {
    if (arrived_.empty()) context_.poller->Turn(now);
    if (!turned_away_.ok()) return std::exchange(turned_away_, absl::OkStatus());
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
    wire->SetLink(std::make_unique<net::TcpReceiveLink>(wire->context(), peer, nullptr));
    wire->link().NamePeer("its sender");
    wire->link().Start(std::move(sockets));
    arrived_.push_back(std::move(wire));
  }
  void OnAccepted(std::unique_ptr<net::ReceiveLink> /*link*/) override {}
  void OnNotice(net::Link& /*link*/, absl::string_view /*bytes*/) override {}
  void OnBroken(net::Link& /*link*/, const absl::Status& /*status*/) override {}
  void OnTurnedAway(Rank /*peer*/, const absl::Status& why) override { turned_away_ = why; }

  const Settings& settings_;
  const Device& device_;
  const net::JobSecret secret_;
  absl::Status turned_away_;
  net::TcpContext context_;
  std::unique_ptr<net::Acceptor> acceptor_;
  net::SocketAddress address_;
  std::deque<std::unique_ptr<ReceiveWire>> arrived_;
};

absl::StatusOr<std::unique_ptr<TcpSendWire>> Dial(const Settings& settings, const Device& local,
                                                  const Handle& handle,
                                                  net::HandshakePurpose purpose, absl::Time now) {
  auto wire = std::make_unique<TcpSendWire>();
  WEFT_RETURN_IF_ERROR(Prepare(wire->context(), settings, local, DrawRank(handle.listener),
                               handle.secret, wire.get()));
  wire->context().purpose = purpose;
  wire->SetLink(std::make_unique<net::TcpSendLink>(wire->context(), Rank(0)));
  wire->link().Start(AddressOf(handle, local.name).ToString(), now);
  return wire;
}

class TcpBackend final : public Backend {
 public:
  TcpBackend(const Settings& settings, std::vector<Device> devices)
      : settings_(settings), devices_(std::move(devices)) {}

  HandleTransport transport() const override { return HandleTransport::kTcp; }
  const DeviceList& devices() const override { return devices_; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const Scope& /*scope*/, int device) override {
    auto listener = std::make_unique<TcpListener>(settings_, devices_[device]);
    WEFT_RETURN_IF_ERROR(listener->Open());
    return listener;
  }

  absl::StatusOr<std::unique_ptr<SendWire>> Connect(const Scope& /*scope*/, int device,
                                                    const Handle& handle, absl::Time now) override {
    return Dial(settings_, devices_[device], handle, net::HandshakePurpose::kTcpLink, now);
  }

  absl::StatusOr<int> Merge(const std::vector<int>& /*parts*/) override {
    return absl::UnimplementedError(
        "tcp does not merge interfaces: NCCL spreads its channels over them by itself");
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
  const DeviceList devices_;
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

absl::StatusOr<std::unique_ptr<SendWire>> ConnectToBeRefused(HandleTransport own,
                                                             const Settings& settings,
                                                             const Device& device,
                                                             const Handle& handle, absl::Time now) {
  return Dial(settings, device, handle, PurposeOf(own), now);
}

}  // namespace weft::nccl
