#include "collectives/store/protocol/store_reactor.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/status.h"

namespace weft::collectives {
namespace {

constexpr size_t kEventsATurn = 512;
constexpr size_t kBufferBytes = size_t{256} << 10;

void Control(int epoll, int operation, const char* name, int fd, StoreReactor::Handler* handler,
             uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = handler;
  int result = epoll_ctl(epoll, operation, fd, &event);
  WEFT_CHECK(result == 0, "epoll_ctl " << name << " " << fd << ": errno " << errno);
}

}  // namespace

absl::Status StoreReactor::Open() {
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return ErrnoStatus(errno, "make an epoll");
  owner_ = getpid();
  events_.resize(kEventsATurn);
  buffer_.resize(kBufferBytes);
  return absl::OkStatus();
}

void StoreReactor::Add(int fd, Handler* handler, uint32_t events) {
  Control(epoll_.get(), EPOLL_CTL_ADD, "add", fd, handler, events);
}

void StoreReactor::Change(int fd, Handler* handler, uint32_t events) {
  Control(epoll_.get(), EPOLL_CTL_MOD, "change", fd, handler, events);
}

void StoreReactor::Remove(int fd) {
  if (getpid() == owner_) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void StoreReactor::Turn(absl::Time until) {
  absl::Duration left = std::clamp(until - clock_.Now(), absl::ZeroDuration(), absl::Hours(1));
  auto patience = static_cast<int>(absl::ToInt64Milliseconds(left + absl::Microseconds(999)));
  ++turns_;
  int count = epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), patience);
  now_ = clock_.Now();
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events_[static_cast<size_t>(i)];
    static_cast<Handler*>(event.data.ptr)->Ready(event.events);
  }
  deferred_deletes_.clear();
}

}  // namespace weft::collectives
