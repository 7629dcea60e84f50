#include "net/multipath/udp/sockets.h"

#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <deque>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "net/handshake.h"

namespace weft::net::multipath {
namespace {

constexpr size_t kSlots = 64;        // packets that one socket gathers
constexpr size_t kSegmentsMax = 64;  // of one segmented send; UDP_MAX_SEGMENTS of older kernels
constexpr size_t kReceives = 4;      // of one call: what they hold stays in the cache
constexpr int kReadsPerTurn = 2;
constexpr size_t kReceiveBytes = 65'536;  // one datagram, or what was coalesced
constexpr uint8_t kEcnCapable = 2, kCongestion = 3, kEcnMask = 3;

bool SetOption(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

absl::Time TimeOf(const timespec& time) { return absl::TimeFromTimespec(time); }

// What to add to the kernel's stamps (CLOCK_REALTIME) for the clock of everything else.
absl::Duration StampOffset() {
  timespec real{}, steady{};
  clock_gettime(CLOCK_REALTIME, &real);
  clock_gettime(CLOCK_MONOTONIC, &steady);
  return TimeOf(steady) - TimeOf(real);
}

// What the kernel says of one receive.
struct Notes {
  size_t segment = 0;  // bytes; 0: one datagram
  bool marked = false;
  absl::Time stamp = absl::InfiniteFuture();
};

Notes NotesOf(msghdr& message) {
  Notes notes;
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
    const unsigned char* data = CMSG_DATA(one);
    if (one->cmsg_level == IPPROTO_UDP && one->cmsg_type == UDP_GRO) {
      int size = 0;
      std::memcpy(&size, data, sizeof(size));
      notes.segment = static_cast<size_t>(std::max(size, 0));
    } else if (one->cmsg_level == IPPROTO_IP && one->cmsg_type == IP_TOS) {
      notes.marked = (*data & kEcnMask) == kCongestion;
    } else if (one->cmsg_level == IPPROTO_IPV6 && one->cmsg_type == IPV6_TCLASS) {
      int traffic_class = 0;
      std::memcpy(&traffic_class, data, sizeof(traffic_class));
      notes.marked = (traffic_class & kEcnMask) == kCongestion;
    } else if (one->cmsg_level == SOL_SOCKET && one->cmsg_type == SCM_TIMESTAMPNS) {
      timespec time{};
      std::memcpy(&time, data, sizeof(time));
      notes.stamp = TimeOf(time);
    }
  }
  return notes;
}

}  // namespace

class UdpSockets::Socket final : public Handler {
 public:
  Socket(UdpSockets& all, FileDescriptor fd)
      : Handler(all.poller_), all_(all), fd_(std::move(fd)), headers_(kSlots) {}
  ~Socket() override { poller().Remove(fd_.get()); }
  int fd() const { return fd_.get(); }
  bool is_empty() const { return used_ == 0; }

  void Queue(const SocketAddress& to, absl::Span<const std::byte> header,
             absl::Span<const std::byte> chunk) {
    if (used_ == kSlots) Flush();
    std::byte* copy = headers_[used_].data();
    std::memcpy(copy, header.data(), header.size());
    size_t size = header.size() + chunk.size();
    if (!Joins(to, size)) {
      messages_.push_back(
          {.to = to, .first = vectors_used_, .vectors = 0, .segment = size, .bytes = 0});
    }
    Message& message = messages_.back();
    vectors_[vectors_used_++] = {copy, header.size()};
    if (!chunk.empty()) {
      vectors_[vectors_used_++] = {const_cast<std::byte*>(chunk.data()), chunk.size()};
    }
    message.vectors = vectors_used_ - message.first;
    message.bytes += size;
    ++message.packets;
    message.is_open = size == message.segment;
    ++used_;
  }

  void Flush() {
    size_t done = 0;
    if (!backlog_.empty()) KeepFrom(0), done = messages_.size();
    while (done < messages_.size()) {
      size_t count = Prepare(done);
      int sent = sendmmsg(fd_.get(), calls_.data(), static_cast<unsigned>(count), MSG_DONTWAIT);
      ++all_.statistics_.send_calls;
      if (sent > 0) {
        for (int i = 0; i < sent; ++i) all_.statistics_.sent += messages_[done++].packets;
      } else if (errno == EAGAIN) {
        KeepFrom(done);
        break;
      } else if (errno != EINTR) {
        OnError(messages_[done++]);
      }
    }
    messages_.clear();
    used_ = vectors_used_ = 0;
  }

  void OnEvents(uint32_t events, absl::Time now) override {
    if ((events & EPOLLOUT) != 0) SendBacklog();
    if ((events & (EPOLLIN | EPOLLERR)) == 0) return;
    for (int i = 0; i < kReadsPerTurn; ++i) {
      if (!all_.Read(*this, now)) return;
    }
  }

 private:
  struct Message {
    SocketAddress to;
    size_t first, vectors;  // of vectors_
    size_t segment;         // bytes of each packet but the last
    size_t bytes;
    int packets = 0;
    bool is_open = true;  // no shorter packet has ended it
  };

  bool Joins(const SocketAddress& to, size_t size) const {
    if (messages_.empty() || !all_.segments_) return false;
    const Message& last = messages_.back();
    return last.is_open && size <= last.segment && last.bytes + size <= kDatagramBytesMax &&
           static_cast<size_t>(last.packets) < kSegmentsMax && last.to.size() == to.size() &&
           std::memcmp(last.to.get(), to.get(), to.size()) == 0;
  }

  // System calls' view of messages_ from `from` on.
  size_t Prepare(size_t from) {
    size_t count = messages_.size() - from;
    for (size_t i = 0; i < count; ++i) {
      Message& message = messages_[from + i];
      msghdr& header = calls_[i].msg_hdr;
      header = {};
      header.msg_name = const_cast<sockaddr*>(message.to.get());
      header.msg_namelen = message.to.size();
      header.msg_iov = vectors_.data() + message.first;
      header.msg_iovlen = message.vectors;
      if (message.packets == 1) continue;
      header.msg_control = controls_[i].data();
      header.msg_controllen = controls_[i].size();
      cmsghdr* control = CMSG_FIRSTHDR(&header);
      control->cmsg_level = IPPROTO_UDP;
      control->cmsg_type = UDP_SEGMENT;
      control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
      auto segment = static_cast<uint16_t>(message.segment);
      std::memcpy(CMSG_DATA(control), &segment, sizeof(segment));
    }
    return count;
  }

  // What the kernel refused is lost, as on the way; the protocol sends it again.
  void OnError(const Message& message) {
    int error = errno;
    bool was_segmented = message.packets > 1 && (error == EIO || error == EINVAL);
    if (was_segmented && all_.segments_) {
      WEFT_LOG_INFO("multipath: segmented sends do not work here ({}); going on without",
                    std::strerror(error));
      all_.segments_ = false;
    } else if (all_.statistics_.send_errors == 0) {
      WEFT_LOG_WARN("multipath: sending {} bytes to {} failed: {}", message.segment,
                    message.to.ToString(), std::strerror(error));
    }
    all_.statistics_.send_errors += message.packets;
  }

  // The socket is full: copies, so that chunks may go.
  void KeepFrom(size_t from) {
    for (size_t i = from; i < messages_.size(); ++i) {
      const Message& message = messages_[i];
      std::string bytes;
      for (size_t v = 0; v < message.vectors; ++v) {
        const iovec& vector = vectors_[message.first + v];
        bytes.append(static_cast<const char*>(vector.iov_base), vector.iov_len);
      }
      for (size_t at = 0; at < bytes.size(); at += message.segment) {
        backlog_.emplace_back(message.to, bytes.substr(at, message.segment));
      }
    }
    if (backlog_.empty() || is_blocked_) return;
    is_blocked_ = true;
    ++all_.blocked_;
    poller().Change(fd_.get(), EPOLLIN | EPOLLOUT, this);
  }

  void SendBacklog() {
    while (!backlog_.empty()) {
      const auto& [to, bytes] = backlog_.front();
      ssize_t sent =
          sendto(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT, to.get(), to.size());
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      ++(sent < 0 ? all_.statistics_.send_errors : all_.statistics_.sent);
      backlog_.pop_front();
    }
    if (!is_blocked_) return;
    is_blocked_ = false;
    poller().Change(fd_.get(), EPOLLIN, this);
    --all_.blocked_;
    all_.OnUnblocked();
  }

  UdpSockets& all_;
  FileDescriptor fd_;
  std::vector<std::array<std::byte, kDatagramHeaderMax>> headers_;
  size_t used_ = 0, vectors_used_ = 0;
  std::array<iovec, 2 * kSlots> vectors_{};
  std::vector<Message> messages_;
  std::array<mmsghdr, kSlots> calls_{};
  struct alignas(cmsghdr) Control : std::array<char, CMSG_SPACE(sizeof(uint16_t))> {};
  std::array<Control, kSlots> controls_{};
  std::deque<std::pair<SocketAddress, std::string>> backlog_;
  bool is_blocked_ = false;
};

UdpSockets::UdpSockets(Poller& poller, const SocketOptions& options)
    : poller_(poller),
      options_(options),
      segments_(options.segments),
      memory_(std::make_unique_for_overwrite<std::byte[]>(kReceives * kReceiveBytes + 64)) {
  auto address = reinterpret_cast<uintptr_t>(memory_.get());
  buffer_ = memory_.get() + ((64 - address % 64) % 64);
  // Numbers that no other life of this process is likely to have used.
  Nonce random = NewNonce();
  std::memcpy(&next_link_, random.data(), sizeof(next_link_));
}

UdpSockets::~UdpSockets() {
  WEFT_CHECK(owners_.empty(), "links outlive their sockets: " << owners_.size());
}

absl::StatusOr<std::unique_ptr<UdpSockets>> UdpSockets::Open(Poller& poller,
                                                             const SocketOptions& options) {
  std::unique_ptr<UdpSockets> out(new UdpSockets(poller, options));
  WEFT_RETURN_IF_ERROR(out->OpenAll(options.address));
  return out;
}

absl::Status UdpSockets::OpenAll(const SocketAddress& first) {
  SocketAddress address = first;
  for (int path = 0; path < options_.paths; ++path) {
    if (first.port() != 0) address.set_port(first.port() + path);
    std::string doing = absl::StrCat("open a UDP socket at ", address.ToString());
    FileDescriptor fd(socket(address.family(), SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
      return IsDescriptorExhaustion(errno) ? DescriptorsExhausted(errno, doing)
                                           : ErrnoStatus(errno, doing);
    }
    int bytes = static_cast<int>(options_.buffer_bytes.count());
    for (auto [force, plain] :
         {std::pair(SO_RCVBUFFORCE, SO_RCVBUF), std::pair(SO_SNDBUFFORCE, SO_SNDBUF)}) {
      if (!SetOption(fd.get(), SOL_SOCKET, force, bytes)) {
        SetOption(fd.get(), SOL_SOCKET, plain, bytes);
      }
    }
    bool is_v6 = address.family() == AF_INET6;
    // Without marks or stamps the protocol does with delays and with its own clock.
    if (is_v6) {
      SetOption(fd.get(), IPPROTO_IPV6, IPV6_TCLASS, kEcnCapable);
      SetOption(fd.get(), IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
    } else {
      SetOption(fd.get(), IPPROTO_IP, IP_TOS, kEcnCapable);
      SetOption(fd.get(), IPPROTO_IP, IP_RECVTOS, 1);
    }
    SetOption(fd.get(), SOL_SOCKET, SO_TIMESTAMPNS, 1);
    if (options_.segments) SetOption(fd.get(), IPPROTO_UDP, UDP_GRO, 1);
    if (bind(fd.get(), address.get(), address.size()) != 0) return ErrnoStatus(errno, doing);
    int actual = 0;
    socklen_t size = sizeof(actual);
    getsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &actual, &size);
    buffer_bytes_ = Bytes(actual / 2);  // the kernel doubles what it is asked for
    ports_.push_back(static_cast<uint16_t>(LocalAddress(fd.get()).port()));
    sockets_.push_back(std::make_unique<Socket>(*this, std::move(fd)));
    WEFT_RETURN_IF_ERROR(poller_.Add(sockets_.back()->fd(), EPOLLIN, sockets_.back().get()));
  }
  return absl::OkStatus();
}

uint32_t UdpSockets::Add(DatagramOwner* owner) {
  while (owners_.contains(next_link_)) ++next_link_;
  owners_[next_link_] = owner;
  return next_link_++;
}

void UdpSockets::Remove(uint32_t link) { owners_.erase(link); }

void UdpSockets::Queue(PathId path, const SocketAddress& to, absl::Span<const std::byte> header,
                       absl::Span<const std::byte> chunk) {
  Socket& socket = *sockets_[path % sockets_.size()];
  if (socket.is_empty()) dirty_.push_back(&socket);
  socket.Queue(to, header, chunk);
}

void UdpSockets::Flush() {
  for (Socket* socket : dirty_) socket->Flush();
  dirty_.clear();
}

void UdpSockets::OnUnblocked() {
  if (blocked_ > 0) return;
  for (auto& [link, owner] : owners_) owner->OnWritable();
}

bool UdpSockets::Read(Socket& socket, absl::Time now) {
  std::array<mmsghdr, kReceives> calls{};
  std::array<iovec, kReceives> vectors;
  struct alignas(cmsghdr) Control : std::array<char, 128> {};
  std::array<Control, kReceives> controls;
  for (size_t i = 0; i < kReceives; ++i) {
    vectors[i] = {buffer_ + i * kReceiveBytes, kReceiveBytes};
    calls[i].msg_hdr.msg_iov = &vectors[i];
    calls[i].msg_hdr.msg_iovlen = 1;
    calls[i].msg_hdr.msg_control = controls[i].data();
    calls[i].msg_hdr.msg_controllen = controls[i].size();
  }
  int got = recvmmsg(socket.fd(), calls.data(), kReceives, MSG_DONTWAIT, nullptr);
  ++statistics_.receive_calls;
  if (got <= 0) return got < 0 && errno == EINTR;
  absl::Duration offset = StampOffset();
  for (int i = 0; i < got; ++i) {
    mmsghdr& call = calls[static_cast<size_t>(i)];
    Notes notes = NotesOf(call.msg_hdr);
    absl::Time at = std::min(now, notes.stamp + offset);
    const std::byte* data = buffer_ + static_cast<size_t>(i) * kReceiveBytes;
    size_t left = (call.msg_hdr.msg_flags & MSG_TRUNC) != 0 ? 0 : call.msg_len;
    size_t segment = notes.segment > 0 ? notes.segment : left;
    if (left == 0) Take({}, false, now, at);
    for (size_t size = 0; left > 0; left -= size, data += size) {
      size = std::min(segment, left);
      Take(absl::MakeConstSpan(data, size), notes.marked, now, at);
    }
  }
  return static_cast<size_t>(got) == kReceives;
}

void UdpSockets::Take(absl::Span<const std::byte> datagram, bool marked, absl::Time now,
                      absl::Time at) {
  ++statistics_.received;
  uint32_t link = 0;
  auto owner = LinkOf(datagram, &link) ? owners_.find(link) : owners_.end();
  if (owner == owners_.end() || !IsSealed(datagram, owner->second->key())) {
    ++statistics_.strangers;
    return;
  }
  owner->second->OnDatagram(datagram.subspan(kEnvelopeBytes), marked, now, at);
}

}  // namespace weft::net::multipath
