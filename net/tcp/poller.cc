#include "net/tcp/poller.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/status.h"

namespace weft::net {
namespace {

constexpr int kEventsPerTurn = 64;
constexpr int kRoundsMost = 4;  // of turns, without a look at events

}  // namespace

Handler::~Handler() {
  SetDeadline(absl::InfiniteFuture());
  if (!wants_turn_) return;
  for (auto* list : {&poller_.turns_, &poller_.running_}) {
    std::replace(list->begin(), list->end(), this, static_cast<Handler*>(nullptr));
  }
}

void Handler::SetDeadline(absl::Time deadline) {
  if (deadline == deadline_) return;
  if (deadline_ != absl::InfiniteFuture()) poller_.deadlines_.erase({deadline_, this});
  deadline_ = deadline;
  if (deadline_ != absl::InfiniteFuture()) poller_.deadlines_.insert({deadline_, this});
}

void Handler::WantTurn() {
  if (wants_turn_) return;
  wants_turn_ = true;
  poller_.turns_.push_back(this);
}

Poller::Poller(FileDescriptor epoll)
    : epoll_(std::move(epoll)),
      read_memory_(std::make_unique_for_overwrite<std::byte[]>(kReadBufferBytes + 64)) {
  auto address = reinterpret_cast<uintptr_t>(read_memory_.get());
  read_buffer_ = read_memory_.get() + ((64 - address % 64) % 64);
}

absl::StatusOr<std::unique_ptr<Poller>> Poller::Create() {
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) {
    return IsDescriptorExhaustion(errno) ? DescriptorsExhausted(errno, "epoll_create1")
                                         : ErrnoStatus(errno, "epoll_create1");
  }
  return std::unique_ptr<Poller>(new Poller(std::move(epoll)));
}

absl::Status Poller::Add(int fd, uint32_t events, Handler* handler) {
  epoll_event event{.events = events, .data = {.ptr = handler}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "epoll_ctl: add a socket");
}

void Poller::Change(int fd, uint32_t events, Handler* handler) {
  epoll_event event{.events = events, .data = {.ptr = handler}};
  int rc = epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
  WEFT_CHECK(rc == 0, "fd=" << fd << " errno=" << errno);
}

void Poller::Remove(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

bool Poller::RunTurns(absl::Time now) {
  bool moved = false;
  running_.swap(turns_);
  for (size_t i = 0; i < running_.size(); ++i) {
    Handler* handler = running_[i];
    if (handler == nullptr) continue;
    handler->wants_turn_ = false;
    moved |= handler->OnTurn(now);
  }
  running_.clear();
  return moved;
}

bool Poller::RunTurnsOnly(absl::Time now) {
  bool moved = false;
  for (int round = 0; round < kRoundsMost && !turns_.empty(); ++round) moved |= RunTurns(now);
  return moved;
}

void Poller::RunDeadlines(absl::Time now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Handler* handler = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    handler->deadline_ = absl::InfiniteFuture();
    handler->OnDeadline(now);
  }
}

bool Poller::Turn(absl::Time now) {
  bool moved = !turns_.empty() && RunTurns(now);
  std::array<epoll_event, kEventsPerTurn> events;
  int count = epoll_wait(epoll_.get(), events.data(), kEventsPerTurn, 0);
  for (int i = 0; i < count; ++i) {
    moved = true;
    static_cast<Handler*>(events[i].data.ptr)->OnEvents(events[i].events, now);
  }
  if (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    RunDeadlines(now);
    moved = true;
  }
  // What arrived may have made something to send.
  if (count > 0 && !turns_.empty()) moved |= RunTurns(now);
  deferred_deletes_.clear();
  return moved;
}

absl::Time Poller::NextDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

}  // namespace weft::net
