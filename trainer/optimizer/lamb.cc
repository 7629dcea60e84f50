// You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020,
// Algorithm 2: Adam's direction and the decay, scaled for each parameter by phi(|w|) / |direction|.
// A ratio of which either norm is 0 is 1. As in the authors' code for BERT, parameters that do not
// decay (norms, biases) are not scaled.
#include <algorithm>
#include <array>
#include <cmath>

#include "trainer/optimizer/optimizer.h"

namespace weft::train {
namespace {

class LambOptimizer final : public Optimizer, private NormRule {
 public:
  explicit LambOptimizer(const OptimizerConfig& config) : config_(config) {}
  absl::string_view name() const override { return "lamb"; }
  absl::Span<const OptimizerState> states() const override {
    static constexpr std::array<OptimizerState, 2> kStates = {{{"mean"}, {"variance"}}};
    return kStates;
  }
  const NormRule* norms() const override { return this; }
  void Update(const OptimizerStep& step, const Stretch& stretch) const override {
    Apply(step, stretch, Measure(step, stretch));
  }

 private:
  ParameterNorms Measure(const OptimizerStep& step, const Stretch& stretch) const override {
    std::array<double, 2> sums = {};
    WithGradient(stretch, [&](const auto& kernels, const auto* gradient) {
      kernels.lamb_measure(stretch.elements, At(step, stretch), gradient, stretch.values,
                           stretch.states[0], stretch.states[1], sums.data());
    });
    return {sums[0], sums[1]};
  }
  void Apply(const OptimizerStep& step, const Stretch& stretch,
             const ParameterNorms& whole) const override {
    double ratio = 1;
    if (stretch.decays && whole.values > 0 && whole.direction > 0) {
      double norm = std::sqrt(whole.values);
      if (config_.lamb_norm_clip > 0) norm = std::min(norm, config_.lamb_norm_clip);
      ratio = norm / std::sqrt(whole.direction);
    }
    stretch.table->fp32.lamb_apply(stretch.elements, At(step, stretch),
                                   static_cast<float>(step.learning_rate * ratio),
                                   stretch.states[0], stretch.states[1], stretch.values);
  }
  kernels::AdamW At(const OptimizerStep& step, const Stretch& stretch) const {
    return AdamWAt(config_, step, stretch.decays, config_.lamb_bias_correction);
  }

  const OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeLamb(const OptimizerConfig& config) {
  return std::make_unique<LambOptimizer>(config);
}

}  // namespace weft::train
