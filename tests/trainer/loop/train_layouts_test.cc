// The matrix of layouts: every product of the axes up to 8 ranks, each with a schedule, a stage of
// ZeRO, an optimizer and a kind of recomputation, has the losses of one rank. A sample of it runs
// always, all of it with WEFT_LAYOUTS=full, as `tools/dev test layouts` sets it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

constexpr int kSampleOf = 11;  // of so many cases one is in the sample

struct LayoutCase {
  int tensor = 1, pipeline = 1, data = 1;
  std::string schedule = "1f1b";
  int zero = 1;
  std::string recompute, optimizer;
  bool second = false;  // architecture
  int ranks() const { return tensor * pipeline * data; }
  std::string Name() const {
    std::string name = "tp" + std::to_string(tensor) + "_pp" + std::to_string(pipeline) + "_dp" +
                       std::to_string(data) + "_" + (pipeline > 1 ? schedule + "_" : "") + "zero" +
                       std::to_string(zero) + "_" + recompute + "_" + optimizer;
    for (char& c : name) c = c == '-' ? '_' : c;
    return name;
  }
  std::vector<std::string> Settings() const {
    return {"parallel.tensor=" + std::to_string(tensor),
            "parallel.pipeline=" + std::to_string(pipeline),
            "parallel.schedule=" + schedule,
            "parallel.zero=" + std::to_string(zero),
            "train.recompute=" + recompute,
            "train.micro_batch=1"};
  }
};

// Schedules that split the backward pass reduce gradients once a step.
bool Fits(const std::string& schedule, int zero) { return schedule[0] != 'z' || zero <= 1; }

std::vector<LayoutCase> AllCases() {
  const std::string recomputes[] = {"none", "selective", "full"};
  const std::string optimizers[] = {"adamw", "lamb", "sgd", "lion", "muon"};
  std::vector<LayoutCase> cases;
  for (int tensor : {1, 2, 4}) {
    for (int pipeline : {1, 2, 4}) {
      for (int data : {1, 2, 4, 8}) {
        const int ranks = tensor * pipeline * data;
        if (ranks == 1 || ranks > 8) continue;
        for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"}) {
          if (pipeline == 1 && std::string(schedule) != "1f1b") continue;
          // A micro-batch of one sample each: groups of `pipeline` of them, two chunks a stage.
          const bool chunked = std::string(schedule) == "interleaved" || schedule[3] == 'v';
          if (pipeline == 4 && (chunked || 8 / data % pipeline != 0)) continue;
          for (int zero : {0, 1, 2, 3}) {
            if ((data == 1 && zero != 1) || !Fits(schedule, zero)) continue;
            const size_t i = cases.size();
            cases.push_back({tensor, pipeline, data, schedule, zero, recomputes[i % 3],
                             optimizers[i % 5], i % 2 == 1});
          }
        }
      }
    }
  }
  return cases;
}

bool RunsAll() { return Environment("WEFT_LAYOUTS") == "full"; }

std::vector<LayoutCase> Cases() {
  std::vector<LayoutCase> all = AllCases(), sample;
  if (RunsAll()) return all;
  for (size_t i = 5; i < all.size(); i += kSampleOf) sample.push_back(all[i]);
  return sample;
}

class TrainLayoutsTest : public TrainRunTest, public ::testing::WithParamInterface<LayoutCase> {
 protected:
  static std::vector<std::string> Model(const LayoutCase& layout) {
    std::vector<std::string> settings = {"train.precision=fp32",
                                         RunsAll() ? "train.steps=40" : "train.steps=10",
                                         "optimizer.decay_steps=40",
                                         "model.layers=4",
                                         "sample.tokens=0",
                                         "checkpoint.every=0",
                                         "optimizer.name=" + layout.optimizer};
    if (layout.optimizer == "lion") settings.emplace_back("optimizer.learning_rate=3e-4");
    if (!layout.second) return settings;
    for (const char* setting :
         {"model.block=parallel", "model.tied=false", "model.position=rotary",
          "model.activation=swiglu", "model.norm=rmsnorm", "model.dropout=0.1"}) {
      settings.emplace_back(setting);
    }
    return settings;
  }
  static const std::map<int, json>& Reference(const LayoutCase& layout) {
    static std::map<std::string, std::map<int, json>> references;
    const std::string name = "one_" + layout.optimizer + (layout.second ? "_2" : "_1");
    std::map<int, json>& reference = references[name];
    if (reference.empty()) {
      Outcome outcome = Run(1, name, Model(layout));
      EXPECT_EQ(outcome.status, 0) << outcome.output;
      reference = Metrics(name);
    }
    return reference;
  }
};

TEST_P(TrainLayoutsTest, LossesAreThoseOfOneRank) {
  const LayoutCase& layout = GetParam();
  std::vector<std::string> settings = Model(layout);
  for (const std::string& setting : layout.Settings()) settings.push_back(setting);
  Outcome outcome = Run(layout.ranks(), layout.Name(), settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  // The sign that Lion steps by depends, near 0, on the order of a sum.
  const double tolerance = layout.optimizer == "lion" ? 1e-3 : 1e-5;
  EXPECT_LT(LargestDifference(Reference(layout), Metrics(layout.Name())), tolerance);
  fs::remove_all(RunDir(layout.Name()));
}

INSTANTIATE_TEST_SUITE_P(Layouts, TrainLayoutsTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.Name(); });

TEST(TrainLayoutsCountTest, TheMatrixHasSixtyLayoutsAndEveryKind) {
  const std::vector<LayoutCase> all = AllCases();
  EXPECT_GE(all.size(), 60U);
  std::map<std::string, int> kinds;
  for (const LayoutCase& layout : all) {
    ++kinds[layout.schedule];
    ++kinds[layout.recompute];
    ++kinds[layout.optimizer];
    ++kinds["zero" + std::to_string(layout.zero)];
  }
  EXPECT_EQ(kinds.size(), 5U + 3U + 5U + 4U);
}

}  // namespace
}  // namespace weft::train
