// The algorithms: each a file of this folder with one function from a CollectiveSpec to a schedule,
// one to its cost, and what the planner may ask of it; and a row in algorithms.inc, which says what
// each is good for. That is all that a new one needs.
//
// Results are bit-identical on all ranks, and the same whenever kind, count, size and place of the
// group, chunk, channels and algorithm are.
#ifndef WEFT_COLLECTIVES_ALGORITHMS_ALGORITHM_H_
#define WEFT_COLLECTIVES_ALGORITHMS_ALGORITHM_H_

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collectives/schedule.h"

namespace weft::collectives {

// What a schedule costs, in closed form and in numbers of no machine: planner/cost.h makes time of
// them. The tests count the same in the schedules themselves.
struct Cost {
  double turns = 0;     // messages on the longest chain of messages that wait for each other
  double messages = 0;  // of the busiest rank: sent or received, whichever are more
  double elements = 0;  // likewise
  // Elements that the rank receives that receives most; < 0: as `elements`. Ranks that share memory
  // read what they receive where it lies, which takes the sender no time.
  double received = -1;
  // All that a rank sends is written once, for all to read where it lies: its messages cost it one,
  // and neither `staged` nor `posts` counts.
  bool writes_once = false;
  // Between ranks of a host whose links are shared memory: the share of the elements that the
  // sender copies into the link's segment and the receiver takes from there, however long the
  // message is. That is what the receiver reduces on arrival, and what the sender has just written
  // itself. The rest a receiver reads from the sender's memory.
  double staged = 0;
  // Likewise, of messages that wait for their receives: by how many messages and clear-to-sends the
  // longest chain is longer than `turns`, for receives that are posted after others have arrived.
  double posts = 0;
  double reduced = 0;  // elements, by the rank that reduces most
  double copied = 0;   // elements copied, or reduced from where a message was stored, likewise
  // Inside a host: elements that a rank writes where others have read them in the same call, as an
  // all-reduce in place does, which many programs' are. It waits for the readers, and the lines
  // come back from their caches.
  double rewritten = 0;
  double fill = 0;  // elements that pass before a pipeline's last rank has its first
  // The part of `fill` that passes between ranks of one host, in a group of several hosts.
  double fill_inside = 0;
  double balance = 1;  // elements of the average rank over those of the busiest
  // Between hosts. Those of `turns`, and the elements out of or into the busiest host, all its
  // ranks together.
  double turns_across = 0;
  double elements_across = 0;
  double lanes = 1;  // links at once that carry them
  // Receives from other hosts that wait for another receive of the same rank, as reductions in a
  // fixed order do, on the longest chain: each is posted, and so on its way, when the one before it
  // is done. Of one chunk.
  double in_order = 0;
  // Elements of later rounds, or chunks, that the busiest rank exchanges with other hosts while its
  // messages of the first one would have it wait: they hide that many of the latencies.
  double ahead = 0;
  // Where a rank holds few chunks of a pipeline between hosts at once: the messages that use one
  // slot after another, each after the one before it, and their elements with those of the chunks
  // that find the slots empty.
  double slot_turns = 0, slot_elements = 0;
  // Chunks of as many paths leave a rank side by side, and share its link where that is full.
  double paths = 1;
  // Of them, those out of or into the switch with the busiest cables to others, all its hosts
  // together; < 0: as where every host talks to all others alike.
  double elements_beyond = -1;
  // Exchanges of all ranks that follow one another, so that each takes as long as the fuller of a
  // rank's link and a switch's cables: elements of a rank, and between switches as above. Empty:
  // where bytes for near and far ranks are under way together.
  struct Exchange {
    double elements = 0, beyond = 0;
  };
  std::vector<Exchange> exchanges;
};

struct Algorithm {
  const char* name;
  bool (*has)(CollectiveKind kind);
  RankSchedule (*build)(const CollectiveSpec& spec);
  Cost (*cost)(const CollectiveSpec& spec);  // the same on every rank: reads neither rank nor place
                                             // in memory
  // Whether it differs from the others on the spec's place, with elements of `element` bytes, so
  // that it is worth planning; null: everywhere.
  bool (*fits)(const CollectiveSpec& spec, size_t element) = nullptr;
  // Numbers of channels to choose from; null: one.
  std::vector<int> (*channels)(const CollectiveSpec& spec) = nullptr;
};

#define WEFT_ALGORITHM(name) extern const Algorithm name;
#include "collectives/algorithms/algorithms.inc"
#undef WEFT_ALGORITHM

absl::Span<const Algorithm* const> Algorithms();
// Null when there is none of that name for that kind.
const Algorithm* FindAlgorithm(absl::string_view name, CollectiveKind kind);

// For cost functions: fills in what lies between hosts where every rank talks to all others alike.
// Receives that are posted late are then those of `in_order`, and not of `posts`.
Cost SpreadOverHosts(Cost cost, const CollectiveSpec& spec);
// Likewise: counts what each message has to cross between switches, for Cost::elements_beyond.
class BetweenSwitches {
 public:
  // `load`: how many times its even share the fullest cable carries (unplanned.h).
  BetweenSwitches(const CollectiveSpec& spec, double load);
  explicit BetweenSwitches(const CollectiveSpec& spec);  // of messages that no plan has
  // False where all ranks are under one switch, or nobody knows: there is nothing to count.
  bool any() const { return !out_.empty(); }
  void Add(int from, int to, double elements);
  double Most() const;  // out of, or into, the switch that has most
  // What was added makes an exchange of `elements` a rank; begins the next one.
  void EndExchange(double elements, Cost& cost);

 private:
  std::shared_ptr<const GroupPlace> place_;
  double load_;
  std::vector<double> out_, in_;  // by switch
};
// Likewise: what `chunks` of `chunk` elements cost that pass through `slots` slots of a rank, by
// `messages` messages each, one after the other: received, and sent on.
Cost ThroughSlots(Cost cost, uint64_t chunks, uint64_t chunk, uint64_t slots, int messages);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_ALGORITHM_H_
