#include "net/verbs/retirement.h"

#include <utility>

namespace weft::net {

Retirement::~Retirement() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Retirement::Take(std::unique_ptr<NicQueuePair> pair) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back(std::move(pair));
  if (waiting_.size() > idle_ && threads_.size() < kThreadsMost) {
    threads_.emplace_back([this] { Run(); });
  }
  changed_.notify_one();
}

void Retirement::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    ++idle_;
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    --idle_;
    if (waiting_.empty()) return;
    std::unique_ptr<NicQueuePair> pair = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    pair.reset();
    lock.lock();
  }
}

}  // namespace weft::net
