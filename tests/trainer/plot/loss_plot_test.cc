#include "trainer/plot/loss_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/random.h"
#include "base/read_file.h"
#include "tests/scratch_folder.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

constexpr double kGap = std::numeric_limits<double>::quiet_NaN();

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// Tags are closed in order, and nothing that is not a number stands in an attribute.
void ExpectWellFormed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    std::string tag = svg.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos);
    if (tag.back() == '/') continue;
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_FALSE(absl::StrContains(svg, "nan"));
  EXPECT_FALSE(absl::StrContains(svg, "inf"));
}

TEST(RenderLossSvg, IsWellFormedForEveryInput) {
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<std::vector<PlotPoint>> series = {{},
                                                {{1, 5}},
                                                {{1, 5}, {2, 5}},
                                                {{0, 0}, {1, 0}},
                                                {{1, kGap}, {2, kGap}},
                                                {{1, 5}, {2, kGap}, {3, 4}},
                                                {{1, -5}, {2, infinity}, {3, 1e300}, {4, 1e-300}},
                                                {{1e9, 5}, {2e9, 4}},
                                                {{infinity, 1}, {kGap, 2}}};
  for (const auto& train : series) {
    for (const auto& validation : series) {
      for (bool log_scale : {false, true}) {
        for (std::optional<double> unigram : {std::optional<double>(), {6.4}, {kGap}, {-1.0}}) {
          std::string svg =
              RenderLossSvg({"a <b> & \"c\"\x01", train, validation, unigram, log_scale});
          ExpectWellFormed(svg);
          EXPECT_THAT(svg, HasSubstr("a &lt;b&gt; &amp; &quot;c&quot;<"));
        }
      }
    }
  }
}

TEST(RenderLossSvg, ShowsEachSeriesAndItsLastValue) {
  std::string svg = RenderLossSvg({"t", {{1, 9}, {2, 3.25}}, {{2, 4.5}}, 6.25, false});
  EXPECT_THAT(svg, HasSubstr("training 3.25"));
  EXPECT_THAT(svg, HasSubstr("validation 4.5"));
  EXPECT_THAT(svg, HasSubstr("unigram model 6.25"));
  EXPECT_EQ(Count(svg, "<circle"), 1U);
  EXPECT_THAT(RenderLossSvg({"t", {}, {}, {}, false}), HasSubstr("no step yet"));
}

TEST(RenderLossSvg, LiftsThePenAtAGap) {
  std::string whole = RenderLossSvg({"t", {{1, 3}, {2, 3}, {3, 3}, {4, 3}}, {}, {}, false});
  std::string gap =
      RenderLossSvg({"t", {{1, 3}, {2, 3}, {2.5, kGap}, {3, 3}, {4, 3}}, {}, {}, false});
  EXPECT_EQ(Count(gap, "h0"), Count(whole, "h0") + 2);  // in the raw and in the smoothed line
}

TEST(RenderLossSvg, StaysSmallAndKeepsSpikes) {
  Random random(1);
  LossPlot plot{"t", {}, {}, {}, false};
  for (int i = 0; i < 300000; ++i) plot.train.push_back({i * 1.0, 3 + random.Uniform()});
  const size_t plain = RenderLossSvg(plot).size();
  EXPECT_LT(plain, 100000U);
  plot.train[123456].loss = 50;  // the raw line must reach the top of the axis
  std::string svg = RenderLossSvg(plot);
  EXPECT_THAT(svg, HasSubstr(">50<"));
  // x of the spike: 70 + 123456 / 299999 * 866; y: near the top edge (54) plus the 5 % margin.
  EXPECT_THAT(svg, HasSubstr("L426.4 73.5"));
}

TEST(RenderLossSvg, DrawsALowerLossLowerOnBothScales) {
  for (bool log_scale : {false, true}) {
    std::string svg = RenderLossSvg({"t", {}, {{1, 9}, {2, 4}}, {}, log_scale});
    std::vector<double> y;
    for (size_t at = svg.find("cy=\""); at != std::string::npos; at = svg.find("cy=\"", at + 1)) {
      y.push_back(std::strtod(svg.c_str() + at + 4, nullptr));
    }
    ASSERT_EQ(y.size(), 2U);
    EXPECT_LT(y[0] + 100, y[1]);  // SVG counts downwards
  }
}

TEST(WriteLossSvg, ReplacesThePictureByARename) {
  ScratchFolder folder;
  ASSERT_TRUE(WriteLossSvg(folder / "loss.svg", {"one", {}, {}, {}, false}).ok());
  auto before = MappedFile::Open(folder / "loss.svg");
  ASSERT_TRUE(before.ok());
  std::string old = *ReadFile(folder / "loss.svg");
  ASSERT_TRUE(WriteLossSvg(folder / "loss.svg", {"two", {{1, 2}}, {}, {}, false}).ok());
  EXPECT_THAT(*ReadFile(folder / "loss.svg"), HasSubstr(">two<"));
  EXPECT_EQ(
      std::string(reinterpret_cast<const char*>(before->bytes().data()), before->bytes().size()),
      old);  // a viewer that had it open still sees a whole picture
}

}  // namespace
}  // namespace weft::train
