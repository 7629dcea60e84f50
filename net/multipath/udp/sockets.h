// The UDP sockets of one transport, one a path: path p goes from this process's p-th port to the
// peer's p-th, so that switches which hash ports see as many flows as there are paths, whichever
// way. All links of the transport share them; a datagram says which link it is for
// (decision 6).
//
// Sending gathers consecutive packets of one path to one peer into one segmented send (UDP_SEGMENT)
// where the kernel has that, and hands over many at once (sendmmsg), straight from where chunks
// lie. Receiving takes what the kernel coalesced (UDP_GRO) apart again, with each packet's ECN mark
// and the time at which the kernel got it; see reader.h. Everything is sent as ECN-capable (ECT(0),
// RFC 3168).
//
// A malformed or unauthenticated datagram is counted and dropped; see Statistics. The sockets are
// the process's alone (net/tcp/close_on_fork.h). Driven by the transport's poller; not thread-safe.
#ifndef WEFT_NET_MULTIPATH_UDP_SOCKETS_H_
#define WEFT_NET_MULTIPATH_UDP_SOCKETS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/poller.h"
#include "base/units.h"
#include "net/multipath/udp/datagram.h"
#include "net/multipath/udp/reader.h"
#include "net/tcp/socket.h"

namespace weft::net::multipath {

struct SocketOptions {
  SocketAddress address;  // where to bind; its port is the first path's, or 0: any
  int paths = 8;
  Bytes buffer_bytes;    // SO_SNDBUF and SO_RCVBUF, as far as the kernel allows it
  bool segments = true;  // UDP_SEGMENT and UDP_GRO, where the kernel has them
};

struct SocketStatistics {
  int64_t sent = 0, received = 0;             // packets
  int64_t send_calls = 0, receive_calls = 0;  // of the kernel
  int64_t send_errors = 0;                    // packets that it did not take
  int64_t unauthenticated = 0;                // datagrams for no link, or without its key
  int64_t malformed = 0;                      // with a peer's header, but damaged, or forged
};

// The receiver of datagrams.
class DatagramOwner : public ChunkPlaces {
 public:
  virtual const Key& key() const = 0;  // that its peer seals with
  virtual void OnDatagram(const Received& datagram) = 0;
  // A full socket takes more again.
  virtual void OnWritable() = 0;
};

class UdpSockets final : private DatagramSink {
 public:
  static absl::StatusOr<std::unique_ptr<UdpSockets>> Open(Poller& poller,
                                                          const SocketOptions& options);
  ~UdpSockets() override;

  int paths() const { return static_cast<int>(sockets_.size()); }
  const std::vector<uint16_t>& ports() const { return ports_; }
  Bytes buffer_bytes() const { return buffer_bytes_; }  // that one socket has
  bool segments() const { return segments_; }
  const SocketStatistics& statistics() const { return statistics_; }
  SocketStatistics& mutable_statistics() { return statistics_; }

  // A number for the envelope, under which `owner` gets datagrams until Remove().
  uint32_t Add(DatagramOwner* owner);
  void Remove(uint32_t link);

  // False: a socket is full; OnWritable() follows.
  bool CanSend() const { return blocked_ == 0; }
  // `header` with its envelope; both are read until the next Flush(), which must come before
  // anything may happen to the chunk.
  void Queue(PathId path, const SocketAddress& to, absl::Span<const std::byte> header,
             absl::Span<const std::byte> chunk);
  void Flush();

 private:
  class Socket;
  UdpSockets(Poller& poller, const SocketOptions& options);
  absl::Status OpenAll(const SocketAddress& first);
  // The link that a datagram is for and whose peer has sealed it; null: none, it is not authentic.
  DatagramOwner* OwnerOf(absl::Span<const std::byte> header);
  ChunkPlaces* PlacesOf(absl::Span<const std::byte> header) override { return OwnerOf(header); }
  void Take(const Received& datagram) override;
  void OnUnblocked();

  Poller& poller_;
  const SocketOptions options_;
  bool segments_;
  Bytes buffer_bytes_;
  std::vector<std::unique_ptr<Socket>> sockets_;
  std::vector<Socket*> dirty_;  // with something queued
  std::vector<uint16_t> ports_;
  std::unordered_map<uint32_t, DatagramOwner*> owners_;
  uint32_t next_link_;
  int blocked_ = 0;
  SocketStatistics statistics_;
  DatagramReader reader_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_UDP_SOCKETS_H_
