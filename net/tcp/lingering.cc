#include "net/tcp/lingering.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/clock.h"

namespace weft::net {
namespace {

constexpr absl::Duration kLinger = absl::Seconds(2);
// AwaitDelivery() looks this often; there is nothing to be woken by when a socket's queue drains.
constexpr int kLookMilliseconds = 2;

}  // namespace

class Lingering::Socket final : public PollHandler {
 public:
  Socket(Lingering& all, Poller& poller, FileDescriptor fd, bool whole)
      : PollHandler(poller), all_(all), fd_(std::move(fd)), whole_(whole) {
    if (!poller.Add(fd_.get(), EPOLLIN, this).ok()) fd_ = FileDescriptor();
    WantTurn();
  }
  ~Socket() override { Close(); }

  bool OnTurn(absl::Time now) override {  // the first moment at which the time is known
    SetDeadline(now + kLinger);
    return false;
  }
  void OnEvents(uint32_t, absl::Time) override {
    std::array<char, 16 << 10> scrap;
    for (int i = 0; fd_ && i < 64; ++i) {
      ssize_t got = recv(fd_.get(), scrap.data(), scrap.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) Leave();
    }
  }
  void OnDeadline(absl::Time) override { Leave(); }

  // Something that it should still deliver has not been acknowledged.
  bool Owes() const {
    if (!fd_ || !whole_) return false;
    pollfd state{fd_.get(), POLLIN, 0};
    if (poll(&state, 1, 0) > 0 && (state.revents & (POLLHUP | POLLERR)) != 0) return false;
    int unacknowledged = 0;
    return ioctl(fd_.get(), SIOCOUTQ, &unacknowledged) == 0 && unacknowledged > 0;
  }

 private:
  void Close() {
    if (fd_) poller().Remove(fd_.get());
    fd_ = FileDescriptor();
  }
  void Leave() {
    Close();
    auto& list = all_.sockets_;
    auto self = std::find_if(list.begin(), list.end(),
                             [this](const auto& one) { return one.get() == this; });
    if (self == list.end()) return;
    poller().DeferDelete(std::move(*self));
    list.erase(self);
  }

  Lingering& all_;
  FileDescriptor fd_;
  const bool whole_;
};

Lingering::Lingering() = default;
Lingering::~Lingering() = default;

void Lingering::Add(Poller& poller, FileDescriptor fd, bool whole) {
  sockets_.push_back(std::make_unique<Socket>(*this, poller, std::move(fd), whole));
}

void Lingering::Add(Poller& poller, Departure::Link link) {
  poller_ = &poller;
  auto on_over = [this](Departure* over) {
    auto self = std::find_if(departures_.begin(), departures_.end(),
                             [over](const auto& one) { return one.get() == over; });
    poller_->DeferDelete(std::move(*self));
    departures_.erase(self);
  };
  departures_.push_back(std::make_unique<Departure>(poller, std::move(link), std::move(on_over)));
}

void Lingering::AwaitDelivery() {
  const auto owes = [](const auto& one) { return one->Owes(); };
  SystemClock clock;
  for (const absl::Time end = clock.Now() + kLinger; clock.Now() < end;) {
    const bool departing = std::any_of(departures_.begin(), departures_.end(), owes);
    if (!departing && std::none_of(sockets_.begin(), sockets_.end(), owes)) return;
    if (departing && poller_->Turn(clock.Now())) continue;
    pollfd news{departing ? poller_->fd() : -1, POLLIN, 0};
    poll(&news, 1, kLookMilliseconds);
  }
}

void Lingering::clear() {
  sockets_.clear();
  departures_.clear();
}

}  // namespace weft::net
