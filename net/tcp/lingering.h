// Keeps the sockets of links that were closed here, and the departures (departure.h), until the
// other side has closed as well: closing a socket with unread bytes resets the connection and
// destroys the bytes that are still on their way.
#ifndef WEFT_NET_TCP_LINGERING_H_
#define WEFT_NET_TCP_LINGERING_H_

#include <memory>
#include <vector>

#include "base/poller.h"
#include "net/tcp/departure.h"
#include "net/tcp/socket.h"

namespace weft::net {

// The closing sockets of one transport, driven by its poller. A socket stays for two seconds at
// most; see departure.h for departures.
class Lingering {
 public:
  Lingering();
  // Closes all at once.
  ~Lingering();

  // `whole`: what was written ends with a whole message, and the other side should get it even if
  // this process ends now.
  void Add(Poller& poller, FileDescriptor fd, bool whole);
  void Add(Poller& poller, Departure::Link link);
  // Called before the transport is destroyed. Blocks, for two seconds at most, until the other
  // sides' kernels hold all that was written to `whole` sockets and departures; normally they do
  // already. Drives the poller for the departures, so all its handlers must still exist.
  void AwaitDelivery();
  void clear();

 private:
  class Socket;
  std::vector<std::unique_ptr<Socket>> sockets_;
  std::vector<std::unique_ptr<Departure>> departures_;
  Poller* poller_ = nullptr;  // of the departures
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_LINGERING_H_
