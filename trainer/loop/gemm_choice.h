// What a run multiplies its matrices with.
#ifndef WEFT_TRAINER_LOOP_GEMM_CHOICE_H_
#define WEFT_TRAINER_LOOP_GEMM_CHOICE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"

namespace weft::train {

// Rates of one rank in FLOP/s, measured on products of a model's widths, forward and of a weight's
// gradient.
struct GemmTrial {
  double aten = 0;
  double weft = 0;
  double register_peak = 0;  // of a thread, without memory; times the threads

  GemmLibrary faster() const { return weft > aten ? GemmLibrary::kWeft : GemmLibrary::kAten; }
};

// "aten" or "weft".
absl::string_view NameOf(GemmLibrary library);

// About a quarter of a second. No trial in fp16, of which LibTorch alone has products.
GemmTrial TryGemm(const TrainConfig& config);
// The trial that `file` keeps, or a new one, which it keeps from then on: the first to write it
// decides for all, so that every run on this machine multiplies alike. A file that cannot be read
// as one is written anew; where none can be written, the trial counts for this run.
GemmTrial KeptTrial(const TrainConfig& config, const std::string& file);
// Where the trial for a config is kept on this machine (base/machine_cache.h); "" without a home.
std::string GemmTrialFile(const TrainConfig& config);

struct GemmChoice {
  GemmLibrary library = GemmLibrary::kAten;
  std::string description;  // "weft (of one rank, GFLOP/s: weft 251, aten 118, registers 278)"
};
// What all ranks multiply with: what config.gemm says; for kAuto `kept`, the name that a checkpoint
// has, or else the faster on rank 0. All ranks call it together.
absl::StatusOr<GemmChoice> ChooseGemm(const TrainConfig& config, absl::string_view kept,
                                      Group& group);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_GEMM_CHOICE_H_
