// How a link comes up: net/handshake.h over a packet socket, with the descriptors of the segment
// and of both doorbells riding on its messages.
//
//   acceptor                                  connector
//   Challenge ------------------------------->
//      <------------- Hello + {segment, its eventfd, its doorbell page}
//   Verdict + {our eventfd, our doorbell page} ->
//
// Both look at SO_PEERCRED first: another user is turned away without a word. The socket stays open
// and silent; its hang-up is the sign that the other side is gone. So is the exit of its process,
// for one that is killed may have made others without handlers of fork(2), which hold its sockets.
#ifndef WEFT_NET_SHM_BRINGUP_H_
#define WEFT_NET_SHM_BRINGUP_H_

#include <algorithm>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "net/handshake.h"
#include "net/shm/doorbell.h"
#include "net/shm/segment.h"
#include "net/shm/unix_socket.h"

namespace weft::net::shm {

// A link that stands.
struct Wire {
  FileDescriptor socket;
  Segment segment;
  PeerBell bell;
  Rank peer;
  pid_t pid = 0;
  FileDescriptor process;     // OpenProcess(pid), once the link is established
  uint32_t receives_max = 0;  // connector: how many clear-to-sends the acceptor may have out
};

// A process that has no descriptors left for those of a handshake waits for some; others of its
// threads may free them. After so long it says so to both sides.
inline constexpr absl::Duration kDescriptorsWait = absl::Seconds(2);

class DescriptorShortage {
 public:
  // Whether `count` descriptors can be taken. Not for kDescriptorsWait: ResourceExhausted, with the
  // limit and what to do.
  absl::StatusOr<bool> CanTake(int count, absl::Time now);
  // When CanTake() is to be asked again although nothing has come.
  absl::Time deadline() const { return is_over_ ? absl::InfiniteFuture() : give_up_; }

 private:
  absl::Time give_up_ = absl::InfiniteFuture();
  bool is_over_ = false;  // the wait, without success
};

// What the transport's epoll watches a descriptor for.
class SocketWatcher {
 public:
  virtual void OnWatched() = 0;  // the descriptor is readable, or has hung up

 protected:
  ~SocketWatcher() = default;
};

// Both: Step() moves on as far as possible without blocking. nullopt: not yet, call again when
// IsDue(): a step that finds nothing costs half a dozen system calls, and a rank may have a link to
// each of its peers on the way. `doorbell` outlives them.
class Connecting {
 public:
  Connecting(absl::string_view address, const HandshakeIdentity& self, Rank peer,
             const Geometry& geometry, const Doorbell* doorbell, absl::Time give_up);
  ~Connecting();
  absl::StatusOr<std::optional<Wire>> Step(absl::Time now);
  int fd() const { return wire_.socket.get(); }  // -1: not connected yet
  absl::Time deadline() const { return std::min({retry_at_, give_up_, shortage_.deadline()}); }
  void NoteReadable() { readable_ = true; }  // fd() is
  bool IsDue(absl::Time now) const { return readable_ || !output_.empty() || now >= deadline(); }

 private:
  absl::Status Dial(absl::Time now);
  absl::Status Flush();
  absl::StatusOr<std::optional<Wire>> Finish(Packet packet);

  std::string address_;
  Rank peer_;
  const Doorbell* doorbell_;
  absl::Time give_up_;
  absl::Time retry_at_ = absl::InfiniteFuture();
  DescriptorShortage shortage_;
  ConnectorHandshake handshake_;
  absl::Status setup_;
  FileDescriptor segment_fd_;
  bool readable_ = true;  // not looked at yet
  std::string output_;
  Wire wire_;
};

class Arriving final : public SocketWatcher {
 public:
  Arriving(FileDescriptor socket, const HandshakeIdentity& self, uint32_t receives_max,
           const Doorbell* doorbell, absl::Time give_up);
  absl::StatusOr<std::optional<Wire>> Step(absl::Time now);
  int fd() const { return wire_.socket.get(); }
  absl::Time deadline() const { return std::min({retry_at_, give_up_, shortage_.deadline()}); }
  void OnWatched() override { readable_ = true; }
  bool IsDue(absl::Time now) const { return readable_ || !output_.empty() || now >= deadline(); }

 private:
  absl::Status Flush(absl::Span<const int> fds);
  absl::Status TakeHello(Packet packet);
  absl::StatusOr<std::optional<Wire>> Reply(absl::Time now);
  absl::StatusOr<std::optional<Wire>> NotYet(absl::Time now);

  const Doorbell* doorbell_;
  absl::Time give_up_;
  absl::Time retry_at_ = absl::InfiniteFuture();  // to send what could not be sent
  DescriptorShortage shortage_;
  ListenerHandshake handshake_;
  uint32_t receives_max_;
  absl::Status refused_;
  bool readable_ = true;  // not looked at yet
  std::string output_;
  Wire wire_;
};

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_BRINGUP_H_
