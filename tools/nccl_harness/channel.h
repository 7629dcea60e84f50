// How the two ranks of a run speak beside the plugin, as NCCL's do through its bootstrap: one end
// of a socket pair each, messages in order. Not thread-safe.
#ifndef WEFT_TOOLS_NCCL_HARNESS_CHANNEL_H_
#define WEFT_TOOLS_NCCL_HARNESS_CHANNEL_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "net/tcp/socket.h"

namespace weft::harness {

class Channel {
 public:
  // The longest message. Both ranks may send one before either receives, so that a message fits
  // into the buffer that a socket has by default.
  static constexpr size_t kMessageBytesMax = 64 << 10;

  Channel() = default;
  explicit Channel(FileDescriptor fd) : fd_(std::move(fd)) {}
  static absl::StatusOr<std::pair<Channel, Channel>> CreatePair();

  int fd() const { return fd_.get(); }
  void Close() { fd_ = FileDescriptor(); }

  // Cancelled: the other end has gone (and has told its own reasons).
  absl::Status Send(absl::string_view message);
  absl::StatusOr<std::string> Receive(absl::Duration limit);
  // Sends, and returns what the other sends.
  absl::StatusOr<std::string> Exchange(absl::string_view message, absl::Duration limit);
  bool Ended() const;  // the other rank has, and left no message

 private:
  FileDescriptor fd_;
};

}  // namespace weft::harness

#endif  // WEFT_TOOLS_NCCL_HARNESS_CHANNEL_H_
