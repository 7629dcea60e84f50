// Unreliable connected queue pairs as paths of multipath links: the wire of sockets
// (net/multipath/udp/wire.h) with a NIC under it, which cuts, checks and delivers packets but
// recovers none.
//
// A path is a queue pair of the link's own, with a UDP source port of its own. A packet of the
// protocol is one message, sent whole and received whole or not at all. Whatever arrives takes one
// of the receives that all links share (bounded, and posted again once its packet was looked at),
// and finds its link by its envelope, as a datagram does; decision 8 says why messages and not
// writes.
//
//   PairPort     the devices' receives, memory for what is sent, which link a packet is for
//   PairPaths    a link's queue pairs
//
// A packet that finds no memory, or a full queue pair, waits in its link (CanSend()). A queue pair
// that fails hands its share to the next; when all of a link's have failed, or some have and
// nothing comes over the others (of which the peer may have lost those) for verbs.give_up_after,
// the link breaks and says why. Driven by the transport's poller and Rails::Poll(); not
// thread-safe.
#ifndef WEFT_NET_VERBS_PAIR_PATHS_H_
#define WEFT_NET_VERBS_PAIR_PATHS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "net/multipath/udp/link_paths.h"
#include "net/verbs/rails.h"

namespace weft::net::multipath {

struct PairOptions {
  int paths = 8;           // queue pairs of a link
  uint32_t chunk_max = 0;  // bytes
  Bytes buffer_bytes;      // received and not yet looked at, a device
  uint64_t seed = 1;       // of source ports and packet sequence numbers
};

struct PairStatistics {
  int64_t sent = 0, received = 0;  // packets
  int64_t strangers = 0;           // for no link, or without its key
  int64_t malformed = 0;
  int64_t receive_errors = 0;  // receives that ended without a packet
  int64_t dropped = 0;         // packets for a queue pair that is lost, or full and stuck
  int64_t pairs_lost = 0;
};

inline constexpr uint32_t kPairSendDepth = 256;  // of a queue pair
// Receives of a device for `options`.
uint32_t ReceivesOf(const PairOptions& options);
// Of packets of `chunk` bytes.
size_t SlotBytesOf(uint32_t chunk);

class PairPaths;

class PairPort final : private SharedReceiveUser {
 public:
  // `rails` with a layout of kUnreliable, and no queue pairs yet.
  static absl::StatusOr<std::unique_ptr<PairPort>> Open(std::shared_ptr<Rails> rails,
                                                        const PairOptions& options);
  ~PairPort() override;

  std::unique_ptr<LinkPaths> OpenLink(DatagramOwner& owner);
  // Rails::Poll(), and what belongs behind it. `now`: of whatever arrives.
  bool Poll(absl::Time now);

  Rails& rails() { return *rails_; }
  const PairOptions& options() const { return options_; }
  const PairStatistics& statistics() const { return statistics_; }

 private:
  friend class PairPaths;
  // Of one rail: slots of slot_bytes_ each.
  struct Slots {
    std::unique_ptr<std::byte[]> memory;
    std::byte* first = nullptr;  // aligned to 64
    const MemoryCache::Entry* keys = nullptr;
  };
  struct RailState {
    Slots receives, sends;
    std::vector<uint32_t> free;      // of sends
    std::vector<uint32_t> unposted;  // of receives
  };

  PairPort(std::shared_ptr<Rails> rails, const PairOptions& options);
  absl::StatusOr<Slots> MakeSlots(uint32_t count);
  void OnReceived(int rail, uint32_t number, const NicCompletion& what) override;
  void Take(absl::Span<const std::byte> packet);
  void PostReceives(int rail);

  std::shared_ptr<Rails> rails_;
  PairOptions options_;
  const size_t slot_bytes_;
  uint32_t receives_ = 0;          // of a rail
  std::vector<RailState> states_;  // [rail]
  std::unordered_map<uint32_t, PairPaths*> links_;
  std::vector<PairPaths*> blocked_;   // wait for memory or room
  std::vector<PairPaths*> degraded_;  // have lost queue pairs, and not all
  uint32_t next_link_;
  absl::Time now_;
  bool freed_ = false;  // memory for sending, since blocked_ was looked at
  PairStatistics statistics_;
};

class PairPaths final : public LinkPaths, private QueuePairUser {
 public:
  PairPaths(PairPort& port, DatagramOwner& owner, uint32_t link);
  ~PairPaths() override;

  absl::Status Describe(Address& own) override;
  absl::StatusOr<Facts> Connect(const Address& peer) override;
  PathId Carrier(PathId path) const override;
  bool CanSend() override;
  void Queue(PathId path, absl::Span<const std::byte> header,
             absl::Span<const std::byte> chunk) override;
  void Flush() override;
  bool NoteMalformed() override { return port_.statistics_.malformed++ == 0; }
  const absl::Status& status() const override { return status_; }
  std::string Suspicion() const override;

 private:
  friend class PairPort;
  struct Path {
    std::unique_ptr<RailQueuePair> pair;  // null: lost
    uint32_t psn = 0;
    uint16_t source_port = 0;
    uint32_t next = 0;               // numbers of work requests, 31 bits
    std::deque<uint32_t> in_flight;  // slots, by number from next - size() on
    std::vector<uint32_t> batch;     // slots, not yet posted
    std::vector<uint32_t> lengths;   // of the batch
    absl::Time moved_at;             // something completed, or nothing was in flight

    bool IsFull() const { return in_flight.size() + batch.size() >= kPairSendDepth; }
  };

  absl::Status MakePairs();
  absl::Status ConnectPair(Path& path, const std::string& remote, size_t index);
  void Post(size_t index);
  void Lose(size_t index, const std::string& why);
  void LookForSilence();
  void OnCompletion(int lane, bool receive, uint32_t number, const NicCompletion& what) override;
  void OnQueuePairLost(int lane, const std::string& why) override;

  PairPort& port_;
  DatagramOwner& owner_;
  const uint32_t link_;
  std::vector<Path> paths_;
  size_t usable_ = 0;        // the first so many of paths_ lead to the peer
  bool is_blocked_ = false;  // and in the port's list
  std::string peer_text_;
  absl::Time heard_at_;
  std::vector<PathId> dirty_;  // with a batch
  absl::Status status_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_VERBS_PAIR_PATHS_H_
