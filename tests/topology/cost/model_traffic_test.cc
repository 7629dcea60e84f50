// What a model's step sends, against the numbers that are known of GPT-175B and by hand.
#include "topology/cost/model_traffic.h"

#include <gmock/gmock.h>

#include "topology/job/mesh_text.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

const Traffic* Find(const std::vector<Traffic>& all, const std::string& name) {
  for (const Traffic& one : all) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

TEST(ModelTraffic, OfMegaScales175B) {
  Mesh mesh = *ParseMesh("tp8,dp192,pp8");
  TrainingSetup setup = *NamedSetup("gpt-175b");
  EXPECT_NEAR(static_cast<double>(CountParameters(setup.model, mesh).total), 175e9, 2e9);
  absl::StatusOr<std::vector<Traffic>> all = TrafficOf(setup, mesh);
  ASSERT_TRUE(all.ok()) << all.status();

  const Traffic* gradients = Find(*all, "gradients");
  const Traffic* parameters = Find(*all, "parameters");
  ASSERT_TRUE(gradients != nullptr && parameters != nullptr);
  // 5.5 GB each a GPU, the embedding not counted; exposed 1/(2 vpp) of both together.
  EXPECT_NEAR(static_cast<double>(gradients->bytes.count()), 5.5e9, 0.2e9);
  EXPECT_EQ(gradients->bytes, parameters->bytes);
  EXPECT_DOUBLE_EQ((gradients->exposed + parameters->exposed) / 2, 1.0 / 12);

  const Traffic* pipeline = Find(*all, "pipeline");
  ASSERT_NE(pipeline, nullptr);
  EXPECT_EQ(pipeline->bytes, Bytes(2048 * 12288 * 2 / 8));
  EXPECT_DOUBLE_EQ(pipeline->times, 32 * 6);
  EXPECT_DOUBLE_EQ(pipeline->exposed * pipeline->times, 7);
  EXPECT_TRUE(pipeline->wraps && pipeline->both_ways);

  const Traffic* tensor = Find(*all, "tensor gather");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->bytes, Bytes(2048 * 12288 * 2));
  EXPECT_DOUBLE_EQ(tensor->times, 4 * 12 * 32);
}

TEST(ModelTraffic, ZeroStagesMoveWhatTheyMust) {
  Mesh mesh = *ParseMesh("dp4");
  TrainingSetup setup = *NamedSetup("gpt-13b");
  auto bytes = [&](int zero) {
    setup.zero = zero;
    double sum = 0;
    std::vector<Traffic> all = *TrafficOf(setup, mesh);
    for (const Traffic& one : all) {
      double factor = one.collective == CollectiveKind::kAllReduce ? 2 : 1;
      sum += factor * one.times * static_cast<double>(one.bytes.count());
    }
    return sum;
  };
  EXPECT_DOUBLE_EQ(bytes(0), bytes(1));
  EXPECT_DOUBLE_EQ(bytes(1), bytes(2));
  EXPECT_DOUBLE_EQ(bytes(3), bytes(2) * 1.5);
}

TEST(ModelTraffic, ExpertsShareTheirGradientsOverFewerRanks) {
  Mesh mesh = *ParseMesh("cp2,ep8,dp4");
  TrainingSetup setup = *NamedSetup("gpt-13b");
  setup.model.experts = 16;
  setup.model.moe_every = 2;
  std::vector<Traffic> all = *TrafficOf(setup, mesh);
  EXPECT_EQ(ToString(Find(all, "gradients")->axes), "context+expert+data");
  EXPECT_EQ(ToString(Find(all, "expert gradients")->axes), "context+data");
  const Traffic* tokens = Find(all, "expert tokens");
  ASSERT_NE(tokens, nullptr);
  EXPECT_EQ(tokens->collective, CollectiveKind::kAllToAll);
  EXPECT_EQ(tokens->bytes, Bytes(2048 * 5120 * 2 / 2 * 2));
  EXPECT_DOUBLE_EQ(tokens->times, 4 * 20 * 24);
}

TEST(ModelTraffic, RefusesModelsThatDoNotFitTheLayout) {
  Mesh mesh = *ParseMesh("tp8,dp192,pp7");
  TrainingSetup setup = *NamedSetup("gpt-175b");
  EXPECT_THAT(TrafficOf(setup, mesh).status().ToString(),
              HasSubstr("model.layers is 96: must be a multiple of pipeline x interleave = 42"));
  mesh = *ParseMesh("tp8,dp100,pp8");
  EXPECT_THAT(TrafficOf(setup, mesh).status().ToString(),
              HasSubstr("model.global_batch is 6144: must be a multiple of data x expert"));
  mesh = *ParseMesh("tp8,ep4,dp48,pp8");
  EXPECT_THAT(TrafficOf(setup, mesh).status().ToString(), HasSubstr("model.experts is 0"));
  setup.model.sequence = setup.micro_batch = int64_t{1} << 32;
  EXPECT_THAT(TrafficOf(setup, mesh).status().ToString(),
              HasSubstr("sequences of 4294967296 are more than 536870912 tokens"));
  EXPECT_THAT(NamedSetup("gpt-5").status().ToString(), HasSubstr("there are gpt-13b"));
}

}  // namespace
}  // namespace weft::topology
