// Work for a GPU beside the computation, from a thread in the background: it reads what the
// computation has left behind, while that goes on.
#ifndef WEFT_TRAINER_DEVICE_SIDE_STREAM_H_
#define WEFT_TRAINER_DEVICE_SIDE_STREAM_H_

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <functional>
#include <optional>

namespace weft::train {

class SideStream {
 public:
  // Made by the thread that computes: what its stream has been given so far comes first. On the CPU
  // there is nothing to wait for.
  explicit SideStream(at::Device device);

  // Any thread. What `body` gives the GPU goes over a stream of its own, and is done on return.
  void Run(const std::function<void()>& body);

 private:
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> before_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_DEVICE_SIDE_STREAM_H_
