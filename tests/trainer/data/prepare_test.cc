#include "trainer/data/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/read_file.h"
#include "tests/scratch_folder.h"
#include "tests/trainer/data/sample_text.h"
#include "trainer/data/tokenizer.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kDocuments = 9000;  // more than are encoded at once

class PrepareTest : public ::testing::Test {
 protected:
  PrepareTest() {
    lines_ = SampleLines(kDocuments);
    // In two files, so that numbering goes on from one to the next.
    auto middle = lines_.begin() + 5000;
    Write("a.txt", absl::StrJoin(lines_.begin(), middle, "\n"));
    Write("b.txt", absl::StrJoin(middle, lines_.end(), "\n"));
    options_.inputs = {folder_ / "a.txt", folder_ / "b.txt"};
    options_.output_prefix = folder_ / "out/set";
    options_.vocab_size = 500;
    options_.validation_fraction = 0.1;
    options_.split = DocumentSplit::kLines;
    options_.tokenizer_sample_bytes = 100000;
    options_.threads = 2;
  }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(folder_ / name, text).ok());
  }
  // All files of the last preparation, one after the other.
  std::string Output() const {
    std::string all;
    for (const char* end : {"_train.bin", "_train.idx", "_valid.bin", "_valid.idx", ".model"}) {
      all += *ReadFile(options_.output_prefix + end);
    }
    return all;
  }
  std::vector<std::string> Documents(const std::string& prefix, const Tokenizer& tokenizer) const {
    auto data = IndexedDataset::Open(prefix);
    EXPECT_TRUE(data.ok()) << data.status();
    std::vector<std::string> texts;
    for (int64_t s = 0; s < data->sequences(); ++s) {
      std::vector<int32_t> ids(static_cast<size_t>(data->SequenceLength(s)));
      EXPECT_TRUE(data->Read(s, 0, absl::MakeSpan(ids)).ok());
      EXPECT_EQ(ids.back(), tokenizer.eod_id());
      ids.pop_back();
      texts.push_back(*tokenizer.Decode(ids));
    }
    return texts;
  }

  ScratchFolder folder_;
  std::vector<std::string> lines_;
  PrepareOptions options_;
};

TEST_F(PrepareTest, KeepsEveryDocumentInOneOfTheTwoParts) {
  auto info = PrepareDataset(options_);
  ASSERT_TRUE(info.ok()) << info.status();
  auto tokenizer = Tokenizer::Load(info->tokenizer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<std::string> train = Documents(options_.output_prefix + "_train", *tokenizer);
  std::vector<std::string> valid = Documents(options_.output_prefix + "_valid", *tokenizer);
  EXPECT_EQ(info->train_documents, static_cast<int64_t>(train.size()));
  EXPECT_NEAR(static_cast<double>(valid.size()), 0.1 * kDocuments, 100);
  // In the order of the input, each once.
  std::vector<std::string> merged;
  auto t = train.begin();
  auto v = valid.begin();
  for (const std::string& line : lines_) {
    if (t != train.end() && *t == line) {
      merged.push_back(*t++);
    } else if (v != valid.end() && *v == line) {
      merged.push_back(*v++);
    }
  }
  EXPECT_EQ(merged, lines_);
}

TEST_F(PrepareTest, GivesTheSameBytesForEveryNumberOfThreads) {
  options_.threads = 1;
  ASSERT_TRUE(PrepareDataset(options_).ok());
  std::string one = Output();
  options_.threads = 5;
  ASSERT_TRUE(PrepareDataset(options_).ok());
  EXPECT_TRUE(Output() == one);
  options_.seed = 2;
  ASSERT_TRUE(PrepareDataset(options_).ok());
  EXPECT_FALSE(Output() == one);
}

TEST_F(PrepareTest, DescribesItself) {
  auto info = PrepareDataset(options_);
  ASSERT_TRUE(info.ok()) << info.status();
  auto read = ReadDatasetInfo(options_.output_prefix);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->vocab_size, 500);
  EXPECT_EQ(read->train_tokens, info->train_tokens);
  EXPECT_EQ(read->validation_tokens, info->validation_tokens);
  EXPECT_EQ(read->unigram_loss, info->unigram_loss);
  EXPECT_EQ(read->inputs, options_.inputs);
  EXPECT_TRUE(std::filesystem::equivalent(read->tokenizer, folder_ / "out/set.model"));
  EXPECT_GT(read->unigram_loss, 1.0);
  EXPECT_LT(read->unigram_loss, std::log(500.0));
}

TEST_F(PrepareTest, TakesAnExistingTokenizer) {
  ASSERT_TRUE(PrepareDataset(options_).ok());
  std::filesystem::rename(folder_ / "out/set.model", folder_ / "own.model");
  options_.tokenizer = folder_ / "own.model";
  auto info = PrepareDataset(options_);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/set.model"));
  auto read = ReadDatasetInfo(options_.output_prefix);
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(std::filesystem::equivalent(read->tokenizer, options_.tokenizer));
}

TEST_F(PrepareTest, CountsInvalidUtf8Once) {
  Write("b.txt", lines_[0] + "\xFF" + "\nmore\x92 text\n");
  auto info = PrepareDataset(options_);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->invalid_utf8, 2);
}

TEST_F(PrepareTest, LeavesNoHalfWrittenFilesAfterAnError) {
  options_.inputs.push_back(folder_ / "missing.txt");
  auto missing = PrepareDataset(options_);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("missing.txt"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "out"));
  options_.inputs = {folder_ / "a.txt"};
  options_.vocab_size = 100000;
  EXPECT_THAT(std::string(PrepareDataset(options_).status().message()), HasSubstr("too small"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "out"));
  options_.validation_fraction = 1;
  EXPECT_FALSE(PrepareDataset(options_).ok());
}

TEST_F(PrepareTest, RefusesATextThatCannotBeSplit) {
  options_.split = DocumentSplit::kFile;
  options_.inputs = {folder_ / "a.txt"};
  options_.validation_fraction = 0.001;
  EXPECT_THAT(std::string(PrepareDataset(options_).status().message()),
              HasSubstr("too few documents"));
}

TEST(UnigramLoss, IsTheCrossEntropyOfSmoothedCounts) {
  ScratchFolder folder;
  auto train = IndexedDatasetWriter::Create(folder / "t", TokenType::kU16);
  ASSERT_TRUE(train->AddDocument({0, 0, 0, 1}).ok());
  ASSERT_TRUE(train->Commit().ok());
  auto valid = IndexedDatasetWriter::Create(folder / "v", TokenType::kU16);
  ASSERT_TRUE(valid->AddDocument({0, 2}).ok());
  ASSERT_TRUE(valid->Commit().ok());
  auto loss =
      UnigramLoss(*IndexedDataset::Open(folder / "t"), *IndexedDataset::Open(folder / "v"), 3);
  ASSERT_TRUE(loss.ok());
  EXPECT_NEAR(*loss, -(std::log(4.0 / 7) + std::log(1.0 / 7)) / 2, 1e-12);
  auto small =
      UnigramLoss(*IndexedDataset::Open(folder / "t"), *IndexedDataset::Open(folder / "v"), 2);
  EXPECT_THAT(std::string(small.status().message()), HasSubstr("token 2"));
}

TEST(ReadDatasetInfo, NamesWhatIsWrong) {
  ScratchFolder folder;
  EXPECT_FALSE(ReadDatasetInfo(folder / "none").ok());
  std::ofstream(folder / "x.json") << "{\"a\": 1}";
  EXPECT_THAT(std::string(ReadDatasetInfo(folder / "x").status().message()),
              HasSubstr("not a description"));
  std::ofstream(folder / "y.json") << R"({"format": "weft-dataset", "version": 1})";
  EXPECT_THAT(std::string(ReadDatasetInfo(folder / "y").status().message()),
              HasSubstr("'vocab_size' is missing; it should be a whole number from 1 to 16777216"));
}

TEST_F(PrepareTest, NumbersOutsideTheirRangeAreNamed) {
  ASSERT_TRUE(PrepareDataset(options_).ok());
  const std::string path = options_.output_prefix + ".json";
  const std::string good = *ReadFile(path);
  const std::string key = "\"vocab_size\": ";
  const size_t begin = good.find(key) + key.size();
  for (const char* value : {"-5", "0", "100000000000", "1e300", "500.5", "16777217", "null"}) {
    std::string bad = good;
    bad.replace(begin, good.find(',', begin) - begin, value);
    ASSERT_TRUE(WriteFileAtomically(path, bad).ok());
    EXPECT_THAT(std::string(ReadDatasetInfo(options_.output_prefix).status().message()),
                AllOf(HasSubstr(path + ": 'vocab_size' is "),
                      HasSubstr("; it should be a whole number from 1 to 16777216")))
        << value;
  }
  std::string smaller = good;
  smaller.replace(begin, good.find(',', begin) - begin, "1");
  ASSERT_TRUE(WriteFileAtomically(path, smaller).ok());
  EXPECT_THAT(std::string(ReadDatasetInfo(options_.output_prefix).status().message()),
              HasSubstr("'eod_id' is "));
}

TEST_F(PrepareTest, RefusesAnInputThatUnpacksToMoreThanItsBound) {
  options_.text_most = KiB(1);
  EXPECT_THAT(std::string(PrepareDataset(options_).status().message()),
              AllOf(HasSubstr("--text-most"), HasSubstr("has more than 1 KiB")));
}

}  // namespace
}  // namespace weft::train
