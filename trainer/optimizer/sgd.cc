// Stochastic gradient descent with momentum, as torch.optim.SGD without dampening.
#include <array>

#include "trainer/optimizer/optimizer.h"

namespace weft::train {
namespace {

class SgdOptimizer final : public Optimizer {
 public:
  explicit SgdOptimizer(const OptimizerConfig& config) : config_(config) {}
  absl::string_view name() const override { return "sgd"; }
  absl::Span<const OptimizerState> states() const override {
    static constexpr std::array<OptimizerState, 1> kStates = {{{"momentum"}}};
    return kStates;
  }
  void Update(const OptimizerStep& step, const Stretch& stretch) const override {
    const kernels::Sgd now = {
        .learning_rate = static_cast<float>(step.learning_rate),
        .momentum = static_cast<float>(config_.momentum),
        .weight_decay = stretch.decays ? static_cast<float>(config_.weight_decay) : 0.0F,
        .gradient_scale = static_cast<float>(step.gradient_scale),
        .nesterov = config_.nesterov};
    WithGradient(stretch, [&](const auto& kernels, const auto* gradient) {
      kernels.sgd(stretch.elements, now, gradient, stretch.values, stretch.states[0]);
    });
  }

 private:
  const OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeSgd(const OptimizerConfig& config) {
  return std::make_unique<SgdOptimizer>(config);
}

}  // namespace weft::train
