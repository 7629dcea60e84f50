// Replaces the lost sockets of one link. The connecting end connects to the listener again, and
// learns at once when that is gone or does not know the link. The accepting end waits for the new
// socket, and probes meanwhile whether the other process lives: it connects to that process's
// listening port (life_port), and closes the connection.
//
// Bounds: what was lost is given up as tcp.dead_after says (Begin's `give_up`); as long as the
// other side's kernel accepts connections for a process that does not answer, as one that is
// stopped, kBusyPatience times as late.
#ifndef WEFT_NET_TCP_RESUMPTION_H_
#define WEFT_NET_TCP_RESUMPTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/poller.h"
#include "net/tcp/connector.h"
#include "net/tcp/resume_book.h"
#include "net/tcp/socket.h"

namespace weft::net {

struct TcpContext;

inline constexpr int kBusyPatience = 10;

class ResumptionOwner {
 public:
  virtual ~ResumptionOwner() = default;
  // A proven socket for stream `index`; `received` came on it already. May come unasked, when the
  // other side has seen an end of the old one that has not reached this side.
  virtual void OnNewSocket(size_t index, uint32_t epoch, FileDescriptor socket,
                           std::string received, absl::Time now) = 0;
  // kUnavailable: the other process has died or has closed the link. kDeadlineExceeded: what was
  // tried, in vain.
  virtual void OnNotReplaced(size_t index, const absl::Status& why, absl::Time now) = 0;
};

class Resumption {
 public:
  virtual ~Resumption() = default;
  virtual void Begin(size_t index, absl::Time give_up, absl::Time now) = 0;
  virtual void End(size_t index) = 0;  // it is replaced
  // Socket `index` stands, but is silent, as on a path that has died. The connecting end dials
  // beside it, from another port on the same way, then on another way; a dial that is answered
  // gives OnNewSocket(), and where none is, nothing has changed.
  virtual void Suspect(size_t /*index*/, absl::Time /*now*/) {}
  // The reports about paths have changed. The connecting end dials, beside each socket that is not
  // on its way of now, on that way.
  virtual void FollowPaths(absl::Time /*now*/) {}
  virtual void SetOwner(ResumptionOwner& owner) = 0;
  virtual void Close() = 0;  // the link has ended: nothing comes any more
  // Sockets that wait in the book; the accepting end's.
  virtual void TakeArrivals(absl::Time /*now*/) {}
};

// `address` is where the link was connected to; `parameters` are those of one of its sockets;
// `planned` are the ways that the plan gives its sockets, `ways` those that the sockets take now. A
// socket that is replaced takes a way that has not failed; a socket that has left its planned way
// goes back to it once that way answers a dial.
std::unique_ptr<Resumption> MakeRedial(TcpContext& context, const ConnectorIdentity& identity,
                                       Rank peer, std::string address,
                                       const LinkParameters& parameters,
                                       const std::vector<topology::PathWay>& planned,
                                       const std::vector<topology::PathWay>& ways,
                                       ResumptionOwner& owner, absl::Time now);
// `life`: where the other process listens; empty: not known. Null: the link cannot be resumed.
std::unique_ptr<Resumption> MakeAwait(TcpContext& context, Rank peer,
                                      const LinkParameters& parameters, const SocketAddress& life,
                                      ResumptionOwner& owner);

}  // namespace weft::net

#endif  // WEFT_NET_TCP_RESUMPTION_H_
