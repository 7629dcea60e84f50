// Small collectives of ranks that share memory, without messages: each rank writes what it has for
// the others once, into a ring of its own that all of them map (net/shm/multicast_ring.h), and uses
// what they have written where it lies. It runs the schedules of the algorithm "multicast", whose
// messages all leave at once, and from the input; where a group has no rings, links run them.
//
// The group's first such call opens the rings: it makes a link to every other rank, shows the rings
// over them, and tells by messages of its own, which are matched and checked like any other, under
// which numbers, and then whether all could be mapped. From then on links carry nothing of these
// calls: they tell of deaths, and wake sleepers.
//
// By the thread that drives the endpoint, and nobody else.
#ifndef WEFT_COLLECTIVES_MULTICAST_H_
#define WEFT_COLLECTIVES_MULTICAST_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "collectives/executor.h"
#include "collectives/peers.h"
#include "collectives/schedule.h"
#include "net/shm/multicast_ring.h"

namespace weft::collectives {

// The rings of a group.
class MulticastRings {
 public:
  // `payload`: bytes that a rank may have for the others in a call.
  MulticastRings(int size, int rank, uint64_t payload)
      : rank_(rank), payload_(payload), readers_(static_cast<size_t>(size)) {}

  enum class State : uint8_t {
    kNone,     // before the first call
    kOpen,     // all ranks read all rings
    kRefused,  // some rank cannot: the same on all ranks
  };
  State state() const { return state_; }
  int size() const { return static_cast<int>(readers_.size()); }
  int rank() const { return rank_; }

  // ---- Opening. False: there is no memory, or no descriptor, for this rank's ring.
  bool Create();
  const net::shm::SharedMemory* memory() const { return writer_.memory().get(); }  // null: none
  bool Add(int rank, const net::ShownMemory& shown);  // false: it is no ring of this payload
  // After all ranks have mapped what they can. Refused: the memory and descriptor are given back.
  void Settle(bool open);

  // ---- Once open. Calls are numbered from 0, alike on all ranks.
  bool CanWrite(uint64_t call);              // all ranks have finished what was in its entry
  bool Lags(int rank, uint64_t call) const;  // it is one of those that CanWrite() waits for
  std::byte* Payload(uint64_t call) { return writer_.Payload(call); }
  void Publish(uint64_t call, uint64_t check) { writer_.Publish(call, check); }
  const std::byte* Read(int rank, uint64_t call, uint64_t* check) const {
    return readers_[static_cast<size_t>(rank)]->Read(call, check);
  }
  bool Has(int rank, uint64_t call) const { return readers_[static_cast<size_t>(rank)]->Has(call); }
  // This rank has used what all others have for `call`. True: some rank may wait for that, and
  // sleep; MayWaitForSpace() tells which.
  bool Finish(uint64_t call);
  bool MayWaitForSpace(int rank) const;
  // This rank waits for others in `call`, on `cpu`.
  void TellWait(uint64_t call, int cpu) { writer_.TellWait(call, cpu); }
  // Whether `rank` has waited on `cpu` in one of the last calls before `call`, or since.
  bool HasWaitedOn(int rank, uint64_t call, int cpu) const {
    const uint64_t first = call < kEntries ? 0 : call - kEntries;
    return readers_[static_cast<size_t>(rank)]->HasWaitedOn(first, cpu);
  }

 private:
  static constexpr uint64_t kEntries = net::shm::MulticastRing::kEntries;

  const int rank_;
  const uint64_t payload_;
  State state_ = State::kNone;
  net::shm::MulticastWriter writer_;
  std::vector<std::unique_ptr<net::shm::MulticastReader>> readers_;  // by group rank; no own one
  uint64_t writable_ = 0;        // calls below can be written, as was last seen
  uint64_t finished_ = 0;        // calls below are finished here
  uint64_t finished_above_ = 0;  // bit i: call finished_ + i is finished, too
  uint64_t finished_before_ = 0;
};

// A schedule of "multicast", compiled for one rank.
struct MulticastPlan {
  struct Piece {          // of the own payload
    uint64_t offset = 0;  // in the input, elements
    uint64_t length = 0;  // elements
    uint64_t at = 0;      // in the payload, bytes
  };
  struct Part {           // that this rank uses of another's payload
    int peer = 0;         // group rank
    uint64_t at = 0;      // bytes
    uint64_t length = 0;  // elements
    Place out;            // where the schedule receives it; scratch: it is used where it lies
  };

  MulticastPlan(const CollectiveSpec& spec, size_t element);

  RankSchedule schedule;
  std::vector<Piece> pieces;
  std::vector<Part> parts;
  std::vector<uint32_t> local;  // steps that are no messages, in their order
  // Group ranks with which this one has a message, whichever way: it waits for their payloads, so
  // that both learn of a call that differs.
  std::vector<int> partners;
  bool has_messages = false;  // on any rank; else nobody needs a ring
};

class RingOpening;

class MulticastRun final : public Runner {
 public:
  // `over_links`: the same schedule, for where the rings are refused.
  MulticastRun(std::shared_ptr<const MulticastPlan> plan, std::shared_ptr<const Plan> over_links);
  ~MulticastRun() override;

  void Begin(const Invocation& invocation, Peers& peers) override;
  void Rest() override;
  bool Advance(Peers& peers, uint32_t window) override;
  Outlook outlook() const override;
  bool AwaitsLink() const override;
  bool WaitsOnCpuOfPeer(int cpu) override;
  bool done() const override { return links_ == nullptr ? done_ : links_->done(); }
  const absl::Status& status() const override;
  int failed_peer() const override;
  bool AtRest() override;
  bool Holds(int peer) override;
  PostedCount Posted(int peer) const override;
  bool Needs(int peer) const override;

 private:
  MulticastRings& rings() const { return *call_.rings; }
  bool AdvanceOpening(Peers& peers);
  void Write(Peers& peers);
  bool Collect();
  void Complete(Peers& peers);
  void Wake(int peer, Peers& peers) const;
  std::byte* At(Place place) const;

  const std::shared_ptr<const MulticastPlan> plan_;
  const std::shared_ptr<const Plan> over_links_;
  Invocation call_;
  bool written_ = false, done_ = false;
  std::vector<const std::byte*> payloads_;  // by group rank; null: not come yet
  size_t missing_ = 0;                      // of the partners'
  absl::Status status_;
  int failed_peer_ = -1;
  std::vector<const std::byte*> operands_;
  std::unique_ptr<RingOpening> opening_;  // of the group's first call
  std::unique_ptr<Execution> links_;      // null: by rings
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_MULTICAST_H_
