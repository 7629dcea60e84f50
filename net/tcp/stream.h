// One connected socket that carries frames. It gathers what is queued into few system calls, reads
// payload straight to where it belongs, and knows nothing of messages: its owner (a link) does.
//
// Reading: headers and small payloads go through the poller's buffer, several frames a call. Of a
// large payload that is stored as it is, the rest goes straight into its memory. One that is
// combined goes through the buffer, which stays in the cache, in pieces of a multiple of 64 bytes.
#ifndef WEFT_NET_TCP_STREAM_H_
#define WEFT_NET_TCP_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "net/tcp/frame.h"
#include "net/tcp/poller.h"
#include "net/tcp/socket.h"
#include "net/transport.h"

namespace weft::net {

struct OutFrame {
  FrameHeader header;
  const std::byte* payload = nullptr;  // header.length bytes, in place until OnSent(token)
  uint32_t token = kNoToken;
  std::string owned;  // the payload instead, where it is the frame's own
  static constexpr uint32_t kNoToken = ~0u;
};

// Where a frame's payload goes; `out` may be null where it is empty, or for a notice.
struct PayloadTarget {
  std::byte* out = nullptr;
  const std::byte* local = nullptr;
  CombineFn combine = nullptr;
};

class Stream;

class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  // A header has come and is a possible one. An error breaks the link.
  virtual absl::StatusOr<PayloadTarget> OnFrame(const FrameHeader& header) = 0;
  // The whole payload is where OnFrame wanted it; for a notice, it is `notice`.
  virtual absl::Status OnFrameDone(const FrameHeader& header, absl::string_view notice) = 0;
  virtual void OnSent(uint32_t token) = 0;
  virtual void OnWritable() = 0;
  // Nothing more will come: kUnavailable when the connection is lost or closed, kInvalidArgument
  // when the other side broke the protocol. The stream is closed already.
  virtual void OnEnded(const absl::Status& why, absl::Time now) = 0;
};

class Stream final : public Handler {
 public:
  Stream(Poller& poller, StreamOwner& owner) : Handler(poller), owner_(owner) {}
  ~Stream() override { Close(); }

  // `received` came on the socket already, behind the handshake.
  absl::Status Start(FileDescriptor fd, std::string received);
  bool open() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }

  bool CanWrite() const { return open() && !blocked_; }
  size_t queued_frames() const { return out_.size(); }
  uint64_t queued_bytes() const { return queued_bytes_; }
  void Queue(OutFrame frame);
  bool Write(absl::Time now);  // true: something left

  void Close();
  // For a link that ends on purpose: drops what is queued and not begun, says goodbye, and gives
  // the socket away with its sending half shut.
  FileDescriptor CloseGracefully(std::deque<OutFrame> last_words);

  void OnEvents(uint32_t events, absl::Time now) override;
  bool OnTurn(absl::Time now) override;  // what Start() was given

 private:
  size_t Gather(struct iovec* vectors, size_t limit, size_t* bytes);
  void Sent(size_t bytes);
  bool Read(absl::Time now, int budget);
  absl::Status Consume(std::byte* data, size_t size);
  absl::Status BeginFrame(const std::byte* data);
  absl::Status EndFrame(absl::string_view notice);
  size_t TakePayload(std::byte* data, size_t size);
  void Combine(const std::byte* data, size_t size);
  void End(const absl::Status& why, absl::Time now);

  StreamOwner& owner_;
  FileDescriptor fd_;

  std::deque<OutFrame> out_;
  uint64_t queued_bytes_ = 0;
  size_t front_sent_ = 0;  // of out_.front(), header included
  bool blocked_ = false;

  std::string carry_;  // a cut header, notice or combined piece; at the start of the next read
  bool in_frame_ = false;
  FrameHeader header_;    // while in_frame_
  PayloadTarget target_;  // advances with what has come
  uint64_t payload_left_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_STREAM_H_
