#include "trainer/data/batch_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/scratch_folder.h"

namespace weft::train {
namespace {

constexpr int64_t kSeq = 8;

class BatchLoaderTest : public ::testing::Test {
 protected:
  BatchLoaderTest() {
    auto writer = IndexedDatasetWriter::Create(folder_ / "d", TokenType::kU16);
    std::vector<int32_t> tokens(1000);
    for (int32_t i = 0; i < 1000; ++i) tokens[static_cast<size_t>(i)] = i;
    EXPECT_TRUE(writer->AddDocument(tokens).ok());
    EXPECT_TRUE(writer->Commit().ok());
    stream_ = *SampleStream::Open(folder_ / "d", kSeq, 9);
  }
  std::unique_ptr<BatchLoader> Start(const BatchOptions& options) {
    auto loader = BatchLoader::Start(stream_, options);
    EXPECT_TRUE(loader.ok()) << loader.status();
    return *std::move(loader);
  }
  ScratchFolder folder_;
  std::shared_ptr<const SampleStream> stream_;
};

TEST_F(BatchLoaderTest, GivesTheSamplesOfTheStreamInOrder) {
  auto loader = Start({.global_batch = 4});
  std::vector<int32_t> row(kSeq + 1);
  for (int step = 0; step < 80; ++step) {  // over several epochs
    auto batch = loader->Next();
    ASSERT_TRUE(batch.ok());
    EXPECT_EQ(batch->rows, 4);
    EXPECT_EQ(batch->columns, kSeq + 1);
    EXPECT_EQ(batch->first_sample, step * 4);
    for (int64_t r = 0; r < 4; ++r) {
      ASSERT_TRUE(stream_->Read(step * 4 + r, absl::MakeSpan(row)).ok());
      auto from = batch->tokens.begin() + r * (kSeq + 1);
      EXPECT_EQ(std::vector<int64_t>(from, from + kSeq + 1),
                std::vector<int64_t>(row.begin(), row.end()));
    }
    EXPECT_EQ(loader->position(), (step + 1) * 4);
  }
}

TEST_F(BatchLoaderTest, IsResumedByOneInteger) {
  auto unbroken = Start({.global_batch = 4});
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(unbroken->Next().ok());
  // What was read ahead does not count.
  auto resumed = Start({.global_batch = 4, .start_sample = unbroken->position(), .prefetch = 5});
  for (int i = 0; i < 7; ++i) EXPECT_EQ(unbroken->Next()->tokens, resumed->Next()->tokens);
}

TEST_F(BatchLoaderTest, WithoutReadingAheadGivesTheSameBatches) {
  auto ahead = Start({.global_batch = 4});
  auto in_turn = Start({.global_batch = 4, .prefetch = 0});
  for (int step = 0; step < 80; ++step) {
    EXPECT_EQ(in_turn->Next()->tokens, ahead->Next()->tokens);
    EXPECT_EQ(in_turn->position(), ahead->position());
  }
}

TEST_F(BatchLoaderTest, GivesTheSameBatchToEveryNumberOfRanks) {
  for (int world : {2, 3, 6}) {
    auto whole = Start({.global_batch = 6});
    std::vector<std::unique_ptr<BatchLoader>> ranks;
    for (int rank = 0; rank < world; ++rank) {
      ranks.push_back(Start({.global_batch = 6, .rank = rank, .world_size = world}));
    }
    for (int step = 0; step < 5; ++step) {
      std::vector<int64_t> united;
      for (auto& loader : ranks) {
        std::vector<int64_t> part = loader->Next()->tokens;
        united.insert(united.end(), part.begin(), part.end());
      }
      EXPECT_EQ(united, whole->Next()->tokens) << world << " ranks";
    }
  }
}

TEST_F(BatchLoaderTest, StopsWithBatchesLeftOrNoneAskedFor) {
  for (int taken : {0, 1, 3}) {
    for (int prefetch : {1, 4}) {
      auto loader = Start({.global_batch = 2, .prefetch = prefetch});
      for (int i = 0; i < taken; ++i) ASSERT_TRUE(loader->Next().ok());
    }
  }
}

TEST_F(BatchLoaderTest, GivesAnErrorAtEveryCallAfterIt) {
  // A 64-bit token too large for the reader, in the second half of the data.
  std::vector<int64_t> wide(32, 1);
  wide[20] = int64_t{1} << 40;
  std::string index = std::string("MMIDIDX\0\0", 9);
  auto put = [&index](auto value) {
    index.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  put(uint64_t{1});
  put(uint8_t{5});
  put(uint64_t{1});
  put(uint64_t{2});
  put(int32_t{32});
  put(int64_t{0});
  put(int64_t{0});
  put(int64_t{1});
  ASSERT_TRUE(WriteFileAtomically(folder_ / "w.idx", index).ok());
  ASSERT_TRUE(WriteFileAtomically(
                  folder_ / "w.bin",
                  absl::string_view(reinterpret_cast<const char*>(wide.data()), wide.size() * 8))
                  .ok());
  std::shared_ptr<SampleStream> stream =
      *SampleStream::Open(folder_ / "w", kSeq, 1, SampleOrder::kSequential);
  for (int prefetch : {0, 2}) {
    auto loader = *BatchLoader::Start(stream, {.global_batch = 1, .prefetch = prefetch});
    EXPECT_TRUE(loader->Next().ok());
    EXPECT_TRUE(loader->Next().ok());
    EXPECT_EQ(loader->Next().status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(loader->Next().status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(loader->position(), 2);
  }
}

TEST_F(BatchLoaderTest, RefusesABatchThatRanksCannotShare) {
  EXPECT_THAT(
      std::string(
          BatchLoader::Start(stream_, {.global_batch = 6, .world_size = 4}).status().message()),
      ::testing::HasSubstr("must be a multiple"));
  EXPECT_THAT(
      std::string(
          BatchLoader::Start(stream_, {.global_batch = int64_t{1} << 40}).status().message()),
      ::testing::HasSubstr("take a smaller train.global_batch, or more ranks"));
  EXPECT_FALSE(BatchLoader::Start(stream_, {.global_batch = 0}).ok());
  EXPECT_FALSE(BatchLoader::Start(stream_, {.rank = 1, .world_size = 1}).ok());
  EXPECT_FALSE(BatchLoader::Start(stream_, {.start_sample = -1}).ok());
}

}  // namespace
}  // namespace weft::train
