// A trial as the text of a file, which a machine keeps for later runs.
#ifndef WEFT_TRAINER_KERNEL_CHOICE_TRIAL_FILE_H_
#define WEFT_TRAINER_KERNEL_CHOICE_TRIAL_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "trainer/config.h"
#include "trainer/kernel_choice/kernel_trial.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

// The text of a file: a line each, "trial 2", "registers RATE", "others CORES", then
// "NAME rows ROWS part PART aten RATE weft RATE" and so on in the order of ProductsOf.
std::string ToText(const KernelTrial& trial, TrialOf what, const TrainConfig& config);
// DataLoss, with what is wrong, where `text` is no trial of this config, or has a rate that no
// processor reaches.
absl::StatusOr<KernelTrial> ParseTrial(const std::string& text, TrialOf what,
                                       const TrainConfig& config, const StepPlan& plan);

}  // namespace weft::train

#endif  // WEFT_TRAINER_KERNEL_CHOICE_TRIAL_FILE_H_
