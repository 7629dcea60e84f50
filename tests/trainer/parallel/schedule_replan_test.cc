// What ranks measured becomes the same lists on all of them. Jobs are threads of this process.
#include "trainer/parallel/schedule_replan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/collectives/job.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;
using topology::PassKind;
using topology::PipelinePass;
using topology::PipelineSchedule;
using topology::PipelineSpec;

constexpr PipelineSpec kSpec{topology::PipelineScheduleKind::kZeroBubbleV, 2, 2, 8};

TrainConfig ConfigOf(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"data.prefix=none", "train.precision=fp32",
                                     "parallel.pipeline=2", "parallel.schedule=zb-v"});
  absl::StatusOr<TrainConfig> config = LoadTrainConfig("", settings, "tiny");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

// The lists that a run begins with, as of chunks with equal work.
PipelineSchedule FirstLists() {
  return *MakePipelineSchedule(kSpec, std::vector<topology::PassDurations>(4, {.backward = 1.6}));
}

TEST(MeasuredPassesTest, MediansAreByChunkAndKind) {
  MeasuredPasses measured(kSpec, 1);
  const std::vector<PipelinePass> passes = {{PassKind::kForward, 0, 0},
                                            {PassKind::kForward, 0, 1},
                                            {PassKind::kForward, 0, 2},
                                            {PassKind::kWeight, 1, 0}};
  measured.Add(passes, std::vector<PassTime>{{0, 10, 15}, {15, 20, 920}, {0, 50, 57}, {0, 0, 3}});
  EXPECT_EQ(measured.ToText(), "1 7 0 0 0 0 3");
}

TEST(MedianDurationsTest, ChunksHaveTheMediansOfTheRanksOfTheirStage) {
  const std::vector<std::string> texts = {"0 10 20 30 11 21 31", "1 40 50 60 41 51 61",
                                          "0 12 22 32 13 23 33", "1 40 50 60 41 51 61",
                                          "0 99 99 99 99 99 99", "1 40 50 60 41 51 61"};
  const auto durations = MedianDurations(kSpec, texts);
  ASSERT_TRUE(durations.ok()) << durations.status();
  ASSERT_EQ(durations->size(), 4U);
  // Chunk 0 goes down the stages, chunk 1 up again.
  EXPECT_EQ((*durations)[0].forward, 12);
  EXPECT_EQ((*durations)[0].weight, 32);
  EXPECT_EQ((*durations)[1].backward, 50);
  EXPECT_EQ((*durations)[2].forward, 41);
  EXPECT_EQ((*durations)[3].backward, 23);
}

TEST(MedianDurationsTest, ATextThatIsNoneIsRefusedByRank) {
  const auto message = [](const std::vector<std::string>& texts) {
    return std::string(MedianDurations(kSpec, texts).status().message());
  };
  const std::string good = "0 1 1 1 1 1 1";
  for (const std::string bad : {"", "1 1", "2 1 1 1 1 1 1", "1 1 1 1 1 1 -1", "1 1 1 x 1 1 1"}) {
    EXPECT_THAT(message({good, bad}), HasSubstr("rank 1 sent '" + bad + "'"));
  }
  EXPECT_THAT(message({good}), HasSubstr("no rank sent the durations of stage 1"));
}

TEST(ScheduleReplanTest, TheOrderOfATiedEmbeddingsGradientsIsThatOfBothEnds) {
  const PipelineSchedule lists = FirstLists();
  EXPECT_TRUE(OrderOfTiedGradients(ConfigOf({"model.tied=false"}), kSpec, lists).empty());
  for (const bool reduces_each : {false, true}) {
    const auto order = OrderOfTiedGradients(
        ConfigOf({reduces_each ? "parallel.zero=2" : "parallel.zero=1"}), kSpec, lists);
    EXPECT_EQ(order.size(), 16U);
    for (const PipelinePass& pass : order) {
      const bool is_output = pass.chunk == 1;
      EXPECT_EQ(pass.kind, is_output && !reduces_each ? PassKind::kForward : PassKind::kBackward);
    }
  }
  const PipelineSpec one_way{topology::PipelineScheduleKind::k1F1B, 2, 1, 8};
  EXPECT_TRUE(OrderOfTiedGradients(ConfigOf({}), one_way, *MakePipelineSchedule(one_way)).empty());
}

TEST(ScheduleReplanTest, IsOfZeroBubbleVOnCpusWhereItIsNotSwitchedOff) {
  EXPECT_TRUE(ScheduleReplan::IsWanted(ConfigOf({}), kSpec));
  EXPECT_FALSE(ScheduleReplan::IsWanted(ConfigOf({"parallel.replan=off"}), kSpec));
  PipelineSpec other = kSpec;
  other.kind = topology::PipelineScheduleKind::kZeroBubbleH1;
  EXPECT_FALSE(ScheduleReplan::IsWanted(ConfigOf({}), other));
  other = kSpec;
  other.stages = 1;
  EXPECT_FALSE(ScheduleReplan::IsWanted(ConfigOf({}), other));
}

struct Outcome {
  PipelineSchedule schedule;
  std::vector<std::string> said;  // before each step
};

// Eight steps of a rank whose backward passes take three times as long as the others, and all of
// whose passes are slower by `percent`.
Outcome Steps(const TrainConfig& config, int stage, int percent, Group& world) {
  Outcome outcome{.schedule = FirstLists()};
  ScheduleReplan replan(config, kSpec, stage, &world);
  for (int step = 1; step <= 8; ++step) {
    PipelineSchedule better;
    const absl::StatusOr<std::string> said = replan.BeforeStep(outcome.schedule, better);
    EXPECT_TRUE(said.ok()) << said.status();
    if (!better.empty()) outcome.schedule = std::move(better);
    outcome.said.push_back(said.ok() ? *said : "");
    const std::vector<PipelinePass>& passes = outcome.schedule[static_cast<size_t>(stage)];
    std::vector<PassTime> times;
    for (const PipelinePass& pass : passes) {
      int64_t takes = (pass.kind == PassKind::kBackward ? 3'000'000 : 1'000'000);
      // The first steps of a start are not measured.
      if (step < ScheduleReplan::kFirstMeasured && pass.kind == PassKind::kWeight) takes *= 50;
      times.push_back({0, 0, takes * (100 + percent) / 100});
    }
    replan.AddStep(passes, times);
  }
  return outcome;
}

TEST(ScheduleReplanTest, AllRanksTakeTheSameListsInTheSameStep) {
  const PipelineSchedule first = FirstLists();
  for (const std::string kind : {"bitwise", "any", "off"}) {
    const TrainConfig config = ConfigOf({"parallel.replan=" + kind});
    constexpr int kRanks = 4;  // two of each stage
    std::vector<Outcome> outcomes(kRanks);
    collectives::RunRanks(
        kRanks, {"collective.timeout=60s"},
        [&](const std::shared_ptr<collectives::Endpoint>& endpoint) {
          auto world = Group::Create(endpoint, "world", collectives::AllRanks(kRanks));
          ASSERT_TRUE(world.ok()) << world.status();
          const int rank = (*world)->rank();
          outcomes[static_cast<size_t>(rank)] = Steps(config, rank / 2, rank % 2, **world);
        });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.schedule, outcomes[0].schedule) << kind;
      EXPECT_EQ(outcome.said, outcomes[0].said) << kind;
    }
    ASSERT_EQ(outcomes[0].said.size(), 8U);
    for (size_t step = 1; step <= 8; ++step) {
      const bool tells = kind != "off" && step == ScheduleReplan::kLastMeasured + 1;
      EXPECT_EQ(!outcomes[0].said[step - 1].empty(), tells) << kind << " step " << step;
    }
    EXPECT_EQ(outcomes[0].schedule == first, kind == "off") << kind;
    if (kind == "off") continue;
    EXPECT_THAT(outcomes[0].said[6], HasSubstr("; new lists make it ")) << kind;
    const bool is_same_order = OrderOfTiedGradients(config, kSpec, outcomes[0].schedule) ==
                               OrderOfTiedGradients(config, kSpec, first);
    EXPECT_EQ(is_same_order, kind == "bitwise");
  }
}

}  // namespace
}  // namespace weft::train
