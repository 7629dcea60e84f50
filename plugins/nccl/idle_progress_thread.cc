#include "plugins/nccl/idle_progress_thread.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/open_files.h"
#include "base/status.h"
#include "plugins/nccl/thread_without_signals.h"

namespace weft::nccl {
namespace {

constexpr size_t kEventsPerWait = 64;
constexpr absl::Duration kWaitMost = absl::Hours(1);

absl::Time Now() { return SystemClock().Now(); }

}  // namespace

IdleProgressThread::~IdleProgressThread() {
  if (!thread_.joinable()) return;
  if (process_ == getpid()) {
    Stop();
  } else {
    thread_.detach();  // a forked process has no such thread
  }
}

absl::Status IdleProgressThread::Start() {
  WEFT_ASSIGN_OR_RETURN(Epoll epoll, Epoll::Create());
  FileDescriptor bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell) return DescriptorsExhausted(errno, "eventfd");
  WEFT_RETURN_IF_ERROR(epoll.Add(bell.get(), EPOLLIN, {.u64 = kBell}));
  epoll_ = std::move(epoll);
  bell_ = std::move(bell);
  ends_ = false;
  try {
    thread_ = ThreadWithoutSignals([this] { Run(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        std::string("start a thread that progresses idle connections: ") + error.what());
  }
  process_ = getpid();
  return absl::OkStatus();
}

void IdleProgressThread::Stop() {
  Join();
  epoll_ = Epoll();
  bell_ = FileDescriptor();
}

void IdleProgressThread::Join() {
  if (!thread_.joinable()) return;  // it is over
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  Wake();
  thread_.join();
}

// Clients that are left may still ring the bell, which stays.
void IdleProgressThread::End() {
  if (process_ != getpid()) return;  // there is none; the locks may be held for ever after a fork
  std::lock_guard life(life_);
  is_over_ = true;
  Join();
}

void IdleProgressThread::Wake() {
  const uint64_t once = 1;
  // It can only fail where so many rings are pending that one more makes no difference.
  [[maybe_unused]] const ssize_t written = write(bell_.get(), &once, sizeof(once));
}

absl::Status IdleProgressThread::Add(Client& client) {
  std::lock_guard life(life_);
  if (!thread_.joinable() && !is_over_) WEFT_RETURN_IF_ERROR(Start());
  client.number_ = next_number_++;
  const absl::Status added = Annotate(epoll_.Add(client.wait_fd(), 0, {.u64 = client.number_}),
                                      "watch an idle connection");
  std::unique_lock lock(mutex_);
  if (added.ok()) clients_.emplace(client.number_, &client);
  const bool is_first = added.ok() && AddActive(client), is_needed = !clients_.empty();
  lock.unlock();
  if (is_first) Wake();
  if (!is_needed) Stop();
  return added;
}

void IdleProgressThread::Remove(Client& client) {
  std::lock_guard life(life_);
  std::unique_lock lock(mutex_);
  if (clients_.erase(client.number_) == 0) return;
  progressed_.wait(lock, [&] { return progressing_ != client.number_; });
  RemoveActive(client);
  SetDue(client, absl::InfiniteFuture());
  const bool is_needed = !clients_.empty();
  lock.unlock();
  epoll_.Remove(client.wait_fd());
  if (!is_needed) Stop();
}

void IdleProgressThread::Call(Client& client) {
  std::lock_guard lock(mutex_);
  if (clients_.count(client.number_) == 0) return;
  client.called_ = true;
  if (client.state_.load() != Client::State::kIdle) return;
  SetDue(client, absl::InfinitePast());
  Wake();
}

void IdleProgressThread::LeaveIdle(Client& client) {
  std::lock_guard lock(mutex_);
  if (clients_.count(client.number_) > 0 && AddActive(client)) Wake();
}

bool IdleProgressThread::AddActive(Client& client) {
  client.place_ = active_.size();
  active_.push_back(&client);
  return active_.size() == 1;
}

void IdleProgressThread::RemoveActive(Client& client) {
  if (client.place_ >= active_.size() || active_[client.place_] != &client) return;
  active_.back()->place_ = client.place_;
  active_[client.place_] = active_.back();
  active_.pop_back();
}

void IdleProgressThread::SetDue(Client& client, absl::Time due) {
  if (client.due_ != absl::InfiniteFuture()) dues_.erase({client.due_, &client});
  client.due_ = due;
  if (due != absl::InfiniteFuture()) dues_.insert({due, &client});
}

void IdleProgressThread::FindDue(absl::Time now) {
  using State = Client::State;
  while (!dues_.empty() && dues_.begin()->first <= now) {
    Client& client = *dues_.begin()->second;
    SetDue(client, absl::InfiniteFuture());
    if (client.state_.load() == State::kIdle) due_.push_back(client.number_);
  }
  if (now < next_look_) return;
  for (size_t i = 0; i < active_.size();) {
    Client& client = *active_[i];
    State state = State::kDriven;
    if (client.state_.compare_exchange_strong(state, State::kQuietSince) ||
        !client.state_.compare_exchange_strong(state, State::kIdle)) {
      ++i;
    } else {
      RemoveActive(client);
      due_.push_back(client.number_);
    }
  }
  // From the end of this look: `now` may be long ago where this thread was kept from its core.
  next_look_ = Now() + kQuiet;
}

void IdleProgressThread::ProgressClient(uint64_t number, std::unique_lock<std::mutex>& lock) {
  auto found = clients_.find(number);
  if (found == clients_.end()) return;
  Client& client = *found->second;
  progressing_ = number;
  client.called_ = false;
  lock.unlock();
  const absl::Time until = client.ProgressIdle(Now());
  epoll_.Change(client.wait_fd(), EPOLLIN | EPOLLONESHOT, {.u64 = number}).IgnoreError();
  lock.lock();
  progressing_ = 0;
  progressed_.notify_all();
  if (clients_.count(number) == 0) return;
  SetDue(client, client.called_ ? absl::InfinitePast() : until);
}

void IdleProgressThread::Wait(absl::Time now, std::unique_lock<std::mutex>& lock) {
  absl::Time until = active_.empty() ? now + kWaitMost : next_look_;
  if (!dues_.empty()) until = std::min(until, dues_.begin()->first);
  std::array<epoll_event, kEventsPerWait> events;
  lock.unlock();
  const int count = epoll_.Wait(absl::MakeSpan(events), until - now);
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
        found != clients_.end() && found->second->state_.load() == Client::State::kIdle;
    if (is_ours) due_.push_back(number);
  }
}

void IdleProgressThread::Run() {
  pthread_setname_np(pthread_self(), "weft-nccl-idle");
  std::unique_lock lock(mutex_);
  while (!ends_) {
    FindDue(Now());
    for (uint64_t number : std::exchange(due_, {})) ProgressClient(number, lock);
    if (!ends_) Wait(Now(), lock);
  }
}

}  // namespace weft::nccl
