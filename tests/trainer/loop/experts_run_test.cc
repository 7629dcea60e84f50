// Mixtures of experts as users train them: over every axis the losses of one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

// Losses that depend on how tokens are dealt to ranks would differ at once: the routers' losses
// have large weights here, and the second model drops tokens. No tensor axis divides the width of
// an expert, which is whole on its rank.
std::vector<std::string> Settings(bool drops) {
  std::vector<std::string> settings = {"train.precision=fp32",   "train.steps=12",
                                       "sample.tokens=5",        "model.layers=2",
                                       "model.experts=4",        "model.ffn=49",
                                       "model.balance_loss=0.1", "model.router_z_loss=0.01"};
  if (!drops) return settings;
  for (const char* setting : {"model.capacity_factor=0.8", "model.style=mixtral",
                              "model.block=parallel", "model.dropout=0.1"}) {
    settings.emplace_back(setting);
  }
  return settings;
}

struct Layout {
  const char* name;
  int ranks;
  std::vector<std::string> settings;
};

class ExpertsRunTest : public TrainRunTest, public ::testing::WithParamInterface<Layout> {
 protected:
  static const std::map<int, json>& Reference(bool drops) {
    static std::map<int, json> references[2];
    std::map<int, json>& reference = references[drops ? 1 : 0];
    if (reference.empty()) {
      const std::string name = drops ? "drops" : "keeps";
      Outcome outcome = Run(1, name, Settings(drops));
      EXPECT_EQ(outcome.status, 0) << outcome.output;
      reference = Metrics(name);
      EXPECT_EQ(reference[12]["dropped_choices"].get<double>() > 0, drops);
    }
    return reference;
  }
};

TEST_P(ExpertsRunTest, LossesAreThoseOfOneRank) {
  for (bool drops : {false, true}) {
    std::vector<std::string> settings = Settings(drops);
    for (const std::string& setting : GetParam().settings) settings.push_back(setting);
    const std::string name = std::string(GetParam().name) + (drops ? "_drops" : "_keeps");
    Outcome outcome = Run(GetParam().ranks, name, settings);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    std::map<int, json> rows = Metrics(name);
    EXPECT_LT(LargestDifference(Reference(drops), rows), 1e-5);
    for (const auto& [step, row] : rows) {
      const json& expected = Reference(drops).at(step);
      for (const char* key : {"grad_norm", "balance_loss", "router_z_loss", "dropped_choices"}) {
        EXPECT_NEAR(row[key].get<double>(), expected[key].get<double>(), 1e-4) << key;
      }
    }
    EXPECT_NEAR(rows[12]["val_loss"].get<double>(),
                Reference(drops).at(12)["val_loss"].get<double>(), 1e-5);
    EXPECT_TRUE(fs::exists(RunDir(name) + "/model/model.safetensors"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ExpertsRunTest,
    ::testing::Values(
        Layout{"dp2", 2, {}}, Layout{"ep2", 2, {"parallel.expert=2"}},
        Layout{"ep4_many_pieces", 4, {"parallel.expert=4", "parallel.expert_pieces=4"}},
        Layout{"ep2_of_dp4_zero2", 4, {"parallel.expert=2", "parallel.zero=2"}},
        Layout{"tp2", 2, {"parallel.tensor=2"}},
        Layout{"ep2_tp2", 4, {"parallel.expert=2", "parallel.tensor=2"}},
        Layout{
            "ep2_pp2", 4, {"parallel.expert=2", "parallel.pipeline=2", "parallel.schedule=zb-h1"}},
        Layout{"ep2_pp2_zero3",
               4,
               {"parallel.expert=2", "parallel.pipeline=2", "parallel.schedule=zb-h1",
                "parallel.zero=3"}},
        Layout{"ep2_cp2", 4, {"parallel.expert=2", "parallel.context=2"}},
        Layout{"ep2_zero3_recompute",
               4,
               {"parallel.expert=2", "parallel.zero=3", "train.recompute=full"}},
        Layout{"ep2_of_dp4_zero0", 4, {"parallel.expert=2", "parallel.zero=0"}},
        Layout{"ep2_of_dp4_zero3_groups",
               4,
               {"parallel.expert=2", "parallel.zero=3", "parallel.zero_group=2"}},
        Layout{"ep2_micro", 2, {"parallel.expert=2", "train.micro_batch=2"}}),
    [](const auto& info) { return std::string(info.param.name); });

// LAMB's step begins with a sum over all ranks for the experts' norms.
TEST_F(TrainRunTest, AStageWithoutExpertsTakesPartInEachStep) {
  std::vector<std::string> settings = Settings(false);
  settings.insert(settings.end(), {"optimizer.name=lamb", "optimizer.learning_rate=1e-2"});
  ASSERT_EQ(Run(1, "lamb_one", settings).status, 0);
  settings.insert(settings.end(), {"parallel.pipeline=2", "parallel.stages=0.5,1.5"});
  for (const char* zero : {"parallel.zero=1", "parallel.zero=3"}) {
    settings.emplace_back(zero);
    const Outcome outcome = Run(4, std::string("lamb_") + zero, settings);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_LT(LargestDifference(Metrics("lamb_one"), Metrics(std::string("lamb_") + zero)), 1e-5);
  }
}

TEST_F(TrainRunTest, ExpertsResumeOverAnotherNumberOfRanks) {
  auto with = [](std::vector<std::string> more) {
    for (const std::string& setting : Settings(false)) {
      if (setting != "train.steps=12") more.push_back(setting);
    }
    more.emplace_back("optimizer.decay_steps=18");
    return more;
  };
  ASSERT_EQ(Run(1, "straight", with({"train.steps=18"})).status, 0);
  Outcome outcome = Run(4, "changed", with({"train.steps=6", "parallel.expert=4"}));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  outcome = Run(1, "changed", with({"train.steps=12", "--resume"}));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  outcome = Run(4, "changed",
                with({"train.steps=15", "parallel.expert=2", "parallel.zero=0", "--resume"}));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  outcome = Run(4, "changed",
                with({"train.steps=18", "parallel.expert=2", "parallel.tensor=2", "--resume"}));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_LT(LargestDifference(Metrics("straight"), Metrics("changed")), 1e-5);
}

TEST_F(TrainRunTest, ExpertsThatCannotBeSharedAreRefusedWithTheArithmetic) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"parallel.expert=2"},
       "parallel.expert = 2 shares the experts of a layer, and there are none"},
      {{"parallel.expert=2", "model.experts=3"},
       "parallel.tensor = 1 x parallel.expert = 2 = 2 ranks share the experts of a layer, which "
       "does "
       "not divide model.experts = 3"},
      {{"parallel.expert=4", "model.experts=4"},
       "parallel.expert = 4 does not divide the 2 data-parallel ranks"},
      {{"parallel.expert=2", "model.experts=4", "parallel.zero_group=3", "--check", "--ranks=6"},
       "a multiple of parallel.context x parallel.expert = 2"},
      {{"model.experts=4", "model.experts_per_token=5"}, "at most all of model.experts = 4"}};
  for (const auto& [settings, words] : cases) {
    Outcome outcome = Run(2, "refused", settings);
    EXPECT_NE(outcome.status, 0) << words;
    EXPECT_THAT(outcome.output, HasSubstr(words));
  }
}

TEST_F(TrainRunTest, ExchangesWithExpertsAreATrackOfTheTraceAndARowOfTheMetrics) {
  Outcome outcome = Run(2, "travel", {"model.experts=4", "parallel.expert=2", "train.steps=3"});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  std::ifstream file(RunDir("travel") + "/trace.json");
  json events = json::parse(file)["traceEvents"];
  std::map<std::string, int> spans;
  for (const json& event : events) {
    if (event["ph"] == "X" && event["pid"] == 0) ++spans[event["name"].get<std::string>()];
  }
  // 3 steps and validation; 2 layers, forward and backward, 2 pieces.
  EXPECT_GE(spans["dispatch"], 3 * 2 * 2 * 2);
  EXPECT_EQ(spans["dispatch"], spans["return"]);
  EXPECT_TRUE(Metrics("travel")[3].contains("exposed_expert_seconds"));
  // Rows for a rank's own experts do not travel: of 8 x 32 tokens' 2 choices, 64 wide, in 2 layers,
  // forward and backward, the exchanges of a step have only a part.
  int64_t dispatched = 0;
  for (const json& event : events) {
    if (event["ph"] != "X" || event["name"] != "dispatch" || event["args"]["step"] != 2) continue;
    dispatched += event["args"]["bytes"].get<int64_t>();
  }
  EXPECT_GT(dispatched, 0);
  EXPECT_LT(dispatched, int64_t{8} * 32 * 2 * 64 * 4 * 2 * 2);
}

}  // namespace
}  // namespace weft::train
