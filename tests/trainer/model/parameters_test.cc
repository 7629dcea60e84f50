// Parts of a model: what the ranks of a layout hold covers the whole model once.
#include "trainer/model/parameters.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/random.h"

namespace weft::train {
namespace {

ModelConfig Config(bool tied) {
  ModelConfig config;
  config.layers = 5;
  config.hidden = 24;
  config.heads = 4;
  config.ffn = 40;
  config.sequence = 6;
  config.vocabulary = 51;
  config.activation = ActivationKind::kSwiglu;
  config.tied = tied;
  return config;
}

// How often each element of each parameter is held by a rank whose copy counts.
std::map<std::string, std::vector<int>> Holders(const ModelConfig& config, int tensor, int depth) {
  std::map<std::string, std::vector<int>> holders;
  for (int index = 0; index < depth; ++index) {
    for (int rank = 0; rank < tensor; ++rank) {
      const ModelPart part{
          .tensor_rank = rank, .tensor_size = tensor, .chunks = {ChunkOf(config, depth, index)}};
      for (const ParameterSpec& spec : GptParameters(config, part)) {
        std::vector<int>& count = holders[spec.name];
        count.resize(static_cast<size_t>(spec.whole_elements()));
        if (!spec.counts) continue;
        for (const ElementRuns& runs : RunsOf(spec, 0, spec.elements())) {
          for (int64_t i = 0; i < runs.count * runs.length; ++i) {
            ++count[static_cast<size_t>(runs.begin + i / runs.length * runs.stride +
                                        i % runs.length)];
          }
        }
      }
    }
  }
  return holders;
}

TEST(ModelPartTest, TheRanksOfALayoutHoldEveryElementOnce) {
  for (bool tied : {true, false}) {
    const ModelConfig config = Config(tied);
    std::map<std::string, int64_t> whole;
    for (const ParameterSpec& spec : GptParameters(config)) whole[spec.name] = spec.elements();
    for (int tensor : {1, 2, 4}) {
      for (int depth : {1, 2, 3, 5}) {
        std::map<std::string, std::vector<int>> holders = Holders(config, tensor, depth);
        ASSERT_EQ(holders.size(), whole.size());
        for (const auto& [name, count] : holders) {
          ASSERT_EQ(static_cast<int64_t>(count.size()), whole[name]);
          for (size_t i = 0; i < count.size(); ++i) {
            ASSERT_EQ(count[i], 1)
                << name << "[" << i << "], tensor " << tensor << ", depth " << depth;
          }
        }
      }
    }
  }
}

// What a rank of the optimizer's shards holds is any stretch of a parameter.
TEST(ModelPartTest, RunsOfAStretchAreThoseOfItsElements) {
  const ModelConfig config = Config(false);
  Random random(3);
  for (int rank = 0; rank < 4; ++rank) {
    const ModelPart part{.tensor_rank = rank, .tensor_size = 4, .chunks = {ChunkOf(config, 1, 0)}};
    for (const ParameterSpec& spec : GptParameters(config, part)) {
      std::vector<int64_t> place(static_cast<size_t>(spec.elements()), -1);  // in the whole
      for (const ElementRuns& runs : RunsOf(spec, 0, spec.elements())) {
        for (int64_t i = 0; i < runs.count * runs.length; ++i) {
          place[static_cast<size_t>(runs.local + i)] =
              runs.begin + i / runs.length * runs.stride + i % runs.length;
        }
      }
      for (int round = 0; round < 20; ++round) {
        const int64_t begin =
            static_cast<int64_t>(random.Below(static_cast<uint64_t>(spec.elements())));
        const int64_t elements =
            1 + static_cast<int64_t>(random.Below(static_cast<uint64_t>(spec.elements() - begin)));
        int64_t at = begin;
        for (const ElementRuns& runs : RunsOf(spec, begin, elements)) {
          ASSERT_EQ(runs.local, at) << spec.name;
          for (int64_t i = 0; i < runs.count * runs.length; ++i, ++at) {
            ASSERT_EQ(runs.begin + i / runs.length * runs.stride + i % runs.length,
                      place[static_cast<size_t>(at)])
                << spec.name << " from " << begin;
          }
        }
        ASSERT_EQ(at, begin + elements);
      }
    }
  }
}

TEST(ModelPartTest, ATiedEmbeddingIsOneParameterWhereARankHasBothEnds) {
  const ModelConfig config = Config(true);
  ModelPart both{
      .tensor_rank = 0, .tensor_size = 1, .chunks = {ChunkOf(config, 4, 0), ChunkOf(config, 4, 3)}};
  int tables = 0;
  for (const ParameterSpec& spec : GptParameters(config, both)) {
    if (spec.name != "embedding.token") continue;
    ++tables;
    EXPECT_EQ(spec.uses, 2);
    EXPECT_EQ(spec.shared, SharedBy::kNobody);
  }
  EXPECT_EQ(tables, 1);
  ModelPart last{.tensor_rank = 0, .tensor_size = 1, .chunks = {ChunkOf(config, 4, 3)}};
  for (const ParameterSpec& spec : GptParameters(config, last)) {
    if (spec.name != "embedding.token") continue;
    EXPECT_EQ(spec.shared, SharedBy::kEnds);
    EXPECT_FALSE(spec.counts);
  }
}

TEST(ModelPartTest, ALayerThatIsCutIsHeldInTwoHalves) {
  const ModelConfig config = Config(true);
  ModelChunk before = ChunkOf(config, 2, 0), behind = ChunkOf(config, 2, 1);
  --behind.first_layer;
  behind.begins_halfway = before.ends_halfway = true;
  const int64_t layer = behind.first_layer;
  EXPECT_TRUE(before.Has(layer, BlockHalf::kAttention));
  EXPECT_FALSE(before.Has(layer, BlockHalf::kFeedForward));
  EXPECT_TRUE(before.Has(layer - 1, BlockHalf::kFeedForward));
  EXPECT_FALSE(behind.Has(layer, BlockHalf::kAttention));
  EXPECT_TRUE(behind.Has(layer, BlockHalf::kFeedForward));
  EXPECT_TRUE(behind.Has(layer + 1, BlockHalf::kAttention));
  std::map<std::string, int> holders;
  for (const ModelChunk& chunk : {before, behind}) {
    for (const ParameterSpec& spec : GptParameters(config, ModelPart{.chunks = {chunk}})) {
      holders[spec.name] += spec.counts ? 1 : 0;
    }
  }
  const std::vector<ParameterSpec> whole = GptParameters(config);
  EXPECT_EQ(holders.size(), whole.size());
  for (const ParameterSpec& spec : whole) EXPECT_EQ(holders[spec.name], 1) << spec.name;
}

TEST(ModelPartTest, LayersAreSpreadEvenly) {
  const ModelConfig config = Config(true);
  int64_t next = 0;
  for (int index = 0; index < 3; ++index) {
    const ModelChunk chunk = ChunkOf(config, 3, index);
    EXPECT_EQ(chunk.first_layer, next);
    EXPECT_GE(chunk.end_layer - chunk.first_layer, 1);
    EXPECT_LE(chunk.end_layer - chunk.first_layer, 2);
    next = chunk.end_layer;
    EXPECT_EQ(chunk.has_embedding, index == 0);
    EXPECT_EQ(chunk.has_head, index == 2);
  }
  EXPECT_EQ(next, 5);
}

}  // namespace
}  // namespace weft::train
