#include "trainer/parallel/layout.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace weft::train {
namespace {

std::vector<ParameterSpec> Parameters() {
  ModelConfig config;
  config.layers = 3;
  config.hidden = 24;
  config.heads = 2;
  config.ffn = 40;
  config.sequence = 10;
  config.vocabulary = 77;
  return GptParameters(config);
}

class LayoutTest : public ::testing::TestWithParam<std::pair<int, int64_t>> {};

TEST_P(LayoutTest, EveryElementHasOneOwnerAndNoTwoShareAPlace) {
  auto [ranks, bucket_bytes] = GetParam();
  std::vector<ParameterSpec> parameters = Parameters();
  std::map<int, std::vector<int>> owners;
  for (size_t i = 0; i < parameters.size(); ++i) {
    owners[static_cast<int>(i)].resize(static_cast<size_t>(parameters[i].elements()));
  }
  int last = static_cast<int>(parameters.size());
  for (const BucketLayout& bucket : LayOut(parameters, Bytes(bucket_bytes), 4, ranks, false)) {
    EXPECT_GE(bucket.shard * ranks, bucket.elements);
    int64_t end = 0;
    for (const BucketEntry& entry : bucket.entries) {
      EXPECT_EQ(entry.parameter, --last) << "reverse order of use";
      EXPECT_GE(entry.offset, end);
      EXPECT_EQ(entry.offset % kAlignment, 0);
      end = entry.offset + entry.elements;
    }
    EXPECT_LE(end, bucket.elements);
    for (int rank = 0; rank < ranks; ++rank) {
      int64_t at = 0;
      for (const ShardSlice& slice : SlicesOf(bucket, rank)) {
        EXPECT_GE(slice.at, at);
        at = slice.at + slice.elements;
        EXPECT_LE(at, bucket.shard);
        for (int64_t i = 0; i < slice.elements; ++i) {
          ++owners[slice.parameter][static_cast<size_t>(slice.begin + i)];
        }
      }
    }
  }
  EXPECT_EQ(last, 0);
  for (const auto& [parameter, counts] : owners) {
    for (int count : counts) ASSERT_EQ(count, 1) << parameters[static_cast<size_t>(parameter)].name;
  }
}

// Gradients that further ranks add up must lie alike on all of them: in buckets of their own.
TEST(LayoutOfPartsTest, SharedParametersHaveBucketsOfTheirOwn) {
  ModelConfig config;
  config.layers = 4;
  config.hidden = 24;
  config.heads = 2;
  config.ffn = 40;
  config.sequence = 10;
  config.vocabulary = 77;
  std::vector<std::vector<BucketLayout>> shared(2);
  for (int rank = 0; rank < 2; ++rank) {
    const ModelPart part{.tensor_rank = rank,
                         .tensor_size = 2,
                         .chunks = {ChunkOf(config, 4, 0), ChunkOf(config, 4, 2)}};
    std::vector<ParameterSpec> parameters = GptParameters(config, part);
    for (const BucketLayout& bucket : LayOut(parameters, KiB(2), 4, 3, false)) {
      for (const BucketEntry& entry : bucket.entries) {
        const ParameterSpec& spec = parameters[static_cast<size_t>(entry.parameter)];
        EXPECT_EQ(spec.shared, bucket.shared) << spec.name;
        EXPECT_EQ(spec.chunk, bucket.chunk) << spec.name;
      }
      if (bucket.shared == SharedBy::kTensor) shared[static_cast<size_t>(rank)].push_back(bucket);
    }
  }
  ASSERT_EQ(shared[0].size(), shared[1].size());
  ASSERT_FALSE(shared[0].empty());
  for (size_t i = 0; i < shared[0].size(); ++i) {
    EXPECT_EQ(shared[0][i].shard, shared[1][i].shard);
    EXPECT_EQ(shared[0][i].entries.size(), shared[1][i].entries.size());
  }
}

// Two ranks of a tensor axis have 39 and 38 rows of its tables.
ModelConfig UntiedModelOfOddVocabulary() {
  ModelConfig config;
  config.layers = 2;
  config.hidden = 24;
  config.heads = 2;
  config.ffn = 40;
  config.sequence = 10;
  config.vocabulary = 77;
  config.tied = false;
  return config;
}

// A tensor axis that does not divide the vocabulary leaves one rank a row more, and yet both meet
// in the same matrices, bucket by bucket.
TEST(LayoutOfPartsTest, BucketsHaveTheSameMatricesOnAllRanksOfATensorAxis) {
  const ModelConfig config = UntiedModelOfOddVocabulary();
  for (int64_t bytes = 1024; bytes <= 64 << 10; bytes += 128) {
    std::vector<std::vector<int>> matrices[2];  // of each bucket that has some, by rank
    for (int rank = 0; rank < 2; ++rank) {
      const ModelPart part{
          .tensor_rank = rank, .tensor_size = 2, .chunks = {ChunkOf(config, 1, 0)}};
      const std::vector<ParameterSpec> parameters = GptParameters(config, part);
      for (const BucketLayout& bucket : LayOut(parameters, Bytes(bytes), 4, 1, false)) {
        std::vector<int> here;
        for (const BucketEntry& entry : bucket.entries) {
          const ParameterSpec& spec = parameters[static_cast<size_t>(entry.parameter)];
          if (IsBlockMatrix(spec)) here.push_back(entry.parameter);
        }
        if (!here.empty()) matrices[rank].push_back(here);
      }
    }
    EXPECT_EQ(matrices[0], matrices[1]) << "buckets of " << bytes << " bytes";
  }
}

// Their gradients come when those of their neighbours do not, where a backward pass is split and
// each micro-batch is reduced.
TEST(LayoutOfPartsTest, TablesOfTokensAreAloneWhereThatIsWanted) {
  const ModelConfig config = UntiedModelOfOddVocabulary();
  const std::vector<ParameterSpec> parameters = GptParameters(config);
  std::vector<int> alone;
  for (const BucketLayout& bucket : LayOut(parameters, GiB(1), 4, 2, false, true)) {
    for (const BucketEntry& entry : bucket.entries) {
      if (bucket.entries.size() == 1) alone.push_back(entry.parameter);
    }
  }
  const int last = static_cast<int>(parameters.size()) - 1;
  EXPECT_EQ(alone, (std::vector<int>{last, 0}));
  EXPECT_EQ(parameters.front().name, "embedding.token");
  EXPECT_EQ(parameters.back().name, "head.weight");
}

INSTANTIATE_TEST_SUITE_P(RanksAndSizes, LayoutTest,
                         ::testing::Values(std::pair(1, 1 << 20), std::pair(1, 1),
                                           std::pair(2, 4096), std::pair(3, 9000),
                                           std::pair(7, 1 << 20), std::pair(64, 1)));

TEST(LayoutTest, ABucketClosesOnceItIsFull) {
  std::vector<ParameterSpec> parameters = Parameters();
  EXPECT_EQ(LayOut(parameters, Bytes(1), 4, 2, false).size(), parameters.size());
  EXPECT_EQ(LayOut(parameters, GiB(1), 4, 2, false).size(), 1U);
}

}  // namespace
}  // namespace weft::train
