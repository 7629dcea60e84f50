// A stream of frames each way, over one connected socket at a time. It gathers queued frames into
// few system calls and reads payload straight to its place. It knows nothing of messages; its
// owner, a link, does.
//
// A stream that is resumable survives its socket. It counts the bytes that it has taken from
// sockets, and keeps its position within the frame; on a new socket each side first sends its count
// (kResume), and the other goes on from there. So no byte is taken twice, and frames need no
// numbers. Written bytes therefore stay readable until the other side has taken them: small
// payloads are copied, within kHeldBytesMax; larger ones stay where they are, and OnSent() comes
// once they are taken. On a stream that is not resumable OnSent() comes once the kernel has the
// bytes.
//
// Reading: headers and small payloads go through the poller's buffer, several frames a call. A
// large payload that is stored is read straight into its memory, but for its beginning; one that is
// reduced goes through the buffer, which stays in the cache, in pieces of a multiple of 64 bytes.
#ifndef WEFT_NET_TCP_STREAM_H_
#define WEFT_NET_TCP_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/poller.h"
#include "net/tcp/frame.h"
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
  ReduceFn reduce = nullptr;
};

class Stream;

class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  // A header has come and is a possible one. An error breaks the link.
  virtual absl::StatusOr<PayloadTarget> OnFrame(const FrameHeader& header) = 0;
  // The whole payload is where OnFrame wanted it; for a notice, it is `notice`.
  virtual absl::Status OnFrameDone(const FrameHeader& header, absl::string_view notice) = 0;
  virtual void OnSent(uint32_t token) = 0;  // its payload is not needed any more
  virtual void OnWritable() = 0;
  // Nothing more will come: kUnavailable when the connection is lost or closed, kInvalidArgument
  // when the other side broke the protocol. The stream is closed already.
  virtual void OnEnded(const absl::Status& why, absl::Time now) = 0;
  // A resumable one has no socket any more, but may Resume() on another. `timed_out`: the other
  // side's kernel has been silent for as long as it may.
  virtual void OnLost(Stream& stream, const absl::Status& why, bool timed_out, absl::Time now) = 0;
  // It goes on; so many bytes are sent again.
  virtual void OnResumed(Stream& stream, uint64_t again, absl::Time now) = 0;
};

class Stream final : public PollHandler {
 public:
  // A payload is copied up to so many bytes, and while no more than that many are held in all.
  static constexpr size_t kCopyBytesMax = 32 << 10;
  static constexpr size_t kHeldBytesMax = 256 << 10;

  Stream(Poller& poller, StreamOwner& owner, bool resumable)
      : PollHandler(poller), owner_(&owner), resumable_(resumable) {}
  ~Stream() override { Close(); }
  // The new owner takes every frame that the old one takes. A payload that is half there moves to
  // where the new owner wants it: the memory that the old one gave must still stand.
  void SetOwner(StreamOwner& owner);

  // `received` came on the socket already, behind the handshake.
  absl::Status Start(FileDescriptor fd, std::string received);
  bool open() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }

  // In place of the socket that was lost, or still seems to stand. `received` came on it already.
  void Resume(FileDescriptor fd, uint32_t epoch, absl::string_view received, absl::Time now);
  // Gives the socket up, with a reset: an orderly end would say that this process has died.
  void Abandon();

  bool CanWrite() const { return open() && !blocked_ && !resuming_; }
  size_t queued_frames() const { return out_.size() - written_frames_; }
  uint64_t queued_bytes() const { return queued_bytes_; }
  void Queue(OutFrame frame);
  bool Write(absl::Time now);  // true: something left

  // Bytes taken from sockets so far, and how many of them belong to frames that were not marked
  // kTellTaken and that the other side has not been told of.
  uint64_t taken() const { return taken_; }
  uint64_t untold() const { return untold_; }
  void NoteTold() { untold_ = 0; }
  // The other side has taken everything before `position`.
  absl::Status OnTaken(uint64_t position);

  void Close();
  // The other side may yet need something again that the kernel was given.
  bool HasUntaken() const { return !out_.empty(); }
  bool HasUnacknowledged() const;  // by the other side's kernel

  // For a link that was closed here and whose streams are to say the rest (departure.h). Drops what
  // no kernel was given, and forgets the memory of others: where it would be needed again, the
  // stream ends before it.
  void KeepOwnOnly();
  void QueueLast(OutFrame frame);  // unless the stream ends before that
  void ShutWriting();              // the other side sees an end in order

  // For a link that ends on purpose: drops what is queued and not begun, says goodbye, and gives
  // the socket away with its sending half shut.
  FileDescriptor CloseGracefully(std::deque<OutFrame> last_words);

  void OnEvents(uint32_t events, absl::Time now) override;
  bool OnTurn(absl::Time now) override;  // what Start() was given

 private:
  size_t Gather(struct iovec* vectors, size_t limit, size_t* bytes);
  void Sent(size_t bytes);
  void PopFront();
  void EndBeforeForgotten();
  void Fail(const absl::Status& why, bool timed_out, absl::Time now);
  bool ReadResume(absl::Time now);
  void FeedResume(absl::string_view bytes, absl::Time now);
  bool Read(absl::Time now, int budget);
  absl::Status Consume(std::byte* data, size_t size);
  absl::Status BeginFrame(const std::byte* data);
  absl::Status EndFrame(absl::string_view notice);
  size_t TakePayload(std::byte* data, size_t size);
  void Reduce(const std::byte* data, size_t size);
  void End(const absl::Status& why, absl::Time now);

  StreamOwner* owner_;
  const bool resumable_;
  FileDescriptor fd_;

  std::deque<OutFrame> out_;     // first those that are written and not taken
  size_t written_frames_ = 0;    // so many, whole
  size_t cut_ = 0;               // bytes written of the next one, header included
  uint64_t queued_bytes_ = 0;    // of frames that are not written, or cut
  uint64_t front_position_ = 0;  // of out_.front(), or of what is queued next
  uint64_t written_ = 0;         // position up to which the kernel was given all
  uint64_t written_most_ = 0;    // the same, of any socket so far
  uint64_t peer_taken_ = 0;      // position, as far as it is known
  size_t held_bytes_ = 0;        // owned by frames
  bool blocked_ = false;
  bool failed_ = false;  // sending has; what came before is being read

  bool resuming_ = false;   // the other side's kResume has not come yet
  bool leaving_ = false;    // bytes that still come are dropped
  bool own_only_ = false;   // KeepOwnOnly() was called
  bool ends_here_ = false;  // something forgotten would follow what is queued
  uint32_t epoch_ = 0;
  std::string resume_;  // as much of it as has come
  uint64_t taken_ = 0, untold_ = 0;

  std::string carry_;  // a cut header, notice or reduced piece; at the start of the next read
  bool in_frame_ = false;
  FrameHeader header_;    // while in_frame_
  PayloadTarget target_;  // advances with what has come
  uint64_t payload_left_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_STREAM_H_
