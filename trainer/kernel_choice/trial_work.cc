#include "trainer/kernel_choice/trial_work.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "trainer/model/gpt.h"
#include "trainer/model/packed_weights.h"
#include "trainer/model/parameters.h"

namespace weft::train {

std::vector<TrialProduct> ProductsOf(const TrainConfig& config, const StepPlan& plan) {
  ModelConfig model = config.model;
  model.layers = 1;  // all have the same matrices
  ModelPart part = WholeModel(model);
  part.tensor_size = plan.sizes.tensor;
  const int64_t rows = plan.micro_rows * plan.TokensHeld(model.sequence);
  const int64_t width = SizeOf(config.precision);
  const int64_t head_rows = LossRows(rows, model.vocabulary / plan.sizes.tensor, width,
                                     config.loss_rows, /*on_gpu=*/false);
  const int64_t head_chunks = (rows + head_rows - 1) / head_rows;
  const PackedPart packed = plan.PartPacked(config);
  std::vector<TrialProduct> products;
  for (const ParameterSpec& spec : GptParameters(model, part)) {
    const bool is_head = spec.name == "head.weight" || spec.name == "embedding.token";
    const bool is_looked_up =
        spec.name == "embedding.position" || (spec.name == "embedding.token" && !model.tied);
    if (!spec.is_matrix || is_looked_up || absl::StrContains(spec.name, ".router.") ||
        spec.elements() == 0) {
      continue;
    }
    const int64_t shared =
        spec.is_expert ? std::max<int64_t>(1, rows * model.top_k / model.experts) : rows;
    for (GemmPass pass :
         {GemmPass::kForward, GemmPass::kInputGradient, GemmPass::kWeightGradient}) {
      const bool is_gradient = pass == GemmPass::kWeightGradient;
      TrialProduct product{.shape = {pass, spec.shape[1], spec.shape[0]},
                           .rows = is_head ? head_rows : shared};
      product.flops = 2.0 * static_cast<double>(spec.elements() * (is_head ? rows : shared) *
                                                (is_head ? 1 : config.model.layers));
      product.adds =
          is_gradient && (plan.pipeline.micro_batches > 1 || (is_head && head_chunks > 1));
      product.into_fp32 =
          is_gradient && (plan.ReducesInFp32(config) || (is_head && head_chunks > 1));
      const bool keeps = packed == PackedPart::kAll || (packed == PackedPart::kHead && is_head);
      if (keeps && !is_gradient) {
        product.uses = plan.pipeline.micro_batches * (is_head ? head_chunks : 1);
      }
      const auto same = std::find_if(products.begin(), products.end(), [&](const auto& other) {
        return other.shape == product.shape;
      });
      if (same == products.end()) {
        products.push_back(product);
      } else {
        same->flops += product.flops;
      }
    }
  }
  return products;
}

std::vector<int64_t> WindowsOf(const ModelConfig& model) {
  std::set<int64_t> windows;
  for (int64_t layer = 0; layer < model.layers; ++layer) windows.insert(model.WindowOf(layer));
  return {windows.begin(), windows.end()};
}

double AttentionWork::flops() const {
  const int64_t seen = window > 0 ? std::min(window, length) : length;
  return 7.0 * static_cast<double>(samples * heads * width * length * seen);
}

AttentionWork AttentionOf(const TrainConfig& config, const StepPlan& plan, int64_t window) {
  const ModelConfig& model = config.model;
  int64_t heads = model.heads / plan.sizes.tensor;
  int64_t kv_heads = std::max<int64_t>(1, model.KvHeads() / plan.sizes.tensor);
  if (plan.sizes.context > 1 && config.context_method == ContextMethod::kUlysses) {
    heads = std::max<int64_t>(1, heads / plan.sizes.context);
    kv_heads = std::max<int64_t>(1, kv_heads / plan.sizes.context);
  }
  if (heads % kv_heads != 0) kv_heads = 1;
  return {plan.micro_rows, heads, kv_heads, model.hidden / model.heads, model.sequence, window};
}

}  // namespace weft::train
