// A rank's process: it joins the job, trains, and joins again when a rank has been started anew.
#ifndef WEFT_TOOLS_TRAIN_PROCESS_H_
#define WEFT_TOOLS_TRAIN_PROCESS_H_

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/join.h"
#include "collectives/recovery.h"
#include "tools/train/command.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/recovery_phases.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/step_replay.h"
#include "trainer/loop/trainer.h"

namespace weft::train {

// Used by one thread.
class TrainingProcess {
 public:
  // Set by a signal, `stop` ends the run after its step. `command` and `stop` outlive this object.
  TrainingProcess(const Command& command, const std::atomic<bool>* stop)
      : command_(command), stop_(stop), run_dir_(command.run_dir) {}

  // In a spare process: does everything that takes time before the first step and needs no rank's
  // place, and waits for one; Cancelled: it is not needed any more. In others nothing.
  absl::Status AwaitPlace();
  // Trains until the run is done or stopped. `phases`: of this process, from its start on.
  absl::Status Run(const RecoveryPhases& phases);

  // After Run: files that it could not write.
  const std::vector<std::string>& missing() const { return missing_; }
  // After Run: starting this rank anew does not help.
  bool gave_up() const { return gave_up_; }

 private:
  // Joins and trains, until the end or until a rank is gone: then the other ranks know, and nothing
  // of groups and parameters is left but the snapshots, and the endpoint.
  absl::Status RunEpoch(RunOptions& options, const collectives::JoinOptions& join,
                        collectives::Recovery& recovery, std::optional<collectives::Job>& job);
  absl::Status TrainOnce(RunOptions& options, ParallelGroups& groups, const collectives::Job& job);
  // Rank 0 looks for the data, and makes some in the run's folder where there is none.
  absl::Status FindData(RunOptions& options, Group& world) const;
  absl::Status SayDigest(Group& world) const;

  const Command& command_;
  const std::atomic<bool>* const stop_;
  std::string run_dir_;               // with --replay that of the replay
  std::optional<StepReplay> replay_;  // with --replay
  std::string made_up_prefix_;        // where data goes that nobody has named
  RecoveryPhases phases_;
  RunData data_;  // open once Run, or a spare process, has come so far
  double peak_flops_ = 0;
  std::string core_choice_;
  std::vector<std::string> missing_;
  bool gave_up_ = false;
  bool logs_to_file_ = false;
};

}  // namespace weft::train

#endif  // WEFT_TOOLS_TRAIN_PROCESS_H_
