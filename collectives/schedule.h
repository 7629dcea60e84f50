// A collective described: which rank sends, receives, reduces and copies which elements, after
// what.
//
// A builder (algorithms/) turns a CollectiveSpec into one rank's RankSchedule, a pure function. The
// executor runs it, the verifier proves it, `--show-schedule` prints it. Ranks are those of the
// group. All numbers are in elements, so that one schedule serves every type of one size.
//
// Meaning. A step may start once all steps in its `after` list are complete. Sends to one peer are
// posted in the order of their indexes, and so are receives from one peer; the k-th send from a to
// b meets the k-th receive at b from a. A send is complete when its bytes may be overwritten, which
// is never before its receive was posted. Two steps of a rank that are not ordered by `after` must
// not touch the same bytes, unless both only read.
#ifndef WEFT_COLLECTIVES_SCHEDULE_H_
#define WEFT_COLLECTIVES_SCHEDULE_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "topology/job/collective_kind.h"

namespace weft::collectives {

struct GroupPlace;  // group_place.h

using topology::CollectiveKind;
using topology::kCollectiveKindCount;
using topology::ToString;
bool Reduces(CollectiveKind kind);
bool HasRoot(CollectiveKind kind);

// What to do, as one rank sees it. `count` as in communicator.h: of the whole for all-reduce,
// broadcast and reduce, of one rank's part for the others; kAllGatherV: 0; kAllToAllV: of the
// average part, for the planner alone, 0 where the ranks do not know it.
struct CollectiveSpec {
  CollectiveKind kind = CollectiveKind::kBarrier;
  int size = 1;  // ranks of the group
  int rank = 0;
  int root = 0;
  uint64_t count = 0;
  uint64_t chunk = 65536;  // elements in which an algorithm pipelines
  int channels = 1;        // rings, or pairwise exchanges, at once
  // Which ranks share a host; null: all do. The same on all ranks.
  std::shared_ptr<const GroupPlace> place;
  // Groups like this one that run the like at the same time, with this one, on its busiest host;
  // of no matter to the schedule.
  int groups_at_once = 1;
  // Groups along other axes of the job's mesh that share the NICs of its busiest host then.
  int others_at_once = 0;
  // Bytes that a rank of the group can have for all others at once in memory that they share
  // (multicast.h); 0: none. The same on all ranks.
  uint64_t multicast_bytes = 0;
  bool average = false;  // divide the reduction by `size`
  // The elements are floats of 16 bits. A rank that reduces what several others send takes all of
  // it before it adds it up, in float32, and rounds once; where that costs a copy (direct, flat).
  // An average is divided in float32 too, by the step that makes the last addition.
  bool rounds_once = false;
  // Input and output share memory: see InputShift. May differ between the ranks of one collective;
  // what travels must not depend on it.
  bool in_place = false;
  // kAllGatherV: output_* of every rank. kAllToAllV: all four, per peer. Else empty.
  std::vector<uint64_t> input_counts, input_offsets, output_counts, output_offsets;

  bool operator==(const CollectiveSpec&) const = default;
};

uint64_t InputLength(const CollectiveSpec& spec);   // elements of the input that may be read
uint64_t OutputLength(const CollectiveSpec& spec);  // of the output that may be written
// In place: where in the output the input's first element lies (reduce-scatter, scatter: negative).
int64_t InputShift(const CollectiveSpec& spec);

enum class StepKind : uint8_t {
  kSend,           // left -> peer
  kReceive,        // out = what the peer sends
  kReceiveReduce,  // out = left op what the peer sends
  kCopy,           // out = left
  kReduce,         // out = left op right
  kScale,          // out = out / size
  kReduceAll,      // out = left op each of more, in their order; rounded once (reduce.h)
};
const char* ToString(StepKind kind);

enum class Buffer : uint8_t { kInput, kOutput, kScratch };

struct Place {
  Buffer buffer = Buffer::kInput;
  uint64_t offset = 0;
  Place operator+(uint64_t more) const { return {buffer, offset + more}; }
  bool operator==(const Place&) const = default;
};

struct Step {
  StepKind kind = StepKind::kCopy;
  int32_t peer = -1;
  uint32_t after_begin = 0, after_count = 0;  // in RankSchedule::after
  uint64_t length = 0;
  Place out, left, right;
  uint32_t more_begin = 0, more_count = 0;  // in RankSchedule::more
  bool averages = false;                    // kReduceAll: divides by `size` before it rounds
};

struct RankSchedule {
  std::vector<Step> steps;
  std::vector<uint32_t> after;
  std::vector<Place> more;  // operands of kReduceAll
  uint64_t scratch_length = 0;
  // By step, for who composes schedules: when its turn is in what it is a part of, the same at both
  // ends of a message. Steps are in the order of their turns. Empty: not known.
  std::vector<uint32_t> turns;

  absl::Span<const uint32_t> After(const Step& step) const {
    return {after.data() + step.after_begin, step.after_count};
  }
  absl::Span<const Place> More(const Step& step) const {
    return {more.data() + step.more_begin, step.more_count};
  }
};

// "  3 receive+reduce <- 2  output[0,256) = input[0,256) + *  after 1 2": a line a step.
std::string ToText(const RankSchedule& schedule);

// Step ids; kNone stands for "no step", and is ignored in an `after` list.
inline constexpr uint32_t kNone = UINT32_MAX;
using AfterList = std::initializer_list<uint32_t>;

// What the builders write with. Every call appends a step and returns its id; with length 0 it
// appends nothing and returns kNone, but for `empty_messages` and barriers.
class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(bool empty_messages = false) : empty_messages_(empty_messages) {}

  uint32_t Send(int peer, Place from, uint64_t length, AfterList after = {});
  uint32_t Receive(int peer, Place out, uint64_t length, AfterList after = {});
  uint32_t ReceiveReduce(int peer, Place out, Place left, uint64_t length, AfterList after = {});
  uint32_t Copy(Place out, Place from, uint64_t length, AfterList after = {});
  uint32_t Reduce(Place out, Place left, Place right, uint64_t length, AfterList after = {});
  // Reduces two operands or more. An operand may lie at `out` itself; no other overlaps `out`.
  uint32_t ReduceAll(Place out, absl::Span<const Place> operands, uint64_t length);
  uint32_t Scale(Place out, uint64_t length, AfterList after = {});
  // Where the spec averages: divides what step `reduced` has written, which no later step has used
  // so far. With `rounds_once` that step divides itself; what it receives is stored first, in one
  // of kAverageSlots stretches of scratch. Returns the step that the average is after.
  uint32_t Average(const CollectiveSpec& spec, uint32_t reduced);
  // One more dependency of what the latest call appended, if it appended a step.
  void AlsoAfter(uint32_t step);
  void AlsoAfter(absl::Span<const uint32_t> steps);
  Place Scratch(uint64_t length);  // a fresh stretch
  // Appends the schedule of a collective of some ranks: `ranks[i]` is its rank i; its input and
  // output begin at `input` and `output`. All its steps come after `after`. Returns the steps that
  // what needs all of it comes after: its last ones, or `after` if it has no step.
  std::vector<uint32_t> Embed(const RankSchedule& part, absl::Span<const int> ranks, Place input,
                              Place output, absl::Span<const uint32_t> after);

  // Steps of the turns `turns`, by step, from here on: a turn's steps together, in the order in
  // which they were appended. None may come after a step of a later turn.
  void SortByTurn(std::vector<uint32_t> turns);
  const RankSchedule& schedule() const { return schedule_; }  // so far

  RankSchedule Finish() && { return std::move(schedule_); }

 private:
  static constexpr size_t kAverageSlots = 8;
  // Scratch for the last operand of an average, and the step that has read it.
  struct AverageSlot {
    Place at;
    uint64_t length = 0;
    uint32_t read = kNone;
  };

  uint32_t Append(Step step, AfterList after);
  // A slot for what step `receive` receives, which then comes after the slot's last reader.
  AverageSlot& SlotFor(uint32_t receive);

  bool empty_messages_;
  bool appended_ = false;  // by the latest call
  std::vector<AverageSlot> average_slots_;
  size_t next_average_slot_ = 0;
  RankSchedule schedule_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_SCHEDULE_H_
