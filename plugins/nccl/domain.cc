#include "plugins/nccl/domain.h"

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "net/handshake.h"
#include "net/multipath/udp/multipath_transport.h"
#include "net/ucx/ucx.h"
#include "net/verbs/verbs.h"

namespace weft::nccl {
namespace {

constexpr size_t kNoticesMax = 4;  // no honest peer sends more than one
constexpr int kLastTurns = 256;    // of a domain whose connection was closed
constexpr int kTurnsAtOnce = 16;   // of the idle progress thread, with the mutex

absl::StatusOr<std::unique_ptr<net::Transport>> MakeTransport(
    HandleTransport kind, const net::TransportOptions& options) {
  switch (kind) {
    case HandleTransport::kVerbs:
      return net::CreateVerbsTransport(options);
    case HandleTransport::kUcx:
      return net::CreateUcxTransport(options);
    case HandleTransport::kMultipath:
      return net::multipath::MultipathTransport::Create(options);
    case HandleTransport::kTcp:
      break;
  }
  return absl::InternalError("tcp has no domains");
}

// `Base` is SendConnection or ReceiveConnection.
template <typename Base, typename LinkType>
class DomainConnection final : public Base {
 public:
  // With the domain's mutex held.
  DomainConnection(std::shared_ptr<Domain> domain, std::unique_ptr<LinkType> link)
      : domain_(std::move(domain)), link_(std::move(link)) {
    domain_->Remember(link_.get(), &notices_);
  }
  ~DomainConnection() override {
    std::lock_guard lock(domain_->mutex());
    domain_->Forget(link_.get());
    link_.reset();
    // What it left behind is delivered, also where nobody else drives the domain for a while.
    SystemClock clock;
    for (int turn = 0; turn < kLastTurns && domain_->Progress(clock.Now()); ++turn) {
    }
  }
  std::mutex& mutex() override { return domain_->mutex(); }
  LinkType& link() override { return *link_; }
  bool Progress(absl::Time now) override { return domain_->Progress(now); }
  bool TakeNotice(std::string* text) override {
    if (notices_.empty()) return false;
    *text = std::move(notices_.front());
    notices_.pop_front();
    return true;
  }
  absl::StatusOr<net::Region> Register(void* data, size_t size) override {
    return domain_->Register(data, size);
  }
  absl::StatusOr<net::Region> RegisterDevice(const net::DeviceMemory& memory) override {
    return domain_->RegisterDevice(memory);
  }

 private:
  const std::shared_ptr<Domain> domain_;
  std::unique_ptr<LinkType> link_;
  std::deque<std::string> notices_;
};
using DomainSendConnection = DomainConnection<SendConnection, net::SendLink>;
using DomainReceiveConnection = DomainConnection<ReceiveConnection, net::ReceiveLink>;

}  // namespace

class DomainListener final : public Listener {
 public:
  DomainListener(std::shared_ptr<Domain> domain, uint32_t number)
      : domain_(std::move(domain)), number_(number) {}
  ~DomainListener() override {
    {
      std::lock_guard lock(domain_->mutex());
      domain_->Forget(number_);
    }
    arrived_.clear();
  }
  const SocketAddress& address() const override { return domain_->address(); }
  const net::JobSecret& secret() const override { return domain_->secret(); }
  uint32_t number() const override { return number_; }

  absl::StatusOr<std::unique_ptr<ReceiveConnection>> Accept(absl::Time now) override {
    std::lock_guard lock(domain_->mutex());
    if (arrived_.empty()) domain_->Progress(now);
    if (!turned_away_.ok()) return std::exchange(turned_away_, absl::OkStatus());
    if (arrived_.empty()) return nullptr;
    std::unique_ptr<ReceiveConnection> connection = std::move(arrived_.front());
    arrived_.pop_front();
    return connection;
  }

  // With the mutex held.
  void Arrived(std::unique_ptr<net::ReceiveLink> link) {
    link->NamePeer("its sender");
    arrived_.push_back(std::make_unique<DomainReceiveConnection>(domain_, std::move(link)));
  }
  void TurnedAway(const absl::Status& why) { turned_away_ = why; }

 private:
  const std::shared_ptr<Domain> domain_;
  const uint32_t number_;
  std::deque<std::unique_ptr<ReceiveConnection>> arrived_;
  absl::Status turned_away_;
};

absl::StatusOr<std::shared_ptr<Domain>> Domain::Create(HandleTransport kind,
                                                       const Settings& settings,
                                                       IdleProgressThread& idle_thread) {
  std::shared_ptr<Domain> out(new Domain(kind, idle_thread));
  net::TransportOptions options;
  options.self = Rank(0);
  options.world_size = kRanks;
  out->secret_ = net::NewNonce();
  options.secret = out->secret_;
  options.events = out.get();
  options.settings = settings;
  options.notices_by_tcp = true;   // greetings: nobody drives a connection that stands
  options.await_goodbyes = false;  // NCCL closes hundreds, one after the other
  WEFT_ASSIGN_OR_RETURN(out->transport_, MakeTransport(kind, options));
  WEFT_ASSIGN_OR_RETURN(out->address_, SocketAddress::Parse(out->transport_->address()));
  WEFT_RETURN_IF_ERROR(idle_thread.Add(*out));
  return out;
}

Domain::~Domain() {
  idle_thread_.Remove(*this);
  unwanted_.clear();
  transport_.reset();
}

absl::StatusOr<std::unique_ptr<Listener>> Domain::Listen() {
  if (listeners_.size() >= kListenersMax / 2) {
    return absl::ResourceExhaustedError(
        absl::StrCat(listeners_.size(), " listeners of one communicator and device"));
  }
  while (listeners_.count(next_listener_ % kListenersMax) > 0) ++next_listener_;
  const uint32_t number = next_listener_++ % kListenersMax;
  auto listener = std::make_unique<DomainListener>(shared_from_this(), number);
  listeners_[number] = listener.get();
  return listener;
}

absl::StatusOr<std::unique_ptr<SendConnection>> Domain::Connect(const Handle& handle,
                                                                absl::string_view interface,
                                                                absl::Time now) {
  now_ = std::max(now_, now);
  std::unique_ptr<net::SendLink> link =
      transport_->ConnectAs({DrawRank(handle.listener), handle.secret},
                            AddressOf(handle, interface).ToString(), Rank(0), now_);
  if (link == nullptr) return absl::InternalError("this transport connects as itself only");
  return std::make_unique<DomainSendConnection>(shared_from_this(), std::move(link));
}

absl::StatusOr<net::Region> Domain::Register(void* data, size_t size) {
  // Elsewhere it costs nothing and knows nothing; and whoever moves data needs not wait for it.
  if (kind_ != HandleTransport::kVerbs) {
    return net::Region(static_cast<std::byte*>(data), size, nullptr);
  }
  std::lock_guard lock(mutex_);
  WEFT_ASSIGN_OR_RETURN(net::Region region, transport_->Register(data, size));
  return Kept(data, size, std::move(region));
}

absl::StatusOr<net::Region> Domain::RegisterDevice(const net::DeviceMemory& memory) {
  std::lock_guard lock(mutex_);
  WEFT_ASSIGN_OR_RETURN(net::Region region, transport_->RegisterDevice(memory));
  return Kept(memory.data, memory.size, std::move(region));
}

net::Region Domain::Kept(void* data, size_t size, net::Region region) {
  auto held = std::make_shared<net::Region>(std::move(region));
  return net::Region(static_cast<std::byte*>(data), size,
                     [self = shared_from_this(), held]() mutable {
                       std::lock_guard lock(self->mutex_);
                       held.reset();
                     });
}

bool Domain::Progress(absl::Time now) {
  idle_thread_.NoteDriven(*this);
  return Turn(now);
}

// Threads read the clock before they get the mutex.
bool Domain::Turn(absl::Time now) {
  if (std::exchange(is_prepared_, false)) transport_->FinishWait();
  now_ = std::max(now_, now);
  unwanted_.clear();
  return transport_->Progress(now_);
}

absl::Time Domain::ProgressIdle(absl::Time now) {
  std::lock_guard lock(mutex_);
  SystemClock clock;
  for (int turn = 0; turn < kTurnsAtOnce && Turn(now); ++turn) now = clock.Now();
  is_prepared_ = true;
  return transport_->PrepareWait() ? transport_->NextDeadline() : now;
}

void Domain::OnAccepted(std::unique_ptr<net::ReceiveLink> link) {
  auto found = listeners_.find(ListenerOfRank(link->peer()));
  if (found == listeners_.end()) {
    unwanted_.push_back(std::move(link));  // closed before its peer came
  } else {
    found->second->Arrived(std::move(link));
  }
}

void Domain::OnNotice(net::Link& link, absl::string_view bytes) {
  auto found = notices_.find(&link);
  if (found == notices_.end() || found->second->size() >= kNoticesMax) return;
  found->second->emplace_back(bytes);
}

void Domain::OnTurnedAway(Rank peer, const absl::Status& why) {
  auto found = listeners_.find(ListenerOfRank(peer));
  if (found != listeners_.end()) found->second->TurnedAway(MismatchOf(why, kind_));
}

}  // namespace weft::nccl
