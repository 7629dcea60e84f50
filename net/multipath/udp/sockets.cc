#include "net/multipath/udp/sockets.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/open_files.h"
#include "base/random.h"
#include "base/status.h"
#include "net/handshake.h"
#include "net/tcp/close_on_fork.h"

namespace weft::net::multipath {
namespace {

constexpr size_t kSlots = 64;        // packets that one socket gathers
constexpr size_t kSegmentsMax = 64;  // of one segmented send; UDP_MAX_SEGMENTS of older kernels
constexpr int kCallsPerTurn = 8;     // so that other sockets, and answers, get their turns
constexpr uint8_t kEcnCapable = 2;

bool SetOption(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

}  // namespace

class UdpSockets::Socket final : public PollHandler {
 public:
  Socket(UdpSockets& all, FileDescriptor fd)
      : PollHandler(all.poller_), all_(all), fd_(std::move(fd)), headers_(kSlots) {}
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

  void OnEvents(uint32_t events, absl::Time /*now*/) override {
    if ((events & EPOLLOUT) != 0) SendBacklog();
    if ((events & (EPOLLIN | EPOLLERR)) == 0) return;
    ReadResult result{.has_more = true};
    for (int calls = 0; result.has_more && calls < kCallsPerTurn; calls += result.calls) {
      result = all_.reader_.Read(fd_.get(), is_bulk_);
      all_.statistics_.receive_calls += result.calls;
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
      WEFT_LOG_INFO("multipath: segmented sends do not work here (", std::strerror(error),
                    "); going on without");
      all_.segments_ = false;
    } else if (all_.statistics_.send_errors == 0) {
      WEFT_LOG_WARN("multipath: sending ", message.segment, " bytes to ", message.to.ToString(),
                    " failed: ", std::strerror(error));
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
  bool is_bulk_ = false;  // the reader's
};

UdpSockets::UdpSockets(Poller& poller, const SocketOptions& options)
    : poller_(poller), options_(options), segments_(options.segments), reader_(*this) {
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
    SetCloseOnFork(fd.get());
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
      SetOption(fd.get(), IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0);  // ports alone choose the path
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

DatagramOwner* UdpSockets::OwnerOf(absl::Span<const std::byte> header) {
  uint32_t link = 0;
  if (!LinkOf(header, &link)) return nullptr;
  auto owner = owners_.find(link);
  if (owner == owners_.end() || !IsSealed(header, owner->second->key())) return nullptr;
  return owner->second;
}

void UdpSockets::Take(const Received& datagram) {
  ++statistics_.received;
  DatagramOwner* owner = OwnerOf(datagram.header);
  if (owner == nullptr) {
    ++statistics_.unauthenticated;
    return;
  }
  owner->OnDatagram(datagram);
}

}  // namespace weft::net::multipath
