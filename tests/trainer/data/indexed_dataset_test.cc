#include "trainer/data/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/read_file.h"
#include "tests/scratch_folder.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

void Write(const std::string& path, const std::string& content) {
  ASSERT_TRUE(WriteFileAtomically(path, content).ok());
}

template <typename T>
std::string Raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// Two documents, of three sequences [7, 8, 9], [10] and [65535], in Megatron's bytes, by hand.
std::string HandMadeIndex() {
  return std::string("MMIDIDX\0\0", 9) + Raw<uint64_t>(1) + Raw<uint8_t>(8) + Raw<uint64_t>(3) +
         Raw<uint64_t>(3) + Raw<int32_t>(3) + Raw<int32_t>(1) + Raw<int32_t>(1) + Raw<int64_t>(0) +
         Raw<int64_t>(6) + Raw<int64_t>(8) + Raw<int64_t>(0) + Raw<int64_t>(2) + Raw<int64_t>(3);
}
std::string HandMadeBin() {
  return Raw<uint16_t>(7) + Raw<uint16_t>(8) + Raw<uint16_t>(9) + Raw<uint16_t>(10) +
         Raw<uint16_t>(65535);
}

// Opens the two files with these contents.
absl::StatusOr<IndexedDataset> OpenBytes(const ScratchFolder& folder, const std::string& index,
                                         const std::string& bin) {
  Write(folder / "d.idx", index);
  Write(folder / "d.bin", bin);
  return IndexedDataset::Open(folder / "d");
}

std::vector<int32_t> All(const IndexedDataset& data, int64_t sequence) {
  std::vector<int32_t> tokens(static_cast<size_t>(data.SequenceLength(sequence)));
  EXPECT_TRUE(data.Read(sequence, 0, absl::MakeSpan(tokens)).ok());
  return tokens;
}

TEST(IndexedDataset, ReadsMegatronsBytes) {
  ScratchFolder folder;
  auto data = OpenBytes(folder, HandMadeIndex(), HandMadeBin());
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->token_type(), TokenType::kU16);
  EXPECT_EQ(data->sequences(), 3);
  EXPECT_EQ(data->documents(), 2);
  EXPECT_EQ(data->tokens(), 5);
  EXPECT_EQ(data->FirstSequence(1), 2);
  EXPECT_EQ(All(*data, 0), (std::vector<int32_t>{7, 8, 9}));
  EXPECT_EQ(All(*data, 2), (std::vector<int32_t>{65535}));
  std::vector<int32_t> part(2);
  ASSERT_TRUE(data->Read(0, 1, absl::MakeSpan(part)).ok());
  EXPECT_EQ(part, (std::vector<int32_t>{8, 9}));
  EXPECT_FALSE(data->Read(0, 2, absl::MakeSpan(part)).ok());
  EXPECT_FALSE(data->Read(3, 0, absl::MakeSpan(part)).ok());
  EXPECT_FALSE(data->Read(0, -1, absl::MakeSpan(part)).ok());
}

TEST(IndexedDataset, AcceptsTheModesOfMultimodalData) {
  ScratchFolder folder;
  auto data = OpenBytes(folder, HandMadeIndex() + std::string(3, '\1'), HandMadeBin());
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE(data->has_modes());
}

TEST(IndexedDatasetWriter, WritesMegatronsBytes) {
  ScratchFolder folder;
  auto writer = IndexedDatasetWriter::Create(folder / "d", TokenType::kU16);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->AddDocument({7, 8, 9}).ok());
  ASSERT_TRUE(writer->AddDocument({65535}).ok());
  ASSERT_TRUE(writer->Commit().ok());
  std::string expected = std::string("MMIDIDX\0\0", 9) + Raw<uint64_t>(1) + Raw<uint8_t>(8) +
                         Raw<uint64_t>(2) + Raw<uint64_t>(3) + Raw<int32_t>(3) + Raw<int32_t>(1) +
                         Raw<int64_t>(0) + Raw<int64_t>(6) + Raw<int64_t>(0) + Raw<int64_t>(1) +
                         Raw<int64_t>(2);
  EXPECT_TRUE(*ReadFile(folder / "d.idx") == expected);
  EXPECT_TRUE(*ReadFile(folder / "d.bin") ==
              Raw<uint16_t>(7) + Raw<uint16_t>(8) + Raw<uint16_t>(9) + Raw<uint16_t>(65535));
}

TEST(IndexedDatasetWriter, GivesBackWhatItWasGivenInEveryType) {
  for (TokenType type : {TokenType::kU8, TokenType::kI8, TokenType::kI16, TokenType::kI32,
                         TokenType::kI64, TokenType::kU16}) {
    ScratchFolder folder;
    auto writer = IndexedDatasetWriter::Create(folder / "d", type);
    ASSERT_TRUE(writer.ok());
    Random random(1);
    std::vector<std::vector<int32_t>> documents;
    for (int i = 0; i < 50; ++i) {
      std::vector<int32_t> tokens(random.Below(20));  // also empty ones
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(128));
      ASSERT_TRUE(writer->AddDocument(tokens).ok());
      documents.push_back(tokens);
    }
    ASSERT_TRUE(writer->Commit().ok());
    auto data = IndexedDataset::Open(folder / "d");
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->token_type(), type);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(All(*data, i), documents[static_cast<size_t>(i)]);
  }
}

TEST(IndexedDatasetWriter, RefusesATokenThatDoesNotFit) {
  ScratchFolder folder;
  auto writer = IndexedDatasetWriter::Create(folder / "d", TokenType::kU16);
  ASSERT_TRUE(writer.ok());
  absl::Status status = writer->AddDocument({1, 65536});
  EXPECT_THAT(std::string(status.message()), HasSubstr("65536"));
  EXPECT_FALSE(writer->AddDocument({-1}).ok());
}

TEST(IndexedDatasetWriter, LeavesTheOldDatasetUntilCommit) {
  ScratchFolder folder;
  ASSERT_TRUE(OpenBytes(folder, HandMadeIndex(), HandMadeBin()).ok());
  {
    auto writer = IndexedDatasetWriter::Create(folder / "d", TokenType::kU16);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->AddDocument({1}).ok());
  }
  auto data = IndexedDataset::Open(folder / "d");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->tokens(), 5);
  EXPECT_FALSE(std::filesystem::exists(folder / "d.bin.tmp"));
}

TEST(IndexedDataset, NamesFileOffsetAndWhatIsRight) {
  ScratchFolder folder;
  struct Case {
    const char* what;
    size_t offset;  // of the byte that is overwritten
    std::string bytes;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"magic", 0, "X", "byte 0: not a Megatron index"},
      {"version", 9, Raw<uint64_t>(2), "byte 9: version 2"},
      {"f32 tokens", 17, Raw<uint8_t>(7), "byte 17: token type 7"},
      {"too many sequences", 18, Raw<uint64_t>(uint64_t{1} << 62), "do not fit"},
      {"one sequence more", 18, Raw<uint64_t>(4), "the file ends here"},
      {"negative length", 34, Raw<int32_t>(-1), "byte 34: sequence 0 has the length -1"},
      {"length beyond .bin", 42, Raw<int32_t>(2), "byte 62: sequence 2 lies at byte 8"},
      {"offset beyond .bin", 46, Raw<int64_t>(1000), "byte 46: sequence 0 lies at byte 1000"},
      {"first boundary", 70, Raw<int64_t>(1), "byte 70: document boundary 0 is 1"},
      {"falling boundary", 78, Raw<int64_t>(-2), "document boundary 1 is -2"},
      {"last boundary", 86, Raw<int64_t>(2), "the last document boundary is 2 instead of 3"},
  };
  for (const Case& c : cases) {
    std::string index = HandMadeIndex();
    index.replace(c.offset, c.bytes.size(), c.bytes);
    auto data = OpenBytes(folder, index, HandMadeBin());
    ASSERT_FALSE(data.ok()) << c.what;
    EXPECT_THAT(std::string(data.status().message()), HasSubstr(c.message)) << c.what;
    EXPECT_THAT(std::string(data.status().message()), HasSubstr("d.idx")) << c.what;
  }
}

TEST(IndexedDataset, RefusesEveryTruncation) {
  ScratchFolder folder;
  const std::string index = HandMadeIndex();
  for (size_t size = 0; size < index.size(); ++size) {
    EXPECT_FALSE(OpenBytes(folder, index.substr(0, size), HandMadeBin()).ok()) << size;
  }
  const std::string bin = HandMadeBin();
  for (size_t size = 0; size < bin.size(); ++size) {
    EXPECT_FALSE(OpenBytes(folder, index, bin.substr(0, size)).ok()) << size;
  }
}

// Whatever the bytes, an index that opens can be read through without leaving the files.
TEST(IndexedDataset, StaysInRangeOnMutatedIndices) {
  ScratchFolder folder;
  Random random(7);
  int opened = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string index = HandMadeIndex();
    for (uint64_t i = 0; i <= random.Below(3); ++i) {
      // Small numbers are often still sense.
      index[random.Below(index.size())] = static_cast<char>(random.Below(i == 0 ? 4 : 256));
    }
    std::ofstream(folder / "d.idx", std::ios::binary) << index;
    std::ofstream(folder / "d.bin", std::ios::binary) << HandMadeBin();
    auto data = IndexedDataset::Open(folder / "d");
    if (!data.ok()) continue;
    ++opened;
    for (int64_t s = 0; s < data->sequences(); ++s) All(*data, s);
  }
  EXPECT_GT(opened, 0);
}

// The first foreign id is named, wherever it stands, and what is right is still read.
TEST(IndexedDataset, RefusesIdsOutsideTheVocabulary) {
  ScratchFolder folder;
  struct Case {
    TokenType type;
    int32_t id;
  };
  for (const Case& c :
       {Case{TokenType::kU16, 500}, Case{TokenType::kU16, 65535}, Case{TokenType::kU8, 200},
        Case{TokenType::kI8, -1}, Case{TokenType::kI16, -3}, Case{TokenType::kI32, 1 << 30},
        Case{TokenType::kI64, -7}}) {
    const int32_t vocab = c.type == TokenType::kU8 ? 200 : 500;
    std::vector<int32_t> tokens(100, c.type == TokenType::kI8 ? 127 : vocab - 1);
    tokens[37] = c.id;
    tokens[90] = c.id;
    auto writer = IndexedDatasetWriter::Create(folder / "v", c.type);
    ASSERT_TRUE(writer->AddDocument({1, 2, 3}).ok());
    ASSERT_TRUE(writer->AddDocument({}).ok());
    ASSERT_TRUE(writer->AddDocument(tokens).ok());
    ASSERT_TRUE(writer->Commit().ok());
    auto data = IndexedDataset::Open(folder / "v", vocab);
    ASSERT_TRUE(data.ok()) << data.status();
    std::vector<int32_t> read(37);
    EXPECT_TRUE(data->Read(2, 0, absl::MakeSpan(read)).ok());
    read.resize(80);
    absl::Status status = data->Read(2, 20, absl::MakeSpan(read));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(status.message(),
              absl::StrCat(folder / "v", ".bin, byte ", 40 * SizeOf(c.type), ": token id ", c.id,
                           " at position 37 of document 2 is not in the vocabulary of ", vocab,
                           " tokens, 0 to ", vocab - 1,
                           "; the file is damaged, or was made with another tokenizer"));
    EXPECT_TRUE(IndexedDataset::Open(folder / "v")->Read(2, 20, absl::MakeSpan(read)).ok())
        << "no vocabulary is known";
  }
}

TEST(TokenType, IsChosenAsMegatronDoes) {
  EXPECT_EQ(TokenTypeFor(65499), TokenType::kU16);
  EXPECT_EQ(TokenTypeFor(65500), TokenType::kI32);
}

}  // namespace
}  // namespace weft::train
