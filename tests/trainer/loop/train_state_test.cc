// weft-train's training state: optimizers, number types, sharding stages and recomputation, each on
// the layouts that cut it, against one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/scoped_variable.h"
#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Settings = std::vector<std::string>;

Settings operator+(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class TrainStateTest : public TrainRunTest {
 protected:
  static Settings Model() {
    return {"train.precision=fp32", "train.steps=8", "model.layers=4", "sample.tokens=0",
            "model.dropout=0.1"};
  }
  static std::map<int, json> Train(int ranks, const std::string& run, const Settings& settings) {
    Outcome outcome = Run(ranks, run, settings);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return Metrics(run);
  }
};

struct Rule {
  const char* name;
  Settings settings;
  double tolerance;  // of losses after 8 steps, between layouts
};
class OptimizerRunTest : public TrainStateTest, public ::testing::WithParamInterface<Rule> {};

TEST_P(OptimizerRunTest, ShardedOverEveryAxisIsAsUnsharded) {
  const std::string name = GetParam().name;
  const Settings settings = Model() + GetParam().settings;
  const std::map<int, json> one = Train(1, name + "_one", settings);
  ASSERT_EQ(one.size(), 8U);
  EXPECT_LT(one.at(8)["loss"].get<double>(), one.at(1)["loss"].get<double>());
  const std::pair<int, Settings> layouts[] = {
      {4, {"parallel.tensor=2", "parallel.zero=2"}},
      {4, {"parallel.pipeline=2", "parallel.zero_group=1", "train.micro_batch=1"}}};
  for (const auto& [ranks, layout] : layouts) {
    const std::map<int, json> cut = Train(ranks, name + layout[0], settings + layout);
    EXPECT_LT(LargestDifference(one, cut), GetParam().tolerance) << layout[0];
  }
}

TEST_P(OptimizerRunTest, ResumesToTheBit) {
  const std::string name = GetParam().name;
  const Settings settings =
      Model() + GetParam().settings + Settings{"optimizer.decay_steps=8", "parallel.tensor=2"};
  const std::map<int, json> whole = Train(2, name + "_whole", settings);
  Train(2, name + "_parts", settings + Settings{"train.steps=4"});
  const std::map<int, json> parts = Train(2, name + "_parts", settings + Settings{"--resume"});
  EXPECT_EQ(LargestDifference(whole, parts), 0.0);
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, OptimizerRunTest,
    ::testing::Values(Rule{"adamw", {"optimizer.name=adamw"}, 1e-5},
                      Rule{"lamb", {"optimizer.name=lamb", "optimizer.learning_rate=1e-2"}, 1e-5},
                      Rule{"sgd", {"optimizer.name=sgd", "optimizer.learning_rate=1e-1"}, 1e-5},
                      // The sign of a sum near 0 depends on the order of its terms.
                      Rule{"lion", {"optimizer.name=lion"}, 1e-3},
                      Rule{"muon", {"optimizer.name=muon"}, 1e-5}),
    [](const auto& info) { return std::string(info.param.name); });

// As on a host of other cores, which would choose otherwise: what a config leaves open is in the
// checkpoint, however it came about. What the config gives now counts.
TEST_F(TrainStateTest, AResumedRunKeepsItsMicroBatches) {
  const Settings settings = Model() + Settings{"optimizer.decay_steps=8"};
  const std::map<int, json> whole =
      Train(1, "micro_whole", settings + Settings{"train.micro_batch=2"});
  Train(1, "micro_parts", settings + Settings{"train.steps=4", "train.micro_batch=2"});
  const Outcome resumed = Run(1, "micro_parts", settings + Settings{"train.steps=6", "--resume"});
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("cores: kept from the checkpoint, so that sums have the "
                                        "same last bits: train.micro_batch = 2"));
  const Outcome given =
      Run(1, "micro_parts", settings + Settings{"train.micro_batch=2", "--resume"});
  EXPECT_EQ(given.status, 0) << given.output;
  EXPECT_THAT(given.output, Not(HasSubstr("kept from the checkpoint")));
  EXPECT_EQ(LargestDifference(whole, Metrics("micro_parts")), 0.0);
}

TEST_F(TrainStateTest, AnotherOptimizersStateIsRefusedByName) {
  Train(1, "named", Model() + Settings{"optimizer.name=lamb"});
  Outcome outcome = Run(1, "named", Model() + Settings{"train.steps=9", "--resume"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("its optimizer is lamb, optimizer.name is now adamw"));
  Train(1, "named", Model() + Settings{"optimizer.name=lamb", "train.steps=9", "--resume"});
}

// bf16 alone learns, resumes to the bit, and differs from bf16 beside fp32 values.
TEST_F(TrainStateTest, ParametersInBf16AloneLearnAndResume) {
  const Settings settings =
      Model() + Settings{"train.precision=bf16", "train.master_weights=false", "train.steps=30",
                         "optimizer.decay_steps=30", "optimizer.warmup_steps=3"};
  const std::map<int, json> whole = Train(2, "bf16_whole", settings);
  EXPECT_LT(whole.at(30)["loss"].get<double>(), whole.at(1)["loss"].get<double>() - 0.5);
  Train(2, "bf16_parts", settings + Settings{"train.steps=12"});
  const std::map<int, json> parts = Train(2, "bf16_parts", settings + Settings{"--resume"});
  EXPECT_EQ(LargestDifference(whole, parts), 0.0);
  const std::map<int, json> masters =
      Train(2, "bf16_masters", settings + Settings{"train.master_weights=true"});
  EXPECT_LT(LargestDifference(whole, masters), 0.1);
  EXPECT_GT(LargestDifference(whole, masters), 0.0);
  Outcome outcome = Run(1, "bf16_refused", {"train.precision=fp32", "train.master_weights=false"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("needs train.precision = bf16; it is fp32"));
}

// A scale that is too large is halved until gradients fit, then doubled again; it goes with the
// checkpoint.
TEST_F(TrainStateTest, Fp16FindsItsLossScaleAndResumesToTheBit) {
  const Settings settings = Model() + Settings{"train.precision=fp16",     "train.steps=12",
                                               "optimizer.decay_steps=12", "train.loss_scale=1e6",
                                               "train.loss_scale_steps=2", "model.layers=1",
                                               "train.global_batch=2"};
  Outcome outcome = Run(2, "fp16_whole", settings);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("the loss scale goes from 1e+06 to 500000"));
  const std::map<int, json> whole = Metrics("fp16_whole");
  EXPECT_GT(whole.size(), 2U);
  EXPECT_LT(whole.size(), 12U);
  Train(2, "fp16_parts", settings + Settings{"train.steps=7"});
  const std::map<int, json> parts = Train(2, "fp16_parts", settings + Settings{"--resume"});
  EXPECT_EQ(LargestDifference(whole, parts), 0.0);
}

TEST_F(TrainStateTest, StepsThatAreNotFiniteAreLeftOutWhereTheConfigSaysSo) {
  Outcome outcome = Run(2, "skip",
                        {"optimizer.learning_rate=1e30", "optimizer.warmup_steps=0",
                         "train.steps=6", "train.non_finite=skip", "sample.tokens=0"});
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("left out: step "));
  std::ifstream file(RunDir("skip") + "/metrics.jsonl");
  int lines = 0, skipped = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const json row = json::parse(line);
    if (!row.contains("skipped")) continue;
    ++skipped;
    EXPECT_FALSE(row.contains("loss"));
    EXPECT_THAT(row["skipped"].get<std::string>(), HasSubstr("rank "));
  }
  EXPECT_EQ(lines, 6);
  EXPECT_GT(skipped, 0);
}

// The same numbers, computed twice: to the bit, dropout included.
TEST_F(TrainStateTest, RecomputationChangesNoBit) {
  for (bool second : {false, true}) {
    Settings model = Model();
    if (second) {
      model = model + Settings{"model.block=parallel", "model.tied=false", "model.position=rotary",
                               "model.activation=swiglu", "model.norm=rmsnorm"};
    }
    const std::string name = second ? "recompute2_" : "recompute1_";
    const int ranks = second ? 4 : 1;
    if (second) {
      model =
          model + Settings{"parallel.tensor=2", "parallel.pipeline=2", "parallel.schedule=zb-h1"};
    }
    const std::map<int, json> none = Train(ranks, name + "none", model);
    int number = 0;
    for (const char* kind : {"selective", "full", "full:0-1,selective:3"}) {
      const std::map<int, json> again =
          Train(ranks, name + std::to_string(number++),
                model + Settings{std::string("train.recompute=") + kind});
      EXPECT_EQ(LargestDifference(none, again), 0.0) << kind << " on " << ranks;
    }
  }
  Outcome outcome = Run(1, "recompute_refused", {"train.recompute=full:1-9"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("'1-9' is no range of the 2 layers, 0 to 1"));
}

TEST_F(TrainStateTest, ParametersThatComeAndGoGiveTheSameLosses) {
  const Settings settings = Model();
  const std::map<int, json> one = Train(1, "whole", settings);
  const std::pair<int, Settings> layouts[] = {
      {2, {"parallel.zero=3"}},
      {4, {"parallel.zero=3", "parallel.zero_group=2", "train.micro_batch=1"}},
      {4, {"parallel.zero=3", "parallel.tensor=2", "train.recompute=full"}},
      {4, {"parallel.zero=3", "parallel.pipeline=2", "parallel.schedule=interleaved"}}};
  int number = 0;
  for (const auto& [ranks, layout] : layouts) {
    const std::string run = "zero3_" + std::to_string(number++);
    EXPECT_LT(LargestDifference(one, Train(ranks, run, settings + layout)), 1e-5) << run;
    EXPECT_TRUE(fs::exists(RunDir(run) + "/model/model.safetensors"));
  }
  Outcome outcome = Run(4, "zero_group_refused", {"parallel.zero_group=3"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output,
              HasSubstr("parallel.zero_group = 3 does not divide the 4 data-parallel ranks"));
}

// Order of events, not their length: the first gather of a step is under way before its forward
// pass begins, while the batch is read.
TEST_F(TrainStateTest, TheFirstGatherOfAStepRunsBeforeItsForwardPass) {
  Train(2, "prefetch", Model() + Settings{"parallel.zero=3"});
  std::ifstream file(RunDir("prefetch") + "/trace.json");
  const json events = json::parse(file)["traceEvents"];
  for (int rank = 0; rank < 2; ++rank) {
    std::map<int, double> forward, gather;
    std::map<int, int> gathers;
    for (const json& event : events) {
      if (event["ph"] != "X" || event["pid"] != rank) continue;
      const int step = event["args"]["step"];
      const double start = event["ts"];
      if (event["name"] == "forward") forward.try_emplace(step, start);
      if (event["name"] != "all_gather") continue;
      ++gathers[step];
      const double before = gather.count(step) > 0 ? gather[step] : start;
      gather[step] = std::min(before, start);
    }
    for (int step = 2; step <= 8; ++step) {
      ASSERT_EQ(gather.count(step), 1U) << "rank " << rank << " step " << step;
      EXPECT_LT(gather[step], forward[step]) << "rank " << rank << " step " << step;
      // Embedding, four blocks and the end once forward; what is read backward once more.
      EXPECT_GE(gathers[step], 6 + 5);
    }
  }
}

TEST_F(TrainStateTest, StagesAreBalancedByWorkOrByHand) {
  const Settings common = {"model.layers=6", "parallel.pipeline=3", "--check", "--ranks=3"};
  Outcome outcome = Run(1, "balance", common);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("+ output: "));
  EXPECT_THAT(outcome.output, HasSubstr("% of the work"));
  outcome = Run(1, "balance", common + Settings{"parallel.stages=1,4,1"});
  EXPECT_THAT(outcome.output, HasSubstr("stage 1     layers 4: "));
  outcome = Run(1, "balance", common + Settings{"parallel.stages=1,4"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("2 numbers; 3 stages x 1 chunks need 3"));
  outcome = Run(1, "balance", common + Settings{"parallel.stages=1,4,2"});
  EXPECT_THAT(outcome.output, HasSubstr("their sum is 7; model.layers = 6"));
  outcome = Run(1, "balance", common + Settings{"parallel.stages=0,4,2"});
  EXPECT_THAT(outcome.output, HasSubstr("'0' is no number of layers"));
}

TEST_F(TrainStateTest, UnevenStagesHaveTheLossesOfOneRank) {
  const Settings settings = Model() + Settings{"model.layers=5"};
  const std::map<int, json> one = Train(1, "uneven_one", settings);
  for (const char* stages : {"1,3,1", "2,1,2", "1.5,2,1.5", "0.5,4,0.5"}) {
    const std::string run = std::string("uneven_") + stages;
    EXPECT_LT(LargestDifference(
                  one, Train(3, run,
                             settings + Settings{"parallel.pipeline=3",
                                                 std::string("parallel.stages=") + stages})),
              1e-5);
  }
}

// A trial decides, and is asked once; a checkpoint remembers what it decided.
TEST_F(TrainStateTest, ARunGoesOnWithTheLibrariesThatItBeganWith) {
  const fs::path cache = root_ / "cache";
  const Settings before = {"train.gemm=auto", "train.attention=auto",    "train.precision=fp32",
                           "train.steps=4",   "optimizer.decay_steps=4", "sample.tokens=0"};
  auto run = [&](const std::string& name, const Settings& more) {
    const ScopedVariable home("XDG_CACHE_HOME", cache);
    Outcome outcome = Run(1, name, before + more);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return outcome.output;
  };
  run("trial_tried", {"train.steps=1"});
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(cache)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  ASSERT_EQ(files.size(), 2U);  // of products, and of attention
  // Keeps rates of every product and attention; where `weight` is not empty, of weights' gradients.
  auto keep = [&](const std::string& rates, const std::string& weight = "") {
    for (const fs::path& file : files) {
      std::ifstream before(file);
      std::string text = "trial 2\nregisters 3e9\nothers 0\n";
      for (std::string line; std::getline(before, line);) {
        const size_t at = line.find(" aten ");
        if (at == std::string::npos) continue;
        const bool is_weight = !weight.empty() && line.rfind("weight.", 0) == 0;
        const bool has_onednn = line.find(" onednn ") != std::string::npos;
        text += line.substr(0, at) + " " + (is_weight ? weight : rates) +
                (has_onednn ? " onednn 5e8\n" : "\n");
      }
      before.close();
      std::ofstream(file) << text;
    }
  };
  keep("aten 1e9 weft 2e9");
  EXPECT_THAT(run("trial_whole", {}),
              AllOf(HasSubstr("products by weft (of one rank, GFLOP/s: aten 1, weft 2"),
                    HasSubstr("attention by weft (of one rank, GFLOP/s: aten 1, weft 2")));
  run("trial_parts", {"train.steps=2"});
  keep("aten 2e9 weft 1e9");
  EXPECT_THAT(run("trial_other", {}), AllOf(HasSubstr("products by aten (of one rank"),
                                            HasSubstr("attention by aten (of one rank")));
  EXPECT_THAT(run("trial_parts", {"--resume"}), AllOf(HasSubstr("products by weft (as before)"),
                                                      HasSubstr("attention by weft (as before)")));
  EXPECT_EQ(LargestDifference(Metrics("trial_whole"), Metrics("trial_parts")), 0);
  // One library for some products, and the other for the rest.
  keep("aten 1e9 weft 2e9", "aten 2e9 weft 1e9");
  EXPECT_THAT(run("trial_mixed", {}), HasSubstr("products by weft, but aten for "));
  run("trial_mixed_parts", {"train.steps=2"});
  keep("aten 2e9 weft 1e9");
  EXPECT_THAT(run("trial_mixed_parts", {"--resume"}), HasSubstr("products by weft,aten=weight."));
  EXPECT_EQ(LargestDifference(Metrics("trial_mixed"), Metrics("trial_mixed_parts")), 0);
}

// What the allocator counted against the arithmetic, on every rank.
TEST_F(TrainStateTest, TensorsTakeWhatWasEstimated) {
  const Settings model = {"train.precision=fp32", "model.layers=4",    "model.hidden=128",
                          "model.sequence=64",    "train.steps=3",     "train.global_batch=16",
                          "sample.tokens=0",      "checkpoint.every=0"};
  const std::pair<int, Settings> layouts[] = {
      {1, {}},
      {1, {"train.recompute=selective"}},
      {1, {"train.recompute=full", "train.micro_batch=2"}},
      {1, {"train.precision=bf16", "optimizer.name=lion"}},
      {1, {"train.precision=bf16", "train.master_weights=false", "train.micro_batch=4"}},
      {2, {"parallel.zero=0", "optimizer.name=sgd"}},
      {2, {"parallel.zero=2", "train.micro_batch=2"}},
      {2, {"parallel.zero=3", "parallel.bucket_bytes=1MiB", "train.micro_batch=2"}},
      {2, {"parallel.tensor=2", "parallel.tensor_gathered=again"}},
      {2, {"parallel.tensor=2", "parallel.tensor_gathered=keep"}},
      {2, {"parallel.tensor=2", "model.block=parallel", "model.activation=swiglu"}},
      {2, {"parallel.pipeline=2"}},
      {2, {"parallel.pipeline=2", "parallel.schedule=gpipe", "train.recompute=selective"}},
      {2, {"parallel.pipeline=2", "parallel.schedule=eager-1f1b", "train.micro_batch=1"}},
      {2, {"parallel.pipeline=2", "parallel.schedule=interleaved"}},
      {2, {"parallel.pipeline=2", "parallel.schedule=zb-h1"}},
      {4, {"parallel.pipeline=2", "parallel.schedule=zb-h1", "parallel.zero=2"}},
      {1, {"optimizer.name=lamb"}},
      {2, {"optimizer.name=muon"}},
      {1, {"model.style=mixtral", "model.ffn=192"}},
      {2, {"model.style=mixtral", "model.ffn=192", "parallel.tensor=2", "train.precision=bf16"}},
      {2, {"model.style=mixtral", "model.ffn=192", "parallel.expert=2", "train.micro_batch=4"}},
      {4, {"parallel.pipeline=2", "parallel.tensor=2", "parallel.schedule=zb-v"}},
      {4,
       {"parallel.pipeline=2", "parallel.tensor=2", "parallel.schedule=zb-h1",
        "parallel.tensor_gathered=keep"}}};
  int number = 0;
  for (const auto& [ranks, layout] : layouts) {
    const std::string run = "estimate_" + std::to_string(number++);
    Outcome outcome = Run(ranks, run, model + layout);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    size_t at = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string begin = "rank " + std::to_string(rank) + ": tensors ";
      at = outcome.output.find(begin);
      ASSERT_NE(at, std::string::npos) << outcome.output;
      double peak = 0, estimate = 0;
      ASSERT_EQ(std::sscanf(outcome.output.c_str() + at + begin.size(),
                            "%lf MiB at most, estimated %lf", &peak, &estimate),
                2);
      EXPECT_NEAR(estimate / peak, 1.0, 0.1)
          << run << " " << (layout.empty() ? "" : layout[0]) << " rank " << rank << ": " << peak
          << " MiB, estimated " << estimate;
    }
  }
}

// Through optimizer steps, validation between them, and a checkpoint.
TEST_F(TrainStateTest, WeightsPackedOnceAStepGiveTheSameBits) {
  const std::pair<int, Settings> layouts[] = {
      // The first matrix of the feed-forward part: without its activation in training, with it in
      // validation, which takes other panels.
      {1,
       {"model.activation=swiglu", "model.ffn=100", "train.micro_batch=2",
        "train.recompute=selective"}},
      {4, {"parallel.tensor=2", "parallel.zero=2", "train.micro_batch=1"}}};
  for (const auto& [ranks, layout] : layouts) {
    const std::string name = "packed" + std::to_string(ranks);
    const Settings settings =
        Model() + Settings{"optimizer.decay_steps=8", "validation.every=3"} + layout;
    const std::map<int, json> without =
        Train(ranks, name + "_without", settings + Settings{"train.pack_weights=false"});
    Outcome outcome = Run(ranks, name, settings + Settings{"train.steps=4"});
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("weights packed once a step: "));
    const std::map<int, json> with = Train(ranks, name, settings + Settings{"--resume"});
    EXPECT_EQ(LargestDifference(without, with), 0.0) << layout[0];
    EXPECT_EQ(without.at(8)["val_loss"], with.at(8)["val_loss"]);
    EXPECT_EQ(without.at(6)["val_loss"], with.at(6)["val_loss"]);
  }
}

TEST_F(TrainStateTest, WhatHasNoPlaceInMemoryIsRefusedBeforeAnyRankTrains) {
  for (const Settings& how : {Settings{"--check", "--ranks=2"}, Settings{}}) {
    Outcome outcome = Run(2, "memory", Settings{"train.host_memory=32MiB"} + how);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("2 ranks need "));
    EXPECT_THAT(outcome.output, HasSubstr("train.host_memory is 32 MiB"));
    EXPECT_FALSE(fs::exists(RunDir("memory") + "/metrics.jsonl"));
  }
  Outcome outcome = Run(1, "memory_check",
                        {"train.host_memory=900MiB", "--check", "--ranks=8", "--ranks-per-host=2"});
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("a host        2 ranks: "));
}

}  // namespace
}  // namespace weft::train
