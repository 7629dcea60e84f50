// The numbers of parameters by their names, against the list itself.
#include "trainer/model/parameter_numbers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "trainer/config.h"

namespace weft::train {
namespace {

ModelConfig Small() {
  ModelConfig model;
  model.layers = 2;
  model.hidden = 16;
  model.heads = 4;
  model.ffn = 32;
  model.sequence = 8;
  model.vocabulary = 20;
  return model;
}

TEST(ParameterNumbersTest, ABlockHasWhatTheListHasUnderItsNames) {
  const std::vector<ParameterSpec> specs = GptParameters(Small());
  const ParameterNumbers numbers(specs);
  const auto name = [&specs](int number) { return specs.at(static_cast<size_t>(number)).name; };
  const BlockParameters block = numbers.OfBlock(1, 0, 0);
  EXPECT_EQ(name(block.norm1.weight), "block.1.norm1.weight");
  ASSERT_EQ(block.projections.size(), 1U);
  EXPECT_EQ(name(block.projections[0].weight), "block.1.attention.qkv.weight");
  EXPECT_EQ(name(block.projections[0].bias), "block.1.attention.qkv.bias");
  EXPECT_EQ(name(block.ffn_out.weight), "block.1.ffn.out.weight");
  EXPECT_EQ(block.router, -1);
  EXPECT_TRUE(block.experts.empty());
  EXPECT_EQ(name(numbers.FindPair("norm").weight), "norm.weight");
  EXPECT_EQ(numbers.Find("block.2.norm1.weight"), -1);
}

TEST(ParameterNumbersTest, GroupedQueriesHaveTwoProjectionsAndExpertsAreTakenFromTheFirstOn) {
  ModelConfig model = Small();
  model.kv_hidden = 8;
  model.experts = 4;
  model.top_k = 1;
  model.bias = false;
  const std::vector<ParameterSpec> specs = GptParameters(model);
  const auto name = [&specs](int number) { return specs.at(static_cast<size_t>(number)).name; };
  const BlockParameters block = ParameterNumbers(specs).OfBlock(0, /*first_expert=*/2, 2);
  ASSERT_EQ(block.projections.size(), 2U);
  EXPECT_EQ(name(block.projections[0].weight), "block.0.attention.q.weight");
  EXPECT_EQ(name(block.projections[1].weight), "block.0.attention.kv.weight");
  EXPECT_EQ(block.projections[0].bias, -1);
  EXPECT_EQ(name(block.router), "block.0.router.weight");
  ASSERT_EQ(block.experts.size(), 2U);
  EXPECT_EQ(name(block.experts[0].in.weight), "block.0.expert.2.in.weight");
  EXPECT_EQ(name(block.experts[1].out.weight), "block.0.expert.3.out.weight");
}

}  // namespace
}  // namespace weft::train
