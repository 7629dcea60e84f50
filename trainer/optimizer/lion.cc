// Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, Algorithm 2.
#include <array>

#include "trainer/optimizer/optimizer.h"

namespace weft::train {
namespace {

class LionOptimizer final : public Optimizer {
 public:
  explicit LionOptimizer(const OptimizerConfig& config) : config_(config) {}
  absl::string_view name() const override { return "lion"; }
  absl::Span<const OptimizerState> states() const override {
    static constexpr std::array<OptimizerState, 1> kStates = {{{"mean"}}};
    return kStates;
  }
  void Update(const OptimizerStep& step, const Stretch& stretch) const override {
    const kernels::Lion now = {
        .learning_rate = static_cast<float>(step.learning_rate),
        .beta1 = static_cast<float>(config_.beta1),
        .beta2 = static_cast<float>(config_.beta2),
        .weight_decay = stretch.decays ? static_cast<float>(config_.weight_decay) : 0.0F,
        .gradient_scale = static_cast<float>(step.gradient_scale)};
    WithGradient(stretch, [&](const auto& kernels, const auto* gradient) {
      kernels.lion(stretch.elements, now, gradient, stretch.values, stretch.states[0]);
    });
  }

 private:
  const OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeLion(const OptimizerConfig& config) {
  return std::make_unique<LionOptimizer>(config);
}

}  // namespace weft::train
