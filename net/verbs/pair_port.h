// What the queue pairs of all multipath links of a transport share: the devices' receives, memory
// for what is sent, and which link a packet is for. Their paths are in pair_paths.h.
//
// A queue pair that ends gives its receives back as errors, all but perhaps that of a message of
// which only a part had come: what a device says of that one depends on the device.
//
// Memory is bounded whatever the number of links: PairOptions::buffer_bytes of receives a device,
// or 256 of them if that is more, posted again once their packets were looked at, and kSendBytes of
// packets on their way out, or kSendSlotsMin of them. A link that finds none waits
// (LinkPaths::CanSend()); while some wait, the queue pair that holds most of it while nothing
// completes (a reliable one on a dead path) is given up for it.
//
// Driven by the transport's poller and Rails::Poll(); not thread-safe.
#ifndef WEFT_NET_VERBS_PAIR_PORT_H_
#define WEFT_NET_VERBS_PAIR_PORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "net/multipath/udp/link_paths.h"
#include "net/verbs/own_pages.h"
#include "net/verbs/queue_pair_ways.h"
#include "net/verbs/rails.h"

namespace weft::net::multipath {

struct PairOptions {
  int paths = 8;           // queue pairs of a link
  uint32_t chunk_max = 0;  // bytes
  uint32_t room = 0;       // bytes of other packets in front of a full chunk
  Bytes buffer_bytes;      // received and not yet looked at, a device
  uint64_t seed = 1;       // of source ports and packet sequence numbers
  PlannedWays ways;
};

struct PairStatistics {
  int64_t sent = 0, received = 0;  // packets
  int64_t messages = 0;            // that held what was sent
  int64_t unauthenticated = 0;     // for no link, or without its key
  int64_t malformed = 0;
  int64_t receive_errors = 0;  // receives that ended without a packet
  int64_t dropped = 0;         // packets for a queue pair that is lost, or full and stuck
  int64_t pairs_lost = 0, pairs_replaced = 0;
};

inline constexpr uint32_t kPairSendDepth = 256;  // of a queue pair
// Packets on their way out of a rail, for all links: fewer where they are large.
inline constexpr uint32_t kSendSlotsMin = 128, kSendSlotsMax = 1024;
inline constexpr size_t kSendBytes = 8 << 20;
// A queue pair of which nothing completes for so long is a dead path, not one to wait for.
inline constexpr absl::Duration kPairStuck = absl::Milliseconds(20);
// Receives of a device for `options`.
uint32_t ReceivesOf(const PairOptions& options);
size_t SlotBytesOf(uint32_t chunk, uint32_t room);
uint32_t SendSlotsOf(const PairOptions& options);

class PairPaths;

class PairPort final : private SharedReceiveUser {
 public:
  // `rails` without queue pairs yet, of a layout without receives of their own.
  static absl::StatusOr<std::unique_ptr<PairPort>> Open(std::shared_ptr<Rails> rails,
                                                        const PairOptions& options);
  ~PairPort() override;

  std::unique_ptr<LinkPaths> OpenLink(DatagramOwner& owner, const LinkEnds& ends = {});
  // Rails::Poll(), and what belongs behind it. `now`: of whatever arrives.
  bool Poll(absl::Time now);

  Rails& rails() { return *rails_; }
  const PairOptions& options() const { return options_; }
  const PairStatistics& statistics() const { return statistics_; }

 private:
  friend class PairPaths;
  // Slots of slot_bytes_ each on one rail.
  struct Slots {
    OwnPages memory;
    size_t bytes = 0;
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
  bool Take(absl::Span<const std::byte> packet);
  void PostReceives(int rail);
  void FreeStuck();

  std::shared_ptr<Rails> rails_;
  PairOptions options_;
  const size_t slot_bytes_;
  uint32_t receives_ = 0;          // of a rail
  std::vector<RailState> states_;  // [rail]
  std::unordered_map<uint32_t, PairPaths*> links_;
  std::vector<PairPaths*> blocked_;  // wait for memory or room
  uint32_t next_link_;
  absl::Time now_;
  bool freed_ = false;  // memory for sending, since blocked_ was looked at
  PairStatistics statistics_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_VERBS_PAIR_PORT_H_
