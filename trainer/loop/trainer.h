// A training run from its first step, or its last checkpoint, to the exported model. What
// weft-train does once it knows its config and its group.
//
// The folder of a run: config.toml, metrics.jsonl, loss.svg, trace.json, checkpoints/,
// logs/, sample.txt, model/. All ranks see the same folder; rank 0 writes all but the checkpoints'
// shards and the other ranks' logs.
#ifndef WEFT_TRAINER_LOOP_TRAINER_H_
#define WEFT_TRAINER_LOOP_TRAINER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainer/config.h"
#include "trainer/files/folder_lock.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/recovery_phases.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/snapshots.h"

namespace weft::train {

struct RunOptions {
  TrainConfig config;
  std::string run_dir;
  const FolderLock* lock = nullptr;  // on run_dir, taken before any rank wrote there; rank 0 only
  bool resume = false;
  // A rank that dies is started anew, and the others call Train again: where Train fails, it has
  // abandoned the groups.
  bool recovers = false;
  // The last steps in memory, kept by the caller from call to call. May be null.
  Snapshots* snapshots = nullptr;
  bool recovered = false;  // Train was called before, or this process replaces one that died
  // Of this process, kept by the caller from call to call; told once. May be null.
  RecoveryPhases* phases = nullptr;
  // Kept by the caller from call to call: what is open, the peak that was measured (0: none), and
  // what was chosen by the cores (CoreChoiceToWord; empty: nothing yet), which a run that goes on
  // after a failure takes again. Each may be null.
  RunData* data = nullptr;
  double* peak_flops = nullptr;
  std::string* core_choice = nullptr;
  // Seconds for new trials of what multiplies and attends, on rank 0, in place of what the
  // checkpoint or this machine keeps (kernel_choice/kernel_choice.h); 0: none. Alike on all ranks.
  double measure_kernels = 0;
  // Told after which step a recovered run goes on; an error ends it. May be null.
  std::function<absl::Status(int64_t step)> going_on;
  // Expected time between two failures of the job; 0: checkpoints come every
  // config.checkpoint_every steps. Else the interval is chosen (checkpoint/save_schedule.h).
  absl::Duration between_failures = absl::ZeroDuration();
  absl::Time started;    // when this process began
  int64_t failures = 0;  // of the job that this process has seen
  int threads = 1;       // compute threads of this rank
  int local_rank = 0;    // on this host; chooses the GPU of train.device = cuda
  absl::Duration collective_timeout = absl::Minutes(5);  // of one that NCCL does on a GPU
  // Called in the background before the state is copied for a checkpoint: for tests. May be null.
  std::function<void()> before_checkpoint_copy;
  // Set by a signal: the step is finished, a checkpoint written, and Train returns OK.
  const std::atomic<bool>* stop = nullptr;
};

struct RunOutcome {
  // The steps are done, or the run was stopped; but these files could not be written, each with the
  // reason. Empty: everything is there.
  std::vector<std::string> missing;
};

// Every rank of the job calls it with the same config: a difference is an error that names the
// rank. Statuses say step and rank where they matter. Prints on standard error, rank 0 only.
//
// A checkpoint that cannot be written does not end the run: older ones stay, metrics.jsonl and the
// end of the output say so, and the next one is tried when it is due.
absl::StatusOr<RunOutcome> Train(const RunOptions& options, ParallelGroups& groups);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_TRAINER_H_
