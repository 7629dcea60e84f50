// What the endpoint's engine moves: collectives and point-to-point messages, each behind a Work.
#ifndef WEFT_COLLECTIVES_OPERATION_H_
#define WEFT_COLLECTIVES_OPERATION_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/records.h"
#include "collectives/any_source.h"
#include "collectives/communicator.h"
#include "collectives/drain.h"
#include "collectives/executor.h"
#include "collectives/multicast.h"

namespace weft::collectives {

class EndpointImpl;

inline constexpr size_t kSendName = kCollectiveKindCount, kReceiveName = kSendName + 1;
inline constexpr size_t kCallNames = kReceiveName + 1;

// What a rank means by a call: equal on all ranks, or the call is in error. AllToAllV: of the
// counts only the typical one.
struct Descriptor {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = 0;
  uint64_t count = 0;  // AllGatherV: the sum
  uint64_t counts_hash = 0;
  std::string algorithm;

  uint64_t Hash() const;
  std::string ToText() const;  // "all_reduce(float, sum, count 1024, ring)"
};

// What a communicator shares with the engine; it outlives the communicator while works are under
// way.
struct Group {
  static constexpr size_t kHistory = 64;

  std::string name;
  uint32_t id = 0;             // hash of the name, 31 bits
  std::vector<Rank> ranks;     // of the job, by group rank
  int rank = 0;                // the own, in the group
  std::vector<Peer*> peers;    // by group rank; null at the own
  absl::Duration timeout;      // collective.timeout
  AnySource any_source;        // the driver's
  RecordName record_name = 0;  // of the name, in this process's records
  // The driver's, where links are kept (drain.h): what was posted of messages (null where links are
  // not kept), calls that are finished, and what was posted of those that failed, by sequence
  // number and group rank.
  std::unique_ptr<PostedMessages> posted;
  FinishedCalls finished;
  std::map<std::pair<uint32_t, int>, PostedCount> given_up;
  std::unique_ptr<MulticastRings>
      rings;  // the driver's; null: there are none for small collectives

  std::mutex mutex;  // guards what follows
  absl::Status status;
  uint32_t next_sequence = 0;
  std::array<Descriptor, kHistory> history;  // of call k at k % kHistory
  // Ranks of the job whose link broke, and how. Who needed nothing of them goes on; the next call
  // that they have not taken part in fails.
  std::vector<std::pair<Rank, absl::Status>> departed;
  // By group rank, of those that have left: how many collectives they have called and finished.
  std::vector<std::optional<uint32_t>> left;

  // With mutex held: whether rank `rank` of the job has finished collective `sequence`.
  bool HasFinished(Rank rank, uint32_t sequence) const;
};

// The tag of a group's messages at a link: of a collective, or of messages between two ranks.
inline uint64_t LinkTag(const uint32_t group_id, uint32_t number, bool is_message) {
  return uint64_t{is_message} << 63 | uint64_t{group_id} << 32 | number;
}
inline uint32_t GroupOfLinkTag(uint64_t tag) { return static_cast<uint32_t>(tag << 1 >> 33); }

class Operation : public Work {
 public:
  Operation(EndpointImpl* endpoint, std::shared_ptr<Group> group, int64_t start_ns);

  bool done() const override { return done_.load(std::memory_order_acquire); }
  absl::Status Wait(absl::Duration timeout) override;
  absl::Status status() const override;
  int64_t start_ns() const override { return start_ns_; }
  int64_t end_ns() const override { return end_ns_; }
  GroupRank source() const override { return GroupRank(); }

  // ---- For the engine.
  Group& group() const { return *group_; }
  virtual void Begin(Peers& peers) = 0;
  virtual bool Advance(Peers& peers, uint64_t turn) = 0;
  virtual Outlook outlook() const { return Outlook::kLinks; }
  virtual bool AwaitsLink() const { return false; }             // Runner's
  virtual bool WaitsOnCpuOfPeer(int /*cpu*/) { return false; }  // likewise
  virtual bool complete() const = 0;                            // everything moved
  virtual absl::Status failure(int* peer) const = 0;  // the first; *peer: group rank or -1
  virtual bool AtRest() = 0;
  virtual bool Holds(int peer) = 0;
  virtual bool Needs(int peer) const = 0;
  virtual PostedCount Posted(int peer) = 0;   // of a message: by all of its tag
  virtual uint32_t tag() const { return 0; }  // of a message
  virtual std::string Describe() const = 0;   // "collective #3, all_reduce(...)"
  virtual bool has_sequence() const = 0;
  virtual uint32_t sequence() const = 0;
  // A receive from any rank that has not found its sender: the tag, and what gives it one.
  virtual std::optional<uint32_t> open_tag() const { return std::nullopt; }
  virtual void Choose(Peers& /*peers*/, int /*peer*/) {}
  virtual void Remind(Peers& /*peers*/, int64_t /*now_ns*/) {}  // of that, now and then
  // Once everything moved: the result to its owner, where the operation worked on copies.
  virtual absl::Status Deliver() { return absl::OkStatus(); }
  virtual void Release() {}  // back to where its memory came from; called once, before Finish
  // What records say of it; `name` is an index: a CollectiveKind, kSendName or kReceiveName.
  virtual CallRecord ToRecord() const = 0;

  void Finish(absl::Status status, int64_t now_ns);

  // Stall diagnosis (diagnosis.cc). Answers by group rank: what each rank means by this sequence
  // number.
  struct Diagnosis {
    struct Answer {
      // Not heard of; called, as `text` says; not called, but `next` is; no such group there;
      // called, so long ago (Group::kHistory) that it is not known any more what.
      enum State : uint8_t { kNone, kCalled, kNotYet, kForgotten, kPassed } state = kNone;
      std::string text;
      uint32_t next = 0;
    };
    std::vector<Answer> answers;
    bool of_all = false;  // all ranks are asked; else those that the operation needs
    int64_t asked_ns = 0;
    int64_t first_asked_ns = 0;  // since then so many are
  };
  Priority priority = Priority::kNormal;
  uint32_t window = UINT32_MAX;  // chunks of one peer that it may have at the link (priorities.h)
  bool has_begun = false;        // else its group had failed before
  int64_t moved_ns = 0;          // when it last did
  int64_t deadline_ns = 0;       // collective.timeout
  absl::Status suspicion;        // a mismatch was seen: diagnose, then fail with this or better
  int suspect = -1;              // group rank of the peer that it was seen with
  std::unique_ptr<Diagnosis> diagnosis;
  absl::Status verdict;  // not OK: failing, waits for its memory to be at rest
  int64_t cut_ns = 0;    // then links that still hold its memory are closed

 private:
  EndpointImpl* endpoint_;
  std::shared_ptr<Group> group_;
  std::atomic<bool> done_{false};
  absl::Status status_;  // written before done_
  int64_t start_ns_;
  int64_t end_ns_ = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_OPERATION_H_
