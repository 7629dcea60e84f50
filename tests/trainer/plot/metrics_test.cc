#include "trainer/plot/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/scratch_folder.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<LossPlot> Read(const std::string& text) {
  ScratchFolder folder;
  EXPECT_TRUE(WriteFileAtomically(folder / "metrics.jsonl", text).ok());
  return ReadLossMetrics(folder / "metrics.jsonl");
}

std::string Steps(const std::vector<PlotPoint>& points) {
  std::string text;
  for (const PlotPoint& point : points) {
    text += std::to_string(static_cast<int>(point.step)) + ":" +
            (std::isnan(point.loss) ? "gap" : std::to_string(static_cast<int>(point.loss))) + " ";
  }
  return text;
}

TEST(ReadLossMetrics, TakesStepsValidationsAndGaps) {
  auto plot = Read(R"({"step": 1, "loss": 9.0, "tokens": 5}
{"step": 2, "loss": 8, "val_loss": 7}

{"step": 3, "loss": null}
)");
  ASSERT_TRUE(plot.ok()) << plot.status();
  EXPECT_EQ(Steps(plot->train), "1:9 2:8 3:gap ");
  EXPECT_EQ(Steps(plot->validation), "2:7 ");
}

TEST(ReadLossMetrics, CountsRepeatedStepsAsTheyWereLast) {
  auto plot = Read(
      "{\"step\":1,\"loss\":9}\n{\"step\":2,\"loss\":8,\"val_loss\":8}\n{\"step\":3,\"loss\":7}\n"
      "{\"step\":2,\"loss\":6}\n");
  ASSERT_TRUE(plot.ok());
  EXPECT_EQ(Steps(plot->train), "1:9 2:6 ");
  EXPECT_EQ(Steps(plot->validation), "");
}

TEST(ReadLossMetrics, TakesNoPointFromALineAboutSomethingElse) {
  auto plot = Read("{\"step\":1,\"loss\":9}\n{\"step\":1,\"checkpoint_failed\":\"disk full\"}\n");
  ASSERT_TRUE(plot.ok()) << plot.status();
  EXPECT_EQ(Steps(plot->train), "1:9 ");
}

TEST(ReadLossMetrics, PassesOverAHalfWrittenLastLineOnly) {
  auto cut = Read("{\"step\":1,\"loss\":9}\n{\"step\":2,\"lo");
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(Steps(cut->train), "1:9 ");
  auto broken = Read("{\"step\":1,\"loss\":9}\n{\"step\":2,\"lo\n{\"step\":3,\"loss\":9}\n");
  EXPECT_THAT(std::string(broken.status().message()), HasSubstr("metrics.jsonl:2"));
  EXPECT_FALSE(Read("{\"step\":1,\"loss\":\"x\"}\n").ok());
  EXPECT_FALSE(Read("[1]\n").ok());
  EXPECT_TRUE(Read("").ok());
}

}  // namespace
}  // namespace weft::train
