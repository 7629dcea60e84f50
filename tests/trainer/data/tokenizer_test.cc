#include "trainer/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "tests/trainer/data/sample_text.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

const std::string& Model() {
  static const std::string model = *TrainTokenizer(SampleLines(2000), 600);
  return model;
}

Tokenizer Load() { return *Tokenizer::FromModel(Model(), "test model"); }

std::vector<int32_t> Encode(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  EXPECT_TRUE(tokenizer.Encode(text, ids).ok());
  return ids;
}

TEST(Tokenizer, LosesNothing) {
  Tokenizer tokenizer = Load();
  EXPECT_EQ(tokenizer.vocab_size(), 600);
  for (std::string text :
       {"the cat sat on the mat", "  leading and   many spaces ", "two\nlines\n\n", "tab\tand\rCR",
        "caf\xC3\xA9 \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80", "</s><unk><0x41>", "",
        "1234567"}) {
    auto back = tokenizer.Decode(Encode(tokenizer, text));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, text);
  }
}

TEST(Tokenizer, EncodesNoTextToTheEndOfADocument) {
  Tokenizer tokenizer = Load();
  EXPECT_THAT(Encode(tokenizer, "a </s> b"),
              ::testing::Not(::testing::Contains(tokenizer.eod_id())));
}

TEST(Tokenizer, SetsDocumentsApart) {
  Tokenizer tokenizer = Load();
  std::vector<int32_t> ids = Encode(tokenizer, "one");
  ids.push_back(tokenizer.eod_id());
  for (int32_t id : Encode(tokenizer, "two")) ids.push_back(id);
  EXPECT_EQ(*tokenizer.Decode(ids), "one\n\ntwo");
}

TEST(Tokenizer, LearnsWordsShorterThanTheirLetters) {
  Tokenizer tokenizer = Load();
  std::string text = SampleLines(1)[0];
  EXPECT_LT(Encode(tokenizer, text).size() * 2, text.size());
}

TEST(Tokenizer, RefusesIdsThatAreNone) {
  Tokenizer tokenizer = Load();
  EXPECT_THAT(std::string(tokenizer.Decode({5, 600}).status().message()),
              HasSubstr("token 600 is not one of the 600"));
  EXPECT_FALSE(tokenizer.Decode({-1}).ok());
}

TEST(Tokenizer, IsSharedByThreads) {
  Tokenizer tokenizer = Load();
  const std::vector<int32_t> expected = Encode(tokenizer, "the quick brown fox");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) EXPECT_EQ(Encode(tokenizer, "the quick brown fox"), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TrainTokenizer, DependsOnItsArgumentsAlone) {
  EXPECT_TRUE(*TrainTokenizer(SampleLines(2000), 600) == Model());
}

TEST(TrainTokenizer, CutsLongLines) {
  std::string line;
  for (const std::string& part : SampleLines(2000)) line += part + " ";
  ASSERT_GT(line.size(), 50000U);
  EXPECT_TRUE(TrainTokenizer({line}, 500).ok());
  std::string no_space(20000, 'a');
  for (size_t i = 0; i + 1 < no_space.size(); i += 2) no_space.replace(i, 2, "\xC3\xA9");
  EXPECT_FALSE(TrainTokenizer({no_space}, 5000).ok());  // ends, with an error
}

TEST(TrainTokenizer, SaysHowManyTokensATextAllows) {
  auto too_small = TrainTokenizer({"a short text"}, 1000);
  EXPECT_THAT(std::string(too_small.status().message()),
              HasSubstr("too small for a vocabulary of 1000 tokens"));
  EXPECT_THAT(std::string(TrainTokenizer({"text"}, 10).status().message()), HasSubstr("least"));
  EXPECT_FALSE(TrainTokenizer({}, 1000).ok());
}

TEST(Tokenizer, RefusesFilesThatAreNoModel) {
  EXPECT_THAT(std::string(Tokenizer::FromModel("garbage", "x.model").status().message()),
              HasSubstr("x.model is not a SentencePiece model"));
  EXPECT_FALSE(Tokenizer::FromModel("", "x.model").ok());
  EXPECT_FALSE(Tokenizer::FromModel(Model().substr(0, Model().size() / 2), "x.model").ok());
}

}  // namespace
}  // namespace weft::train
