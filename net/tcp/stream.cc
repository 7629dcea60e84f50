#include "net/tcp/stream.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {
namespace {

constexpr size_t kHeaderBytes = sizeof(FrameHeader);
constexpr size_t kGatherFrames = 64;  // two vectors each; far below IOV_MAX (1024)
// Read behind a payload that is stored in place: enough for the next header or many small frames,
// and little enough that copying it out again costs nothing beside a frame of 256 KiB.
constexpr size_t kReadAhead = 16 << 10;
constexpr int kReadsPerTurn = 8;  // so that one busy socket does not keep the others waiting
constexpr int kReadsToDrain = 1 << 20;

}  // namespace

void Stream::SetOwner(StreamOwner& owner) {
  owner_ = &owner;
  if (!in_frame_ || target_.out == nullptr) return;
  const size_t had = header_.length - payload_left_;
  const absl::StatusOr<PayloadTarget> target = owner.OnFrame(header_);
  WEFT_CHECK(target.ok() && target->out != nullptr, target.status());
  std::memcpy(target->out, target_.out - had, had);
  target_ = {.out = target->out + had};
}

absl::Status Stream::Start(FileDescriptor fd, std::string received) {
  fd_ = std::move(fd);
  carry_ = std::move(received);
  taken_ = carry_.size();
  if (!carry_.empty()) WantTurn();
  return poller().Add(fd_.get(), EPOLLIN, this);
}

void Stream::Close() {
  if (!fd_) return;
  poller().Remove(fd_.get());
  fd_ = FileDescriptor();
}

void Stream::Abandon() {
  if (fd_) {
    linger hard{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  }
  Close();
  blocked_ = resuming_ = false;
}

FileDescriptor Stream::CloseGracefully(std::deque<OutFrame> last_words) {
  if (!fd_) return {};
  if (cut_ == 0 && !resuming_) {  // else a frame is cut, and the other side sees it cut
    out_.erase(out_.begin() + static_cast<std::ptrdiff_t>(written_frames_), out_.end());
    queued_bytes_ = 0;
    for (OutFrame& frame : last_words) Queue(std::move(frame));
    leaving_ = true;
    if (!blocked_) Write(absl::InfinitePast());
  }
  if (!fd_) return {};
  poller().Remove(fd_.get());
  FileDescriptor fd = std::move(fd_);
  shutdown(fd.get(), SHUT_WR);
  return fd;
}

bool Stream::HasUnacknowledged() const {
  int bytes = 0;
  return open() && ioctl(fd(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

void Stream::KeepOwnOnly() {
  own_only_ = true;
  uint64_t position = front_position_;
  for (auto frame = out_.begin(); frame != out_.end(); ++frame) {
    if (position >= written_most_) {
      out_.erase(frame, out_.end());
      break;
    }
    position += kHeaderBytes + frame->header.length;
    frame->payload = nullptr;
    frame->token = OutFrame::kNoToken;
  }
  EndBeforeForgotten();
}

// Ends the output before the first frame that is not begun and whose payload is the caller's.
void Stream::EndBeforeForgotten() {
  const auto first = out_.begin() + static_cast<std::ptrdiff_t>(written_frames_);
  const auto forgotten = std::find_if(first, out_.end(), [](const OutFrame& frame) {
    return frame.header.length > 0 && frame.owned.empty();
  });
  ends_here_ |= forgotten != out_.end();
  out_.erase(forgotten, out_.end());
}

void Stream::QueueLast(OutFrame frame) {
  if (!ends_here_) Queue(std::move(frame));
}

void Stream::ShutWriting() { shutdown(fd_.get(), SHUT_WR); }

void Stream::Queue(OutFrame frame) {
  const size_t length = frame.header.length;
  queued_bytes_ += kHeaderBytes + length;
  if (resumable_ && frame.token != OutFrame::kNoToken && length > 0) {
    if (length <= kCopyBytesMax && held_bytes_ + length <= kHeldBytesMax) {
      frame.owned.assign(reinterpret_cast<const char*>(frame.payload), length);
    } else {
      frame.header.flags = kTellTaken;
    }
  }
  held_bytes_ += frame.owned.size();
  out_.push_back(std::move(frame));
}

size_t Stream::Gather(iovec* vectors, size_t limit, size_t* bytes) {
  size_t count = 0;
  size_t skip = cut_;
  *bytes = 0;
  auto add = [&](const void* data, size_t size) {
    size_t skipped = std::min(skip, size);
    skip -= skipped;
    if (size == skipped) return;
    vectors[count++] = {const_cast<char*>(static_cast<const char*>(data)) + skipped,
                        size - skipped};
    *bytes += size - skipped;
  };
  const size_t end = std::min(out_.size(), written_frames_ + limit);
  for (size_t i = written_frames_; i < end; ++i) {
    const OutFrame& frame = out_[i];
    add(&frame.header, kHeaderBytes);
    add(frame.owned.empty() ? static_cast<const void*>(frame.payload) : frame.owned.data(),
        frame.header.length);
  }
  return count;
}

void Stream::Sent(size_t bytes) {
  written_ += bytes;
  written_most_ = std::max(written_most_, written_);
  cut_ += bytes;
  while (written_frames_ < out_.size()) {
    OutFrame& frame = out_[written_frames_];
    const size_t whole = kHeaderBytes + frame.header.length;
    if (cut_ < whole) return;
    cut_ -= whole;
    queued_bytes_ -= whole;
    ++written_frames_;
    uint32_t token = OutFrame::kNoToken;
    if (frame.header.flags != kTellTaken) std::swap(token, frame.token);
    if (!resumable_) PopFront();
    if (token != OutFrame::kNoToken) owner_->OnSent(token);
  }
}

void Stream::PopFront() {
  front_position_ += kHeaderBytes + out_.front().header.length;
  held_bytes_ -= out_.front().owned.size();
  out_.pop_front();
  --written_frames_;
}

absl::Status Stream::OnTaken(uint64_t position) {
  if (position > written_) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has taken ", position, " bytes of ", written_, " on one socket"));
  }
  peer_taken_ = std::max(peer_taken_, position);  // what comes by another socket may be old
  while (written_frames_ > 0 &&
         front_position_ + kHeaderBytes + out_.front().header.length <= peer_taken_) {
    const uint32_t token = out_.front().token;
    PopFront();
    if (token != OutFrame::kNoToken) owner_->OnSent(token);
  }
  return absl::OkStatus();
}

void Stream::Resume(FileDescriptor fd, uint32_t epoch, absl::string_view received, absl::Time now) {
  Abandon();
  fd_ = std::move(fd);
  resuming_ = true;
  epoch_ = epoch;
  resume_.clear();
  FrameHeader header;
  header.type = FrameType::kResume;
  header.receive = epoch;
  header.total = taken_;
  // A new socket takes some hundred bytes at once, or is no good.
  const bool said = send(fd_.get(), &header, sizeof(header), MSG_NOSIGNAL | MSG_DONTWAIT) ==
                    static_cast<ssize_t>(sizeof(header));
  if (!said || !poller().Add(fd_.get(), EPOLLIN, this).ok()) {
    return Fail(absl::UnavailableError("a new socket was of no use"), /*timed_out=*/false, now);
  }
  if (!received.empty()) FeedResume(received, now);
}

// Only as much as the header: what follows belongs behind what was taken of the frames.
bool Stream::ReadResume(absl::Time now) {
  std::array<char, kHeaderBytes> buffer;
  ssize_t got = recv(fd_.get(), buffer.data(), kHeaderBytes - resume_.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return false;
  if (got <= 0) {
    Fail(absl::UnavailableError(got < 0 ? absl::StrCat("a new socket: ", std::strerror(errno))
                                        : "a new socket was closed"),
         /*timed_out=*/false, now);
    return false;
  }
  FeedResume({buffer.data(), static_cast<size_t>(got)}, now);
  return open() && !resuming_;
}

void Stream::FeedResume(absl::string_view bytes, absl::Time now) {
  const size_t missing = std::min(kHeaderBytes - resume_.size(), bytes.size());
  resume_.append(bytes.data(), missing);
  bytes.remove_prefix(missing);
  if (resume_.size() < kHeaderBytes) return;
  FrameHeader header;
  std::memcpy(&header, resume_.data(), kHeaderBytes);
  absl::Status status = CheckFrame(header);
  if (status.ok() && (header.type != FrameType::kResume || header.receive != epoch_ ||
                      header.length != 0 || header.total < peer_taken_)) {
    status = absl::InvalidArgumentError(
        absl::StrCat("a new socket of epoch ", epoch_, " that goes on at ", peer_taken_,
                     " or later begins with type ", static_cast<int>(header.type), ", epoch ",
                     header.receive, ", position ", header.total));
  }
  if (status.ok()) status = OnTaken(header.total);
  if (!status.ok()) return End(status, now);
  const uint64_t again = written_ - peer_taken_;
  for (size_t i = 0; i < written_frames_; ++i) {
    queued_bytes_ += kHeaderBytes + out_[i].header.length;
  }
  written_frames_ = 0;
  written_ = peer_taken_;
  cut_ = written_ - front_position_;
  resuming_ = false;
  if (own_only_) EndBeforeForgotten();
  if (!bytes.empty()) {
    carry_.append(bytes.data(), bytes.size());
    taken_ += bytes.size();
    OnTurn(now);
  }
  if (open()) owner_->OnResumed(*this, again, now);
}

void Stream::Fail(const absl::Status& why, bool timed_out, absl::Time now) {
  if (!resumable_) return End(why, now);
  Abandon();
  owner_->OnLost(*this, why, timed_out, now);
}

bool Stream::Write(absl::Time now) {
  bool moved = false;
  while (CanWrite() && queued_frames() > 0) {
    std::array<iovec, 2 * kGatherFrames> vectors;
    size_t wanted = 0;
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = Gather(vectors.data(), kGatherFrames, &wanted);
    ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) {
      if (leaving_) return Close(), moved;
      const bool timed_out = errno == ETIMEDOUT;
      // The kernel says an error once: reading then sees an end that looks like one in order.
      // EPIPE is what it says after such an end.
      failed_ = errno != EPIPE;
      absl::Status why =
          absl::UnavailableError(absl::StrCat("sending failed: ", std::strerror(errno)));
      Read(now, kReadsToDrain);  // what came before the end still counts
      failed_ = false;
      if (open()) Fail(why, timed_out, now);
      return moved;
    }
    if (sent > 0) {
      moved = true;
      Sent(static_cast<size_t>(sent));
    }
    if (sent < 0 || static_cast<size_t>(sent) < wanted) {
      blocked_ = true;
      poller().Change(fd_.get(), EPOLLIN | EPOLLOUT, this);
    }
  }
  return moved;
}

void Stream::OnEvents(uint32_t events, absl::Time now) {
  if (!open()) return;
  if ((events & EPOLLOUT) != 0 && blocked_) {
    blocked_ = false;
    poller().Change(fd_.get(), EPOLLIN, this);
    owner_->OnWritable();
  }
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) Read(now, kReadsPerTurn);
}

bool Stream::OnTurn(absl::Time now) {
  if (!open() || carry_.empty()) return false;
  std::string received = std::exchange(carry_, {});
  std::byte* buffer = poller().read_buffer();
  std::memcpy(buffer, received.data(), received.size());  // one read of a handshake: small
  if (absl::Status status = Consume(buffer, received.size()); !status.ok()) End(status, now);
  return true;
}

bool Stream::Read(absl::Time now, int budget) {
  if (resuming_ && !ReadResume(now)) return true;
  bool moved = false;
  while (open() && budget-- > 0) {
    std::byte* buffer = poller().read_buffer();
    // A cut piece stands first, so that it is whole with what comes.
    size_t carried = carry_.size();
    std::memcpy(buffer, carry_.data(), carried);
    bool direct = in_frame_ && payload_left_ > 0 && target_.reduce == nullptr && target_.out;
    bool reducing = target_.reduce != nullptr;  // also behind the frame: more of it will come
    size_t room = reducing ? Poller::kReadBufferBytes - carried : kReadAhead;
    std::array<iovec, 2> vectors{{{target_.out, payload_left_}, {buffer + carried, room}}};
    ssize_t got = readv(fd_.get(), &vectors[direct ? 0 : 1], direct ? 2 : 1);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return moved;
    if (got < 0) {
      const bool timed_out = errno == ETIMEDOUT;
      Fail(absl::UnavailableError(absl::StrCat("receiving failed: ", std::strerror(errno))),
           timed_out, now);
      return true;
    }
    if (got == 0 && failed_) return moved;
    if (got == 0) {
      bool cut = in_frame_ || carried > 0;
      End(absl::UnavailableError(absl::StrCat("the other side closed the connection",
                                              cut ? " in the middle of a message" : "")),
          now);
      return true;
    }
    moved = true;
    auto size = static_cast<size_t>(got);
    taken_ += size;
    size_t wanted = room + (direct ? payload_left_ : 0);
    absl::Status status;
    size_t in_buffer = size;
    if (direct) {
      size_t placed = std::min<uint64_t>(size, payload_left_);
      target_.out += placed;
      payload_left_ -= placed;
      in_buffer -= placed;
      if (payload_left_ == 0) status = EndFrame({});
    }
    carry_.clear();
    // A call of the owner may have closed us.
    if (status.ok() && open() && carried + in_buffer > 0) {
      status = Consume(buffer, carried + in_buffer);
    }
    if (!status.ok()) {
      End(status, now);
      return true;
    }
    if (size < wanted) return true;  // drained; if not, epoll says so again
  }
  return moved;
}

absl::Status Stream::Consume(std::byte* data, size_t size) {
  while (size > 0 && open()) {
    size_t used = 0;
    if (!in_frame_) {
      if (size >= kHeaderBytes) {
        WEFT_RETURN_IF_ERROR(BeginFrame(data));
        used = kHeaderBytes;
        if (payload_left_ == 0) WEFT_RETURN_IF_ERROR(EndFrame({}));
      }
    } else if (header_.type == FrameType::kNotice || header_.type == FrameType::kPaths) {
      if (size >= payload_left_) {
        used = payload_left_;
        WEFT_RETURN_IF_ERROR(EndFrame({reinterpret_cast<const char*>(data), used}));
      }
    } else {
      used = TakePayload(data, size);
      if (payload_left_ == 0) WEFT_RETURN_IF_ERROR(EndFrame({}));
    }
    if (used == 0) {
      carry_.assign(reinterpret_cast<const char*>(data), size);
      return absl::OkStatus();
    }
    data += used;
    size -= used;
  }
  return absl::OkStatus();
}

absl::Status Stream::BeginFrame(const std::byte* data) {
  std::memcpy(&header_, data, kHeaderBytes);
  WEFT_RETURN_IF_ERROR(CheckFrame(header_));
  WEFT_ASSIGN_OR_RETURN(target_, owner_->OnFrame(header_));
  payload_left_ = header_.length;
  in_frame_ = true;
  return absl::OkStatus();
}

absl::Status Stream::EndFrame(absl::string_view notice) {
  in_frame_ = false;
  payload_left_ = 0;
  FrameHeader header = header_;
  if (header.flags != kTellTaken) untold_ += kHeaderBytes + header.length;
  return owner_->OnFrameDone(header, notice);
}

size_t Stream::TakePayload(std::byte* data, size_t size) {
  size_t used = std::min<uint64_t>(size, payload_left_);
  if (target_.reduce == nullptr) {
    std::memcpy(target_.out, data, used);
    target_.out += used;
  } else {
    if (used < payload_left_) used -= used % 64;
    if (used > 0) Reduce(data, used);
  }
  payload_left_ -= used;
  return used;
}

void Stream::Reduce(const std::byte* data, size_t size) {
  // Behind a message of an odd size the bytes lie anywhere; reduce functions want them aligned.
  alignas(64) std::array<std::byte, 4096> aligned;
  bool misaligned = reinterpret_cast<uintptr_t>(data) % 64 != 0;
  while (size > 0) {
    size_t piece = misaligned ? std::min(size, aligned.size()) : size;
    const std::byte* incoming = data;
    if (misaligned) {
      std::memcpy(aligned.data(), data, piece);
      incoming = aligned.data();
    }
    target_.reduce(target_.out, target_.local, incoming, piece);
    target_.out += piece;
    target_.local += piece;
    data += piece;
    size -= piece;
  }
}

void Stream::End(const absl::Status& why, absl::Time now) {
  Close();
  owner_->OnEnded(why, now);
}

}  // namespace weft::net
