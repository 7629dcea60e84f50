// Saves a run's state whenever that is due, before or under the next steps, and keeps account of
// what failed and of what training waited for it.
//
// All ranks call these functions together; rank 0 tells the run's log and its user. Used by one
// thread.
#ifndef WEFT_TRAINER_LOOP_CHECKPOINT_SAVER_H_
#define WEFT_TRAINER_LOOP_CHECKPOINT_SAVER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "trainer/checkpoint/save_schedule.h"
#include "trainer/files/folder_lock.h"
#include "trainer/groups/group.h"
#include "trainer/loop/checkpoints.h"
#include "trainer/loop/metrics_log.h"
#include "trainer/loop/progress.h"
#include "trainer/parallel/parameter_sets.h"

namespace weft::train {

class CheckpointSaver {
 public:
  struct Options {
    int64_t every = 0;                 // steps between two checkpoints; 0: none
    bool background = false;           // whether SaveAfter() writes under the next steps
    const FolderLock* lock = nullptr;  // on the run's folder; rank 0 only
    // The expected time between two failures of the job, with which the interval is chosen
    // (checkpoint/save_schedule.h); 0: checkpoints come every `every` steps.
    absl::Duration between_failures = absl::ZeroDuration();
    absl::Time started;    // when this process began
    int64_t failures = 0;  // of the job that this process has seen
  };

  // All that is passed outlives this object.
  CheckpointSaver(const Options& options, Group& group, RunCheckpoints& checkpoints)
      : options_(options), group_(group), checkpoints_(checkpoints), schedule_(options.every) {}

  // Rank 0, before the first save: who is told of failures and of another interval.
  void TellTo(MetricsLog& metrics, Progress& progress) {
    metrics_ = &metrics, progress_ = &progress;
  }

  bool IsDue(int64_t step) const { return schedule_.IsDue(step); }

  // Saves after a step of a run that goes on. `mean_step` is the time of this process's steps so
  // far. An error ends the run; a checkpoint that cannot be written is no error, but unsaved().
  absl::Status SaveAfter(const RunPosition& position, ParameterSets& parameters,
                         absl::Duration mean_step);
  // Saves, and waits until all is written.
  absl::Status Save(const RunPosition& position, ParameterSets& parameters,
                    absl::Duration mean_step);

  // Aborted where another job has taken the run's folder; rank 0 only.
  absl::Status CheckLock() const;

  // Waits until the state of a save in the background is copied and may change; why it could
  // not be.
  absl::Status FinishCopy();

  const absl::Status& unsaved() const { return unsaved_; }  // why the last that was due is missing
  int64_t failed() const { return failed_; }
  const std::string& last_failed() const { return last_failed_; }  // "of step N: why"
  int64_t due_in_background() const { return due_; }
  int64_t left_out() const { return left_out_; }  // as the one before was not yet written
  double waited_seconds() const { return waited_seconds_; }  // by training
  // Where the others are written in the background.
  double last_save_seconds() const { return last_save_seconds_; }

 private:
  absl::Status BeginSave(const RunPosition& position, ParameterSets& parameters,
                         absl::Duration mean_step);
  void NoteSaved(int64_t step, const absl::Status& failure);
  absl::Status Reschedule(int64_t step, absl::Duration cost, absl::Duration mean_step);
  int64_t ChooseInterval(absl::Duration cost, absl::Duration mean_step);

  const Options options_;
  Group& group_;
  RunCheckpoints& checkpoints_;
  SaveSchedule schedule_;
  MetricsLog* metrics_ = nullptr;
  Progress* progress_ = nullptr;
  int64_t said_interval_ = 0;  // steps between checkpoints: what the user was told last
  absl::Status unsaved_;
  int64_t failed_ = 0;
  std::string last_failed_;
  double waited_seconds_ = 0, last_save_seconds_ = 0;
  int64_t due_ = 0, left_out_ = 0;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_CHECKPOINT_SAVER_H_
