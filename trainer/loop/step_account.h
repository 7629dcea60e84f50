// What steps take on this rank: the metrics of one, and their sums over the run.
//
//   account.Begin(SystemClock::Nanoseconds());
//   ... the step ...
//   account.End();
//   StepMetrics metrics = account.MetricsOf(step, result);
//   account.Count(metrics);
//
// Used by the thread that computes.
#ifndef WEFT_TRAINER_LOOP_STEP_ACCOUNT_H_
#define WEFT_TRAINER_LOOP_STEP_ACCOUNT_H_

#include <cstdint>

#include "absl/time/time.h"
#include "trainer/config.h"
#include "trainer/loop/metrics_log.h"
#include "trainer/loop/step.h"
#include "trainer/profile/work_time.h"

namespace weft::train {

// The time of this process's steps, in seconds.
struct RunTotals {
  int64_t steps = 0;
  double seconds = 0;
  double exposed_seconds = 0;    // waited for communication
  double bubble_seconds = 0;     // waited because of the pipeline's schedule
  double bubble_share = 0;       // of all stages; summed over steps
  double mfu = 0, mfu_full = 0;  // times the steps' seconds
  double snapshot_seconds = 0;
};

class StepAccount {
 public:
  // `config` outlives this object; its vocabulary may be set later.
  explicit StepAccount(const TrainConfig& config) : config_(config) {}

  // FLOP/s of all ranks, before the first step.
  void set_peak_flops(double peak) { peak_flops_ = peak; }
  double peak_flops() const { return peak_flops_; }

  // A step that began at `start_ns`, of SystemClock.
  void Begin(int64_t start_ns);
  int64_t End();  // the time then, of the same clock
  // Of the step that has ended: all but the validation loss.
  StepMetrics MetricsOf(int64_t step, const StepResult& result) const;
  void Count(const StepMetrics& metrics);
  void AddSnapshot(double seconds) { totals_.snapshot_seconds += seconds; }

  int64_t tokens_per_step() const { return config_.global_batch * config_.model.sequence; }
  const RunTotals& totals() const { return totals_; }
  absl::Duration mean_step() const;  // 0 before the first

 private:
  const TrainConfig& config_;
  double peak_flops_ = 0;
  int64_t start_ns_ = 0;
  double seconds_ = 0;  // from here: of the step that has ended
  WorkSeconds work_;
  // Of the process: as the step began, and then what the step added.
  int64_t page_faults_ = 0, memory_mappings_ = 0;
  RunTotals totals_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_STEP_ACCOUNT_H_
