#include "collectives/store/server/store_service.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/log.h"
#include "base/open_files.h"
#include "base/status.h"
#include "collectives/store/protocol/store_connection.h"
#include "net/tcp/close_on_fork.h"

namespace weft::collectives {
namespace {

constexpr size_t kWriteParts = 256;  // of one sendmsg; below IOV_MAX
constexpr size_t kKeptFrames = 16;   // whose memory an empty queue keeps
constexpr int kBacklog = 4096;
// Connections taken in one go, so that those already here are answered in between.
constexpr int kAcceptsATurn = 512;
// Until it tries again where accepting fails.
constexpr absl::Duration kPause = absl::Milliseconds(100);

// Large is what one write does not bring away.
constexpr size_t kLargeBytes = size_t{256} << 10;
constexpr size_t kLargeAtOnce = 64;
constexpr absl::Duration kSlow = absl::Milliseconds(10);

// What is unwritten of the frames at the front, up to one that brings a descriptor of its own.
size_t Gather(absl::Span<const StoreFrameOut> queue, size_t skip,
              std::array<iovec, kWriteParts>& parts) {
  size_t count = 0;
  auto add = [&](absl::string_view text) {
    size_t skipped = std::min(skip, text.size());
    skip -= skipped;
    if (skipped == text.size()) return;
    parts[count++] = {const_cast<char*>(text.data()) + skipped, text.size() - skipped};
  };
  for (const StoreFrameOut& frame : queue) {
    if (count + 2 > kWriteParts || (frame.file && count > 0)) break;
    add(frame.head.view());
    if (frame.body) add(*frame.body);
    if (frame.file) break;
  }
  return count;
}

ssize_t SendSome(int fd, absl::Span<const StoreFrameOut> queue, size_t written) {
  std::array<iovec, kWriteParts> parts;
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = Gather(queue, written, parts);
  if (message.msg_iovlen == 1 && !queue.front().file) {
    return send(fd, parts[0].iov_base, parts[0].iov_len, MSG_NOSIGNAL);
  }
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (queue.front().file && written == 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    int file = queue.front().file->get();
    std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL);
}

// Half of the process's descriptors, a quarter of the memory.
int64_t UnprovenMax(Bytes memory) {
  constexpr int64_t kLeast = 32;
  return std::min(OpenFilesLimit() / 2,
                  std::max(kLeast, memory.count() / 4 / StoreConnections::kUnprovenBytes.count()));
}

FileDescriptor AcceptOne(int listener, SocketAddress& from) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  FileDescriptor socket(accept4(listener, address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) return socket;
  net::SetCloseOnFork(socket.get());
  from = SocketAddress(address, size);
  return socket;
}

FileDescriptor OpenSpare() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

absl::StatusOr<FileDescriptor> ListenForStore(SocketAddress& address, absl::Duration silence) {
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return ErrnoStatus(errno, "make a socket");
  net::SetCloseOnFork(socket.get());
  auto set = [&](int level, int name, int value) {
    setsockopt(socket.get(), level, name, &value, sizeof(value));
  };
  if (!address.is_unix()) {
    set(SOL_SOCKET, SO_REUSEADDR, 1);
    SetStoreSocketOptions(socket.get(), silence);
  }
  if (address.family() == AF_INET6) set(IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket.get(), address.get(), address.size()) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    int error = errno;
    absl::Status status = ErrnoStatus(error, absl::StrCat("listen at ", address.ToString()));
    return error == EADDRINUSE ? absl::AlreadyExistsError(status.message()) : status;
  }
  if (!address.is_unix()) address = LocalAddress(socket.get());
  return socket;
}

StoreService::StoreService(Poller& poller, StoreCore& core, FileDescriptor listener,
                           const SocketAddress& address, int64_t limit)
    : PollHandler(poller),
      owner_(getpid()),
      core_(core),
      listener_(std::move(listener)),
      spare_(OpenSpare()),
      name_(address.ToString()),
      local_(address.is_unix()),
      limit_(limit),
      unproven_max_(UnprovenMax(core.memory_limit())) {
  Watch(listener_.get(), *this);
}

void StoreService::Watch(int fd, PollHandler& handler) {
  const absl::Status added = poller().Add(fd, EPOLLIN, &handler);
  WEFT_CHECK(added.ok(), added.message());
}

StoreService::~StoreService() {
  if (getpid() != owner_) return;  // they are our parent's
  auto end = [this](int fd) {
    poller().Remove(fd);
    shutdown(fd, SHUT_RDWR);
  };
  end(listener_.get());
  TellLeftOut();
  for (auto& [id, peer] : peers_) end(peer->socket.get());
}

void StoreService::OnEvents(uint32_t /*events*/, absl::Time /*now*/) {
  touched_ = true;
  Accept();
}

// Without a descriptor to give, accept4 fails whether anybody waits or not: then the spare one is
// given up for it.
void StoreService::Accept() {
  for (int i = 0; i < kAcceptsATurn; ++i) {
    SocketAddress from;
    FileDescriptor socket = AcceptOne(listener_.get(), from);
    const bool full = !socket && (errno == EMFILE || errno == ENFILE) && spare_;
    if (full) {
      spare_.Reset();
      socket = AcceptOne(listener_.get(), from);
    }
    if (!socket) {
      const int error = errno;
      if (full) spare_ = OpenSpare();
      if (error == EAGAIN) return;
      if (error != EINTR && error != ECONNABORTED) return Pause(error);
      continue;
    }
    ++accepted_;
    std::string peer = local_ ? absl::StrCat(name_, " #", next_) : from.ToString();
    if (!full || MakeRoom(socket, peer)) Admit(std::move(socket), peer);
  }
}

// Gets the spare descriptor back, from whoever has waited longest for a proof, or from `socket`.
bool StoreService::MakeRoom(FileDescriptor& socket, const std::string& peer) {
  constexpr const char* kWhy = "this process is out of file descriptors";
  const bool evicted = EvictOldest(kWhy);
  if (!evicted) {
    Note({0, peer, kWhy});
    socket.Reset();
  }
  spare_ = OpenSpare();
  return evicted;
}

void StoreService::Admit(FileDescriptor socket, const std::string& peer) {
  if (local_ && !PeerIsOurs(socket.get())) return Note({0, peer, "it belongs to another user"});
  if (core_.connections().unproven() >= unproven_max_)
    EvictOldest("others come, too many to wait for it");
  const int64_t connections = core_.connections().size();
  if (connections >= limit_ && !EvictOldest("there is no room for others")) {
    return Note({0, peer, absl::StrCat("there are ", connections, " connections already")});
  }
  uint64_t id = next_++;
  auto added = std::make_unique<Peer>(this, id, std::move(socket));
  added->watched = EPOLLIN;
  Peer& here = *added;
  Watch(here.socket.get(), here);
  peers_.emplace(id, std::move(added));
  core_.connections().Open(id, peer, poller().now(), local_);
  if (local_) PeerReady(here, EPOLLIN);  // its first words are here, mostly
}

// Closes the connection that has been here longest without a proof. False: all have proved
// themselves.
bool StoreService::EvictOldest(absl::string_view why) {
  const uint64_t oldest = core_.connections().oldest_unproven();
  if (oldest == 0) return false;
  Note({oldest, core_.connections().PeerOf(oldest),
        absl::StrCat("it has not finished its handshake, and ", why)});
  Drop(oldest);
  return true;
}

// Accepting fails for a reason that will stay for a while; the listener stays readable meanwhile.
void StoreService::Pause(int error) {
  if (pauses_.Admit(poller().now())) {
    WEFT_LOG_WARN("store ", name_,
                  ": cannot accept connections for now: ", ErrnoStatus(error, "accept").message(),
                  "; trying again", pauses_.LeftOut());
  }
  poller().Change(listener_.get(), 0, this);
  resume_at_ = poller().now() + kPause;
}

void StoreService::Resume(absl::Time now) {
  if (now < resume_at_) return;
  resume_at_ = absl::InfiniteFuture();
  if (!spare_) spare_ = OpenSpare();
  poller().Change(listener_.get(), EPOLLIN, this);
}

void StoreService::PeerReady(Peer& peer, uint32_t events) {
  if (!peer.socket) return;
  touched_ = true;
  if ((events & EPOLLOUT) != 0) MarkDirty(peer);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  if (!core_.connections().WantsInput(peer.id)) {
    // An error or a hang-up is reported whether we want input or not. Input is as well, where
    // another connection's request has made an answer that paused this one in the same round: it
    // stays in the socket until the answer is read.
    if ((events & (EPOLLHUP | EPOLLERR)) != 0) Drop(peer.id);
    return;
  }
  auto* const buffer = reinterpret_cast<char*>(poller().read_buffer());
  ++reads_;
  ssize_t got = recv(peer.socket.get(), buffer, Poller::kReadBufferBytes, 0);
  if (got > 0) {
    core_.connections().Receive(peer.id, {buffer, static_cast<size_t>(got)}, poller().now());
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    Drop(peer.id);
  }
}

void StoreService::Drop(uint64_t id) {
  auto found = peers_.find(id);
  if (found == peers_.end()) return;
  core_.connections().Close(id, poller().now());
  EndLarge(*found->second);
  FileDescriptor& socket = found->second->socket;
  poller().Remove(socket.get());
  shutdown(socket.get(), SHUT_RDWR);  // the peer learns of it though a forked process has a copy
  socket.Reset();
  poller().DeferDelete(std::move(found->second));
  peers_.erase(found);
}

// ---- Large answers

bool StoreService::MayWrite(Peer& peer) {
  if (peer.large != Peer::Large::kNo) return peer.large != Peer::Large::kWaits;
  if (peer.queued - peer.written < kLargeBytes) return true;
  peer.large = Peer::Large::kWaits;
  waiting_.push_back(peer.id);
  return false;
}

void StoreService::EndLarge(Peer& peer) {
  if (peer.large == Peer::Large::kGoes) std::erase(going_, &peer);
  peer.large = Peer::Large::kNo;
}

void StoreService::GiveTurns() {
  if (waiting_.empty()) return;
  std::erase_if(going_, [now = poller().now()](Peer* peer) {
    bool slow = now >= peer->progress + kSlow;
    if (slow) peer->large = Peer::Large::kSlow;
    return slow;
  });
  while (going_.size() < kLargeAtOnce && !waiting_.empty()) {
    auto found = peers_.find(waiting_.front());
    waiting_.pop_front();
    if (found == peers_.end()) continue;
    Peer& peer = *found->second;
    peer.large = Peer::Large::kGoes;
    peer.progress = poller().now();
    going_.push_back(&peer);
    MarkDirty(peer);
  }
}

absl::Time StoreService::deadline() const {
  absl::Time next = std::min(resume_at_, notes_.due());
  if (waiting_.empty()) return next;
  for (const Peer* peer : going_) next = std::min(next, peer->progress + kSlow);
  return next;
}

void StoreService::MarkDirty(Peer& peer) {
  if (peer.dirty) return;
  peer.dirty = true;
  dirty_.push_back(peer.id);
}

// Writing may wake up paused connections, whose requests then have answers, and so on until nothing
// is left.
void StoreService::Settle(absl::Time now, const std::function<void()>& before_writing) {
  Resume(now);
  if (now >= notes_.due()) TellLeftOut();
  core_.Advance(now);
  touched_ = false;
  while (true) {
    TakeOutput();
    GiveTurns();
    std::vector<uint64_t> dirty = std::exchange(dirty_, {});
    if (!dirty.empty()) before_writing();
    for (uint64_t id : dirty) {
      auto found = peers_.find(id);
      if (found == peers_.end()) continue;
      found->second->dirty = false;
      if (MayWrite(*found->second)) Write(*found->second);
    }
    std::vector<StoreConnections::Closing> closings = core_.connections().TakeClosings();
    for (const auto& closing : closings) {
      if (auto found = peers_.find(closing.connection); found != peers_.end()) {
        Write(*found->second);
      }
      if (!closing.reason.empty()) Note(closing);
      Drop(closing.connection);
    }
    if (dirty.empty() && closings.empty()) return;
    for (uint64_t id : dirty) {
      if (auto found = peers_.find(id); found != peers_.end()) Rewatch(*found->second);
    }
  }
}

void StoreService::TakeOutput() {
  core_.connections().TakeOutput(output_);
  Peer* peer = nullptr;
  for (StoreConnections::Output& output : output_) {
    if (peer == nullptr || peer->id != output.connection) {  // answers come in runs
      auto found = peers_.find(output.connection);
      peer = found == peers_.end() ? nullptr : found->second.get();
    }
    if (peer == nullptr) continue;
    peer->queued += output.frame.size();
    bytes_sent_ += Bytes(static_cast<int64_t>(output.frame.size()));
    peer->queue.push_back(std::move(output.frame));
    MarkDirty(*peer);
  }
  output_.clear();
}

void StoreService::Write(Peer& peer) {
  while (!peer.idle()) {
    absl::Span<const StoreFrameOut> rest = peer.queue;
    ++writes_;
    ssize_t sent = SendSome(peer.socket.get(), rest.subspan(peer.first), peer.written);
    if (sent < 0 && errno == EINTR) continue;
    // ETOOMANYREFS: more descriptors are on their way than this user may have; they will arrive.
    if (sent < 0 && (errno == EAGAIN || errno == ETOOMANYREFS)) return;
    if (sent < 0) return Drop(peer.id);
    peer.written += static_cast<size_t>(sent);
    peer.progress = poller().now();
    while (!peer.idle() && peer.written >= peer.queue[peer.first].size()) {
      StoreFrameOut& frame = peer.queue[peer.first++];
      peer.written -= frame.size();
      peer.queued -= frame.size();
      frame = StoreFrameOut();
    }
    if (peer.idle() || (peer.first > kKeptFrames && 2 * peer.first > peer.queue.size())) {
      auto begin = peer.queue.begin();
      peer.queue.erase(begin, begin + static_cast<std::ptrdiff_t>(peer.first));
      peer.first = 0;
      if (peer.queue.empty() && peer.queue.capacity() > kKeptFrames) peer.queue.shrink_to_fit();
    }
    core_.connections().Sent(peer.id, static_cast<size_t>(sent), poller().now());
  }
  EndLarge(peer);
}

void StoreService::Rewatch(Peer& peer) {
  uint32_t wanted = 0;
  if (core_.connections().WantsInput(peer.id)) wanted |= EPOLLIN;
  if (!peer.idle() && peer.large != Peer::Large::kWaits) wanted |= EPOLLOUT;
  if (wanted == peer.watched) return;
  peer.watched = wanted;
  poller().Change(peer.socket.get(), wanted, &peer);
}

void StoreService::Note(const StoreConnections::Closing& closing) {
  ++refused_;
  last_refusal_ = absl::StrCat(closing.peer, ": ", closing.reason);
  if (!notes_.Admit(poller().now())) return;
  WEFT_LOG_WARN("store ", name_, ": closed the connection of ", last_refusal_, notes_.LeftOut());
}

void StoreService::TellLeftOut() {
  const uint64_t count = notes_.TakeLeftOut();
  if (count == 0) return;
  WEFT_LOG_WARN("store ", name_, ": closed ", count, " more connections, the last that of ",
                last_refusal_);
}

}  // namespace weft::collectives
