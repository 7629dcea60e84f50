// The other processes of the job and the links to them, as the parts of an endpoint share them.
#ifndef WEFT_COLLECTIVES_PEERS_H_
#define WEFT_COLLECTIVES_PEERS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "net/flow_watch.h"
#include "net/transport.h"

namespace weft::collectives {

inline constexpr int kTransportsMax = 2;

struct Peer {
  Rank rank;                                  // of the job
  int transport = 0;                          // which of the endpoint's
  std::string address;                        // empty: not known yet
  bool sought = false;                        // its record is being looked up
  std::unique_ptr<net::SendLink> send;        // null until a call needs it
  std::unique_ptr<net::ReceiveLink> receive;  // null until the peer has connected
  absl::Status gone;                          // not OK: a link to it broke, no new one is made
  int64_t gone_ns = 0;                        // when
  std::deque<std::string> notices;            // to be posted
  // The turn of the engine in which the link last said "not yet": point-to-point messages keep
  // their order by trying no more in that turn.
  uint64_t send_full_turn = 0, receive_full_turn = 0;
  net::FlowWatch send_watch, receive_watch;  // of the sampler (recorder.h)

  // Whether the link to it (`sends`), or from it, is there and has had its handshake.
  bool HasLink(bool sends) const {
    return sends ? send != nullptr && send->connected() : receive != nullptr;
  }
  bool HoldsNotices() const {  // that it would not get if its links were closed now
    return !notices.empty() || (send != nullptr && send->HoldsNotices()) ||
           (receive != nullptr && receive->HoldsNotices());
  }
};

struct Group;  // collectives/operation.h

// What the executor and messages ask of the endpoint.
class Peers {
 public:
  virtual ~Peers() = default;
  virtual net::SendLink* SendTo(Peer& peer) = 0;  // connects when there is no link yet
  // For one operation, or shorter: the region goes when that is over.
  virtual absl::StatusOr<net::Region> Register(int transport, void* data, size_t size) = 0;
  // Memory of net::shm::AllocateMemory() stays registered there while it lives.
  virtual bool KeepsRegistrations(int /*transport*/) const { return false; }
  // Notices about receives from any rank (any_source.h); `peer` is a group rank.
  virtual void Seek(Group& group, int peer, uint32_t tag) = 0;
  virtual void Offer(Group& group, int peer, uint32_t tag, uint32_t known) = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_PEERS_H_
