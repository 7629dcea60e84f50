// metrics.jsonl and loss.svg of a run: rank 0's business.
//
// A line a step, written when the step is done:
//   step, loss (nats a token, mean over the global batch), val_loss (where it was measured),
//   grad_norm (before clipping), learning_rate, tokens (of the run so far), tokens_per_second,
//   step_seconds, exposed_comm_seconds (of this rank), mfu
#ifndef WEFT_TRAINER_LOOP_METRICS_LOG_H_
#define WEFT_TRAINER_LOOP_METRICS_LOG_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainer/plot/loss_plot.h"

namespace weft {

struct StepMetrics {
  int64_t step = 0;
  double loss = 0;
  std::optional<double> validation_loss;
  double gradient_norm = 0;
  double learning_rate = 0;
  int64_t tokens = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  double exposed_seconds = 0;
  double mfu = 0;
};

std::string ToJson(const StepMetrics& metrics);  // one line, without its end

class MetricsLog {
 public:
  // Keeps the lines of an earlier run up to `step` and drops the rest; 0 begins anew.
  static absl::StatusOr<std::unique_ptr<MetricsLog>> Open(const std::string& run_dir, int64_t step,
                                                          std::optional<double> unigram_loss);
  ~MetricsLog();
  // Flushed, so that a killed run loses no line. Redraws the picture every few seconds.
  absl::Status Append(const StepMetrics& metrics);
  absl::Status Draw();

 private:
  MetricsLog(std::string run_dir, std::FILE* file) : run_dir_(std::move(run_dir)), file_(file) {}
  const std::string run_dir_;
  std::FILE* file_;
  LossPlot plot_;
  absl::Time drawn_ = absl::InfinitePast();
};

}  // namespace weft

#endif  // WEFT_TRAINER_LOOP_METRICS_LOG_H_
