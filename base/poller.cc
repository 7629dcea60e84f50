#include "base/poller.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/open_files.h"
#include "base/status.h"

namespace weft {
namespace {

constexpr size_t kEventsPerTurn = 64;
constexpr size_t kEventsPerSleep = 512;  // of servers, with thousands of connections
constexpr int kRoundsMost = 4;           // of turns, without a look at events

}  // namespace

PollHandler::~PollHandler() {
  SetDeadline(absl::InfiniteFuture());
  if (!wants_turn_) return;
  for (auto* list : {&poller_.turns_, &poller_.running_}) {
    std::replace(list->begin(), list->end(), this, static_cast<PollHandler*>(nullptr));
  }
}

void PollHandler::SetDeadline(absl::Time deadline) {
  if (deadline == deadline_) return;
  if (deadline_ != absl::InfiniteFuture()) poller_.deadlines_.erase({deadline_, this});
  deadline_ = deadline;
  if (deadline_ != absl::InfiniteFuture()) poller_.deadlines_.insert({deadline_, this});
}

void PollHandler::WantTurn() {
  if (wants_turn_) return;
  wants_turn_ = true;
  poller_.turns_.push_back(this);
}

Poller::Poller(Epoll epoll)
    : epoll_(std::move(epoll)),
      read_memory_(std::make_unique_for_overwrite<std::byte[]>(kReadBufferBytes + 64)) {
  auto address = reinterpret_cast<uintptr_t>(read_memory_.get());
  read_buffer_ = read_memory_.get() + ((64 - address % 64) % 64);
}

absl::StatusOr<std::unique_ptr<Poller>> Poller::Create() {
  WEFT_ASSIGN_OR_RETURN(Epoll epoll, Epoll::Create());
  return std::unique_ptr<Poller>(new Poller(std::move(epoll)));
}

void Poller::Change(int fd, uint32_t events, PollHandler* handler) {
  const absl::Status changed = epoll_.Change(fd, events, {.ptr = handler});
  WEFT_CHECK(changed.ok(), "fd=" << fd << ": " << changed.message());
}

bool Poller::RunTurns(absl::Time now) {
  bool moved = false;
  running_.swap(turns_);
  for (size_t i = 0; i < running_.size(); ++i) {
    PollHandler* handler = running_[i];
    if (handler == nullptr) continue;
    handler->wants_turn_ = false;
    moved |= handler->OnTurn(now);
  }
  running_.clear();
  return moved;
}

bool Poller::RunTurnsOnly(absl::Time now) {
  now_ = now;
  bool moved = false;
  for (int round = 0; round < kRoundsMost && !turns_.empty(); ++round) moved |= RunTurns(now);
  return moved;
}

void Poller::RunDeadlines(absl::Time now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    PollHandler* handler = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    handler->deadline_ = absl::InfiniteFuture();
    handler->OnDeadline(now);
  }
}

bool Poller::Turn(absl::Time now) {
  now_ = now;
  const bool moved = !turns_.empty() && RunTurns(now);
  std::array<epoll_event, kEventsPerTurn> events;
  const int count = epoll_.Wait(absl::MakeSpan(events), absl::ZeroDuration());
  return RunRound({events.data(), static_cast<size_t>(count)}, now) || moved;
}

void Poller::Sleep(absl::Time until) {
  const SystemClock clock;
  if (!turns_.empty()) until = absl::InfinitePast();
  std::array<epoll_event, kEventsPerSleep> events;
  const int count =
      epoll_.Wait(absl::MakeSpan(events), std::min(until, NextDeadline()) - clock.Now());
  now_ = clock.Now();
  if (!turns_.empty()) RunTurns(now_);
  RunRound({events.data(), static_cast<size_t>(count)}, now_);
}

bool Poller::RunRound(absl::Span<const epoll_event> events, absl::Time now) {
  bool moved = false;
  for (const epoll_event& event : events) {
    moved = true;
    static_cast<PollHandler*>(event.data.ptr)->OnEvents(event.events, now);
  }
  if (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    RunDeadlines(now);
    moved = true;
  }
  // What arrived may have made something to send.
  if (!events.empty() && !turns_.empty()) moved |= RunTurns(now);
  deferred_deletes_.clear();
  return moved;
}

absl::Time Poller::NextDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

absl::StatusOr<std::unique_ptr<PollWaker>> PollWaker::Create(Poller& poller) {
  FileDescriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return DescriptorsExhausted(errno, "eventfd");
  std::unique_ptr<PollWaker> out(new PollWaker(poller, std::move(event)));
  WEFT_RETURN_IF_ERROR(poller.Add(out->event_.get(), EPOLLIN, out.get()));
  return out;
}

void PollWaker::Wake() {
  const uint64_t one = 1;
  // It can only fail where so many calls are pending that one more makes no difference.
  [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof(one));
}

void PollWaker::OnEvents(uint32_t /*events*/, absl::Time /*now*/) {
  uint64_t calls = 0;
  [[maybe_unused]] const ssize_t got = read(event_.get(), &calls, sizeof(calls));
}

}  // namespace weft
