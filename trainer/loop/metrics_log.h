// metrics.jsonl and loss.svg of a run: rank 0's business.
//
// A line a step, written when the step is done:
//   step, loss (nats a token, mean over the global batch), val_loss (where it was measured),
//   val_loss_by_dataset (there, with several datasets: an object with the loss of each prefix),
//   grad_norm (before clipping), learning_rate, tokens (of the run so far), tokens_per_second,
//   step_seconds, exposed_comm_seconds (of this rank; and by axis: exposed_data_seconds,
//   exposed_tensor_seconds, exposed_context_seconds, exposed_expert_seconds,
//   exposed_pipeline_seconds), bubble_seconds (what this rank waited because of the pipeline's
//   schedule, no part of the exposed ones), bubble_share (of all stages: pipeline_bubble.h),
//   work_gemm_seconds and so on (where step_seconds went on this rank's computing thread, by kind
//   of work: work_time.h; they add up to step_seconds), mfu and mfu_full (model FLOPs over the
//   peak: causal attention, and full attention, as counted by TrainingFlopsPerToken),
//   page_faults (minor ones of this rank in the step), memory_mappings (times that memory for
//   tensors was asked of the kernel in the step), tensor_bytes, anonymous_bytes (memory of
//   this rank after the step: its tensors, and all that is no file's), resident_peak_bytes (the
//   most that was resident so far, files and shared memory included)
//   and with experts balance_loss, router_z_loss (means over tokens and layers), dropped_choices
//   (part of all that found no place)
// and after it, when the checkpoint that was due could not be written:
//   step, checkpoint_failed (why)
// in the place of the line of a step that was left out (train.non_finite = skip, fp16):
//   step, skipped (why)
// before the first step of a resumed run:
//   step, resumed_from (path), and what was read (ReadTotals)
// and before the first step since a rank was started anew:
//   step, recovered_rank, generation, spare (whether a spare process took its place), began_ns (the
//   end of the process before was seen then, CLOCK_MONOTONIC of the rank's host), phases_ms
#ifndef WEFT_TRAINER_LOOP_METRICS_LOG_H_
#define WEFT_TRAINER_LOOP_METRICS_LOG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "trainer/loop/recovery_phases.h"
#include "trainer/loop/shared_read.h"
#include "trainer/loop/step.h"
#include "trainer/loop/tensorboard.h"
#include "trainer/plot/loss_plot.h"
#include "trainer/profile/work_time.h"

namespace weft::train {

struct StepMetrics {
  int64_t step = 0;
  double loss = 0;
  std::optional<ValidationLoss> validation;
  double gradient_norm = 0;
  double learning_rate = 0;
  int64_t tokens = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  ExposedSeconds exposed;
  WorkSeconds work;  // of rank 0's computing thread: where step_seconds went
  std::optional<StepResult::Bubble> bubble;
  double mfu = 0, mfu_full = 0;
  int64_t page_faults = 0;  // of rank 0's process in the step: minor ones
  int64_t memory_mappings =
      0;          // times that rank 0 asked the kernel for tensors' memory in the step
  Bytes tensors;  // memory of rank 0 after the step: its tensors, and all that is no file's
  Bytes anonymous;
  Bytes resident_peak;
  struct Router {
    double balance_loss = 0, z_loss = 0, dropped = 0;
  };
  std::optional<Router> router;  // with experts
};

std::string ToJson(const StepMetrics& metrics);  // one line, without its end

class MetricsLog {
 public:
  // Keeps the lines of an earlier run up to `step` and drops the rest; 0 begins anew. An error
  // leaves the file as it was. `tensorboard`: writes RUN/tensorboard as well.
  static absl::StatusOr<std::unique_ptr<MetricsLog>> Open(const std::string& run_dir, int64_t step,
                                                          std::optional<double> unigram_loss,
                                                          bool tensorboard = false);
  ~MetricsLog();
  // With the kernel at once, so that a killed run loses no line. What cannot be written, to a full
  // disk, is kept in memory and tried again with the next line. Redraws the picture every few
  // seconds.
  void Append(const StepMetrics& metrics);
  void AppendFailedCheckpoint(int64_t step, absl::string_view reason);
  void AppendSkipped(int64_t step, absl::string_view reason);
  // `from`: the path of a checkpoint.
  void AppendResumed(int64_t step, absl::string_view from, const ReadTotals& read);
  void AppendRecovered(int64_t step, const RecoveryPhases& phases);
  // The last try: an error when lines or the picture are missing on the disk.
  absl::Status Finish();

 private:
  MetricsLog(std::string run_dir, int file) : run_dir_(std::move(run_dir)), file_(file) {}
  void Write(const std::string& line);
  void AppendToTensorBoard(const StepMetrics& metrics);
  absl::Status Flush();
  absl::Status Draw();

  const std::string run_dir_;
  const int file_;
  std::string unwritten_;                        // lines, the first perhaps without its beginning
  bool warned_ = false;                          // since something was written
  std::unique_ptr<TensorBoardLog> tensorboard_;  // null: not wanted, or it could not be written
  LossPlot plot_;
  absl::Time drawn_ = absl::InfinitePast();
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_METRICS_LOG_H_
