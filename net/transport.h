// Transports: how bytes get from one process to another. Read this page first.
//
// A Transport is one process's attachment to one kind of network. It listens at an address, and it
// makes links to the addresses of others. A link carries messages one way, from a SendLink to a
// ReceiveLink; what the protocol itself has to say (clear-to-send, notices) travels both ways on
// it. Two processes that talk in both directions hold two links.
//
// Messages are receiver-driven, as in NCCL's net transports: a posted receive sends a clear-to-send
// to the sender, the sender matches it to a posted send with the same tag, first posted first
// matched, and only then moves bytes, straight to where they belong. So a receive that is not
// posted does not delay other messages, and memory use is bounded by what was posted. Over shm and
// verbs small messages are sent ahead of their receive, and a bounded number of them is buffered
// (shm.eager_max, verbs.eager_max).
//
// Everything is non-blocking and happens inside Progress(). "Not yet" is a value (Posted::kNotYet),
// never an error; its retry rule: call again after Progress() has returned true. A fault breaks a
// link: every request on it completes with one status that names rank, device, path, what was tried
// and what to do; what can be survived (EINTR, a full socket, one lost NIC of several) never gets
// that far.
//
// Threading: a Transport and all that it made are used by one thread at a time; the owner
// serialises. The one exception is waiting: poll() on wait_fd() needs no lock. Time: Progress takes
// `now`; a transport reads no clock. Ownership: requests and registered memory belong to the caller
// and must outlive the link or the request's completion; destroying a link completes all its
// requests with kCancelled.
#ifndef WEFT_NET_TRANSPORT_H_
#define WEFT_NET_TRANSPORT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "base/settings.h"
#include "net/flow_counters.h"

namespace weft::net {

enum class TransportKind : uint8_t { kShm, kTcp, kUcx, kMultipath, kVerbs };
const char* ToString(TransportKind kind);  // "shm", "tcp", "ucx", "multipath", "verbs"

// ---- Memory

class Region;

// A stretch of registered memory; the only thing that can be sent or received into. Copy freely.
class RegionView {
 public:
  RegionView() = default;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  RegionView Slice(size_t offset, size_t size) const;  // aborts when out of range

 private:
  friend class Region;
  RegionView(std::byte* data, size_t size, const Region* region)
      : data_(data), size_(size), region_(region) {}
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  const Region* region_ = nullptr;
};

// Registered memory. Move-only; the destructor deregisters. It does not own the bytes.
class Region {
 public:
  Region() = default;
  Region(std::byte* data, size_t size, std::function<void()> deregister)
      : data_(data), size_(size), deregister_(std::move(deregister)) {}
  Region(Region&& other) noexcept { *this = std::move(other); }
  Region& operator=(Region&& other) noexcept;
  ~Region();
  RegionView view() const { return RegionView(data_, size_, this); }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::function<void()> deregister_;  // empty where registration costs nothing
};

// Memory of a device, such as a GPU: NICs read and write it, this processor never does, so that it
// can be sent and received into, but not reduced.
struct DeviceMemory {
  void* data = nullptr;  // where its users see it
  size_t size = 0;
  // Its DMA-BUF, and where `data` is in that; may be closed after it was registered. -1: none, the
  // kernel knows the device by the address (nvidia_peermem).
  int dma_buf = -1;
  uint64_t offset = 0;
};

// ---- Requests

// One posted send or receive. The caller owns it and keeps it in place until done(); then it may be
// reused. Written by Progress() only.
class Request {
 public:
  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  bool done() const { return done_; }
  const absl::Status& status() const { return status_; }  // meaningful once done
  size_t bytes() const { return bytes_; }                 // really sent or received

  // For transports.
  void Begin() { done_ = false, bytes_ = 0, status_ = absl::OkStatus(); }
  void Finish(absl::Status status, size_t bytes) {
    status_ = std::move(status), bytes_ = bytes, done_ = true;
  }

 private:
  bool done_ = true;
  size_t bytes_ = 0;
  absl::Status status_;
};

enum class [[nodiscard]] Posted : uint8_t{
    kAccepted,  // the request will complete, well or with an error
    kNotYet,    // the link holds as much as it may; nothing was kept; call again after Progress()
                // has returned true
};

// `tag` pairs a receive with a send of the same tag: first posted, first matched, per link. `check`
// must then agree as well, or both requests fail with kFailedPrecondition and "message check
// differs": two sides that mean different things by one tag find out before a byte is written. A
// send that was done before its receive was posted (eager_max) cannot fail any more:
// TransportEvents::OnMismatch says it. The same goes for messages that are too long.
struct MessageKey {
  uint64_t tag = 0;
  uint64_t check = 0;
};

// What a receive does with bytes as they arrive. With `reduce`, piece by piece and straight from
// the transport's own memory: out[i] = reduce(local[i], incoming[i]), which saves a pass over
// memory. `bytes` is a multiple of 64, except in the last piece of a message; pieces of one message
// come in any order, each once. `local` may be equal to `out`, else does not overlap it.
// A message longer than `out` fails both requests with kOutOfRange; a shorter one is fine.
// `sender_waits`: the message is sent with SendSource::waits, from host memory. Over verbs a small
// receive expects its message without having asked for it, and is late (10 ms) for one that waits.
using ReduceFn = void (*)(std::byte* out, const std::byte* local, const std::byte* incoming,
                          size_t bytes);
struct ReceiveTarget {
  RegionView out;
  const std::byte* local = nullptr;  // as long as `out`; null without `reduce`
  ReduceFn reduce = nullptr;         // null: store
  bool sender_waits = false;
};

// Where a send takes its bytes from. `warm`: this process has just written them, so that they are
// in its cache; a transport within a host then copies them itself, which is faster than letting the
// peer read them. `urgency`: over shm, tcp and verbs, a message that is more urgent goes before
// what is left of others that are under way; messages of one tag still match in their order.
// `waits`: it is not sent ahead of its receive, so that it is done only once there is one.
struct SendSource {
  SendSource(RegionView view, bool is_warm = false,
             uint8_t how_urgent = 0)  // NOLINT: a view is one
      : data(view), warm(is_warm), urgency(how_urgent) {}
  RegionView data;
  bool warm;
  uint8_t urgency;
  bool waits = false;
};

// ---- Links

// The longest notice, and the longest address.
inline constexpr size_t kNoticeBytesMax = 512;
inline constexpr size_t kAddressBytesMax = 512;

// One of the parallel connections that a link spreads its bytes over: a socket, a queue pair, a
// path. Facts that a transport does not know are empty; counts are since the link was made.
struct LaneReport {
  std::string name;     // "10.0.0.1:41000 -> 10.0.0.2:7000", sender first
  int source_port = 0;  // TCP's or UDP's, the sender's; 0: it has none
  uint64_t bytes = 0;   // that got across, with what the protocol adds to them
  // Packets that were sent again; of reliable queue pairs, whose packets the device keeps to
  // itself, writes that went again with another queue pair.
  std::optional<uint64_t> retransmissions;
  std::optional<absl::Duration> rtt;  // as it is now, smoothed; of a queue pair, of a write
  // Time with bytes in flight, and the parts of it in which the peer's window, or this side's own
  // buffer, was the limit.
  std::optional<absl::Duration> busy, peer_limited, buffer_limited;
};

class Link {
 public:
  virtual ~Link() = default;
  virtual Rank peer() const = 0;
  // OK, also while connecting; otherwise what broke it, for good.
  virtual const absl::Status& status() const = 0;
  // A small message outside of matching, delivered once and in order to TransportEvents::OnNotice.
  virtual Posted PostNotice(absl::string_view bytes) = 0;
  // Whether notices wait that the peer would never get if the link were destroyed now.
  virtual bool HoldsNotices() const { return false; }
  // Gives the link up for good, where its end in good order, the destructor, has to wait: completes
  // all of its requests with `why`, after which their memory is not touched any more, and calls
  // OnBroken. Not from inside Progress(). The peer sees a link that broke.
  virtual void Break(const absl::Status& why) = 0;
  // "tcp 10.0.0.1:41000 -> 10.0.0.2:7000 (2 sockets)": for people.
  virtual std::string Describe() const = 0;
  // Costs a system call a lane; empty where there is nothing to tell.
  virtual std::vector<LaneReport> Lanes() const { return {}; }
  // What has passed over the link: no lock, no system call.
  virtual FlowCounters Counters() const { return counters_; }
  // What the link's own messages call its peer from now on, instead of "rank 3".
  virtual void NamePeer(absl::string_view /*name*/) {}

 protected:
  FlowCounters counters_;  // for transports
};

class SendLink : public Link {
 public:
  // May be called before the connection stands. Size 0 is a message like any other.
  virtual Posted PostSend(MessageKey key, const SendSource& source, Request* request) = 0;
  // The handshake is over.
  virtual bool connected() const { return true; }
  // Lets the peer map memory of this process for reading: the number by which its ReceiveLink finds
  // it. nullopt: not yet, call again. kNotShown: never, for it does not lie in memory that links
  // share (net/shm/shared_memory.h), or the peer cannot map more.
  static constexpr uint32_t kNotShown = 0;
  virtual std::optional<uint32_t> Show(const std::byte* /*data*/, size_t /*bytes*/) {
    return kNotShown;
  }
  // What the peer waits for has been written to memory that it maps: if it sleeps, the next
  // Transport::Progress() or WakePeers() wakes it.
  virtual void WakePeer() {}
};

// Memory of a peer, mapped for reading; it stays while this lives.
struct ShownMemory {
  std::shared_ptr<const std::byte> data;  // null: there is none of that number, or no room for it
  size_t bytes = 0;
};

class ReceiveLink : public Link {
 public:
  virtual Posted PostReceive(MessageKey key, const ReceiveTarget& target, Request* request) = 0;
  // Drops the messages that came ahead of their receives and of which TransportEvents::Wants() is
  // false (by now). Not from inside Progress().
  virtual void DropUnwanted() {}
  // What the peer's SendLink::Show() has shown, in all of its memory.
  virtual ShownMemory Shown(uint32_t /*number*/) { return {}; }
  // For memory of a device: completes once that device sees all bytes that completed receives have
  // put into `where`. For host memory: completes at once.
  virtual void Flush(const RegionView& /*where*/, Request* request) {
    request->Begin();
    request->Finish(absl::OkStatus(), 0);
  }
};

// What a transport tells its owner, from inside Progress(). An implementation may post and connect,
// but must not destroy a link or the transport.
class TransportEvents {
 public:
  virtual ~TransportEvents() = default;
  // A peer has connected and proved that it belongs to the job. At most one link a peer is alive; a
  // second one means that the peer came back, and the first is broken already.
  virtual void OnAccepted(std::unique_ptr<ReceiveLink> link) = 0;
  virtual void OnNotice(Link& link, absl::string_view bytes) = 0;
  // Called once a link, after its requests were completed with the same status.
  virtual void OnBroken(Link& link, const absl::Status& status) = 0;
  // A receive at the peer failed with `status` whose send here was done before; the link goes on.
  virtual void OnMismatch(Link& /*link*/, const absl::Status& /*status*/) {}
  // Whether a receive with `tag` may yet be posted: asked for a small message that came ahead of
  // its receive. If not, it is dropped, as it would take a place of those that may wait.
  virtual bool Wants(uint64_t /*tag*/) { return true; }
  // A peer that holds the secret, but does not fit this process (another kind of transport, other
  // terms), was refused, and told why.
  virtual void OnTurnedAway(Rank /*peer*/, const absl::Status& /*why*/) {}
};

// ---- Transport

// The secret that all ranks of a job share; peers without it are refused at the handshake.
using JobSecret = std::array<uint8_t, 32>;

struct TransportOptions {
  Rank self;           // of the job, not of a group
  int world_size = 1;  // ranks from 0 to this; others are turned away
  JobSecret secret{};
  TransportEvents* events = nullptr;  // outlives the transport
  Settings settings{LibrarySettings()};
  // Whether the destructor of a transport waits shortly for the peers' goodbyes; without them the
  // peers' error messages say less.
  bool await_goodbyes = true;
  // Notices go by the connection that the handshake opened, also where other ways are faster
  // (multipath): the kernel delivers them while Progress() is not called.
  bool notices_by_tcp = false;
  // Addresses are of processes that listen already: one that refuses has gone. Else it is waited
  // for, as long as a connection may take.
  bool peers_listen = false;
};

// The identity that a connector claims, where it is not the transport's own rank: for listeners
// that belong to other jobs than the transport (docs/decisions/0005).
struct ConnectorIdentity {
  Rank self;  // of the transport's world size
  JobSecret secret{};
};

class Transport {
 public:
  virtual ~Transport() = default;  // after all of its links
  virtual TransportKind kind() const = 0;

  // Where peers connect: pass it to their Connect(). Printable, without spaces, <=
  // kAddressBytesMax.
  virtual const std::string& address() const = 0;

  // Starts to connect and returns at once; a failure, also of the address, breaks the link later.
  virtual std::unique_ptr<SendLink> Connect(absl::string_view address, Rank peer,
                                            absl::Time now) = 0;
  // As Connect(), under another identity. Null where that is not possible (shm).
  virtual std::unique_ptr<SendLink> ConnectAs(const ConnectorIdentity& /*identity*/,
                                              absl::string_view /*address*/, Rank /*peer*/,
                                              absl::Time /*now*/) {
    return nullptr;
  }

  // Registers [data, data + size). Not in the hot path of shm and tcp: free there.
  virtual absl::StatusOr<Region> Register(void* data, size_t size) = 0;
  // Verbs only; kUnimplemented elsewhere.
  virtual absl::StatusOr<Region> RegisterDevice(const DeviceMemory& /*memory*/) {
    return absl::UnimplementedError(
        "this transport reaches host memory only; verbs reaches that of devices as well");
  }

  // One turn: moves what can be moved and completes requests. True if anything moved. `now` never
  // goes back.
  virtual bool Progress(absl::Time now) = 0;
  // That part of Progress() that SendLink::WakePeer() asks for.
  virtual void WakePeers() {}

  // Sleeping without missing anything:
  //   if (transport.PrepareWait()) poll(wait_fd(), until NextDeadline());  transport.FinishWait();
  // PrepareWait asks the peers to ring from now on, and returns false when something is there
  // already. wait_fd() is an epoll descriptor: readable when Progress() has work.
  virtual int wait_fd() const = 0;
  virtual bool PrepareWait() = 0;
  virtual void FinishWait() = 0;
  // When Progress() must be called even if nothing arrives; InfiniteFuture when never.
  virtual absl::Time NextDeadline() const = 0;
};

absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(TransportKind kind,
                                                           const TransportOptions& options);

}  // namespace weft::net

#endif  // WEFT_NET_TRANSPORT_H_
