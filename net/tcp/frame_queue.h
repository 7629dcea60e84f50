// Control and notices that wait to be sent, in order. Internal; used by link_session.h.
#ifndef WEFT_NET_TCP_FRAME_QUEUE_H_
#define WEFT_NET_TCP_FRAME_QUEUE_H_

#include <cstddef>
#include <deque>
#include <utility>

#include "net/tcp/frame.h"
#include "net/tcp/stream.h"

namespace weft::net {

class FrameQueue {
 public:
  bool empty() const { return frames_.empty(); }
  size_t notices() const { return notices_; }  // of the frames

  void Push(OutFrame frame) {
    notices_ += IsNotice(frame) ? 1 : 0;
    frames_.push_back(std::move(frame));
  }
  void PushFront(OutFrame frame) {
    notices_ += IsNotice(frame) ? 1 : 0;
    frames_.push_front(std::move(frame));
  }
  OutFrame& front() { return frames_.front(); }
  // Also of one whose payload was moved elsewhere: its header stays.
  void Pop() {
    notices_ -= IsNotice(frames_.front()) ? 1 : 0;
    frames_.pop_front();
  }
  std::deque<OutFrame> TakeAll() {
    notices_ = 0;
    return std::exchange(frames_, {});
  }

 private:
  static bool IsNotice(const OutFrame& frame) { return frame.header.type == FrameType::kNotice; }

  std::deque<OutFrame> frames_;
  size_t notices_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_FRAME_QUEUE_H_
