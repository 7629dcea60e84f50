// Each optimizer against torch.optim where LibTorch has it, and else against its paper's definition
// written with LibTorch's operations.
#include "trainer/optimizer/optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>

namespace weft::train {
namespace {

constexpr int kSteps = 6;
constexpr double kRate = 1e-2, kDecay = 0.1, kScale = 0.5;

OptimizerConfig Config(OptimizerKind name) {
  OptimizerConfig config;
  config.name = name;
  config.beta1 = 0.9;
  config.beta2 = 0.97;
  config.epsilon = 1e-8;
  config.weight_decay = kDecay;
  config.momentum = 0.8;
  return config;
}

// A parameter and what the optimizer keeps of it.
struct Parameter {
  explicit Parameter(at::Tensor initial) : values(initial.clone()) {
    for (at::Tensor& state : states) state = at::zeros_like(values);
  }
  Stretch Whole(const at::Tensor& gradient, bool decays) {
    Stretch stretch{.elements = values.numel(), .decays = decays};
    stretch.values = values.data_ptr<float>();
    stretch.gradient = gradient.data_ptr();
    stretch.gradient_type = gradient.scalar_type() == at::kBFloat16 ? Precision::kBf16
                            : gradient.scalar_type() == at::kHalf   ? Precision::kFp16
                                                                    : Precision::kFp32;
    for (size_t k = 0; k < states.size(); ++k) stretch.states[k] = states[k].data_ptr<float>();
    return stretch;
  }
  at::Tensor values;
  std::array<at::Tensor, kOptimizerStatesMost> states;
};

class OptimizerTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    torch::manual_seed(3);
    at::set_num_threads(1);
  }
  // Runs ours and the definition on the same gradients, which are halved as by clipping.
  void Compare(const OptimizerConfig& config, at::IntArrayRef shape, bool decays,
               const std::function<void(int step, at::Tensor& values, const at::Tensor& gradient)>&
                   definition,
               double tolerance = 3e-6) {
    std::unique_ptr<Optimizer> optimizer = MakeOptimizer(config);
    at::Tensor expected = at::randn(shape);
    Parameter parameter(expected);
    for (int t = 1; t <= kSteps; ++t) {
      at::Tensor gradient = at::randn(shape).to(GetParam());
      const OptimizerStep step{.step = t, .learning_rate = kRate, .gradient_scale = kScale};
      optimizer->Update(step, parameter.Whole(gradient, decays));
      definition(t, expected, gradient.to(at::kFloat) * kScale);
    }
    EXPECT_LT((parameter.values - expected).abs().max().item<double>(), tolerance);
  }
};

TEST_P(OptimizerTest, AdamWIsTorchs) {
  for (bool decays : {true, false}) {
    at::Tensor reference;
    std::unique_ptr<torch::optim::AdamW> theirs;
    Compare(Config(OptimizerKind::kAdamW), {300, 170}, decays,
            [&](int, at::Tensor& values, const at::Tensor& gradient) {
              if (theirs == nullptr) {
                reference = values.clone().requires_grad_();
                theirs = std::make_unique<torch::optim::AdamW>(
                    std::vector<at::Tensor>{reference}, torch::optim::AdamWOptions(kRate)
                                                            .betas({0.9, 0.97})
                                                            .eps(1e-8)
                                                            .weight_decay(decays ? kDecay : 0));
              }
              reference.mutable_grad() = gradient;
              theirs->step();
              values = reference.detach();
            });
  }
}

// The bias correction is of the means, which a step that is left out does not change.
TEST_P(OptimizerTest, AdamWCountsUpdatesAndNotStepsThatWereLeftOut) {
  const std::unique_ptr<Optimizer> optimizer = MakeOptimizer(Config(OptimizerKind::kAdamW));
  const at::Tensor initial = at::randn({300});
  const at::Tensor gradient = at::randn({300}).to(GetParam());
  Parameter first(initial), third(initial);
  optimizer->Update({.step = 1, .learning_rate = kRate}, first.Whole(gradient, true));
  optimizer->Update({.step = 3, .left_out = 2, .learning_rate = kRate},
                    third.Whole(gradient, true));
  EXPECT_TRUE(at::equal(first.values, third.values));
}

TEST_P(OptimizerTest, SgdIsTorchs) {
  for (bool nesterov : {true, false}) {
    OptimizerConfig config = Config(OptimizerKind::kSgd);
    config.nesterov = nesterov;
    at::Tensor reference;
    std::unique_ptr<torch::optim::SGD> theirs;
    Compare(config, {300, 170}, /*decays=*/true,
            [&](int, at::Tensor& values, const at::Tensor& gradient) {
              if (theirs == nullptr) {
                reference = values.clone().requires_grad_();
                theirs = std::make_unique<torch::optim::SGD>(
                    std::vector<at::Tensor>{reference},
                    torch::optim::SGDOptions(kRate).momentum(0.8).nesterov(nesterov).weight_decay(
                        kDecay));
              }
              reference.mutable_grad() = gradient;
              theirs->step();
              values = reference.detach();
            });
  }
}

TEST_P(OptimizerTest, LionIsItsPapersAlgorithm2) {
  at::Tensor m = at::zeros({300, 170});
  Compare(Config(OptimizerKind::kLion), {300, 170}, /*decays=*/true,
          [&](int, at::Tensor& values, const at::Tensor& gradient) {
            const at::Tensor c = 0.9 * m + (1 - 0.9) * gradient;
            values = values - kRate * (at::sign(c) + kDecay * values);
            m = 0.97 * m + (1 - 0.97) * gradient;
          });
}

TEST_P(OptimizerTest, LambIsItsPapersAlgorithm2InEveryVariant) {
  for (bool correction : {true, false}) {
    for (double clip : {0.0, 2.5}) {
      for (bool decays : {true, false}) {
        OptimizerConfig config = Config(OptimizerKind::kLamb);
        config.lamb_bias_correction = correction;
        config.lamb_norm_clip = clip;
        at::Tensor m = at::zeros({300, 170}), v = at::zeros({300, 170});
        Compare(
            config, {300, 170}, decays,
            [&](int t, at::Tensor& values, const at::Tensor& gradient) {
              m = 0.9 * m + (1 - 0.9) * gradient;
              v = 0.97 * v + (1 - 0.97) * gradient * gradient;
              const double c1 = correction ? 1 - std::pow(0.9, t) : 1;
              const double c2 = correction ? 1 - std::pow(0.97, t) : 1;
              at::Tensor direction = m / c1 / (at::sqrt(v / c2) + 1e-8);
              double ratio = 1;
              if (decays) {
                direction = direction + kDecay * values;
                double norm = values.norm().item<double>();
                if (clip > 0) norm = std::min(norm, clip);
                ratio = norm / direction.norm().item<double>();
              }
              values = values - kRate * ratio * direction;
            },
            /*tolerance=*/1e-4);  // ratios of about 200
      }
    }
  }
}

// Momentum and five iterations of a X + b (X X') X + c (X X')^2 X on X / |X|, as published.
at::Tensor NewtonSchulz(const at::Tensor& given) {
  at::Tensor x = given / (given.norm() + 1e-7);
  if (given.size(0) > given.size(1)) x = x.t();
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = at::mm(x, x.t());
    const at::Tensor b = -4.7750 * a + 2.0315 * at::mm(a, a);
    x = 3.4445 * x + at::mm(b, x);
  }
  return given.size(0) > given.size(1) ? x.t() : x;
}

TEST_P(OptimizerTest, MuonOnAWholeMatrixIsItsDefinition) {
  for (bool nesterov : {true, false}) {
    for (auto [rows, columns] : {std::pair<int64_t, int64_t>{96, 40}, {40, 96}, {64, 64}}) {
      OptimizerConfig config = Config(OptimizerKind::kMuon);
      config.nesterov = nesterov;
      std::unique_ptr<Optimizer> optimizer = MakeOptimizer(config);
      const MatrixRule& rule = *optimizer->matrices();
      at::Tensor expected = at::randn({rows, columns}), m = at::zeros({rows, columns});
      Parameter parameter(expected);
      at::Tensor direction = at::empty({rows, columns});
      for (int t = 1; t <= kSteps; ++t) {
        at::Tensor given = at::randn({rows, columns}).to(GetParam());
        const OptimizerStep step{.step = t, .learning_rate = kRate, .gradient_scale = kScale};
        const Stretch stretch = parameter.Whole(given, true);
        rule.Direction(step, stretch, direction.data_ptr<float>());
        rule.Orthogonalize(direction.view({rows, columns}));
        rule.Apply(step, stretch, rows, columns, direction.data_ptr<float>());

        const at::Tensor gradient = given.to(at::kFloat) * kScale;
        m = 0.8 * m + 0.2 * gradient;
        const at::Tensor wanted = nesterov ? 0.2 * gradient + 0.8 * m : m;
        const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
        expected = expected * (1 - kRate * kDecay) - kRate * scale * NewtonSchulz(wanted);
      }
      EXPECT_LT((parameter.values - expected).abs().max().item<double>(), 1e-4);
      // Singular values near 1: what makes it Muon.
      const at::Tensor singular = at::linalg_svdvals(direction);
      if (rows != columns) {  // a square one may be nearly singular
        EXPECT_GT(singular.min().item<double>(), 0.3);
      }
      EXPECT_LT(singular.max().item<double>(), 1.6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gradients, OptimizerTest,
                         ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

TEST(OptimizerNamesTest, StatesAndScopesAreThoseOfTheRule) {
  const std::pair<OptimizerKind, std::string> names[] = {{OptimizerKind::kAdamW, "adamw"},
                                                         {OptimizerKind::kLamb, "lamb"},
                                                         {OptimizerKind::kSgd, "sgd"},
                                                         {OptimizerKind::kLion, "lion"},
                                                         {OptimizerKind::kMuon, "muon"}};
  for (const auto& [kind, name] : names) {
    std::unique_ptr<Optimizer> optimizer = MakeOptimizer(Config(kind));
    EXPECT_EQ(optimizer->name(), name);
    EXPECT_LE(optimizer->states().size(), static_cast<size_t>(kOptimizerStatesMost));
    EXPECT_EQ(optimizer->norms() != nullptr, name == "lamb");
    EXPECT_EQ(optimizer->matrices() != nullptr, name == "muon");
  }
  // Checkpoints of earlier versions have AdamW's under this name.
  EXPECT_EQ(MakeOptimizer(Config(OptimizerKind::kAdamW))->state_prefix(), "adam");
}

}  // namespace
}  // namespace weft::train
