// What a step computes on one rank that a trial measures: matrix products and attention, with their
// shapes and their share of the step's work. Arithmetic alone.
#ifndef WEFT_TRAINER_KERNEL_CHOICE_TRIAL_WORK_H_
#define WEFT_TRAINER_KERNEL_CHOICE_TRIAL_WORK_H_

#include <cstdint>
#include <vector>

#include "trainer/config.h"
#include "trainer/model/product.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

enum class TrialOf { kGemm, kAttention };

// A product of a step on one rank.
struct TrialProduct {
  GemmShape shape;
  int64_t rows = 0;        // of activations
  double flops = 0;        // a step's, relative to the other products'
  bool adds = false;       // to what is there
  bool into_fp32 = false;  // whatever the type of its factors
  int64_t uses = 1;        // products that read one packed copy of the weight; 1: it is not packed

  double flops_once() const {  // of this product alone
    return 2.0 * static_cast<double>(rows * shape.inputs * shape.outputs);
  }
};
// Each matrix of a layer and the output projection, forward, of the input's gradient and of the
// weight's.
std::vector<TrialProduct> ProductsOf(const TrainConfig& config, const StepPlan& plan);
// Windows of attention that the model's layers have, 0 for none, each once.
std::vector<int64_t> WindowsOf(const ModelConfig& model);

// Attention of one rank: its heads, where the context axis exchanges heads those that it has then,
// and whole samples.
struct AttentionWork {
  int64_t samples = 0, heads = 0, kv_heads = 0;
  int64_t width = 0;   // of a head
  int64_t length = 0;  // tokens of a sample
  int64_t window = 0;  // 0: none
  // Forward and backward: two products and five, of which a causal mask leaves half.
  double flops() const;
};
AttentionWork AttentionOf(const TrainConfig& config, const StepPlan& plan, int64_t window);

}  // namespace weft::train

#endif  // WEFT_TRAINER_KERNEL_CHOICE_TRIAL_WORK_H_
