// Flushes: before a GPU is told that its memory holds what came over the wire, the writes that PCIe
// still has on the way there must have landed. A completion does not say so, for it goes to other
// memory, the host's. A read by the same NIC does: PCIe lets no read overtake a write. So each rail
// reads a few bytes of that memory, over a queue pair that is connected to itself.
//
// A rail over which nothing has come since that memory was last flushed is left out. A queue pair
// that fails is made anew, with the port's addresses as they are then, until verbs.give_up_after is
// over. A rail whose device has failed for good is left out as well: its queue pairs are destroyed,
// which ends their writes.
#ifndef WEFT_NET_VERBS_FLUSH_H_
#define WEFT_NET_VERBS_FLUSH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/poller.h"
#include "net/transport.h"
#include "net/verbs/memory.h"
#include "net/verbs/own_pages.h"
#include "net/verbs/rails.h"

namespace weft::net {

// The flushes of one transport, whose threading and time apply.
class VerbsFlush final : public PollHandler, private QueuePairUser {
 public:
  VerbsFlush(Poller& poller, std::shared_ptr<Rails> rails);
  ~VerbsFlush() override;  // after Cancel() of all owners

  // Completes `request` once all that has come to `entry` by now has landed there; `where` lies in
  // it. Errors name the device and what was tried: kDeadlineExceeded; kInternal where the device
  // says that the memory may not be read.
  void Start(const void* owner, const MemoryCache::Entry* entry, const std::byte* where,
             Request* request, absl::Time now);
  // Completes all of this owner's.
  void Cancel(const void* owner, const absl::Status& why);

  bool OnTurn(absl::Time now) override;
  void OnDeadline(absl::Time now) override { OnTurn(now); }

 private:
  static constexpr uint32_t kReadBytes = 4;
  static constexpr size_t kReadsMax = 32;  // on one queue pair

  struct Flight {
    const void* owner = nullptr;
    const MemoryCache::Entry* entry = nullptr;  // held
    const std::byte* where = nullptr;
    Request* request = nullptr;
    absl::Time began;
    std::array<uint64_t, kVerbsRailsMax> arrivals{};  // of each rail, when it began
    uint32_t open = 0, posted = 0;                    // rails, as bits
  };
  struct Read {
    uint32_t number = 0;
    Flight* flight = nullptr;                   // null: it has ended
    const MemoryCache::Entry* entry = nullptr;  // held
    absl::Time since;
  };
  struct Loop {
    std::unique_ptr<RailQueuePair> pair;  // null: not made, or lost
    uint32_t next = 0;
    std::deque<Read> reads;  // oldest first
    absl::Time retry_at = absl::InfinitePast();
    std::string trouble;  // the last
  };

  void OnCompletion(int rail, bool receive, uint32_t number, const NicCompletion& what) override;
  void OnQueuePairLost(int rail, const std::string& why) override { Lose(rail, why); }
  void OnRead(int rail, const Read& read);
  void Refuse(int rail, const NicCompletion& what);
  void Post(int rail);
  absl::Status MakePair(int rail);
  absl::Status PostRead(int rail, Flight* flight);
  void Lose(int rail, const std::string& why);
  void Discount(absl::Duration stall);
  void LookAtTime();
  void Finish(Flight* flight, const absl::Status& status);
  std::string NameOf(int rail) const;

  const std::shared_ptr<Rails> rails_;
  std::vector<Loop> loops_;  // by rail
  std::list<Flight> flights_;
  absl::Time now_ = absl::InfinitePast();
  absl::Time due_ = absl::InfiniteFuture();  // the next turn, at the latest
  OwnPages sink_;                            // what is read goes there
  const MemoryCache::Entry* sink_keys_ = nullptr;
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_FLUSH_H_
