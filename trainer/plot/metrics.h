// Reads a run's metrics.jsonl: one JSON object a line, a line a step.
#ifndef WEFT_TRAINER_PLOT_METRICS_H_
#define WEFT_TRAINER_PLOT_METRICS_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "trainer/plot/loss_plot.h"

namespace weft::train {

// The largest metrics.jsonl that is read: ten million steps and more.
inline constexpr Bytes kMetricsMost = GiB(4);

// `step`, `loss` and, where it was measured, `val_loss`; null is a gap. A step that was done again
// after a resume counts as it was last. A last line that a killed run left half-written is passed
// over, and so is one without `loss`, which reports something else of its step; any other line that
// is no such object is an error with its number.
absl::StatusOr<LossPlot> ReadLossMetrics(const std::string& path);

}  // namespace weft::train

#endif  // WEFT_TRAINER_PLOT_METRICS_H_
