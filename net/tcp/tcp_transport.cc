#include "net/tcp/tcp_transport.h"

#include <sodium.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/tcp/interface.h"
#include "net/tcp/send_link.h"

namespace weft::net {

TcpTransport::TcpTransport(const TransportOptions& options) {
  const Settings& settings = options.settings;
  context_.options = options;
  context_.tuning = {settings.ByteCount("tcp.buffer_bytes"), settings.Duration("tcp.dead_after")};
  context_.sockets = static_cast<int>(settings.Integer("tcp.sockets"));
  context_.frame_bytes =
      static_cast<uint64_t>(settings.ByteCount("tcp.frame_bytes").count()) / 64 * 64;
  context_.requests_max = static_cast<size_t>(settings.Integer("transport.requests"));
  context_.connect_timeout = settings.Duration("transport.connect_timeout");
  context_.await_goodbyes = options.await_goodbyes;
}

absl::StatusOr<std::unique_ptr<Transport>> TcpTransport::Create(const TransportOptions& options) {
  std::unique_ptr<TcpTransport> out(new TcpTransport(options));
  WEFT_RETURN_IF_ERROR(out->Open());
  return out;
}

absl::Status TcpTransport::Open() {
  return Annotate(
      Listen(), absl::StrCat(context_.name, " transport of rank ", context_.options.self.value()));
}

absl::Status TcpTransport::Listen() {
  const TransportOptions& options = context_.options;
  if (options.events == nullptr) return absl::InvalidArgumentError("no events to tell");
  if (options.self.value() < 0 || options.self.value() >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rank is not in [0, ", options.world_size, ")"));
  }
  if (sodium_init() < 0) return absl::InternalError("libsodium finds no source of randomness");
  WEFT_ASSIGN_OR_RETURN(context_.poller, Poller::Create());
  context_.book = std::make_shared<ResumeBook>();
  WEFT_ASSIGN_OR_RETURN(Interface interface, ChooseInterface(context_.options.settings));
  context_.interface = interface.name;
  const Settings& settings = context_.options.settings;
  WEFT_ASSIGN_OR_RETURN(
      context_.source_ports,
      SourcePorts::FromFile(settings.Text("tcp.source_ports"), context_.options.self));
  // Other transports' sockets carry controls only, perhaps over another network.
  if (context_.purpose == HandshakePurpose::kTcpLink) {
    WEFT_ASSIGN_OR_RETURN(context_.ways,
                          PlannedWays::Open(settings, options.self, options.world_size));
    context_.own_address = interface.address;
    context_.binds_own_address = !settings.Text("tcp.interface").empty();
    if (context_.ways) {
      WEFT_RETURN_IF_ERROR(context_.ways.Check(ToIpAddress(interface.address)));
      context_.ways.Watch(ToIpAddress(interface.address));
    }
  }
  auto port = settings.Integer("tcp.listen_port");
  if (port != 0) port += context_.options.self.value();
  if (port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("tcp.listen_port ", settings.ValueText("tcp.listen_port"), " plus rank ",
                     context_.options.self.value(), " is no port: the last is 65535"));
  }
  interface.address.set_port(static_cast<int>(port));
  WEFT_ASSIGN_OR_RETURN(acceptor_, Acceptor::Create(context_, interface.address, *this));
  address_ = acceptor_->address().ToString();
  context_.listens_at = acceptor_->address();
  return absl::OkStatus();
}

TcpTransport::~TcpTransport() {
  WEFT_CHECK(accepted_.empty(), "links outlive their transport: " << accepted_.size());
  StopListening();
  context_.lingering.AwaitDelivery();
  context_.lingering.clear();
  acceptor_.reset();
}

std::unique_ptr<SendLink> TcpTransport::Connect(absl::string_view address, Rank peer,
                                                absl::Time now) {
  auto link = MakeSendLink(peer);
  link->Start(address, now);
  return link;
}

std::unique_ptr<SendLink> TcpTransport::ConnectAs(const ConnectorIdentity& identity,
                                                  absl::string_view address, Rank peer,
                                                  absl::Time now) {
  auto link = MakeSendLink(peer);
  link->UseIdentity(identity);
  link->Start(address, now);
  return link;
}

std::unique_ptr<SessionSendLink> TcpTransport::MakeSendLink(Rank peer) {
  return std::make_unique<SessionSendLink>(
      context_, peer, [this, peer](LinkSession& session, SendMatching& matching) {
        return MakeDataPath(session, matching, peer);
      });
}

absl::StatusOr<Region> TcpTransport::Register(void* data, size_t size) {
  return Region(static_cast<std::byte*>(data), size, nullptr);
}

void TcpTransport::OnPeer(Rank peer, const LinkParameters& parameters,
                          std::vector<FileDescriptor> sockets, absl::Time /*now*/) {
  if (auto found = accepted_.find(peer); found != accepted_.end()) {
    found->second->Break(absl::UnavailableError("it has connected anew: its process restarted"));
  }
  const auto on_destroyed = [this](SessionReceiveLink* gone) {
    auto entry = accepted_.find(gone->peer());
    if (entry != accepted_.end() && entry->second == gone) accepted_.erase(entry);
  };
  auto link = std::make_unique<SessionReceiveLink>(
      context_, peer, on_destroyed, [this, peer](LinkSession& session, ReceiveMatching& matching) {
        return MakeDataPath(session, matching, peer);
      });
  accepted_[peer] = link.get();
  link->UseResumption(parameters, sockets);
  link->Start(std::move(sockets));
  context_.options.events->OnAccepted(std::move(link));
}

}  // namespace weft::net
