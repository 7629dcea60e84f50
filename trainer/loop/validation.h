// The validation loss of a run: of each of its datasets, and their mean.
#ifndef WEFT_TRAINER_LOOP_VALIDATION_H_
#define WEFT_TRAINER_LOOP_VALIDATION_H_

#include "absl/status/statusor.h"
#include "trainer/config.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/step.h"
#include "trainer/loop/step_result.h"

namespace weft::train {

// Each dataset's held-out part gives its share of validation.batches global batches, rounded, but
// at least one and no more than it has: the first ones, always the same. All ranks call this
// together. A sample that a rank cannot read is an error on every rank.
absl::StatusOr<ValidationLoss> MeasureValidation(const TrainConfig& config, const RunData& data,
                                                 Stepper& stepper);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_VALIDATION_H_
