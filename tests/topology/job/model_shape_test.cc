// Presets against the numbers by which their models are known.
#include "topology/job/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace weft::topology {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Without norms and biases.
double Elements(const std::string& name) {
  const ModelShape shape = FindModel(name)->shape;
  int64_t tables = (shape.tied ? 1 : 2) * shape.vocabulary;
  if (shape.position == PositionKind::kLearned) tables += shape.sequence;
  return static_cast<double>(shape.layers *
                                 (shape.AttentionElements() + shape.FeedForwardElements()) +
                             tables * shape.hidden);
}

TEST(ModelShape, PresetsHaveTheParametersOfTheirNames) {
  EXPECT_NEAR(Elements("gpt-13b"), 13e9, 0.1e9);
  EXPECT_NEAR(Elements("gpt-175b"), 175e9, 0.3e9);
  EXPECT_NEAR(Elements("gpt-530b"), 530e9, 1e9);
  // 124,439,808 and 162,417,408 with their norms and biases.
  EXPECT_NEAR(Elements("gpt2-124m"), 124'439'808, 0.001 * 124e6);
  EXPECT_NEAR(Elements("llama-160m"), 162'417'408, 0.001 * 162e6);
}

TEST(ModelShape, WidthsThatAreNotGivenFollowTheHiddenOne) {
  ModelShape shape{.hidden = 64};
  EXPECT_EQ(shape.AttentionElements(), 4 * 64 * 64);
  EXPECT_EQ(shape.FeedForwardElements(), 8 * 64 * 64);
  shape.kv_hidden = 16;
  shape.ffn = 100;
  shape.activation = ActivationKind::kSwiglu;
  EXPECT_EQ(shape.AttentionElements(), 2 * 64 * 64 + 2 * 64 * 16);
  EXPECT_EQ(shape.FeedForwardElements(), 3 * 64 * 100);
}

TEST(ModelShape, HeadsDivideTheHiddenWidthOfEveryPreset) {
  for (const ModelPreset& preset : ModelPresets()) {
    EXPECT_EQ(preset.shape.hidden % preset.shape.heads, 0) << preset.name;
  }
}

TEST(ModelShape, AnUnknownNameIsAnsweredWithThoseThatThereAre) {
  EXPECT_THAT(std::string(FindModel("gpt-5").status().message()),
              AllOf(HasSubstr("'gpt-5'"), HasSubstr("there are gpt-13b, gpt-175b")));
}

}  // namespace
}  // namespace weft::topology
