// The number that the loss is multiplied by before the backward pass, so that gradients fit fp16's
// range (Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2), and how it
// changes: a step with non-finite gradients halves it, train.loss_scale_steps finite steps in a row
// double it. This class also counts the steps that were left out, with any number type.
#ifndef WEFT_TRAINER_LOOP_LOSS_SCALE_H_
#define WEFT_TRAINER_LOOP_LOSS_SCALE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "trainer/config.h"

namespace weft::train {

class LossScale {
 public:
  // With fp16 the scale begins at train.loss_scale; with other number types it stays 1.
  explicit LossScale(const TrainConfig& config);

  double value() const { return value_; }
  // Steps so far that were not finite, after which nothing was updated.
  int64_t left_out() const { return left_out_; }
  // Called after each step, with the same value on every rank. For a step that is not finite,
  // returns whether a smaller scale is left to try.
  bool Adapt(bool is_finite);

  // The state as text, for a checkpoint.
  std::string ToText() const;
  // InvalidArgument: ToText has not written this text.
  absl::Status FromText(absl::string_view text);

 private:
  bool moves_ = false;
  int64_t steps_until_growth_ = 0;
  double value_ = 1;
  int64_t finite_steps_ = 0;
  int64_t left_out_ = 0;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_LOSS_SCALE_H_
