// The decoder, with every choice of [model], against the whole forward pass.
#include "trainer/model/decoder.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/trainer/model/small_model.h"
#include "trainer/model/parameters.h"

namespace weft::train {
namespace {

Gpt RandomModel(const ModelConfig& config, at::ScalarType type) {
  return Gpt(config, RandomParameters(GptParameters(config), type));
}

std::vector<int64_t> RandomTokens(int64_t count, uint64_t seed) {
  torch::manual_seed(seed);
  const at::Tensor tokens = at::randint(50, {count}, at::kLong);
  return {tokens.data_ptr<int64_t>(), tokens.data_ptr<int64_t>() + count};
}

at::Tensor AsTensor(absl::Span<const float> values) {
  return at::from_blob(const_cast<float*>(values.data()), {static_cast<int64_t>(values.size())},
                       at::kFloat)
      .clone();
}

// Logits at every position, the first of them from a prompt of every length.
void ExpectForwardsLogits(const ModelConfig& config, at::ScalarType type, double tolerance) {
  Gpt model = RandomModel(config, type);
  const std::vector<int64_t> tokens = RandomTokens(config.sequence, 5);
  ModelConfig undropped = config;
  undropped.capacity_factor = 0;
  Gpt reference = RandomModel(undropped, type);
  const at::Tensor expected =
      reference.Forward(at::tensor(tokens, at::kLong).view({1, -1}), {}).logits;
  auto decoder = Decoder::Create(model, 2);
  for (size_t prompt = 1; prompt <= tokens.size(); ++prompt) {
    EXPECT_LT(RelativeError(AsTensor(decoder->Prefill(1, absl::MakeSpan(tokens).first(prompt))),
                            expected[static_cast<int64_t>(prompt) - 1]),
              tolerance)
        << "a prompt of " << prompt;
    for (size_t i = prompt; i < tokens.size(); ++i) {
      EXPECT_EQ(decoder->length(1), static_cast<int64_t>(i));
      const NextToken next{1, tokens[i]};
      EXPECT_LT(RelativeError(AsTensor(decoder->Step({next})), expected[static_cast<int64_t>(i)]),
                tolerance)
          << "position " << i << " after a prompt of " << prompt;
    }
  }
}

struct Choice {
  const char* name;
  void (*apply)(ModelConfig&);
};
class DecoderTest : public ::testing::TestWithParam<Choice> {
 protected:
  // Threads that wait for each other would be most of it; decode_test.cc has several.
  static void SetUpTestSuite() { at::set_num_threads(1); }
  static ModelConfig Config() {
    ModelConfig config = SmallConfig();
    GetParam().apply(config);
    return config;
  }
};
// Rounded inputs may choose other experts: these in fp32 alone.
class DecoderExpertTest : public DecoderTest {};

TEST_P(DecoderTest, LogitsAreThoseOfTheWholePass) {
  ExpectForwardsLogits(Config(), at::kFloat, 2e-5);
}
TEST_P(DecoderTest, Bf16LogitsAreThoseOfTheWholePass) {
  ExpectForwardsLogits(Config(), at::kBFloat16, 2e-2);
}
TEST_P(DecoderTest, Fp16LogitsAreThoseOfTheWholePass) {
  ExpectForwardsLogits(Config(), at::kHalf, 3e-3);
}
TEST_P(DecoderExpertTest, LogitsAreThoseOfTheWholePass) {
  ExpectForwardsLogits(Config(), at::kFloat, 2e-5);
}

// Sequences of different lengths in one batch, in another order at each step.
void ExpectSameAlone(const ModelConfig& config, at::ScalarType type) {
  Gpt model = RandomModel(config, type);
  const std::vector<int64_t> lengths = {3, 7, 1, 5, 4};
  auto together = Decoder::Create(model, static_cast<int64_t>(lengths.size()));
  std::vector<std::unique_ptr<Decoder>> alone;
  std::vector<std::vector<int64_t>> tokens;
  std::vector<Beginning> beginnings;
  std::vector<at::Tensor> expected;
  for (size_t s = 0; s < lengths.size(); ++s) {
    tokens.push_back(RandomTokens(config.sequence, 10 + s));
    alone.push_back(Decoder::Create(model, 1));
    beginnings.push_back({static_cast<int64_t>(s),
                          absl::MakeConstSpan(tokens[s]).first(static_cast<size_t>(lengths[s]))});
    expected.push_back(AsTensor(alone[s]->Prefill(0, beginnings[s].tokens)));
  }
  std::reverse(beginnings.begin(), beginnings.end());
  std::reverse(expected.begin(), expected.end());
  EXPECT_TRUE(at::equal(AsTensor(together->Prefill(beginnings)), at::cat(expected)));
  for (size_t step = 0; step < 5; ++step) {
    std::vector<NextToken> next;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const size_t s = (i + step) % lengths.size();
      next.push_back({static_cast<int64_t>(s), tokens[s][static_cast<size_t>(lengths[s]) + step]});
    }
    const at::Tensor logits = AsTensor(together->Step(next)).view({-1, config.vocabulary});
    for (size_t i = 0; i < next.size(); ++i) {
      const NextToken mine{0, next[i].token};
      const at::Tensor one = AsTensor(alone[static_cast<size_t>(next[i].sequence)]->Step({mine}));
      EXPECT_TRUE(at::equal(logits[static_cast<int64_t>(i)], one))
          << "step " << step << " sequence " << next[i].sequence;
    }
  }
}

TEST_P(DecoderTest, ASequencesLogitsDoNotDependOnTheBatch) {
  ExpectSameAlone(Config(), at::kFloat);
  ExpectSameAlone(Config(), at::kBFloat16);
  ExpectSameAlone(Config(), at::kHalf);
}
TEST_P(DecoderExpertTest, ASequencesLogitsDoNotDependOnTheBatch) {
  ExpectSameAlone(Config(), at::kFloat);
}

TEST_P(DecoderTest, ASequenceThatBeginsAnewForgets) {
  Gpt model = RandomModel(Config(), at::kFloat);
  auto used = Decoder::Create(model, 1), fresh = Decoder::Create(model, 1);
  const std::vector<int64_t> first = RandomTokens(9, 1), second = RandomTokens(4, 2);
  used->Prefill(0, first);
  used->Step({NextToken{0, 7}});
  EXPECT_TRUE(at::equal(AsTensor(used->Prefill(0, second)), AsTensor(fresh->Prefill(0, second))));
  EXPECT_TRUE(
      at::equal(AsTensor(used->Step({NextToken{0, 3}})), AsTensor(fresh->Step({NextToken{0, 3}}))));
  EXPECT_EQ(used->length(0), 5);
}

// The keys of a head lie apart from those of the next: a few take as much as a page.
TEST(DecoderMemoryTest, AShortTextOfALongContextTakesHugePages) {
  constexpr int64_t kHugePage = 2 << 20;
  ModelConfig config = SmallConfig();
  config.position = PositionKind::kRotary;
  config.sequence = 1 << 18;  // a head's keys: 8 numbers a token, 8 MiB
  const Gpt model = RandomModel(config, at::kFloat);
  const int64_t heads = 2 * config.layers * config.heads;  // of keys and of values
  const int64_t few = Decoder::MemoryOf(model, 10).count();
  EXPECT_GE(few, heads * kHugePage);
  EXPECT_LT(few, heads * kHugePage + (1 << 20));
  EXPECT_LT(Decoder::MemoryOf(model, config.sequence).count(), heads * 4 * kHugePage + (1 << 20));
  // A context that is shorter than a page takes no more than itself.
  const Gpt small = RandomModel(SmallConfig(), at::kFloat);
  EXPECT_EQ(Decoder::MemoryOf(small, 3).count(), Decoder::MemoryOf(small, 12).count());
  EXPECT_LT(Decoder::MemoryOf(small, 12).count(), 1 << 20);
}

INSTANTIATE_TEST_SUITE_P(
    Choices, DecoderTest,
    ::testing::Values(Choice{"Gpt2", [](ModelConfig&) {}},
                      Choice{"ParallelBlock",
                             [](ModelConfig& c) { c.block = BlockKind::kParallel; }},
                      Choice{"Rotary", [](ModelConfig& c) { c.position = PositionKind::kRotary; }},
                      Choice{"GroupedQueries",
                             [](ModelConfig& c) {
                               c.kv_hidden = 16;
                               c.position = PositionKind::kRotary;
                             }},
                      Choice{"OneKeyValueHead", [](ModelConfig& c) { c.kv_hidden = 8; }},
                      Choice{"Window",
                             [](ModelConfig& c) {
                               c.window = 3;
                               c.position = PositionKind::kRotary;
                             }},
                      Choice{"WindowInOneLayer",
                             [](ModelConfig& c) {
                               c.window = 4;
                               c.window_layers = {false, true};
                               c.kv_hidden = 16;
                             }},
                      Choice{"RotaryLlama3",
                             [](ModelConfig& c) {
                               c.position = PositionKind::kRotary;
                               c.rotary_scaling = RotaryScaling::kLlama3;
                               c.rotary_factor = 8;
                               c.rotary_original = 64;
                               c.rotary_base = 100;
                             }},
                      Choice{"UntiedWithoutBias",
                             [](ModelConfig& c) {
                               c.tied = false;
                               c.bias = false;
                             }},
                      // Rows and heads wider than a vector register.
                      Choice{"Wide",
                             [](ModelConfig& c) {
                               c.hidden = 160;
                               c.heads = 2;
                               c.ffn = 200;
                             }},
                      Choice{"Llama",
                             [](ModelConfig& c) {
                               c.hidden = 128;
                               c.heads = 4;
                               c.kv_hidden = 64;
                               c.position = PositionKind::kRotary;
                               c.activation = ActivationKind::kSwiglu;
                               c.norm = NormKind::kRmsNorm;
                               c.bias = false;
                               c.tied = false;
                             }}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Experts, DecoderExpertTest,
                         ::testing::Values(Choice{"TwoOfSix",
                                                  [](ModelConfig& c) { c.experts = 6; }},
                                           Choice{"OneOfThree",
                                                  [](ModelConfig& c) {
                                                    c.experts = 3;
                                                    c.top_k = 1;
                                                    c.activation = ActivationKind::kSwiglu;
                                                    c.bias = false;
                                                  }},
                                           Choice{"WithoutItsCapacity",
                                                  [](ModelConfig& c) {
                                                    c.experts = 4;
                                                    c.capacity_factor = 0.7;
                                                    c.block = BlockKind::kParallel;
                                                  }}),
                         [](const auto& info) { return info.param.name; });

TEST(DecoderBytesTest, CountsWeightsAndWhatIsKept) {
  ModelConfig config = SmallConfig();
  config.window = 4;
  config.window_layers = {false, true};
  config.kv_hidden = 16;
  config.bias = false;
  config.tied = false;
  Gpt model = RandomModel(config, at::kBFloat16);
  auto decoder = Decoder::Create(model, 2);
  // A layer has queries, keys and values, the projection back, two matrices, two norms.
  const int64_t layer = 32 * 32 + 32 * 32 + 32 * 32 + 2 * 32 * 48 + 2 * 32;
  const int64_t weights = 2 * (2 * layer + 32 + 50 * 32);
  EXPECT_EQ(decoder->weight_bytes(), weights);
  EXPECT_EQ(decoder->bytes_read(), 0);
  decoder->Prefill(0, RandomTokens(6, 1));
  decoder->Prefill(1, RandomTokens(2, 1));
  EXPECT_EQ(decoder->bytes_read(), 0);
  decoder->Step({NextToken{0, 1}, NextToken{1, 1}});
  // Seven and three keys and values in the first layer, four and three in the second.
  EXPECT_EQ(decoder->bytes_read(), weights + (7 + 3 + 4 + 3) * 2 * 16 * 2);
}

}  // namespace
}  // namespace weft::train
