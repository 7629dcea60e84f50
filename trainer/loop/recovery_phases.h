// Where the time of a recovery goes: from the end of a rank's process to the end of the first step
// with the process in its place. The launcher says when it saw that end and when it started the new
// process (WEFT_LAST_END_NS, WEFT_GENERATION_NS); the new process notes the rest, and rank 0 prints
// a line of it:
//
//   rank 2 (generation 1) is back 310 ms after its end was seen: start 1, load 2 (spare process),
//   meet 96, join 8, build 12, state 5, first step 186 ms
//
// All on one clock, the monotonic one of the host. Used by one thread.
#ifndef WEFT_TRAINER_LOOP_RECOVERY_PHASES_H_
#define WEFT_TRAINER_LOOP_RECOVERY_PHASES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::train {

// In order of time. A phase ends when Note is called for it, and begins when the phase before it
// ended.
enum class RecoveryPhase : uint8_t {
  kStart,  // the launcher, or the driver, has decided and started the process, or woken a spare one
  kLoad,   // the process has loaded its libraries, or the spare one has its place
  kMeet,   // all ranks have given up their step and met
  kJoin,   // links and groups are there
  kBuild,  // data is mapped and the model is allocated
  kState,  // parameters and the optimizer's state are there, from memory or a checkpoint
  kFirstStep,
};
absl::string_view NameOf(RecoveryPhase phase);  // "first step"

class RecoveryPhases {
 public:
  // Phases of no recovery: Note does nothing.
  RecoveryPhases() = default;
  // Phases of this process, by its environment; of no recovery where it replaces no other process.
  // `loaded_ns`: SystemClock's time at which this process could begin; `is_spare`: this process was
  // a spare one.
  static RecoveryPhases FromEnvironment(int64_t loaded_ns, bool is_spare);

  // Whether the phases are still to be printed: until Done().
  bool is_pending() const { return pending_; }
  // Ends the phase now. If it had ended before, that end and those of all later phases are dropped:
  // the work was done in vain.
  void Note(RecoveryPhase phase);
  void Done() { pending_ = false; }

  // As text that is sent to rank 0, which reads it by FromText; "": no recovery. kDataLoss: ToText
  // has not written this text.
  std::string ToText() const;
  static absl::StatusOr<RecoveryPhases> FromText(absl::string_view text);

  std::string Sentence() const;

  int rank() const { return rank_; }
  int generation() const { return generation_; }
  bool is_spare() const { return spare_; }
  // When the launcher saw the end of the replaced process; if that ended on another host, when this
  // process was started. CLOCK_MONOTONIC of this host.
  int64_t begin_ns() const { return begin_ns_; }
  // Milliseconds of each phase that has ended.
  std::vector<std::pair<RecoveryPhase, double>> Milliseconds() const;

 private:
  bool pending_ = false, spare_ = false;
  int rank_ = -1, generation_ = 0;
  int64_t begin_ns_ = 0;
  std::vector<std::pair<RecoveryPhase, int64_t>> ends_;  // ns, ascending
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_RECOVERY_PHASES_H_
