#include "plugins/nccl/tcp_shared_listener.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/handshake.h"

namespace weft::nccl {

absl::Status Prepare(net::TcpContext& context, const Settings& settings, const Device& device,
                     Rank self, const net::JobSecret& secret, net::TransportEvents* events) {
  WEFT_ASSIGN_OR_RETURN(context.poller, Poller::Create());
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
  WEFT_ASSIGN_OR_RETURN(context.ways, net::PlannedWays::Open(settings, self, kRanks));
  context.own_address = device.address;
  if (context.ways) {
    WEFT_RETURN_IF_ERROR(context.ways.Check(net::ToIpAddress(device.address)));
    context.ways.Watch(net::ToIpAddress(device.address));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<TcpSharedListener>> TcpSharedListener::Open(
    const Settings& settings, const Device& device, IdleProgressThread& idle_thread) {
  std::shared_ptr<TcpSharedListener> out(new TcpSharedListener(idle_thread));
  WEFT_RETURN_IF_ERROR(Prepare(out->context_, settings, device, Rank(0), out->secret_, out.get()));
  out->context_.book = std::make_shared<net::ResumeBook>();
  WEFT_ASSIGN_OR_RETURN(out->acceptor_, net::Acceptor::Create(out->context_, device.address, *out));
  out->address_ = out->acceptor_->address();
  WEFT_RETURN_IF_ERROR(idle_thread.Add(*out));
  return out;
}

TcpSharedListener::~TcpSharedListener() { idle_thread_.Remove(*this); }

absl::StatusOr<uint32_t> TcpSharedListener::AddListener() {
  std::lock_guard lock(mutex_);
  if (listeners_.size() >= kListenersMax / 2) {
    return absl::ResourceExhaustedError(
        absl::StrCat(listeners_.size(), " listeners of one device"));
  }
  while (listeners_.count(next_listener_ % kListenersMax) > 0) ++next_listener_;
  const uint32_t number = next_listener_++ % kListenersMax;
  listeners_[number];
  return number;
}

void TcpSharedListener::RemoveListener(uint32_t number) {
  std::lock_guard lock(mutex_);
  listeners_.erase(number);
}

absl::StatusOr<TcpSharedListener::Peer> TcpSharedListener::Next(uint32_t listener, absl::Time now) {
  idle_thread_.NoteDriven(*this);
  std::lock_guard lock(mutex_);
  Listener& own = listeners_.at(listener);
  if (own.arrived.empty()) TurnLocked(now);
  if (!own.turned_away.ok()) return std::exchange(own.turned_away, absl::OkStatus());
  if (own.arrived.empty()) return Peer{};
  Peer peer = std::move(own.arrived.front());
  own.arrived.pop_front();
  return peer;
}

absl::Time TcpSharedListener::ProgressIdle(absl::Time now) {
  std::lock_guard lock(mutex_);
  return TurnLocked(now) ? now : context_.poller->NextDeadline();
}

// Threads read the clock before they get the mutex.
bool TcpSharedListener::TurnLocked(absl::Time now) {
  now_ = std::max(now_, now);
  return context_.poller->Turn(now_);
}

absl::Status TcpSharedListener::Admit(Rank peer) {
  if (listeners_.count(ListenerOfRank(peer)) > 0) return absl::OkStatus();
  return absl::NotFoundError("NCCL has closed the listener that this handle is of");
}

void TcpSharedListener::OnPeer(Rank peer, const net::LinkParameters& parameters,
                               std::vector<FileDescriptor> sockets, absl::Time /*now*/) {
  auto found = listeners_.find(ListenerOfRank(peer));
  if (found == listeners_.end()) return;  // closed meanwhile; its peer sees that
  found->second.arrived.push_back({peer, parameters, std::move(sockets)});
}

void TcpSharedListener::OnTurnedAway(Rank peer, const absl::Status& why) {
  auto found = listeners_.find(ListenerOfRank(peer));
  if (found == listeners_.end()) return;
  found->second.turned_away = MismatchOf(why, HandleTransport::kTcp);
}

}  // namespace weft::nccl
