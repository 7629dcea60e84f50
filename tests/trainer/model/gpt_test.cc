// The model, with every choice of [model], against the same model written with LibTorch's plain
// operations and its autograd.
#include "trainer/model/gpt.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/trainer/model/small_model.h"
#include "trainer/kernels/instruction_sets.h"
#include "trainer/model/parameters.h"

namespace weft::train {
namespace {

// Keeps gradients in tensors of their own and counts the uses.
class KeepingSink final : public GradientSink {
 public:
  KeepingSink(const std::vector<ParameterSpec>& specs, at::ScalarType type) {
    for (const ParameterSpec& spec : specs) {
      gradients.push_back(at::full(spec.shape, 1e30, type));  // stale, must be overwritten
    }
    uses.resize(specs.size());
  }
  GradientTarget Begin(int parameter) override {
    size_t i = static_cast<size_t>(parameter);
    return {gradients[i], uses[i] > 0};
  }
  void End(int parameter) override { ++uses[static_cast<size_t>(parameter)]; }
  bool TakesAnyOrder() const override { return takes_any_order; }

  bool takes_any_order = true;
  std::vector<at::Tensor> gradients;
  std::vector<int> uses;
};

// The reference: names to leaves that require gradients.
class Reference {
 public:
  Reference(const ModelConfig& config, const std::vector<ParameterSpec>& specs,
            const std::vector<at::Tensor>& values)
      : config_(config) {
    for (size_t i = 0; i < specs.size(); ++i) {
      leaves[specs[i].name] = values[i].detach().clone().to(at::kFloat).requires_grad_();
    }
  }

  at::Tensor Logits(const at::Tensor& tokens) {
    int64_t length = tokens.size(1);
    at::Tensor x = at::embedding(leaves["embedding.token"], tokens);
    if (config_.position == PositionKind::kLearned) {
      x = x + leaves["embedding.position"].narrow(0, 0, length);
    }
    for (int64_t i = 0; i < config_.layers; ++i) {
      std::string name = "block." + std::to_string(i);
      at::Tensor normed = Norm(x, name + ".norm1");
      if (config_.block == BlockKind::kParallel) {
        x = x + Attention(normed, i) + Inner(normed, name);
      } else {
        x = x + Attention(normed, i);
        x = x + Inner(Norm(x, name + ".norm2"), name);
      }
    }
    x = Norm(x, "norm");
    return at::matmul(x, leaves[config_.tied ? "embedding.token" : "head.weight"].t());
  }

  std::map<std::string, at::Tensor> leaves;
  at::Tensor router_loss = at::zeros({});  // of all layers, after Logits
  int64_t dropped = 0;

 private:
  at::Tensor Linear(const at::Tensor& x, const std::string& name) {
    at::Tensor y = at::matmul(x, leaves[name + ".weight"].t());
    return leaves.count(name + ".bias") > 0 ? y + leaves[name + ".bias"] : y;
  }
  at::Tensor Norm(const at::Tensor& x, const std::string& name) {
    bool centered = config_.norm == NormKind::kLayerNorm;
    at::Tensor d = centered ? x - x.mean(-1, true) : x;
    at::Tensor y = d / at::sqrt(d.square().mean(-1, true) + config_.norm_epsilon);
    y = y * leaves[name + ".weight"];
    return leaves.count(name + ".bias") > 0 ? y + leaves[name + ".bias"] : y;
  }
  // As the scalings' sources write it, pair by pair.
  float Frequency(double part) const {
    const double factor = config_.rotary_factor;
    double frequency = 1 / std::pow(config_.rotary_base, part);
    if (config_.rotary_scaling == RotaryScaling::kLinear) frequency /= factor;
    if (config_.rotary_scaling == RotaryScaling::kNtk) {
      const double d = double(config_.hidden / config_.heads);
      frequency = 1 / std::pow(config_.rotary_base * std::pow(factor, d / (d - 2)), part);
    }
    if (config_.rotary_scaling == RotaryScaling::kLlama3) {
      const double original = double(config_.rotary_original), wave = 2 * M_PI / frequency;
      if (wave > original) {
        frequency /= factor;
      } else if (wave > original / 4) {
        const double smooth = (original / wave - 1) / 3;
        frequency = (1 - smooth) * frequency / factor + smooth * frequency;
      }
    }
    return float(frequency);
  }
  // [B, heads, T, width] by complex numbers: an independent way to rotate.
  at::Tensor Rotate(const at::Tensor& x) {
    int64_t half = x.size(3) / 2;
    std::vector<float> frequencies;
    for (int64_t i = 0; i < half; ++i) frequencies.push_back(Frequency(double(i) / double(half)));
    at::Tensor frequency = at::tensor(frequencies);
    at::Tensor angle = at::outer(at::arange(x.size(2)).to(at::kFloat), frequency);
    at::Tensor turn = at::polar(at::ones_like(angle), angle);
    at::Tensor z =
        at::complex(x.narrow(3, 0, half).contiguous(), x.narrow(3, half, half).contiguous());
    z = z * turn;
    return at::cat({at::real(z), at::imag(z)}, 3);
  }
  // Queries, keys, values [B, T, heads or key-value heads, width].
  std::vector<at::Tensor> Project(const at::Tensor& x, const std::string& name) {
    const int64_t width = config_.hidden / config_.heads;
    std::vector<at::Tensor> parts;
    if (leaves.count(name + ".attention.qkv.weight") > 0) {
      parts = Linear(x, name + ".attention.qkv").chunk(3, -1);
    } else {
      parts = {Linear(x, name + ".attention.q")};
      for (at::Tensor& part : Linear(x, name + ".attention.kv").chunk(2, -1)) {
        parts.push_back(part);
      }
    }
    for (at::Tensor& part : parts) part = part.view({x.size(0), x.size(1), -1, width});
    return parts;
  }
  at::Tensor Attention(const at::Tensor& x, int64_t layer) {
    const std::string name = "block." + std::to_string(layer);
    int64_t batch = x.size(0), length = x.size(1), width = config_.hidden / config_.heads;
    auto parts = Project(x, name);
    for (at::Tensor& part : parts) part = part.transpose(1, 2);
    if (config_.position == PositionKind::kRotary) {
      parts[0] = Rotate(parts[0]);
      parts[1] = Rotate(parts[1]);
    }
    const int64_t group = config_.heads / parts[1].size(1);
    for (size_t i : {1, 2}) parts[i] = parts[i].repeat_interleave(group, 1);
    at::Tensor scores = at::matmul(parts[0], parts[1].transpose(2, 3)) / std::sqrt(double(width));
    at::Tensor distance = at::arange(length).unsqueeze(1) - at::arange(length);
    at::Tensor hidden = distance < 0;
    const int64_t window = config_.WindowOf(layer);
    if (window > 0) hidden = hidden.logical_or(distance >= window);
    scores = scores.masked_fill(hidden, -INFINITY);
    at::Tensor mixed = at::matmul(at::softmax(scores, -1), parts[2]);
    return Linear(mixed.transpose(1, 2).reshape({batch, length, config_.hidden}),
                  name + ".attention.out");
  }
  at::Tensor Inner(const at::Tensor& x, const std::string& name) {
    return config_.HasExperts() ? Mixture(x, name) : Ffn(x, name + ".ffn.in", name + ".ffn.out");
  }
  // Token by token: the routers' losses as their papers write them, and the choices that find a
  // place.
  at::Tensor Mixture(const at::Tensor& x, const std::string& name) {
    const int64_t samples = x.size(0), tokens = x.size(1), k = config_.top_k;
    const double experts = double(config_.experts);
    at::Tensor logits = at::matmul(x, leaves[name + ".router.weight"].t());
    at::Tensor probabilities = at::softmax(logits, -1);
    router_loss = router_loss + config_.router_z_loss * at::logsumexp(logits, -1).square().mean();
    auto [values, choices] = probabilities.topk(k, -1);
    if (k > 1) values = values / values.sum(-1, true);
    std::vector<at::Tensor> outputs;
    for (int64_t e = 0; e < config_.experts; ++e) {
      const std::string expert = name + ".expert." + std::to_string(e);
      outputs.push_back(Ffn(x, expert + ".in", expert + ".out"));
    }
    at::Tensor result = at::zeros_like(x);
    for (int64_t b = 0; b < samples; ++b) {
      std::vector<int64_t> taken(static_cast<size_t>(config_.experts));
      for (int64_t t = 0; t < tokens; ++t) {
        at::Tensor sum = at::zeros({config_.hidden});
        for (int64_t i = 0; i < k; ++i) {
          const int64_t e = choices[b][t][i].item<int64_t>();
          const double place = double(++taken[static_cast<size_t>(e)]);
          const double capacity = std::ceil(config_.capacity_factor * double(k * tokens) / experts);
          if (config_.capacity_factor > 0 && place > capacity) {
            ++dropped;
            continue;
          }
          sum = sum + values[b][t][i] * outputs[static_cast<size_t>(e)][b][t];
        }
        at::Tensor place = at::zeros({samples, tokens, 1});
        place[b][t] = 1;
        result = result + place * sum;
      }
      for (int64_t e = 0; e < config_.experts; ++e) {
        const double share = double(taken[static_cast<size_t>(e)]) / double(k * tokens);
        router_loss = router_loss + config_.balance_loss * experts * share *
                                        probabilities[b].select(1, e).mean() / double(samples);
      }
    }
    return result;
  }
  at::Tensor Ffn(const at::Tensor& x, const std::string& in, const std::string& out) {
    at::Tensor inner = Linear(x, in);
    if (config_.activation == ActivationKind::kSwiglu) {
      auto parts = inner.chunk(2, -1);
      inner = at::silu(parts[0]) * parts[1];
    } else {
      inner = at::gelu(inner, "tanh");
    }
    return Linear(inner, out);
  }
  const ModelConfig config_;
};

void ExpectMatchesReference(const ModelConfig& config, at::ScalarType type, double tolerance,
                            KernelLibrary library) {
  std::vector<ParameterSpec> specs = GptParameters(config);
  std::vector<at::Tensor> values = RandomParameters(specs, type);
  Reference reference(config, specs, values);
  Gpt model(config, values);
  model.set_gemm(library);
  model.set_attention(library == KernelLibrary::kOneDnn ? KernelLibrary::kAten : library);
  KeepingSink sink(specs, type);
  at::Tensor tokens = at::randint(config.vocabulary, {3, 10}, at::kLong);
  at::Tensor targets = at::randint(config.vocabulary, {30}, at::kLong);

  at::Tensor expected = reference.Logits(tokens).view({30, config.vocabulary});
  at::Tensor loss = at::cross_entropy_loss(expected, targets);
  (loss + reference.router_loss).backward();
  RouterTotals totals;

  std::vector<int> entered;
  Pass pass = model.Forward(tokens, {.before_unit = [&](int unit) { entered.push_back(unit); },
                                     .sink = &sink,
                                     .token_scale = 1.0 / 30,
                                     .router = &totals});
  EXPECT_EQ(entered, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_LT(RelativeError(pass.logits.detach(), expected), tolerance);
  at::Tensor losses = CrossEntropy(pass.logits, targets, 1.0 / 30);
  EXPECT_NEAR(losses.mean().item<double>(), loss.item<double>(), tolerance * 3);
  Gpt::Backward(pass);
  if (config.HasExperts()) {
    EXPECT_EQ(totals.choices, 30 * config.layers * config.top_k);
    EXPECT_EQ(totals.dropped, reference.dropped);
    const double routers =
        (config.balance_loss * totals.balance + config.router_z_loss * totals.z) / 30;
    EXPECT_NEAR(routers, reference.router_loss.item<double>(), tolerance * 10);
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(sink.uses[i], specs[i].uses) << specs[i].name;
    // An expert that no token takes is in no graph.
    at::Tensor gradient = reference.leaves[specs[i].name].grad();
    if (!gradient.defined()) gradient = at::zeros(specs[i].shape);
    EXPECT_LT(RelativeError(sink.gradients[i], gradient), tolerance * 5) << specs[i].name;
  }
}

struct Choice {
  const char* name;
  void (*apply)(ModelConfig&);
};

class GptChoiceTest : public ::testing::TestWithParam<Choice> {};

// Losses and gradients of one forward and backward pass.
std::vector<at::Tensor> PassOf(Gpt& model, const std::vector<ParameterSpec>& specs,
                               const at::Tensor& tokens, const at::Tensor& targets,
                               bool trains = true) {
  KeepingSink sink(specs, at::kFloat);
  ForwardOptions options{.loss = LossRequest{targets, trains ? 1.0 / 30 : 0, 10}};
  if (trains) options.sink = &sink;
  const at::Tensor losses = model.Run(tokens, tokens.size(1), options);
  std::vector<at::Tensor> results = {losses.detach()};
  if (!trains) return results;
  torch::autograd::backward({losses}, {at::empty_like(losses)});
  results.insert(results.end(), sink.gradients.begin(), sink.gradients.end());
  return results;
}
void ExpectEqual(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

// The copies are read in place of the weights until the count of changes moves on.
TEST_P(GptChoiceTest, PackedWeightsGiveTheSameBitsUntilTheyChangeAndAfterwards) {
  ModelConfig config = SmallConfig();
  GetParam().apply(config);
  const std::vector<ParameterSpec> specs = GptParameters(config);
  const std::vector<at::Tensor> values = RandomParameters(specs, at::kFloat);
  const at::Tensor tokens = at::randint(config.vocabulary, {3, 10}, at::kLong);
  const at::Tensor targets = at::randint(config.vocabulary, {30}, at::kLong);
  Gpt plain(config, values), packing(config, values);
  plain.set_gemm(KernelLibrary::kWeft);
  packing.set_gemm(KernelLibrary::kWeft);
  int64_t changes = 0;
  packing.KeepPacked(PackedPart::kAll, [&changes] { return changes; });
  for (int step = 0; step < 3; ++step) {
    const std::vector<at::Tensor> before = PassOf(plain, specs, tokens, targets);
    ExpectEqual(PassOf(packing, specs, tokens, targets), before);
    ExpectEqual(PassOf(packing, specs, tokens, targets), before);
    ExpectEqual(PassOf(packing, specs, tokens, targets, /*trains=*/false), {before[0]});
    for (size_t i = 0; i < specs.size(); ++i) {
      if (IsBlockMatrix(specs[i])) values[i].mul_(1.5);
    }
    const at::Tensor after = PassOf(plain, specs, tokens, targets)[0];
    EXPECT_FALSE(at::equal(after, before[0]));
    EXPECT_FALSE(at::equal(PassOf(packing, specs, tokens, targets)[0], after));
    ++changes;
  }
}

TEST_P(GptChoiceTest, LogitsAndGradientsAreTheReferences) {
  ModelConfig config = SmallConfig();
  GetParam().apply(config);
  for (KernelLibrary library :
       {KernelLibrary::kAten, KernelLibrary::kWeft, KernelLibrary::kOneDnn}) {
    ExpectMatchesReference(config, at::kFloat, 2e-5, library);
  }
}

// In fp32 alone: rounded inputs may choose other experts.
class GptExpertTest : public GptChoiceTest {};

TEST_P(GptExpertTest, LogitsLossesAndGradientsAreTheReferences) {
  ModelConfig config = SmallConfig();
  GetParam().apply(config);
  for (KernelLibrary library :
       {KernelLibrary::kAten, KernelLibrary::kWeft, KernelLibrary::kOneDnn}) {
    ExpectMatchesReference(config, at::kFloat, 2e-5, library);
  }
}

INSTANTIATE_TEST_SUITE_P(Experts, GptExpertTest,
                         ::testing::Values(Choice{"TwoOfSix",
                                                  [](ModelConfig& c) {
                                                    c.experts = 6;
                                                    c.balance_loss = 0.5;
                                                    c.router_z_loss = 0.1;
                                                  }},
                                           Choice{"OneOfThree",
                                                  [](ModelConfig& c) {
                                                    c.experts = 3;
                                                    c.top_k = 1;
                                                    c.activation = ActivationKind::kSwiglu;
                                                    c.bias = false;
                                                    c.balance_loss = 0.5;
                                                  }},
                                           Choice{"Capacity",
                                                  [](ModelConfig& c) {
                                                    c.experts = 4;
                                                    c.capacity_factor = 0.7;
                                                    c.balance_loss = 0.3;
                                                    c.block = BlockKind::kParallel;
                                                  }}),
                         [](const auto& info) { return info.param.name; });

// The wheel that we build with has it where there is AVX-512; without it the tests above are of
// kAten.
TEST(GemmLibraryTest, LibTorchHasOneDnnsProducts) {
  EXPECT_EQ(HasOneDnn(), kernels::CpuHas(kernels::InstructionSet::kAvx512));
}

TEST_P(GptChoiceTest, Bf16IsCloseToTheReference) {
  ModelConfig config = SmallConfig();
  GetParam().apply(config);
  for (KernelLibrary library : {KernelLibrary::kAten, KernelLibrary::kWeft}) {
    ExpectMatchesReference(config, at::kBFloat16, 2e-2, library);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Choices, GptChoiceTest,
    ::testing::Values(
        Choice{"Gpt2", [](ModelConfig&) {}},
        Choice{"ParallelBlock", [](ModelConfig& c) { c.block = BlockKind::kParallel; }},
        Choice{"Rotary", [](ModelConfig& c) { c.position = PositionKind::kRotary; }},
        Choice{"Swiglu", [](ModelConfig& c) { c.activation = ActivationKind::kSwiglu; }},
        Choice{"RmsNorm", [](ModelConfig& c) { c.norm = NormKind::kRmsNorm; }},
        Choice{"GroupedQueries", [](ModelConfig& c) { c.kv_hidden = 16; }},
        Choice{"OneKeyValueHead",
               [](ModelConfig& c) {
                 c.kv_hidden = 8;
                 c.position = PositionKind::kRotary;
               }},
        Choice{"Window", [](ModelConfig& c) { c.window = 3; }},
        Choice{"WindowInOneLayer",
               [](ModelConfig& c) {
                 c.window = 4;
                 c.window_layers = {false, true};
                 c.kv_hidden = 16;
               }},
        Choice{"RotaryLinear",
               [](ModelConfig& c) {
                 c.position = PositionKind::kRotary;
                 c.rotary_scaling = RotaryScaling::kLinear;
                 c.rotary_factor = 4;
               }},
        Choice{"RotaryNtk",
               [](ModelConfig& c) {
                 c.position = PositionKind::kRotary;
                 c.rotary_scaling = RotaryScaling::kNtk;
                 c.rotary_factor = 4;
               }},
        Choice{"RotaryLlama3",
               [](ModelConfig& c) {
                 c.position = PositionKind::kRotary;
                 c.rotary_scaling = RotaryScaling::kLlama3;
                 c.rotary_factor = 8;
                 c.rotary_original = 64;
                 c.rotary_base = 100;
               }},
        Choice{"Untied", [](ModelConfig& c) { c.tied = false; }},
        Choice{"NoBias", [](ModelConfig& c) { c.bias = false; }},
        Choice{"Llama",
               [](ModelConfig& c) {
                 c.position = PositionKind::kRotary;
                 c.activation = ActivationKind::kSwiglu;
                 c.norm = NormKind::kRmsNorm;
                 c.bias = false;
               }}),
    [](const auto& info) { return info.param.name; });

class LossInChunksTest : public ::testing::TestWithParam<
                             std::tuple<std::pair<at::ScalarType, at::ScalarType>, bool, bool>> {};

// The losses and gradients of whole logits, in chunks of every size, for a sink that takes
// gradients of the output projection at once and for one that does not, of either type.
TEST_P(LossInChunksTest, IsTheLossOfWholeLogits) {
  const auto [types, tied, any_order] = GetParam();
  const auto [type, sink_type] = types;
  ModelConfig config = SmallConfig();
  config.tied = tied;
  const std::vector<ParameterSpec> specs = GptParameters(config);
  Gpt model(config, RandomParameters(specs, type));
  const at::Tensor tokens = at::randint(config.vocabulary, {3, 10}, at::kLong);
  const at::Tensor targets = at::randint(config.vocabulary, {30}, at::kLong);
  KeepingSink whole(specs, at::kFloat);
  Pass pass = model.Forward(tokens, {.sink = &whole});
  const at::Tensor expected = CrossEntropy(pass.logits, targets, 1.0 / 30);
  Gpt::Backward(pass);
  const double tolerance = type == at::kFloat ? 1e-6 : 1e-2;
  model.set_gemm(KernelLibrary::kWeft);
  for (int64_t rows : {1, 7, 10, 30, 0}) {
    KeepingSink sink(specs, sink_type);
    sink.takes_any_order = any_order;
    const at::Tensor losses =
        model.Run(tokens, 10, {.sink = &sink, .loss = LossRequest{targets, 1.0 / 30, rows}});
    EXPECT_LT(RelativeError(losses, expected), 1e-6) << rows;
    EXPECT_EQ(sink.uses.back() > 0, any_order && !tied) << "the head's gradient, " << rows;
    torch::autograd::backward({losses}, {at::empty_like(losses)});
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(sink.uses[i], specs[i].uses) << specs[i].name;
      EXPECT_LT(RelativeError(sink.gradients[i], whole.gradients[i]), tolerance)
          << specs[i].name << ", " << rows << " rows at a time";
    }
    at::NoGradGuard no_grad;
    const at::Tensor alone = model.Run(tokens, 10, {.loss = LossRequest{targets, 0, rows}});
    EXPECT_TRUE(at::equal(alone, losses)) << rows;
  }
}

INSTANTIATE_TEST_SUITE_P(Sinks, LossInChunksTest,
                         ::testing::Combine(::testing::Values(std::pair(at::kFloat, at::kFloat),
                                                              std::pair(at::kBFloat16, at::kFloat),
                                                              std::pair(at::kBFloat16,
                                                                        at::kBFloat16)),
                                            ::testing::Bool(), ::testing::Bool()));

TEST(GptTest, PredictionsDoNotSeeTheFuture) {
  ModelConfig config = SmallConfig();
  std::vector<ParameterSpec> specs = GptParameters(config);
  Gpt model(config, RandomParameters(specs, at::kFloat));
  at::Tensor tokens = at::randint(config.vocabulary, {1, 10}, at::kLong);
  at::Tensor before = model.Forward(tokens, {}).logits.clone();
  tokens[0][7] = (tokens[0][7] + 1) % config.vocabulary;
  at::Tensor after = model.Forward(tokens, {}).logits;
  EXPECT_TRUE(at::allclose(before.narrow(0, 0, 7), after.narrow(0, 0, 7), 1e-5, 1e-6));
  EXPECT_FALSE(at::allclose(before[7], after[7], 1e-5, 1e-6));
  EXPECT_TRUE(
      at::allclose(model.Forward(tokens, {.last_only = true}).logits[0], after[9], 1e-4, 1e-5));
}

TEST(GptTest, DropoutActsInTrainingOnly) {
  ModelConfig config = SmallConfig();
  config.dropout = 0.5;
  std::vector<ParameterSpec> specs = GptParameters(config);
  Gpt model(config, RandomParameters(specs, at::kFloat));
  at::Tensor tokens = at::randint(config.vocabulary, {1, 10}, at::kLong);
  at::Tensor plain = model.Forward(tokens, {}).logits;
  EXPECT_TRUE(at::equal(plain, model.Forward(tokens, {}).logits));
  EXPECT_FALSE(at::equal(plain, model.Forward(tokens, {.dropout = DropoutKey{.key = 7}}).logits));
}

TEST(ParametersTest, InitialValuesDependOnNameAndSeedAlone) {
  ModelConfig config = SmallConfig();
  std::vector<ParameterSpec> specs = GptParameters(config);
  std::vector<float> a(static_cast<size_t>(specs[0].elements())), b = a, c = a;
  InitializeParameter(specs[0], 1, absl::MakeSpan(a));
  InitializeParameter(specs[0], 1, absl::MakeSpan(b));
  InitializeParameter(specs[0], 2, absl::MakeSpan(c));
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  double squares = 0;
  for (float value : a) squares += value * value;
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(a.size())), 0.02, 0.002);
}

TEST(ParametersTest, FlopsPerTokenIsTheFormulaOnPaper) {
  ModelConfig config = SmallConfig();
  // 6 * (2 * (4 * 32 * 32 + 2 * 32 * 48) + 32 * 50) + 6 * 2 * 32 * 12
  EXPECT_DOUBLE_EQ(TrainingFlopsPerToken(config), 6.0 * (2 * (4096 + 3072) + 1600) + 4608);
  // Twice the keys, and all of them where a window holds.
  const double full = 6.0 * (2 * (4096 + 3072) + 1600) + 9216;
  EXPECT_DOUBLE_EQ(TrainingFlopsPerToken(config, AttentionFlops::kFull), full);
  config.window = 3;
  EXPECT_DOUBLE_EQ(TrainingFlopsPerToken(config, AttentionFlops::kFull), full);
}

}  // namespace
}  // namespace weft::train
