// Trials of what multiplies a step's matrices and computes its attention: each library at the
// shapes of the step, by the clock.
//
// What is measured. A product is run as a step runs it on one rank: its type, the rows of a
// micro-batch (those of a chunk of the loss for the output projection, an even share for an
// expert), which matrix is transposed, whether it adds to what is there, weights packed beforehand
// where the step has them so. Where the time that a trial has is too short for that, rows and then
// the wider side are cut (KernelRates::part below 1). Libraries take turns, so that a change of the
// clock or of the load meets all of them; a library's time is its shortest, and products whose
// libraries are close, or whose times scatter, have more rounds. One thread is timed by its own
// CPU time, which other programs do not count in; several by the wall clock. Rank 0 measures, while
// the other ranks wait.
#ifndef WEFT_TRAINER_KERNEL_CHOICE_KERNEL_TRIAL_H_
#define WEFT_TRAINER_KERNEL_CHOICE_KERNEL_TRIAL_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/config.h"
#include "trainer/kernel_choice/trial_work.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

// Rates of one rank in FLOP/s.
struct KernelRates {
  std::string name;  // ToString(GemmShape) of a product, or "attention.window.W"
  double flops = 1;  // what it is of a step, relative to the other rows
  int64_t rows = 0;  // of activations, in a step
  double part = 1;   // of a step's FLOPs of this shape that were measured in one piece
  double aten = 0;
  double weft = 0;
  double onednn = 0;  // 0: not tried

  double Of(KernelLibrary library) const;
  void Set(KernelLibrary library, double rate);
  double best() const;
};
// The rows of a trial without their rates: of products in the order of ProductsOf, of attention in
// that of WindowsOf.
std::vector<KernelRates> RowsOf(TrialOf what, const TrainConfig& config, const StepPlan& plan);
// What a trial of `what` tries: oneDNN is another library than kAten's for products in fp32 alone.
std::vector<KernelLibrary> LibrariesOf(TrialOf what, const TrainConfig& config);

struct KernelTrial {
  std::vector<KernelRates> rates;
  double register_peak = 0;  // of a thread, without memory; times the threads
  double other_cores = 0;    // that other processes used meanwhile
  std::string note;  // why it was measured anew, or why to measure it anew; empty: no reason

  // Over all rows, each with the work that it has in a step.
  double TotalRate(KernelLibrary library) const;
  // "weft", or with others for some rows "weft,aten=forward.384x1536": what GemmLibraries::FromText
  // or, of attention, AttentionLibraries::FromText takes. The library that is fastest over all
  // rows, where another one is no more than 2 % slower our own loops, which bring what follows a
  // product; and others for the rows at which they are 5 % faster.
  std::string Faster() const;
};

// About `seconds` at most, and as many rounds as a comparison needs; where other programs hold it
// up, hardly more than twice that. No trial in fp16, which LibTorch alone has.
KernelTrial Try(TrialOf what, const TrainConfig& config, const StepPlan& plan, double seconds);

}  // namespace weft::train

#endif  // WEFT_TRAINER_KERNEL_CHOICE_KERNEL_TRIAL_H_
