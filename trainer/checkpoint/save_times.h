// Where the time of a rank's saves goes: seconds that pass, and seconds of processor time of the
// thread that saves, which a step beside it does without.
#ifndef WEFT_TRAINER_CHECKPOINT_SAVE_TIMES_H_
#define WEFT_TRAINER_CHECKPOINT_SAVE_TIMES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::train {

enum class SavePhase : uint8_t {
  kCopy,    // the state to memory of the save's own
  kWrite,   // checksums, and bytes to the kernel
  kSync,    // the shard to the disk, and under its name
  kMeet,    // waits for the other ranks
  kCommit,  // the manifest, and the checkpoint under its name
  kRemove,  // older checkpoints; by a thread of its own
};
inline constexpr size_t kSavePhases = static_cast<size_t>(SavePhase::kRemove) + 1;

// Several threads may measure at a time, the same phase as well. saves() and ToText() are for when
// none does.
class SaveTimes {
 public:
  // Adds what passes in its scope. A null `times` measures nothing.
  class Scope {
   public:
    Scope(SaveTimes* times, SavePhase phase);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    SaveTimes* const times_;
    const SavePhase phase_;
    const int64_t passed_, processor_;  // nanoseconds, at its start
  };

  void CountSave() { ++saves_; }
  int64_t saves() const { return saves_; }
  // "copy 2.9 (2.8), write 15.6 (15.5), ..., remove 4.8 (4.8)": the mean milliseconds of a save,
  // and in brackets those of processor time.
  std::string ToText() const;

 private:
  struct Time {
    std::atomic<int64_t> passed = 0, processor = 0;  // nanoseconds
  };
  std::array<Time, kSavePhases> times_ = {};
  int64_t saves_ = 0;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_SAVE_TIMES_H_
