// Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024
// (kellerjordan.github.io/posts/muon): momentum, made orthogonal by five Newton-Schulz iterations,
// for the matrices of blocks; AdamW for embeddings, output projection, norms and biases. The step
// is scaled by 0.2 sqrt(max(rows, columns)), so that its root mean square is AdamW's and both share
// learning rate and decay (Liu et al., "Muon is scalable for LLM training", 2025, section 2.2).
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "trainer/optimizer/optimizer.h"

namespace weft::train {
namespace {

constexpr int kIterations = 5;
// p(x) = a x + b x^3 + c x^5 brings singular values in (0, 1] near 1.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kTiny = 1e-7;

class MuonOptimizer final : public Optimizer, private MatrixRule {
 public:
  explicit MuonOptimizer(const OptimizerConfig& config)
      : config_(config), others_(MakeAdamW(config)) {}
  absl::string_view name() const override { return "muon"; }
  absl::Span<const OptimizerState> states() const override {
    // The momentum of a matrix is a running mean as AdamW's.
    static constexpr std::array<OptimizerState, 2> kStates = {
        {{"mean"}, {.name = "variance", .of_matrices = false}}};
    return kStates;
  }
  const MatrixRule* matrices() const override { return this; }
  void Update(const OptimizerStep& step, const Stretch& stretch) const override {
    others_->Update(step, stretch);
  }

 private:
  void Direction(const OptimizerStep& step, const Stretch& stretch,
                 float* direction) const override {
    const kernels::Momentum now = {.momentum = static_cast<float>(config_.momentum),
                                   .gradient_scale = static_cast<float>(step.gradient_scale),
                                   .nesterov = config_.nesterov};
    WithGradient(stretch, [&](const auto& kernels, const auto* gradient) {
      kernels.momentum(stretch.elements, now, gradient, stretch.states[0], direction);
    });
  }

  void Orthogonalize(const at::Tensor& matrix) const override {
    at::NoGradGuard no_grad;
    const bool is_tall = matrix.size(0) > matrix.size(1);
    at::Tensor x = (is_tall ? matrix.t() : matrix).contiguous();
    x = x / x.norm().clamp_min(kTiny);
    for (int i = 0; i < kIterations; ++i) {
      const at::Tensor gram = at::mm(x, x.t());
      const at::Tensor polynomial = at::addmm(gram, gram, gram, /*beta=*/kB, /*alpha=*/kC);
      x = at::addmm(x, polynomial, x, /*beta=*/kA, /*alpha=*/1);
    }
    matrix.copy_(is_tall ? x.t() : x);
  }

  void Apply(const OptimizerStep& step, const Stretch& stretch, int64_t rows, int64_t columns,
             const float* direction) const override {
    const double decay = stretch.decays ? config_.weight_decay : 0.0;
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
    stretch.table->fp32.step_along(
        stretch.elements, static_cast<float>(1.0 - step.learning_rate * decay),
        static_cast<float>(step.learning_rate * scale), direction, stretch.values);
  }

  const OptimizerConfig config_;
  const std::unique_ptr<Optimizer> others_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeMuon(const OptimizerConfig& config) {
  return std::make_unique<MuonOptimizer>(config);
}

}  // namespace weft::train
