#include "net/shm/shm_transport.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/host_name.h"
#include "base/log.h"
#include "base/status.h"
#include "net/shm/links.h"

namespace weft::net {
namespace {

// How often a process that never sleeps looks at its sockets: by time, and by turns where time
// stands still. An epoll_wait costs as much as some 50 idle turns.
constexpr absl::Duration kSocketsEvery = absl::Milliseconds(1);
constexpr uint32_t kTurnsEvery = 1024;
// Handshakes at a time; more wait in the listener's backlog.
constexpr size_t kArrivalsMax = 256;
constexpr absl::Duration kListenAgain = absl::Milliseconds(50);
constexpr uint64_t kLine = 64;

shm::Geometry GeometryOf(const Settings& settings) {
  shm::Geometry geometry;
  auto slot = static_cast<uint64_t>(settings.ByteCount("shm.slot_bytes").count());
  geometry.piece_bytes = (slot + kLine - 1) / kLine * kLine;
  geometry.arena_bytes =
      geometry.piece_bytes * static_cast<uint64_t>(settings.Integer("shm.slots"));
  return geometry;
}

}  // namespace

ShmTransport::ShmTransport(const TransportOptions& options)
    : options_(options),
      identity_{options.self, options.world_size, options.secret, HandshakePurpose::kShmLink},
      geometry_(GeometryOf(options.settings)),
      requests_max_(static_cast<size_t>(options.settings.Integer("transport.requests"))),
      single_copy_min_(
          static_cast<uint64_t>(options.settings.ByteCount("shm.single_copy_min").count())),
      single_copy_(options.settings.Text("shm.single_copy")),
      eager_max_(static_cast<uint64_t>(options.settings.ByteCount("shm.eager_max").count())),
      connect_timeout_(options.settings.Duration("transport.connect_timeout")),
      host_(HostName()) {}

ShmTransport::~ShmTransport() {
  WEFT_CHECK(endpoints_.empty(), endpoints_.size() << " links outlive their transport");
}

absl::StatusOr<std::unique_ptr<Transport>> ShmTransport::Create(const TransportOptions& options) {
  if (options.events == nullptr) return absl::InvalidArgumentError("shm: no events to tell");
  auto transport = std::unique_ptr<ShmTransport>(new ShmTransport(options));
  WEFT_RETURN_IF_ERROR(shm::CheckGeometry(transport->geometry_));
  if (absl::Status opened = transport->Open(); !opened.ok()) {
    return Annotate(opened, "open the shm transport");
  }
  return transport;
}

absl::Status ShmTransport::Open() {
  WEFT_ASSIGN_OR_RETURN(listener_, shm::ListenUnix(&address_));
  WEFT_ASSIGN_OR_RETURN(doorbell_, shm::Doorbell::Create());
  WEFT_ASSIGN_OR_RETURN(epoll_, Epoll::Create());
  // Edge-triggered: each ring is reported once and nothing needs to be read back.
  WEFT_RETURN_IF_ERROR(epoll_.Add(doorbell_.event_fd(), EPOLLIN | EPOLLET, {.ptr = nullptr}));
  return epoll_.Add(listener_.get(), EPOLLIN, {.ptr = this});
}

bool ShmTransport::ReadsPeers() const {
  return single_copy_min_ > 0 &&
         (single_copy_ == "on" || (single_copy_ == "auto" && shm::ReadingPays()));
}

void ShmTransport::Add(shm::Endpoint* endpoint) { endpoints_.push_back(endpoint); }

void ShmTransport::Remove(shm::Endpoint* endpoint) {
  WEFT_CHECK(!in_progress_, "a link was destroyed inside of Progress()");
  std::erase(endpoints_, endpoint);
}

absl::Status ShmTransport::Watch(int fd, shm::SocketWatcher* watcher) {
  return epoll_.Add(fd, EPOLLIN | EPOLLRDHUP, {.ptr = watcher});
}

void ShmTransport::Unwatch(int fd) { epoll_.Remove(fd); }

std::unique_ptr<SendLink> ShmTransport::Connect(absl::string_view address, Rank peer,
                                                absl::Time now) {
  auto connecting = std::make_unique<shm::Connecting>(address, identity_, peer, geometry_,
                                                      &doorbell_, now + connect_timeout_);
  return std::make_unique<shm::ShmSendLink>(this, peer, std::move(connecting));
}

absl::StatusOr<Region> ShmTransport::Register(void* data, size_t size) {
  if (data == nullptr && size > 0) return absl::InvalidArgumentError("register: no memory");
  return Region(static_cast<std::byte*>(data), size, nullptr);
}

// ---- Progress

bool ShmTransport::Progress(absl::Time now) {
  in_progress_ = true;
  local_work_ = false;
  bool moved = false;
  // Links that come up move by what comes over their sockets alone.
  if (poll_now_ || comes_up_ || !arriving_.empty() || now >= next_poll_ ||
      ++turns_ % kTurnsEvery == 0) {
    moved |= PollSockets(now);
  }
  if (!arriving_.empty()) moved |= StepArrivals(now);
  // By index, and only those that were there at the start: callbacks may connect.
  size_t count = endpoints_.size();
  if (count > 0) first_ = (first_ + 1) % count;
  comes_up_ = false;
  for (size_t i = 0; i < count; ++i) {
    size_t at = first_ + i < count ? first_ + i : first_ + i - count;
    moved |= endpoints_[at]->Turn(now);
    comes_up_ |= endpoints_[at]->IsComingUp();
  }
  RingPeers();
  in_progress_ = false;
  return moved;
}

// One fence for all: each waits until all that this core has stored is in memory that others see.
void ShmTransport::RingPeers() {
  const auto needs_ring = [](const shm::Endpoint* one) { return one->NeedsRing(); };
  if (std::none_of(endpoints_.begin(), endpoints_.end(), needs_ring)) return;
  shm::FullFence();
  for (shm::Endpoint* endpoint : endpoints_) {
    if (endpoint->NeedsRing()) endpoint->RingAfterFence();
  }
}

bool ShmTransport::PollSockets(absl::Time now) {
  poll_now_ = false;
  next_poll_ = now + kSocketsEvery;
  if (now >= listen_again_) {
    listen_again_ = absl::InfiniteFuture();
    WatchListener(true).IgnoreError();
  }
  std::array<epoll_event, 64> events;
  const int count = epoll_.Wait(absl::MakeSpan(events), absl::ZeroDuration());
  for (int i = 0; i < count; ++i) {
    void* whose = events[static_cast<size_t>(i)].data.ptr;
    if (whose == this) {
      AcceptAll(now);
    } else if (whose != nullptr) {
      static_cast<shm::SocketWatcher*>(whose)->OnWatched();
    }
  }
  if (count == static_cast<int>(events.size())) poll_now_ = true;
  return false;  // whoever is concerned says so in its own turn
}

absl::Status ShmTransport::WatchListener(bool on) {
  return epoll_.Change(listener_.get(), on ? uint32_t{EPOLLIN} : 0, {.ptr = this});
}

void ShmTransport::AcceptAll(absl::Time now) {
  while (arriving_.size() < kArrivalsMax) {
    FileDescriptor socket = shm::AcceptUnix(listener_.get());
    if (socket.get() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      const absl::Status why = ErrnoStatus(errno, "accept");
      if (accept_fails_.Admit(now)) {
        WEFT_LOG_WARN("shm: cannot accept a connection for now: ", why.ToString(), "; trying again",
                      accept_fails_.LeftOut());
      }
      break;
    }
    arriving_.push_back(std::make_unique<shm::Arriving>(
        std::move(socket), identity_, static_cast<uint32_t>(requests_max_), &doorbell_,
        now + std::min(kHandshakeTimeout, connect_timeout_)));
    const absl::Status watched = Watch(arriving_.back()->fd(), arriving_.back().get());
    if (watched.ok()) continue;
    arriving_.pop_back();
    TurnAway(watched, now);
  }
  listen_again_ = now + kListenAgain;
  WatchListener(false).IgnoreError();
}

bool ShmTransport::StepArrivals(absl::Time now) {
  bool moved = false;
  for (size_t i = 0; i < arriving_.size();) {
    if (!arriving_[i]->IsDue(now)) {
      ++i;
      continue;
    }
    absl::StatusOr<std::optional<shm::Wire>> wire = arriving_[i]->Step(now);
    if (wire.ok() && !wire->has_value()) {
      ++i;
      continue;
    }
    int fd = wire.ok() ? (*wire)->socket.get() : arriving_[i]->fd();
    Unwatch(fd);
    arriving_.erase(arriving_.begin() + static_cast<ptrdiff_t>(i));
    moved = true;
    if (wire.ok()) {
      Welcome(**std::move(wire));
    } else {
      TurnAway(wire.status(), now);
    }
  }
  return moved;
}

void ShmTransport::TurnAway(const absl::Status& why, absl::Time now) {
  if (!turned_away_.Admit(now)) return;
  WEFT_LOG_WARN("shm rank ", self().value(), ": turned a connection away: ", why.ToString(),
                turned_away_.LeftOut());
}

void ShmTransport::Welcome(shm::Wire wire) {
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    shm::Endpoint& old = *endpoints_[i];
    if (old.role() != shm::Endpoint::Role::kReceiver || old.peer_rank() != wire.peer) continue;
    old.Break(absl::UnavailableError(absl::StrCat("shm rank ", wire.peer.value(), " -> rank ",
                                                  self().value(), ": replaced, for process ",
                                                  wire.pid, " has connected as the same rank")));
  }
  events().OnAccepted(std::make_unique<shm::ShmReceiveLink>(this, std::move(wire)));
}

// ---- Sleeping

// Sockets need no look: wait_fd() is readable for as long as they have something.
bool ShmTransport::PrepareWait() {
  if (local_work_) return false;
  for (shm::Endpoint* endpoint : endpoints_) endpoint->Arm();
  doorbell_.Arm();
  for (shm::Endpoint* endpoint : endpoints_) {
    if (endpoint->HasWork()) return false;
  }
  return true;
}

void ShmTransport::FinishWait() {
  doorbell_.Disarm();
  for (shm::Endpoint* endpoint : endpoints_) endpoint->Disarm();
  poll_now_ = true;
}

absl::Time ShmTransport::NextDeadline() const {
  absl::Time deadline = listen_again_;
  for (const shm::Endpoint* endpoint : endpoints_) {
    deadline = std::min(deadline, endpoint->deadline());
  }
  for (const auto& arriving : arriving_) deadline = std::min(deadline, arriving->deadline());
  return deadline;
}

}  // namespace weft::net
