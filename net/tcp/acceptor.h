// Accepts connections and does the handshake on each. Hands over a link once all of its sockets
// have come; a socket that replaces a lost one of an established link goes to the book
// (resume_book.h).
//
// Peers that have not proved yet that they hold the job's secret get kHandshakeTimeout and a
// bounded share of the process's descriptors. Once that share is full, each new connection evicts
// the oldest one of the network that has most, so that a flood from one network does not evict
// peers of others. No connection is evicted before kProofGrace: while the oldest is younger, new
// ones wait in the kernel's queue. Some descriptors are left for files. When they run out all the
// same, new connections are closed (their peers try again) instead of left in a queue that keeps
// the listener busy.
#ifndef WEFT_NET_TCP_ACCEPTOR_H_
#define WEFT_NET_TCP_ACCEPTOR_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/log_throttle.h"
#include "base/poller.h"
#include "net/tcp/socket.h"
#include "net/transport.h"

namespace weft::net {

struct Hello;
struct LinkParameters;
struct TcpContext;

// Age before which a connection is not closed in favour of another: many round trips, and time for
// a peer whose cores are busy.
inline constexpr absl::Duration kProofGrace = absl::Milliseconds(50);
// For a process that may have `limit` descriptors open: the most unauthenticated peers of one
// listener (a process may have a listener for each of its devices), and the descriptors that
// listeners leave for files.
int64_t UnprovenPeersMax(int64_t limit);
int64_t DescriptorsReserved(int64_t limit);

class AcceptorOwner {
 public:
  virtual ~AcceptorOwner() = default;
  // Whether the peer may have a new link here; an error is sent to the peer as the reason.
  virtual absl::Status Admit(Rank /*peer*/) { return absl::OkStatus(); }
  // `parameters` of one of the sockets.
  virtual void OnPeer(Rank peer, const LinkParameters& parameters,
                      std::vector<FileDescriptor> sockets, absl::Time now) = 0;
};

class Acceptor final : public PollHandler {
 public:
  static absl::StatusOr<std::unique_ptr<Acceptor>> Create(TcpContext& context,
                                                          const SocketAddress& address,
                                                          AcceptorOwner& owner);
  ~Acceptor() override;
  // Accepts no more connections. The kernel still does, so that peers which probe whether this
  // process lives see that it does.
  void StopAccepting();
  SocketAddress address() const { return LocalAddress(listener_.get()); }

  void OnEvents(uint32_t events, absl::Time now) override;
  void OnDeadline(absl::Time now) override;  // after a pause for want of descriptors

 private:
  class PendingConnection;
  // A link some of whose sockets have not come yet. One a rank: a newer one replaces it.
  struct PendingLink {
    uint64_t link_id = 0;
    std::vector<PendingConnection*> connections;  // by index; null: has not come
    size_t present = 0;
  };
  Acceptor(TcpContext& context, FileDescriptor listener, FileDescriptor spare,
           AcceptorOwner& owner);
  void BeginHandshake(FileDescriptor fd, absl::Time now);
  // Closes one connection that is not proved. False: none, or its time is not over yet.
  bool Evict(absl::Time now);
  void ForgetUnproven(PendingConnection& connection);
  void OnExhausted(const absl::Status& why, absl::Time now);
  absl::Status CheckHello(const Hello& hello, LinkParameters* out) const;
  void OnProven(PendingConnection& connection, absl::Time now);
  void TellTurnedAway(Rank rank, const absl::Status& why);
  void Drop(PendingConnection& connection);
  void DropPendingLink(Rank rank);
  void Pause(absl::Time until);
  void ListenAgain();
  bool SomebodyWaits() const;  // a connection waits to be accepted

  TcpContext& context_;
  FileDescriptor listener_;
  FileDescriptor spare_;  // closed for a moment to refuse a connection when none is left
  AcceptorOwner& owner_;
  bool listening_ = false;
  bool stopped_ = false;  // for good
  LogThrottle exhausted_, evicted_, late_, turned_away_;
  std::list<std::unique_ptr<PendingConnection>> pending_connections_;  // the oldest first
  std::map<std::string, int64_t> unproven_;  // of pending_connections_, by SocketAddress::Network()
  int64_t unproven_count_ = 0;
  std::map<Rank, PendingLink> pending_links_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_ACCEPTOR_H_
