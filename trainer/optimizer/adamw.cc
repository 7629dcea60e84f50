// Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019.
#include <array>
#include <cmath>

#include "trainer/optimizer/optimizer.h"

namespace weft::train {
namespace {

class AdamWOptimizer final : public Optimizer {
 public:
  explicit AdamWOptimizer(const OptimizerConfig& config) : config_(config) {}
  absl::string_view name() const override { return "adamw"; }
  absl::string_view state_prefix() const override { return "adam"; }
  absl::Span<const OptimizerState> states() const override {
    static constexpr std::array<OptimizerState, 2> kStates = {{{"mean"}, {"variance"}}};
    return kStates;
  }
  void Update(const OptimizerStep& step, const Stretch& stretch) const override {
    const kernels::AdamW now = AdamWAt(config_, step, stretch.decays, /*bias_correction=*/true);
    WithGradient(stretch, [&](const auto& kernels, const auto* gradient) {
      kernels.adamw(stretch.elements, now, gradient, stretch.values, stretch.states[0],
                    stretch.states[1]);
    });
  }

 private:
  const OptimizerConfig config_;
};

}  // namespace

kernels::AdamW AdamWAt(const OptimizerConfig& config, const OptimizerStep& step, bool decays,
                       bool bias_correction) {
  const double t = static_cast<double>(step.step - step.left_out);
  kernels::AdamW now = {.learning_rate = static_cast<float>(step.learning_rate),
                        .beta1 = static_cast<float>(config.beta1),
                        .beta2 = static_cast<float>(config.beta2),
                        .epsilon = static_cast<float>(config.epsilon),
                        .weight_decay = decays ? static_cast<float>(config.weight_decay) : 0.0F,
                        .gradient_scale = static_cast<float>(step.gradient_scale)};
  if (bias_correction) {
    now.correction1 = static_cast<float>(1.0 - std::pow(config.beta1, t));
    now.correction2_root = static_cast<float>(std::sqrt(1.0 - std::pow(config.beta2, t)));
  }
  return now;
}

std::unique_ptr<Optimizer> MakeAdamW(const OptimizerConfig& config) {
  return std::make_unique<AdamWOptimizer>(config);
}

}  // namespace weft::train
