#include "collectives/endpoint_impl.h"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "net/shm/shared_memory.h"

namespace weft::collectives {
namespace {

// Interval at which the background thread looks for works that no thread waits for; it doubles, up
// to the maximum, while the thread finds none.
constexpr int64_t kLookIntervalMinNs = 300'000;
constexpr int64_t kLookIntervalMaxNs = 4'800'000;
// After this long without calls the thread sleeps until a link has work.
constexpr int64_t kQuietNs = 20'000'000;
// A sleep is never longer, so that overdue operations are examined in time.
constexpr int64_t kSleepMaxNs = 100'000'000;
// How often operations under way are looked at for stalls and failures.
constexpr int64_t kExaminePeriodNs = 20'000'000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

EndpointImpl::~EndpointImpl() {
  {
    Lock lock(mutex_);
    stop_ = true;
    background_.notify_all();
    Wake();
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  // Works that are done have waiters that may still be on their way out.
  for (bool busy = true; busy;) {
    Lock lock(mutex_);
    busy = waiters_.load() > 0 || driving_ || sleepers_ > 0;
    lock.unlock();
    if (busy) sched_yield();
  }
  for (int64_t now_ns; (now_ns = SystemClock::Nanoseconds()) < linger_ns_;) {
    if (!Turn(now_ns)) poll(nullptr, 0, 1);
  }
  lookup_.reset();
  active_.clear();
  closed_.clear();
  peers_.clear();
  for (auto& transport : transports_) transport.reset();
}

std::string EndpointImpl::Describe() const {
  std::string text;
  const_cast<EndpointImpl*>(this)->RunAsDriver([&] {
    for (const Peer& peer : peers_) {
      for (const net::Link* link : {static_cast<const net::Link*>(peer.send.get()),
                                    static_cast<const net::Link*>(peer.receive.get())}) {
        if (link == nullptr) continue;
        const bool sends = link == peer.send.get();
        absl::StrAppend(&text, "rank ", (sends ? rank() : peer.rank).value(), " -> ",
                        (sends ? peer.rank : rank()).value(), ": ", link->Describe(), "\n");
      }
      if (!peer.gone.ok()) {
        absl::StrAppend(&text, "rank ", peer.rank.value(), ": ", peer.gone.message(), "\n");
      }
    }
    absl::StrAppend(&text, priorities_.Describe());
  });
  return text;
}

std::vector<Endpoint::LinkCounters> EndpointImpl::Counters() const {
  std::vector<LinkCounters> out;
  const_cast<EndpointImpl*>(this)->RunAsDriver([&] {
    for (const Peer& peer : peers_) {
      if (peer.send != nullptr) out.push_back({peer.rank, true, peer.send->Counters()});
      if (peer.receive != nullptr) out.push_back({peer.rank, false, peer.receive->Counters()});
    }
  });
  return out;
}

// ---- The role of driver

void EndpointImpl::TakeRole() {
  driving_ = true;
  if (armed_) FinishWait();
  armed_ = false;
}

void EndpointImpl::LayDownRole() {
  driving_ = false;
  if (sleepers_ > 0) {  // somebody relies on being rung
    armed_ = PrepareWait();
    if (!armed_) {
      FinishWait();
      Wake();
    }
  }
  if (waiters_.load(std::memory_order_relaxed) > 0) {
    changed_.notify_all();
  } else if (looks_seldom_ && unfinished_.load(std::memory_order_relaxed) > 0) {
    background_.notify_one();
  }
}

void EndpointImpl::Wake() {
  const uint64_t one = 1;
  (void)!write(event_.get(), &one, sizeof(one));
}

bool EndpointImpl::PrepareWait() {
  bool quiet = true;
  for (auto& transport : transports_) {
    if (transport != nullptr && !transport->PrepareWait()) quiet = false;
  }
  return quiet;
}

void EndpointImpl::FinishWait() {
  for (auto& transport : transports_) {
    if (transport != nullptr) transport->FinishWait();
  }
}

int64_t EndpointImpl::NextDeadline(int64_t until_ns) const {
  int64_t deadline = std::min(until_ns, now_ns_ + kSleepMaxNs);
  if (!active_.empty()) deadline = std::min(deadline, examine_ns_);
  for (const auto& transport : transports_) {
    if (transport == nullptr) continue;
    const absl::Time next = transport->NextDeadline();
    if (next < absl::InfiniteFuture()) deadline = std::min(deadline, absl::ToUnixNanos(next));
  }
  return deadline;
}

bool EndpointImpl::Sleep(Lock& lock, int64_t until_ns) {
  if (!inbox_.empty() || !tasks_.empty() || stop_) return true;
  const int64_t deadline = NextDeadline(until_ns);
  if (!PrepareWait()) {
    FinishWait();
    return true;
  }
  armed_ = true;
  driving_ = false;
  ++sleepers_;
  lock.unlock();
  const int64_t left = deadline - SystemClock::Nanoseconds();
  if (left > 0) {
    epoll_event events[4];
    epoll_.Wait(absl::MakeSpan(events), absl::Nanoseconds(left));
  }
  uint64_t count;
  (void)!read(event_.get(), &count, sizeof(count));
  lock.lock();
  --sleepers_;
  if (driving_) return false;
  TakeRole();
  return true;
}

void EndpointImpl::RunAsDriver(const std::function<void()>& task) {
  Lock lock(mutex_);
  if (!driving_) {
    TakeRole();
    lock.unlock();
    now_ns_ = std::max(now_ns_, SystemClock::Nanoseconds());
    TakeInbox();
    task();
    lock.lock();
    LayDownRole();
    return;
  }
  bool ran = false;
  tasks_.push_back([this, &task, &ran] {
    task();
    Lock inner(mutex_);
    ran = true;
    changed_.notify_all();
  });
  inbox_full_.store(true, std::memory_order_release);
  while (!ran) {
    if (!driving_) {  // its thread stopped driving before it looked
      TakeRole();
      lock.unlock();
      TakeInbox();
      lock.lock();
      LayDownRole();
      continue;
    }
    ++waiters_;
    changed_.wait(lock);
    --waiters_;
  }
}

void EndpointImpl::Start(std::shared_ptr<Operation> operation) {
  const int64_t now_ns = operation->start_ns();
  operation->deadline_ns = now_ns + absl::ToInt64Nanoseconds(collective_timeout_);
  unfinished_.fetch_add(1, std::memory_order_relaxed);
  busy_ns_.store(now_ns, std::memory_order_relaxed);
  recorder_.OnCall(*operation);
  Lock lock(mutex_);
  inbox_.push_back(std::move(operation));
  inbox_full_.store(true, std::memory_order_release);
  if (driving_) return;
  TakeRole();
  lock.unlock();
  Turn(now_ns);
  lock.lock();
  LayDownRole();
}

absl::Status EndpointImpl::WaitFor(Operation& operation, absl::Duration timeout) {
  const int64_t start_ns = SystemClock::Nanoseconds();
  const int64_t until_ns =
      timeout >= absl::Hours(24 * 365) ? INT64_MAX : start_ns + absl::ToInt64Nanoseconds(timeout);
  Lock lock(mutex_);
  while (!operation.done()) {
    if (SystemClock::Nanoseconds() >= until_ns) {
      return absl::DeadlineExceededError(
          absl::StrCat(operation.Describe(), " is not done after ", absl::FormatDuration(timeout)));
    }
    if (driving_) {
      ++waiters_;
      if (until_ns == INT64_MAX) {
        changed_.wait(lock);
      } else {
        changed_.wait_for(lock, std::chrono::nanoseconds(
                                    std::max<int64_t>(until_ns - SystemClock::Nanoseconds(), 0)));
      }
      --waiters_;
      continue;
    }
    TakeRole();
    lock.unlock();
    const bool driving = Drive(&operation, until_ns);
    lock.lock();
    if (driving) LayDownRole();
  }
  busy_ns_.store(operation.end_ns(), std::memory_order_relaxed);
  return absl::OkStatus();
}

bool EndpointImpl::Drive(Operation* operation, int64_t until_ns) {
  int64_t moved_ns = SystemClock::Nanoseconds();
  int64_t now_ns = moved_ns;
  while (true) {
    if (Turn(now_ns)) moved_ns = now_ns;
    if (operation != nullptr) {
      if (operation->done() || now_ns >= until_ns) return true;
    } else if (waiters_.load(std::memory_order_relaxed) > 0) {
      return true;
    }
    now_ns = SystemClock::Nanoseconds();
    const int64_t idle_ns = now_ns - moved_ns;
    // Nobody waits for what the background thread does: it leaves the cores to those who compute.
    if (operation != nullptr && idle_ns < spin_ns_) {
      Pause();
    } else if (operation != nullptr && idle_ns < spin_ns_ + yield_ns_) {
      sched_yield();
      now_ns = SystemClock::Nanoseconds();
    } else if (idle_ns > 0) {
      Lock lock(mutex_);
      if (operation == nullptr) {
        if (stop_ || waiters_.load(std::memory_order_relaxed) > 0) return true;
        const bool busy = unfinished_.load(std::memory_order_relaxed) == 0 &&
                          now_ns - busy_ns_.load(std::memory_order_relaxed) < kQuietNs;
        if (busy) return true;  // the next call comes soon; it shall find the role free
      }
      if (!Sleep(lock, until_ns)) return false;
      now_ns = SystemClock::Nanoseconds();
      moved_ns = operation != nullptr ? now_ns : moved_ns;
    }
  }
}

void EndpointImpl::Background() {
  int64_t interval_ns = kLookIntervalMinNs;
  Lock lock(mutex_);
  while (!stop_) {
    looks_seldom_ = interval_ns >= kLookIntervalMaxNs;
    background_.wait_for(lock, std::chrono::nanoseconds(interval_ns));
    const bool woken = looks_seldom_ && unfinished_.load(std::memory_order_relaxed) > 0;
    looks_seldom_ = false;
    if (woken) {  // the thread that started a work may be about to wait for it
      interval_ns = kLookIntervalMinNs;
      background_.wait_for(lock, std::chrono::nanoseconds(interval_ns));
    }
    const int64_t now_ns = SystemClock::Nanoseconds();
    const bool quiet = now_ns - busy_ns_.load(std::memory_order_relaxed) >= kQuietNs;
    const bool work = unfinished_.load(std::memory_order_relaxed) > 0;
    if (driving_ || sleepers_ > 0 || waiters_.load() > 0 || (!work && !quiet)) {
      interval_ns = std::min(interval_ns * 2, kLookIntervalMaxNs);
      continue;
    }
    interval_ns = kLookIntervalMinNs;
    TakeRole();
    lock.unlock();
    const bool driving = Drive(nullptr, INT64_MAX);
    lock.lock();
    if (driving) LayDownRole();
  }
}

// ---- Turns

bool EndpointImpl::TakeInbox() {
  if (!inbox_full_.load(std::memory_order_acquire)) return false;
  std::vector<std::function<void()>> tasks;
  const size_t first = active_.size();
  {
    Lock lock(mutex_);
    inbox_full_.store(false, std::memory_order_relaxed);
    for (auto& operation : inbox_) active_.push_back(std::move(operation));
    inbox_.clear();
    tasks.swap(tasks_);
  }
  for (size_t i = first; i < active_.size(); ++i) {
    Operation& operation = *active_[i];
    {
      std::lock_guard<std::mutex> lock(operation.group().mutex);
      operation.verdict = operation.group().status;  // failed since the call
    }
    if (operation.verdict.ok()) operation.Begin(*this);
    if (i == 0) examine_ns_ = now_ns_ + kExaminePeriodNs;
  }
  Priorities::Order(active_);
  for (auto& task : tasks) task();
  return true;
}

bool EndpointImpl::Turn(int64_t now_ns) {
  now_ns_ = std::max(now_ns, now_ns_);
  ++turn_;
  bool moved = false;
  const absl::Time now = absl::FromUnixNanos(now_ns_);
  if (TakeInbox()) moved |= AdvanceAll(now_ns_);  // posted before bytes are moved
  for (auto& transport : transports_) {
    if (transport != nullptr && transport->Progress(now)) moved = true;
  }
  closed_.clear();
  // Before operations see which links broke: a rank that leaves because of a failure tells why
  // first.
  if (!heard_.empty()) {
    moved = true;
    auto heard = std::exchange(heard_, {});
    for (auto& [rank, bytes] : heard) HandleNotice(peers_[static_cast<size_t>(rank)], bytes);
  }
  if (!parting_.empty()) PublishDepartures(now_ns_);
  moved |= AdvanceAll(now_ns_);
  if (notices_waiting_) moved |= FlushNotices();
  if (!active_.empty() && now_ns_ >= examine_ns_) {
    examine_ns_ = now_ns_ + kExaminePeriodNs;
    Examine(now_ns_);
  }
  recorder_.Sample(peers_, transports_, now_ns_);
  return moved;
}

bool EndpointImpl::AdvanceAll(int64_t now_ns) {
  bool moved = false;
  size_t kept = 0;
  bool finished = false;
  priorities_.BeginTurn(active_, now_ns);
  for (size_t i = 0; i < active_.size(); ++i) {
    Operation& operation = *active_[i];
    if (operation.verdict.ok() && operation.suspicion.ok()) {
      operation.window = priorities_.WindowOf(operation);
      if (operation.Advance(*this, turn_)) {
        moved = true;
        operation.moved_ns = now_ns;
      }
      if (int peer; !operation.complete() && !operation.failure(&peer).ok()) {
        OnRequestFailed(operation, now_ns);
      }
    }
    const bool over = operation.verdict.ok() ? operation.complete()
                                             : now_ns >= operation.cut_ns && operation.AtRest();
    if (over) {
      Conclude(operation, now_ns);
      active_[i].reset();  // a failure of a later one looks through the list
      finished = true;
      continue;
    }
    if (kept != i) active_[kept] = std::move(active_[i]);
    ++kept;
  }
  active_.resize(kept);
  if (finished) {
    // Under the mutex: a waiter that saw its work unfinished is counted by now.
    Lock lock(mutex_);
    if (waiters_.load(std::memory_order_relaxed) > 0) changed_.notify_all();
  }
  return moved;
}

void EndpointImpl::Conclude(Operation& operation, int64_t now_ns) {
  if (operation.verdict.ok()) {
    if (absl::Status found = operation.Deliver(); !found.ok()) {
      OnBufferFault(operation, found, now_ns);
    }
  }
  const int64_t end_ns = SystemClock::Nanoseconds();
  recorder_.OnDone(operation, end_ns, operation.verdict.code());
  if (operation.verdict.ok()) priorities_.Count(operation, end_ns);
  operation.Release();
  unfinished_.fetch_sub(1, std::memory_order_relaxed);
  operation.Finish(operation.verdict, std::max(end_ns, now_ns));
}

// ---- Peers and events

net::SendLink* EndpointImpl::SendTo(Peer& peer) {
  if (peer.send == nullptr && peer.gone.ok()) {
    if (peer.address.empty()) {
      if (!std::exchange(peer.sought, true)) lookup_->Ask(peer.rank.value());
      return nullptr;
    }
    peer.send =
        transports_[peer.transport]->Connect(peer.address, peer.rank, absl::FromUnixNanos(now_ns_));
  }
  return peer.send.get();
}

std::shared_ptr<std::byte> EndpointImpl::Allocate(size_t bytes) {
  return net::shm::AllocateMemory(bytes);
}

absl::StatusOr<net::Region> EndpointImpl::Register(int transport, void* data, size_t size) {
  return transports_[transport]->Register(data, size);
}

void EndpointImpl::OnAccepted(std::unique_ptr<net::ReceiveLink> link) {
  Peer& peer = peers_[link->peer().index()];
  if (peer.receive != nullptr) closed_.push_back(std::move(peer.receive));
  peer.receive = std::move(link);
}

void EndpointImpl::OnNotice(net::Link& link, absl::string_view bytes) {
  heard_.emplace_back(link.peer().value(), std::string(bytes));
}

}  // namespace weft::collectives
