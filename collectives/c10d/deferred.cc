#include "collectives/c10d/deferred.h"

#include <atomic>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/c10d/work.h"

namespace weft::collectives {

class Deferred::Item final : public Work {
 public:
  explicit Item(Body body) : body_(std::move(body)), start_ns_(SystemClock::Nanoseconds()) {}

  bool done() const override { return done_.load(std::memory_order_acquire); }
  absl::Status Wait(absl::Duration timeout) override {
    std::unique_lock<std::mutex> lock(mutex_);
    auto is_done = [this] { return done(); };
    if (timeout == absl::InfiniteDuration()) {
      changed_.wait(lock, is_done);
    } else if (!changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout), is_done)) {
      return absl::DeadlineExceededError(
          absl::StrCat("it is not done after ", absl::FormatDuration(timeout)));
    }
    return status_;
  }
  absl::Status status() const override { return status_; }
  int64_t start_ns() const override { return start_ns_; }
  int64_t end_ns() const override { return end_ns_; }
  GroupRank source() const override { return GroupRank(); }

  void Run(Communicator& communicator) {
    absl::Status status, thrown;
    try {
      status = body_(communicator);
    } catch (const c10::Error& error) {  // LibTorch throws, as where memory runs out
      thrown = absl::InternalError(error.what_without_backtrace());
    } catch (const std::exception& error) {
      thrown = absl::InternalError(error.what());
    }
    if (!thrown.ok()) communicator.Abort(thrown);  // the others may wait for this rank
    Finish(thrown.ok() ? std::move(status) : std::move(thrown));
  }
  void Finish(absl::Status status) {
    body_ = nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = std::move(status);
    end_ns_ = SystemClock::Nanoseconds();
    done_.store(true, std::memory_order_release);
    changed_.notify_all();
  }

 private:
  Body body_;
  const int64_t start_ns_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_{false};
  absl::Status status_;  // written before done_
  int64_t end_ns_ = 0;
};

Deferred::Deferred(std::unique_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)), thread_([this] { Serve(); }) {}

Deferred::~Deferred() {
  bool busy;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    busy = busy_;
    changed_.notify_all();
  }
  const absl::Status gone = absl::CancelledError("its group was shut down");
  if (busy) communicator_->Abort(gone);
  JoinThread(thread_);
  for (const auto& item : items_) item->Finish(gone);
}

WorkPtr Deferred::Run(Body body) {
  auto item = std::make_shared<Item>(std::move(body));
  std::lock_guard<std::mutex> lock(mutex_);
  items_.push_back(item);
  changed_.notify_all();
  return item;
}

void Deferred::Serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !items_.empty(); });
    if (stopping_) return;
    std::shared_ptr<Item> item = std::move(items_.front());
    items_.pop_front();
    busy_ = true;
    lock.unlock();
    item->Run(*communicator_);
    lock.lock();
    busy_ = false;
  }
}

}  // namespace weft::collectives
