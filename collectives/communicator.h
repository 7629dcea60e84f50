// Collectives of a group of ranks on host memory.
//
//   Endpoint      one a process: transports, links to other processes, the progress engine
//                 (endpoint.h)
//   Communicator  one a group: numbers its collectives, picks an algorithm, runs its schedule
//   Work          one a call: wait for it, ask for its outcome and its times
//
// Every call returns at once with a Work; bad arguments, too, are reported by the Work, and nowhere
// else. Calls of one communicator must come in the same order on all ranks; their k-th calls are
// matched by sequence number, and a difference in kind, size, type, operator or root fails the call
// on every rank with a status that names the rank that differs. Several may be in flight, on one
// and on several communicators; they progress independently. Sizes are in elements of `type`.
// Buffers stay untouched and alive until the Work is done; in place means that pointers coincide
// where the semantics allow (as in NCCL).
//
// Progress: Wait() drives the engine in the calling thread; between calls a background thread of
// the endpoint does, so a Work proceeds while the caller computes. A failed collective fails its
// communicator: all later calls return the same status at once. Thread-safe, as far as the order of
// calls allows.
#ifndef WEFT_COLLECTIVES_COMMUNICATOR_H_
#define WEFT_COLLECTIVES_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "collectives/data_type.h"

namespace weft::collectives {

class Endpoint;

// A process of a group, from 0: its place in the list of ranks that makes the group. A Rank is one
// of the job, and cannot be given for a GroupRank.
using GroupRank = Id<struct GroupRankTag>;

// Among works under way at once on all of a process's communicators, urgent ones go first, and
// the others yield the links to them chunk by chunk (priorities.h).
enum class Priority : uint8_t { kLow, kNormal, kHigh };
inline constexpr int kPriorityCount = 3;
const char* ToString(Priority priority);  // "low", ...

class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Drives progress until the work is done. The bound is the setting collective.timeout, counted
  // from the call; `timeout` may shorten it for this wait only: kDeadlineExceeded, and the work
  // goes on.
  virtual absl::Status Wait(absl::Duration timeout = absl::InfiniteDuration()) = 0;
  virtual absl::Status status() const = 0;  // once done
  virtual int64_t start_ns() const = 0;     // SystemClock::Nanoseconds() of the call
  virtual int64_t end_ns() const = 0;       // of the completion; 0 before
  virtual GroupRank source() const = 0;     // of a Receive: the sender; else none
  // The algorithm that runs a collective, "ring x2" with two channels, and why it was chosen, for
  // people. Empty for other works.
  virtual std::string algorithm() const { return ""; }
  virtual std::string why() const { return ""; }
};
using WorkPtr = std::shared_ptr<Work>;

class Communicator {
 public:
  // `name` is the same on all ranks, and used once in a job ("world", "dp0"); `ranks` are the
  // ranks in the job of the group's processes, in group order, and contain this process's own.
  // Local: needs no message.
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(std::shared_ptr<Endpoint> endpoint,
                                                              absl::string_view name,
                                                              std::vector<Rank> ranks);
  virtual ~Communicator() = default;  // waits for nothing; unfinished works fail with kCancelled

  virtual GroupRank rank() const = 0;  // this process's
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  virtual absl::Status status() const = 0;  // OK, or what failed it
  // The same, or which rank is gone though nothing was under way with it. Any thread.
  virtual absl::Status health() const = 0;

  virtual WorkPtr AllReduce(const void* input, void* output, size_t count, DataType type,
                            ReduceOp op) = 0;
  // output: size() * count, rank r's part at r * count.
  virtual WorkPtr AllGather(const void* input, void* output, size_t count, DataType type) = 0;
  // input: size() * count; output: count, this rank's part of the reduction.
  virtual WorkPtr ReduceScatter(const void* input, void* output, size_t count, DataType type,
                                ReduceOp op) = 0;
  // input is read on the root only.
  virtual WorkPtr Broadcast(const void* input, void* output, size_t count, DataType type,
                            GroupRank root) = 0;
  // output is written on the root only.
  virtual WorkPtr Reduce(const void* input, void* output, size_t count, DataType type, ReduceOp op,
                         GroupRank root) = 0;
  virtual WorkPtr Gather(const void* input, void* output, size_t count, DataType type,
                         GroupRank root) = 0;
  virtual WorkPtr Scatter(const void* input, void* output, size_t count, DataType type,
                          GroupRank root) = 0;
  // input and output: size() * count.
  virtual WorkPtr AllToAll(const void* input, void* output, size_t count, DataType type) = 0;
  // Per-rank counts and offsets, in elements, each of size() entries. What rank a sends to b must
  // be what b expects of a. `typical_count`: elements of the average part, from one rank to one
  // other, where all ranks know it; the same number on all ranks, as the algorithm is chosen by it.
  // 0: they do not; the call is then planned for parts of a size that is large
  // (planner::kUnknownPartBytes).
  virtual WorkPtr AllToAllV(const void* input, absl::Span<const size_t> input_counts,
                            absl::Span<const size_t> input_offsets, void* output,
                            absl::Span<const size_t> output_counts,
                            absl::Span<const size_t> output_offsets, DataType type,
                            size_t typical_count = 0) = 0;
  // All-gather with a count per rank; rank r's part at output_offsets[r].
  virtual WorkPtr AllGatherV(const void* input, void* output, absl::Span<const size_t> counts,
                             absl::Span<const size_t> output_offsets, DataType type) = 0;
  virtual WorkPtr Barrier() = 0;

  // Point to point, matched by (peer, tag) in order; not numbered with the collectives.
  virtual WorkPtr Send(const void* data, size_t bytes, GroupRank peer, uint32_t tag) = 0;
  virtual WorkPtr Receive(void* data, size_t bytes, GroupRank peer, uint32_t tag) = 0;
  // Receives from the rank that sends with this tag first; Work::source() names it. Costs a message
  // to every rank of the group. Fails when all other ranks are gone; while some live, the death of
  // the others ends it by collective.timeout only.
  virtual WorkPtr ReceiveAny(void* data, size_t bytes, uint32_t tag) = 0;

  // The priority of calls from now on; kNormal at first. What a call means is the same whatever its
  // priority, but it should be the same on all ranks, or the least urgent rank sets the pace;
  // messages of one peer and tag need the same, as they match in the order in which they are moved.
  virtual void SetPriority(Priority priority) = 0;

  // Fails every unfinished work, here and on the other ranks, with `reason` (OK: kCancelled). The
  // communicator is dead then, as after any failure: Shrink() with nobody excluded makes a new one.
  virtual void Abort(absl::Status reason) = 0;

  // A communicator of the other ranks, in their order, named `name`; empty: this one's name and who
  // was left out, cut short where that is long (short_name.h). For when ranks died, or shall leave:
  // `excluded` need not live. Every other rank must call it with the same ranks: they meet at the
  // job's store. Where this communicator has failed on any of them, its works have ended when this
  // returns, and other communicators that share links between the survivors fail; where it has not,
  // it can be used on. InvalidArgument: this rank is excluded, or one that there is not.
  // DeadlineExceeded (store.timeout): some did not come.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Shrink(absl::Span<const GroupRank> excluded,
                                                               absl::string_view name = "") = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_COMMUNICATOR_H_
