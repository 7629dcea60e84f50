// What a run multiplies its matrices with, and what computes its attention.
#ifndef WEFT_TRAINER_KERNEL_CHOICE_KERNEL_CHOICE_H_
#define WEFT_TRAINER_KERNEL_CHOICE_KERNEL_CHOICE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"
#include "trainer/kernel_choice/kernel_trial.h"
#include "trainer/model/attention_libraries.h"
#include "trainer/model/product.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

// Seconds of the trials of a run that has none: of products and of attention together.
inline constexpr double kTrialSeconds = 1;

// The trial that `file` keeps, or a new one of `seconds`, which it keeps from then on: the first to
// write it decides for all, so that every run on this machine computes alike. `anew`: a new one in
// any case, which takes its place. A file that is no trial of this config is measured anew, and
// KernelTrial::note says why; where none can be written, the trial counts for this run.
KernelTrial KeptTrial(TrialOf what, const TrainConfig& config, const StepPlan& plan,
                      const std::string& file, double seconds, bool anew = false);
// Where the trial for a config is kept on this machine (base/machine_cache.h); "" without a home.
// Its name has what a rate depends on: LibTorch, instruction set, types, shapes, threads.
std::string TrialFile(TrialOf what, const TrainConfig& config, const StepPlan& plan);

struct KernelChoice {
  GemmLibraries libraries;       // of products
  AttentionLibraries attention;  // of attention
  // Text of `libraries` or `attention`, whichever the trial was of, for a checkpoint to keep. On a
  // device other than the CPU: the text that the checkpoint had before, which the CPU's run wrote.
  std::string text;
  // "weft (of one rank, GFLOP/s: weft 251, aten 118, registers 278)"; the rates are those of all
  // products of a step together.
  std::string description;
  std::vector<KernelRates> rates;  // of the trial that decided; on rank 0 alone
  std::string note;                // KernelTrial::note; on rank 0 alone
};
// What all ranks take: LibTorch's for fp16, else what config.gemm or config.attention says; for
// kAuto LibTorch's on a device other than the CPU, else `kept`, the text of libraries that a
// checkpoint has, or the faster on rank 0. `measure` above 0: a trial of so many seconds in place
// of `kept` and of the trial that this machine keeps. All ranks call it together.
absl::StatusOr<KernelChoice> Choose(TrialOf what, const TrainConfig& config, const StepPlan& plan,
                                    absl::string_view kept, Group& group, double measure = 0);

}  // namespace weft::train

#endif  // WEFT_TRAINER_KERNEL_CHOICE_KERNEL_CHOICE_H_
