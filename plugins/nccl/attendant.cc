#include "plugins/nccl/attendant.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace weft::nccl {
namespace {

constexpr int kEventsPerWait = 64;
constexpr absl::Duration kWaitMost = absl::Hours(1);

absl::Time Now() { return SystemClock().Now(); }

// Signals are the program's: none is handled by a thread that it does not know.
template <typename Function>
std::thread ThreadWithoutSignals(Function function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread out;
  std::error_code failed;
  try {
    out = std::thread(std::move(function));
  } catch (const std::system_error& error) {
    failed = error.code();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed) throw std::system_error(failed);
  return out;
}

}  // namespace

Attendant::~Attendant() {
  if (!thread_.joinable()) return;
  if (process_ == getpid()) {
    Stop();
  } else {
    thread_.detach();  // a forked process has no such thread
  }
}

absl::Status Attendant::Start() {
  net::FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return net::DescriptorsExhausted(errno, "epoll_create1");
  net::FileDescriptor bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell) return net::DescriptorsExhausted(errno, "eventfd");
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kBell}};
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, bell.get(), &event) != 0) {
    return ErrnoStatus(errno, "epoll_ctl: add an eventfd");
  }
  epoll_ = std::move(epoll);
  bell_ = std::move(bell);
  ends_ = false;
  try {
    thread_ = ThreadWithoutSignals([this] { Run(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        std::string("start a thread that answers for resting connections: ") + error.what());
  }
  process_ = getpid();
  return absl::OkStatus();
}

void Attendant::Stop() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  Wake();
  thread_.join();
  epoll_ = net::FileDescriptor();
  bell_ = net::FileDescriptor();
}

void Attendant::Wake() {
  const uint64_t once = 1;
  // It can only fail where so many rings are pending that one more makes no difference.
  [[maybe_unused]] const ssize_t written = write(bell_.get(), &once, sizeof(once));
}

absl::Status Attendant::Add(Client& client) {
  std::lock_guard life(life_);
  if (!thread_.joinable()) WEFT_RETURN_IF_ERROR(Start());
  std::unique_lock lock(mutex_);
  client.number_ = next_number_++;
  epoll_event event{.events = 0, .data = {.u64 = client.number_}};
  absl::Status added;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, client.wait_fd(), &event) == 0) {
    clients_.emplace(client.number_, &client);
  } else {
    added = ErrnoStatus(errno, "epoll_ctl: watch a resting connection");
  }
  const bool is_needed = !clients_.empty(), looks_soon = watches_;
  lock.unlock();
  if (!is_needed) Stop();
  if (is_needed && !looks_soon) Wake();
  return added;
}

void Attendant::Remove(Client& client) {
  std::lock_guard life(life_);
  std::unique_lock lock(mutex_);
  if (clients_.erase(client.number_) == 0) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, client.wait_fd(), nullptr);
  attended_.wait(lock, [&] { return attending_ != client.number_; });
  if (!clients_.empty()) return;
  lock.unlock();
  Stop();
}

void Attendant::Call(Client& client) {
  std::lock_guard lock(mutex_);
  if (clients_.count(client.number_) == 0) return;
  client.called_ = true;
  client.due_ = absl::InfinitePast();
  if (client.state_.load() == Client::State::kResting) Wake();
}

void Attendant::FindDue(absl::Time now) {
  const bool looks = now >= next_look_;
  if (looks) {
    watches_ = false;
    next_look_ = now + kQuiet;
  }
  for (const auto& [number, client] : clients_) {
    Client::State state = client->state_.load();
    if (state == Client::State::kResting) {
      if (client->due_ <= now) due_.push_back(number);
    } else if (!looks) {
      watches_ = true;
    } else if (state == Client::State::kQuietSince &&
               client->state_.compare_exchange_strong(state, Client::State::kResting)) {
      due_.push_back(number);
    } else {
      if (state == Client::State::kDriven) {
        client->state_.compare_exchange_strong(state, Client::State::kQuietSince);
      }
      watches_ = true;
    }
  }
}

void Attendant::AttendTo(uint64_t number, std::unique_lock<std::mutex>& lock) {
  auto found = clients_.find(number);
  if (found == clients_.end()) return;
  Client& client = *found->second;
  attending_ = number;
  client.called_ = false;
  lock.unlock();
  const absl::Time until = client.Attend(Now());
  lock.lock();
  attending_ = 0;
  attended_.notify_all();
  if (clients_.count(number) == 0) return;
  client.due_ = client.called_ ? absl::InfinitePast() : until;
  epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = number}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.wait_fd(), &event);
}

void Attendant::Wait(absl::Time now, std::unique_lock<std::mutex>& lock) {
  absl::Time due = watches_ ? next_look_ : now + kWaitMost;
  for (const auto& [number, client] : clients_) {
    if (client->state_.load() == Client::State::kResting) due = std::min(due, client->due_);
  }
  const auto pause = absl::ToInt64Milliseconds(absl::Ceil(due - now, absl::Milliseconds(1)));
  std::array<epoll_event, kEventsPerWait> events;
  lock.unlock();
  const int count = epoll_wait(epoll_.get(), events.data(), kEventsPerWait,
                               static_cast<int>(std::max<int64_t>(0, pause)));
  lock.lock();
  for (int i = 0; i < count; ++i) {
    const uint64_t number = events[static_cast<size_t>(i)].data.u64;
    if (number == kBell) {
      uint64_t rings = 0;
      [[maybe_unused]] const ssize_t got = read(bell_.get(), &rings, sizeof(rings));
      continue;
    }
    auto found = clients_.find(number);
    const bool is_ours =
        found != clients_.end() && found->second->state_.load() == Client::State::kResting;
    if (is_ours) due_.push_back(number);
  }
}

void Attendant::Run() {
  pthread_setname_np(pthread_self(), "weft-attendant");
  std::unique_lock lock(mutex_);
  while (!ends_) {
    FindDue(Now());
    for (uint64_t number : std::exchange(due_, {})) AttendTo(number, lock);
    if (!ends_) Wait(Now(), lock);
  }
}

}  // namespace weft::nccl
