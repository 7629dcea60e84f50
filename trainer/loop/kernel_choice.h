// What a run multiplies its matrices with, and what computes its attention.
#ifndef WEFT_TRAINER_LOOP_KERNEL_CHOICE_H_
#define WEFT_TRAINER_LOOP_KERNEL_CHOICE_H_

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/config.h"
#include "trainer/groups/group.h"
#include "trainer/model/product.h"

namespace weft::train {

enum class TrialOf { kGemm, kAttention };

// Rates of one rank in FLOP/s.
struct KernelRates {
  std::string name;  // ToString(GemmShape) of a product, or "attention"
  double aten = 0;
  double weft = 0;

  double best() const { return std::max(aten, weft); }
};
struct KernelTrial {
  std::vector<KernelRates> rates;
  double register_peak = 0;  // of a thread, without memory; times the threads

  // The library that is faster over all rows, each with as much work as its product has; and
  // others for the products that another one does clearly faster: what GemmLibraries::FromText
  // takes.
  std::string Faster() const;
};

// The products of a rank: each of a layer's matrices and the output projection's, forward, of the
// input's gradient and of the weight's.
std::vector<GemmShape> GemmShapesOf(const TrainConfig& config);

// Products: of at most 512 rows, and of those of a wide matrix a part; attention: one sample of all
// heads, forward and backward. About a second. No trial in fp16, which LibTorch alone has.
KernelTrial Try(TrialOf what, const TrainConfig& config);
// The trial that `file` keeps, or a new one, which it keeps from then on: the first to write it
// decides for all, so that every run on this machine computes alike. A file that cannot be read as
// one of this config is written anew; where none can be written, the trial counts for this run.
//
// A line each: "registers RATE", then "NAME aten RATE weft RATE" in the order of GemmShapesOf.
KernelTrial KeptTrial(TrialOf what, const TrainConfig& config, const std::string& file);
// Where the trial for a config is kept on this machine (base/machine_cache.h); "" without a home.
std::string TrialFile(TrialOf what, const TrainConfig& config);

struct KernelChoice {
  GemmLibraries libraries;  // of attention, one for all
  // "weft (of one rank, GFLOP/s: weft 251, aten 118, registers 278)"; the rates of products are
  // those of all of them together.
  std::string description;
  std::vector<KernelRates> rates;  // of the trial that decided; on rank 0 alone
};
// What all ranks take: what config.gemm or config.attention says; for kAuto `kept`, the text of
// libraries that a checkpoint has, or else the faster on rank 0. All ranks call it together.
absl::StatusOr<KernelChoice> Choose(TrialOf what, const TrainConfig& config, absl::string_view kept,
                                    Group& group);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_KERNEL_CHOICE_H_
