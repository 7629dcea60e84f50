#include "net/tcp/stream.h"

#include <sys/epoll.h>
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

absl::Status Stream::Start(FileDescriptor fd, std::string received) {
  fd_ = std::move(fd);
  carry_ = std::move(received);
  if (!carry_.empty()) WantTurn();
  return poller().Add(fd_.get(), EPOLLIN, this);
}

void Stream::Close() {
  if (!fd_) return;
  poller().Remove(fd_.get());
  fd_ = FileDescriptor();
  out_.clear();
  queued_bytes_ = front_sent_ = 0;
}

FileDescriptor Stream::CloseGracefully(std::deque<OutFrame> last_words) {
  if (!fd_) return {};
  if (front_sent_ == 0) {  // else a frame is cut, and the other side sees it cut
    out_ = std::move(last_words);
    if (!blocked_) Write(absl::InfinitePast());
  }
  if (!fd_) return {};
  poller().Remove(fd_.get());
  FileDescriptor fd = std::move(fd_);
  out_.clear();
  shutdown(fd.get(), SHUT_WR);
  return fd;
}

void Stream::Queue(OutFrame frame) {
  queued_bytes_ += kHeaderBytes + frame.header.length;
  out_.push_back(std::move(frame));
}

size_t Stream::Gather(iovec* vectors, size_t limit, size_t* bytes) {
  size_t count = 0;
  size_t skip = front_sent_;
  *bytes = 0;
  auto add = [&](const void* data, size_t size) {
    size_t skipped = std::min(skip, size);
    skip -= skipped;
    if (size == skipped) return;
    vectors[count++] = {const_cast<char*>(static_cast<const char*>(data)) + skipped,
                        size - skipped};
    *bytes += size - skipped;
  };
  size_t frames = std::min(out_.size(), limit);
  for (size_t i = 0; i < frames; ++i) {
    const OutFrame& frame = out_[i];
    add(&frame.header, kHeaderBytes);
    add(frame.owned.empty() ? static_cast<const void*>(frame.payload) : frame.owned.data(),
        frame.header.length);
  }
  return count;
}

void Stream::Sent(size_t bytes) {
  front_sent_ += bytes;
  while (!out_.empty()) {
    size_t whole = kHeaderBytes + out_.front().header.length;
    if (front_sent_ < whole) return;
    front_sent_ -= whole;
    queued_bytes_ -= whole;
    uint32_t token = out_.front().token;
    out_.pop_front();
    if (token != OutFrame::kNoToken) owner_.OnSent(token);
  }
}

bool Stream::Write(absl::Time now) {
  bool moved = false;
  while (open() && !out_.empty() && !blocked_) {
    std::array<iovec, 2 * kGatherFrames> vectors;
    size_t wanted = 0;
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = Gather(vectors.data(), kGatherFrames, &wanted);
    ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) {
      absl::Status why =
          absl::UnavailableError(absl::StrCat("sending failed: ", std::strerror(errno)));
      Read(now, kReadsToDrain);  // what came before the end still counts
      if (open()) End(why, now);
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
    owner_.OnWritable();
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
  bool moved = false;
  while (open() && budget-- > 0) {
    std::byte* buffer = poller().read_buffer();
    // A cut piece stands first, so that it is whole with what comes.
    size_t carried = carry_.size();
    std::memcpy(buffer, carry_.data(), carried);
    bool direct = in_frame_ && payload_left_ > 0 && target_.combine == nullptr && target_.out;
    bool combining = target_.combine != nullptr;  // also behind the frame: more of it will come
    size_t room = combining ? Poller::kReadBufferBytes - carried : kReadAhead;
    std::array<iovec, 2> vectors{{{target_.out, payload_left_}, {buffer + carried, room}}};
    ssize_t got = readv(fd_.get(), &vectors[direct ? 0 : 1], direct ? 2 : 1);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return moved;
    if (got <= 0) {
      bool cut = in_frame_ || carried > 0;
      End(absl::UnavailableError(got < 0 ? absl::StrCat("receiving failed: ", std::strerror(errno))
                                         : absl::StrCat("the other side closed the connection",
                                                        cut ? " in the middle of a message" : "")),
          now);
      return true;
    }
    moved = true;
    auto size = static_cast<size_t>(got);
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
    } else if (header_.type == FrameType::kNotice) {
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
  WEFT_ASSIGN_OR_RETURN(target_, owner_.OnFrame(header_));
  payload_left_ = header_.length;
  in_frame_ = true;
  return absl::OkStatus();
}

absl::Status Stream::EndFrame(absl::string_view notice) {
  in_frame_ = false;
  payload_left_ = 0;
  FrameHeader header = header_;
  return owner_.OnFrameDone(header, notice);
}

size_t Stream::TakePayload(std::byte* data, size_t size) {
  size_t used = std::min<uint64_t>(size, payload_left_);
  if (target_.combine == nullptr) {
    std::memcpy(target_.out, data, used);
    target_.out += used;
  } else {
    if (used < payload_left_) used -= used % 64;
    if (used > 0) Combine(data, used);
  }
  payload_left_ -= used;
  return used;
}

void Stream::Combine(const std::byte* data, size_t size) {
  // Behind a message of an odd size the bytes lie anywhere; combine functions want them aligned.
  alignas(64) std::array<std::byte, 4096> aligned;
  bool misaligned = reinterpret_cast<uintptr_t>(data) % 64 != 0;
  while (size > 0) {
    size_t piece = misaligned ? std::min(size, aligned.size()) : size;
    const std::byte* incoming = data;
    if (misaligned) {
      std::memcpy(aligned.data(), data, piece);
      incoming = aligned.data();
    }
    target_.combine(target_.out, target_.local, incoming, piece);
    target_.out += piece;
    target_.local += piece;
    data += piece;
    size -= piece;
  }
}

void Stream::End(const absl::Status& why, absl::Time now) {
  Close();
  owner_.OnEnded(why, now);
}

}  // namespace weft::net
