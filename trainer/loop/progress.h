// What a person sees while a run goes: a bar with loss, tokens/s and time left on a terminal, a
// line every few seconds elsewhere. On standard error.
#ifndef WEFT_TRAINER_LOOP_PROGRESS_H_
#define WEFT_TRAINER_LOOP_PROGRESS_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "trainer/config.h"
#include "trainer/loop/metrics_log.h"

namespace weft::train {

class Progress {
 public:
  Progress(const TrainConfig& config, int64_t first_step);
  void Step(const StepMetrics& metrics);
  // A line of its own, above the bar.
  void Note(absl::string_view line);
  void Finish();

 private:
  const int64_t steps_;
  const int64_t every_;  // steps between lines; 0: by time
  const bool bar_;
  bool drawn_ = false;
  int64_t first_step_;
  absl::Time start_;
  absl::Time last_ = absl::InfinitePast();
  double validation_loss_ = 0;  // the last; 0: none yet
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_PROGRESS_H_
