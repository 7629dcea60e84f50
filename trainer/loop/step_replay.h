// Does a step of a run again, beside the run and without changing it, so that what comes out can be
// compared between groups of hosts (tools/recovery/replay.h): from the newest whole checkpoint of
// the run's folder and of checkpoint.remote_folder, or from its start where there is none, in a
// folder of its own below the run's. (On the hosts' own disks, checkpoint.local_folder, a group of
// hosts has no whole checkpoint.) A step is the same to the bit for the same number of ranks; its
// digest covers all that it leaves: parameters as they are exported, and the checkpoint with the
// optimizer's state.
//
// Rank 0 calls Begin() before, and End() after all ranks have their Digest(). Not thread-safe.
#ifndef WEFT_TRAINER_LOOP_STEP_REPLAY_H_
#define WEFT_TRAINER_LOOP_STEP_REPLAY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/config.h"

namespace weft::train {

class StepReplay {
 public:
  // Sets `config` to a run that ends one step after the run's newest checkpoint. `name` keeps the
  // folder apart from other groups'. Every rank calls it, while nobody writes to the run.
  static absl::StatusOr<StepReplay> Plan(const std::string& run_dir, const std::string& name,
                                         TrainConfig& config);

  const std::string& folder() const { return folder_; }  // to train in
  bool resumes() const { return !checkpoint_.empty(); }
  absl::Status Begin() const;
  // "step 41, 5 files, crc32c 0f3a9c11". Once rank 0's files are there.
  absl::StatusOr<std::string> Digest() const;
  absl::Status End() const;

 private:
  std::string folder_;
  std::string checkpoint_;  // empty: there is none
  int64_t step_ = 0;        // that is done
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_STEP_REPLAY_H_
