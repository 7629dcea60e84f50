// weft-train on a blend of two datasets: on one rank and on two, and resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Settings = std::vector<std::string>;

Settings operator+(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class BlendRunTest : public TrainRunTest {
 protected:
  // Beside the tests' own text, sums: "12 + 7 = 19." The first dataset's tokenizer, or its own.
  static std::string PrepareSums(const std::string& name, const std::string& tokenizer) {
    PrepareOptions options;
    options.inputs = {(root_ / (name + ".txt")).string()};
    options.output_prefix = (root_ / name).string();
    options.tokenizer = tokenizer;
    options.vocab_size = 300;  // of its own
    options.validation_fraction = 0.2;
    std::ofstream text(options.inputs[0]);
    Random random(6);
    for (int document = 0; document < 150; ++document) {
      const uint64_t a = random.Below(100), b = random.Below(100);
      text << "the sum of " << a << " and " << b << " is " << a << " + " << b << " = " << a + b
           << ".\n\n";
    }
    text.close();
    auto info = PrepareDataset(options);
    EXPECT_TRUE(info.ok()) << info.status();
    return options.output_prefix;
  }
  static std::string First() { return (root_ / "data").string(); }
  static std::string Blend(const std::string& second, double share = 0.7) {
    return "data.prefix=" + std::to_string(share) + " " + First() + ", " +
           std::to_string(1 - share) + " " + second;
  }
  static std::map<int, json> Train(int ranks, const std::string& run, const Settings& settings) {
    Outcome outcome = Run(ranks, run, settings);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return Metrics(run);
  }
};

TEST_F(BlendRunTest, TrainsAlikeOnEveryNumberOfRanksAndResumed) {
  const std::string sums = PrepareSums("sums", First() + ".model");
  const Settings settings = {Blend(sums),
                             "train.steps=8",
                             "optimizer.schedule=wsd",
                             "optimizer.warmup_steps=2",
                             "optimizer.decay_steps=8",
                             "optimizer.decay_fraction=0.5",
                             "validation.every=4",
                             "sample.tokens=0"};
  const Outcome outcome = Run(1, "one", settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr(First() + ": 70 % of the samples, "),
                    HasSubstr(sums + ": 30 % of the samples, "), HasSubstr(" epochs in 8 steps"),
                    HasSubstr(" on " + sums + "\n")));  // the validation loss
  const std::map<int, json> one = Metrics("one");
  ASSERT_EQ(one.size(), 8U);
  const std::map<int, json> two = Train(2, "two", settings);
  EXPECT_LT(LargestDifference(one, two), 1e-5);

  // Each dataset's loss, and their mean by weight.
  const json losses = one.at(4)["val_loss_by_dataset"];
  ASSERT_EQ(losses.size(), 2U);
  const double first = losses[First()], second = losses[sums];
  EXPECT_NE(first, second);
  EXPECT_NEAR(one.at(4)["val_loss"].get<double>(), 0.7 * first + 0.3 * second, 1e-12);
  EXPECT_FALSE(one.at(3).contains("val_loss_by_dataset"));

  Train(2, "parts", settings + Settings{"train.steps=3"});
  const std::map<int, json> parts = Train(2, "parts", settings + Settings{"--resume"});
  EXPECT_EQ(LargestDifference(two, parts), 0.0);
  for (const auto& [step, row] : two) {
    EXPECT_EQ(row["learning_rate"], parts.at(step)["learning_rate"]) << step;
  }

  const Outcome other = Run(1, "parts", settings + Settings{Blend(sums, 0.6), "--resume"});
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.output, AllOf(HasSubstr("0.300000 " + sums), HasSubstr("0.400000 " + sums)));
}

TEST_F(BlendRunTest, CheckSaysWhatItWouldTrainOn) {
  const std::string sums = PrepareSums("more_sums", First() + ".model");
  const Outcome check = Run(1, "check", {Blend(sums), "train.steps=2", "--check"});
  EXPECT_EQ(check.status, 0) << check.output;
  EXPECT_THAT(check.output, AllOf(HasSubstr("data          " + First() + ": 70 % of the samples, "),
                                  HasSubstr("              " + sums + ": 30 % of the samples, "),
                                  HasSubstr(" epochs in 2 steps\n")));
  const Outcome shorter = Run(1, "check", {Blend(sums), "model.sequence=100000", "--check"});
  EXPECT_NE(shorter.status, 0);
  EXPECT_THAT(shorter.output, AllOf(HasSubstr("dataset " + First() + "_train has "),
                                    HasSubstr(" tokens, but one sample takes 100001")));
}

TEST_F(BlendRunTest, DatasetsOfTwoTokenizersAreRefused) {
  const std::string other = PrepareSums("other", "");
  for (const Settings& how : {Settings{}, Settings{"--check"}}) {
    const Outcome outcome = Run(1, "refused", Settings{Blend(other)} + how);
    EXPECT_NE(outcome.status, 0) << outcome.output;
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("datasets " + First() + " and " + other + " differ in "),
                      HasSubstr("--tokenizer")));
  }
}

}  // namespace
}  // namespace weft::train
