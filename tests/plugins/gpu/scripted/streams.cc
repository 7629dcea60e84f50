#include "tests/plugins/gpu/scripted/streams.h"

#include <utility>

namespace weft::scripted {

void Event::Reach(uint64_t record) {
  std::lock_guard lock(mutex_);
  reached_ = std::max(reached_, record);
  reached_changed_.notify_all();
}

void Event::Await(uint64_t record) {
  std::unique_lock lock(mutex_);
  reached_changed_.wait(lock, [&] { return reached_ >= record; });
}

bool Event::IsReached(uint64_t record) {
  std::lock_guard lock(mutex_);
  return reached_ >= record;
}

Stream::Stream() : thread_([this] { Run(); }) {}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::Do(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    ++given_;
  }
  changed_.notify_all();
}

void Stream::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, until = given_] { return done_ >= until; });
}

bool Stream::IsIdle() {
  std::lock_guard lock(mutex_);
  return done_ == given_;
}

void Stream::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ended_ || !work_.empty(); });
    if (work_.empty()) return;
    auto work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace weft::scripted
