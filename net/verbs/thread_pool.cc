#include "net/verbs/thread_pool.h"

#include <utility>

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
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back(std::move(what));
  if (waiting_.size() > idle_ && threads_.size() < threads_most_) {
    threads_.emplace_back([this] { Run(); });
  }
  changed_.notify_one();
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
