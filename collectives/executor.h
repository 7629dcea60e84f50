// Runs one rank's schedule over links: real bytes.
//
// A Plan is a schedule compiled once for a spec: who waits for whom, and the messages of each peer
// and direction (a channel) in their order. An Execution is one run of it; it is reused, so that
// the steady state allocates nothing. Advance() posts what is free to go, in channel order, takes
// note of what has completed, and runs local steps at once. Used by the thread that drives the
// endpoint, and nobody else.
#ifndef WEFT_COLLECTIVES_EXECUTOR_H_
#define WEFT_COLLECTIVES_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/drain.h"
#include "collectives/peers.h"
#include "collectives/reduce.h"
#include "collectives/schedule.h"
#include "net/transport.h"

namespace weft::collectives {

class MulticastRings;  // multicast.h

struct Plan {
  struct Channel {
    int peer = 0;  // group rank
    bool sends = false;
    std::vector<uint32_t> steps;
  };

  explicit Plan(RankSchedule built);

  RankSchedule schedule;
  std::vector<Channel> channels;
  std::vector<uint32_t> waits;       // by step: steps it is after
  std::vector<uint32_t> next_begin;  // by step, plus one: its stretch of `next`
  std::vector<uint32_t> next;        // steps that are after it
  std::vector<uint32_t> first;       // local steps that wait for nothing
  // By step: it reduces into a part of the output that no later step touches, and that is none of
  // its operands.
  std::vector<bool> ends;
};

struct Invocation {
  const void* input = nullptr;
  void* output = nullptr;
  uint64_t input_length = 0, output_length = 0;  // elements
  size_t element = 1;                            // bytes
  int divisor = 1;                               // of averages
  net::ReduceFn reduce = nullptr;
  net::ReduceFn stream = nullptr;    // for what ends in a large output; null: `reduce`
  ReduceAllFn reduce_all = nullptr;  // null: pairs, by `reduce`
  ScaleFn scale = nullptr;
  bool sends_wait = false;  // SendSource::waits, of all ranks
  uint8_t urgency = 0;      // SendSource::urgency, of this rank's sends
  net::MessageKey key;
  absl::Span<Peer* const> group;    // by group rank; null at the own
  MulticastRings* rings = nullptr;  // of a MulticastRun (multicast.h): the group's
  uint64_t ring_call = 0;           // and the number of the call among those that use them

  // Where a place of the caller's buffers lies; null: of scratch.
  std::byte* At(Place place) const {
    if (place.buffer == Buffer::kScratch) return nullptr;
    auto* base = place.buffer == Buffer::kOutput
                     ? static_cast<std::byte*>(output)
                     : static_cast<std::byte*>(const_cast<void*>(input));
    return base + place.offset * element;
  }
};

// Whether an Advance() would move something now. A look, which costs little beside a turn of the
// transports; before a sleep.
enum class Outlook : uint8_t {
  kLinks,    // when links have moved
  kNothing,  // not before another process has written to memory that is looked at
  kReady,    // it would
};

// What runs the calls of a plan, one after another.
class Runner {
 public:
  virtual ~Runner() = default;
  // Takes the run up to where it needs Advance(). Rest() has ended the last one.
  virtual void Begin(const Invocation& invocation, Peers& peers) = 0;
  // The run is over, and its memory at rest: the caller's buffers may go. They must not stay
  // registered, as other memory may come to their addresses (net/verbs/memory.h).
  virtual void Rest() = 0;
  // True if anything moved. Stops for good at the first failure. `window`: how many messages to,
  // and from, one peer may be at the transport.
  virtual bool Advance(Peers& peers, uint32_t window) = 0;
  virtual Outlook outlook() const { return Outlook::kLinks; }
  // A message is left whose link is not there yet, or still has its handshake before it: another
  // process has to run first.
  virtual bool AwaitsLink() const { return false; }
  // Tells the ranks that share memory that this one waits on `cpu`; true if one that it waits for
  // has just waited there, too. False where that is not known.
  virtual bool WaitsOnCpuOfPeer(int /*cpu*/) { return false; }

  virtual bool done() const = 0;
  virtual const absl::Status& status() const = 0;  // the first failure
  virtual int failed_peer() const = 0;             // group rank, or -1
  // Requests that the transport still holds, of all peers or of one group rank.
  virtual bool AtRest() = 0;
  virtual bool Holds(int peer) = 0;
  virtual PostedCount Posted(int peer) const = 0;
  virtual bool Needs(int peer) const = 0;  // messages to or from it are not all done
};

// Does a step that is no message. `at`: where a place lies; `operands`: memory to work with.
void RunLocalStep(const RankSchedule& schedule, const Step& step, const Invocation& call,
                  net::ReduceFn reduce, absl::FunctionRef<std::byte*(Place)> at,
                  std::vector<const std::byte*>& operands);

// Over links.
class Execution final : public Runner {
 public:
  explicit Execution(std::shared_ptr<const Plan> plan);

  void Begin(const Invocation& invocation, Peers& peers) override;
  void Rest() override;
  bool Advance(Peers& peers, uint32_t window = UINT32_MAX) override;
  bool AwaitsLink() const override;

  bool done() const override { return left_ == 0; }
  const absl::Status& status() const override { return status_; }
  int failed_peer() const override { return failed_peer_; }
  bool AtRest() override;
  bool Holds(int peer) override;
  PostedCount Posted(int peer) const override;
  bool Needs(int peer) const override;

 private:
  struct Progress {
    uint32_t posted = 0, done = 0;  // of the channel's steps
  };
  net::RegionView View(int transport, Place place, uint64_t length);
  std::byte* At(Place place) const;
  bool StreamsTo(uint32_t id) const;
  bool Post(const Plan::Channel& channel, const Step& step, uint32_t id, Peers& peers);
  void RunLocal(uint32_t id);
  void Complete(uint32_t id);
  void Fail(absl::Status status, int peer);
  absl::Status Register(int transport, Peers& peers);

  std::shared_ptr<const Plan> plan_;
  Invocation call_;
  std::vector<uint32_t> waits_;
  std::vector<Progress> progress_;
  std::unique_ptr<net::Request[]> requests_;
  std::vector<uint32_t> ready_;  // local steps
  std::vector<const std::byte*> operands_;
  std::shared_ptr<std::byte> scratch_;
  size_t scratch_bytes_ = 0;
  bool used_[kTransportsMax] = {};  // by the run under way
  net::Region regions_[kTransportsMax][3];
  uint32_t left_ = 0;
  absl::Status status_;
  int failed_peer_ = -1;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_EXECUTOR_H_
