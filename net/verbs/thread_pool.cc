#include "net/verbs/thread_pool.h"

#include <atomic>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace weft::net {

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Submit(absl::AnyInvocable<void()> what) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool wants_more = waiting_.size() >= idle_ && threads_.size() < threads_most_;
    if (wants_more) AddThread();
    if (!threads_.empty()) {
      waiting_.push_back(std::move(what));
      return changed_.notify_one();
    }
  }
  what();
}

void ThreadPool::AddThread() {
  try {
    threads_.emplace_back([this] { Run(); });
  } catch (const std::system_error& error) {
    static std::atomic_flag said;
    if (said.test_and_set()) return;
    WEFT_LOG_WARN("verbs: no thread for a call that may wait (", error.what(), "; see ulimit -u); ",
                  threads_.empty() ? "everything else waits for such calls" : "there are fewer");
  }
}

void ThreadPool::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    ++idle_;
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    --idle_;
    if (waiting_.empty()) return;
    {
      absl::AnyInvocable<void()> what = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      what();
    }
    lock.lock();
  }
}

}  // namespace weft::net
