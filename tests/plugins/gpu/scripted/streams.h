// CUDA's streams and events, each stream a thread that does its work in order. Thread-safe.
#ifndef WEFT_TESTS_PLUGINS_GPU_SCRIPTED_STREAMS_H_
#define WEFT_TESTS_PLUGINS_GPU_SCRIPTED_STREAMS_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace weft::scripted {

// Holds back what waits for it until the work before its newest record is done.
class Event {
 public:
  uint64_t Record() { return ++recorded_; }  // the stream then calls Reach with this number
  uint64_t recorded() const { return recorded_; }
  void Reach(uint64_t record);
  void Await(uint64_t record);
  bool IsReached(uint64_t record);

 private:
  std::mutex mutex_;
  std::condition_variable reached_changed_;
  std::atomic<uint64_t> recorded_ = 0;
  uint64_t reached_ = 0;
};

class Stream {
 public:
  Stream();
  ~Stream();  // after all work that was given
  void Do(std::function<void()> work);
  void Drain();   // until all work that was given before is done
  bool IsIdle();  // all work is done

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  uint64_t given_ = 0, done_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace weft::scripted

#endif  // WEFT_TESTS_PLUGINS_GPU_SCRIPTED_STREAMS_H_
