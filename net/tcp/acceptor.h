// Accepts connections, shakes hands on each, and hands over a link once all of its sockets are
// there, or to the book (resume_book.h) a socket that replaces one of a link that stands.
// Strangers, garbage and half-open connections cost one socket for at most kHandshakeTimeout; when
// descriptors run out, those who knock are turned away (they try again) instead of left in a queue
// that keeps the listener busy.
#ifndef WEFT_NET_TCP_ACCEPTOR_H_
#define WEFT_NET_TCP_ACCEPTOR_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "net/tcp/poller.h"
#include "net/tcp/socket.h"
#include "net/transport.h"

namespace weft::net {

struct Hello;
struct LinkParameters;
struct TcpContext;

class AcceptorOwner {
 public:
  virtual ~AcceptorOwner() = default;
  // An error is why this peer may not have a new link here, and is told to it.
  virtual absl::Status Admit(Rank /*peer*/) { return absl::OkStatus(); }
  // `parameters` of one of the sockets.
  virtual void OnPeer(Rank peer, const LinkParameters& parameters,
                      std::vector<FileDescriptor> sockets, absl::Time now) = 0;
};

class Acceptor final : public Handler {
 public:
  static absl::StatusOr<std::unique_ptr<Acceptor>> Create(TcpContext& context,
                                                          const SocketAddress& address,
                                                          AcceptorOwner& owner);
  ~Acceptor() override;
  SocketAddress address() const { return LocalAddress(listener_.get()); }

  void OnEvents(uint32_t events, absl::Time now) override;
  void OnDeadline(absl::Time now) override;  // after a pause for want of descriptors

 private:
  class Guest;
  // The sockets of one link that have come so far, and its id. One per rank: a newer replaces it.
  struct Party {
    uint64_t link_id = 0;
    std::vector<Guest*> guests;  // by index; null: not there yet
    size_t present = 0;
  };
  Acceptor(TcpContext& context, FileDescriptor listener, FileDescriptor spare,
           AcceptorOwner& owner);
  void Welcome(FileDescriptor fd, absl::Time now);
  void OnExhausted(int error_number, absl::Time now);
  absl::Status CheckHello(const Hello& hello, LinkParameters* out) const;
  void OnProven(Guest& guest, absl::Time now);
  void TellTurnedAway(Rank rank, const absl::Status& why);
  void Dismiss(Guest& guest);
  void DismissParty(Rank rank);
  void Pause(absl::Time until);

  TcpContext& context_;
  FileDescriptor listener_;
  FileDescriptor spare_;  // given up for a moment to turn somebody away when none is left
  AcceptorOwner& owner_;
  bool listening_ = false;
  bool warned_ = false;
  std::list<std::unique_ptr<Guest>> guests_;
  std::map<Rank, Party> parties_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_ACCEPTOR_H_
