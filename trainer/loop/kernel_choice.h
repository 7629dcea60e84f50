// What a run multiplies its matrices with, and what computes its attention.
#ifndef WEFT_TRAINER_LOOP_KERNEL_CHOICE_H_
#define WEFT_TRAINER_LOOP_KERNEL_CHOICE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"

namespace weft::train {

// Rates of one rank in FLOP/s: of products of a model's widths, forward and of a weight's gradient,
// or of attention of its heads over a sample, forward and backward.
struct KernelTrial {
  double aten = 0;
  double weft = 0;
  double register_peak = 0;  // of a thread, without memory; times the threads

  KernelLibrary faster() const { return weft > aten ? KernelLibrary::kWeft : KernelLibrary::kAten; }
};

// "aten" or "weft".
absl::string_view NameOf(KernelLibrary library);

enum class TrialOf { kGemm, kAttention };

// About a quarter of a second. No trial in fp16, which LibTorch alone has.
KernelTrial Try(TrialOf what, const TrainConfig& config);
// The trial that `file` keeps, or a new one, which it keeps from then on: the first to write it
// decides for all, so that every run on this machine computes alike. A file that cannot be read as
// one is written anew; where none can be written, the trial counts for this run.
KernelTrial KeptTrial(TrialOf what, const TrainConfig& config, const std::string& file);
// Where the trial for a config is kept on this machine (base/machine_cache.h); "" without a home.
std::string TrialFile(TrialOf what, const TrainConfig& config);

struct KernelChoice {
  KernelLibrary library = KernelLibrary::kAten;
  std::string description;  // "weft (of one rank, GFLOP/s: weft 251, aten 118, registers 278)"
};
// What all ranks take: what config.gemm or config.attention says; for kAuto `kept`, the name that a
// checkpoint has, or else the faster on rank 0. All ranks call it together.
absl::StatusOr<KernelChoice> Choose(TrialOf what, const TrainConfig& config, absl::string_view kept,
                                    Group& group);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_KERNEL_CHOICE_H_
