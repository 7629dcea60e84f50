// How a link comes up: net/handshake.h over a packet socket, with the descriptors of the segment
// and of both doorbells riding on its messages.
//
//   acceptor                                  connector
//   Challenge ------------------------------->
//      <------------- Hello + {segment, its eventfd, its doorbell page}
//   Verdict + {our eventfd, our doorbell page} ->
//
// Both look at SO_PEERCRED first: another user is turned away without a word. The socket stays open
// and silent; its hang-up is the sign that the other side is gone.
#ifndef WEFT_NET_SHM_BRINGUP_H_
#define WEFT_NET_SHM_BRINGUP_H_

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
  UniqueFd socket;
  Segment segment;
  PeerBell bell;
  Rank peer;
  pid_t pid = 0;
  uint32_t receives_max = 0;  // connector: how many clear-to-sends the acceptor may have out
};

// Both: Step() moves on as far as possible without blocking. nullopt: not yet, call again when
// fd() is readable or deadline() has come. `doorbell` outlives them.
class Connecting {
 public:
  Connecting(absl::string_view address, const HandshakeIdentity& self, Rank peer,
             const Geometry& geometry, const Doorbell* doorbell, absl::Time give_up);
  ~Connecting();
  absl::StatusOr<std::optional<Wire>> Step(absl::Time now);
  int fd() const { return wire_.socket.get(); }  // -1: not connected yet
  absl::Time deadline() const { return retry_at_ < give_up_ ? retry_at_ : give_up_; }

 private:
  absl::Status Dial(absl::Time now);
  absl::Status Flush();
  absl::StatusOr<std::optional<Wire>> Finish(Packet packet);

  std::string address_;
  Rank peer_;
  const Doorbell* doorbell_;
  absl::Time give_up_;
  absl::Time retry_at_ = absl::InfiniteFuture();
  ConnectorHandshake handshake_;
  absl::Status setup_;
  UniqueFd segment_fd_;
  std::string output_;
  Wire wire_;
};

class Arriving {
 public:
  Arriving(UniqueFd socket, const HandshakeIdentity& self, uint32_t receives_max,
           const Doorbell* doorbell, absl::Time give_up);
  absl::StatusOr<std::optional<Wire>> Step(absl::Time now);
  int fd() const { return wire_.socket.get(); }
  absl::Time deadline() const { return give_up_; }

 private:
  absl::Status Flush(absl::Span<const int> fds);
  absl::Status TakeHello(Packet packet);
  absl::StatusOr<std::optional<Wire>> Reply();

  const Doorbell* doorbell_;
  absl::Time give_up_;
  ListenerHandshake handshake_;
  uint32_t receives_max_;
  absl::Status refused_;
  std::string output_;
  Wire wire_;
};

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_BRINGUP_H_
