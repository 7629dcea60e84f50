// Texts of a model with random weights, against the whole forward pass for every token.
#include "trainer/generate/generate.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "trainer/model/parameters.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kVocabulary = 300;
constexpr int64_t kContext = 16;

class GenerateTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    std::vector<std::string> lines;
    Random random(1);
    for (int i = 0; i < 300; ++i) {
      std::string line;
      for (int word = 0; word < 8; ++word) {
        for (int letter = 0; letter < 4; ++letter) {
          line += static_cast<char>('a' + random.Below(20));
        }
        line += ' ';
      }
      lines.push_back(line + "é");
    }
    auto model = TrainTokenizer(lines, kVocabulary);
    ASSERT_TRUE(model.ok()) << model.status();
    auto tokenizer = Tokenizer::FromModel(*model, "the test");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = std::make_unique<Tokenizer>(*std::move(tokenizer));
    ModelConfig config;
    config.layers = 2;
    config.hidden = 32;
    config.heads = 4;
    config.ffn = 48;
    config.sequence = kContext;
    config.vocabulary = kVocabulary + 4;  // rows that stand for no token
    config.position = PositionKind::kRotary;
    config.tied = false;
    torch::manual_seed(3);
    std::vector<at::Tensor> values;
    for (const ParameterSpec& spec : GptParameters(config)) {
      values.push_back(at::randn(spec.shape) * 0.2 + spec.mean);
    }
    model_ = std::make_unique<Gpt>(config, std::move(values));
  }
  static void TearDownTestSuite() {
    model_.reset();
    tokenizer_.reset();
  }

  static Generated Write(const std::vector<std::string>& prompts, const GenerateOptions& options,
                         const OnGenerated& on_part = nullptr) {
    auto written = Generate(*model_, *tokenizer_, prompts, options, on_part);
    EXPECT_TRUE(written.ok()) << written.status();
    if (!written.ok()) return {.texts = std::vector<GeneratedText>(prompts.size()), .speed = {}};
    return *std::move(written);
  }
  static std::string Refusal(const std::vector<std::string>& prompts,
                             const GenerateOptions& options) {
    auto written = Generate(*model_, *tokenizer_, prompts, options);
    EXPECT_EQ(written.status().code(), absl::StatusCode::kInvalidArgument) << written.status();
    return std::string(written.status().message());
  }
  static std::vector<int64_t> Begin(const std::string& prompt) {
    std::vector<int32_t> ids;
    EXPECT_TRUE(tokenizer_->Encode(prompt, ids).ok());
    std::vector<int64_t> tokens = {tokenizer_->eod_id()};
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    return tokens;
  }
  // Logits of the token after these, without a cache.
  static at::Tensor Next(const std::vector<int64_t>& tokens, size_t from) {
    const at::Tensor all =
        at::tensor(tokens, at::kLong).narrow(0, int64_t(from), int64_t(tokens.size() - from));
    return model_->Forward(all.view({1, -1}), {.last_only = true})
        .logits[0]
        .narrow(0, 0, kVocabulary);
  }

  static inline std::unique_ptr<Tokenizer> tokenizer_;
  static inline std::unique_ptr<Gpt> model_;
};

// Three times as long as the context: what is read anew is the newest half of it.
TEST_F(GenerateTest, GreedyTextsAreThoseWithoutACache) {
  for (const std::string prompt : {"", "abcd", "some words"}) {
    const Generated written = Write({prompt}, {.tokens = 3 * kContext, .temperature = 0});
    std::vector<int64_t> tokens = Begin(prompt);
    std::vector<int32_t> expected;
    size_t from = 0;
    while (int64_t(expected.size()) < 3 * kContext) {
      if (int64_t(tokens.size() - from) > kContext) from = tokens.size() - kContext / 2;
      const int64_t next = Next(tokens, from).argmax().item<int64_t>();
      if (next == tokenizer_->eod_id()) break;
      tokens.push_back(next);
      expected.push_back(static_cast<int32_t>(next));
    }
    EXPECT_EQ(written.texts[0].tokens, expected) << prompt;
    EXPECT_EQ(written.texts[0].text.substr(0, prompt.size()), prompt);
  }
}

TEST_F(GenerateTest, ABatchWritesWhatEachPromptWritesAlone) {
  const std::vector<std::string> prompts = {"", "abcd efgh", "a", "words of it", "b", "c d"};
  for (double temperature : {0.0, 1.0}) {
    const GenerateOptions options{
        .tokens = 30, .temperature = temperature, .top_k = 50, .seed = 7, .batch = 4};
    const Generated together = Write(prompts, options);
    EXPECT_LT(together.speed.decode_steps, together.speed.decode_tokens);
    for (size_t i = 0; i < prompts.size(); ++i) {
      const Generated alone = Write(
          {prompts[i]}, {.tokens = 30, .temperature = temperature, .top_k = 50, .seed = 7 + i});
      EXPECT_EQ(together.texts[i].tokens, alone.texts[0].tokens) << prompts[i];
      EXPECT_EQ(together.texts[i].text, alone.texts[0].text);
    }
  }
}

TEST_F(GenerateTest, ASeedGivesTheSameTextAndAnotherAnother) {
  const GenerateOptions options{.tokens = 20, .seed = 5};
  GenerateOptions other = options;
  other.seed = 6;
  EXPECT_EQ(Write({"a"}, options).texts[0].tokens, Write({"a"}, options).texts[0].tokens);
  EXPECT_NE(Write({"a"}, options).texts[0].tokens, Write({"a"}, other).texts[0].tokens);
}

TEST_F(GenerateTest, DrawsAmongTheLikeliestOnly) {
  const std::vector<int64_t> begin = Begin("abcd");
  const at::Tensor logits = Next(begin, 0);
  const at::Tensor order = logits.argsort(-1, /*descending=*/true);
  const at::Tensor probability = at::softmax(logits, -1);
  std::map<int32_t, int> first;
  const std::vector<std::string> prompts(400, "abcd");
  auto count = [&](const GenerateOptions& options) {
    first.clear();
    for (const GeneratedText& text : Write(prompts, options).texts) {
      if (!text.tokens.empty()) ++first[text.tokens[0]];
    }
  };
  count({.tokens = 1, .top_k = 3});
  EXPECT_EQ(first.size(), 3U);
  for (int64_t i = 0; i < 3; ++i) {
    const double part = (probability[order[i]] /
                         (probability[order[0]] + probability[order[1]] + probability[order[2]]))
                            .item<double>();
    EXPECT_NEAR(first[order[i].item<int32_t>()], 400 * part, 60) << i;
  }
  // As many as have this probability together.
  const double two = (probability[order[0]] + probability[order[1]]).item<double>();
  count({.tokens = 1, .top_p = two - 1e-4});
  EXPECT_EQ(first.size(), 2U);
  count({.tokens = 1, .top_p = 1e-9});
  EXPECT_EQ(first.size(), 1U);
  EXPECT_EQ(first.begin()->first, order[0].item<int32_t>());
}

TEST_F(GenerateTest, EndsWithTheDocument) {
  const Generated written =
      Write(std::vector<std::string>(60, ""), {.tokens = 100, .temperature = 20, .batch = 8});
  int ended = 0;
  for (const GeneratedText& text : written.texts) {
    if (text.ended_document) {
      ++ended;
    } else {
      EXPECT_EQ(text.tokens.size(), 100U);
    }
    EXPECT_EQ(std::count(text.tokens.begin(), text.tokens.end(), tokenizer_->eod_id()), 0);
  }
  EXPECT_GT(ended, 0);
}

// Bytes that are drawn singly make characters only together.
TEST_F(GenerateTest, PartsAreTheTextBehindThePrompt) {
  const std::vector<std::string> prompts = {"abcd", "é", ""};
  std::vector<std::string> parts(prompts.size());
  const Generated written =
      Write(prompts, {.tokens = 40, .temperature = 3, .batch = 2},
            [&](size_t text, absl::string_view part) { parts[text] += std::string(part); });
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(prompts[i] + parts[i], written.texts[i].text);
  }
}

TEST_F(GenerateTest, CountsWhatItDid) {
  const Generated written = Write({"a", "b"}, {.tokens = 5, .temperature = 0, .batch = 2});
  const int64_t read = 2 + written.texts[0].prompt_tokens + written.texts[1].prompt_tokens;
  EXPECT_EQ(written.speed.prefill_tokens, read);
  int64_t made = 0;
  for (const GeneratedText& text : written.texts) {
    made += static_cast<int64_t>(text.tokens.size()) + (text.ended_document ? 1 : 0);
  }
  EXPECT_EQ(written.speed.decode_tokens, made - 2);  // the first of each follows its prompt
  EXPECT_GT(written.speed.decode_bytes, 0);
}

// Not drawn from: no order holds among numbers that are none.
TEST_F(GenerateTest, NamesALogitThatIsNotFinite) {
  std::vector<at::Tensor> values;
  for (const ParameterSpec& spec : GptParameters(model_->config())) {
    values.push_back(model_->parameter(static_cast<int>(values.size())).clone());
    if (spec.name == "head.weight") values.back()[7].fill_(std::nan(""));
  }
  const Gpt broken(model_->config(), std::move(values));
  const auto written =
      Generate(broken, *tokenizer_, {"a", "b"}, {.tokens = 9, .top_p = 0.9, .batch = 2});
  EXPECT_EQ(written.status().code(), absl::StatusCode::kFailedPrecondition) << written.status();
  EXPECT_THAT(std::string(written.status().message()),
              ::testing::AllOf(HasSubstr("text 1: after "), HasSubstr("logit of token 7 is nan"),
                               HasSubstr("fp32")));
}

TEST_F(GenerateTest, RefusesABatchThatMemoryDoesNotHold) {
  const std::vector<std::string> prompts(40, "a");
  const Bytes model(ElementCount(GptParameters(model_->config())) * int64_t{sizeof(float)});
  const Bytes memory = model + KiB(100);
  EXPECT_THAT(Refusal(prompts, {.tokens = 9, .batch = 40, .memory = memory}),
              ::testing::AllOf(HasSubstr(absl::StrCat("batch = 40: 40 texts of up to ",
                                                      Begin("a").size() + 9, " tokens")),
                               HasSubstr("at a time fit")));
  EXPECT_EQ(Write(prompts, {.tokens = 9, .batch = 5, .memory = memory}).texts.size(), 40U);
  EXPECT_THAT(Refusal({"a"}, {.tokens = 9, .memory = model}), HasSubstr("; 0 at a time fit"));
}

TEST_F(GenerateTest, RefusesWhatCannotBe) {
  EXPECT_THAT(Refusal({"a"}, {.temperature = -1}), HasSubstr("temperature = -1"));
  EXPECT_THAT(Refusal({"a"}, {.temperature = std::nan("")}), HasSubstr("temperature = nan"));
  EXPECT_THAT(Refusal({"a"}, {.temperature = INFINITY}), HasSubstr("temperature = inf"));
  EXPECT_THAT(Refusal({"a"}, {.top_k = -2}), HasSubstr("top_k = -2"));
  EXPECT_THAT(Refusal({"a"}, {.top_p = 0}), HasSubstr("top_p = 0"));
  EXPECT_THAT(Refusal({"a"}, {.top_p = 1.5}), HasSubstr("top_p = 1.5"));
  EXPECT_THAT(Refusal({"a"}, {.tokens = 0}), HasSubstr("tokens = 0"));
  EXPECT_THAT(Refusal({"a"}, {.batch = 0}), HasSubstr("batch = 0"));
  const std::string longer(200, 'q');
  EXPECT_THAT(Refusal({"a", longer}, {}),
              ::testing::AllOf(HasSubstr("prompt 2"), HasSubstr("shorten it to 15")));
  EXPECT_EQ(Write({longer}, {.tokens = 3, .temperature = 0, .cut_prompts = true})
                .texts[0]
                .text.substr(0, 200),
            longer);
}

}  // namespace
}  // namespace weft::train
