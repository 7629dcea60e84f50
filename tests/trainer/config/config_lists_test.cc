// Lists of layers, axes and datasets, as texts.
#include "trainer/config_lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseLayersTest, ReadsNumbersRangesAndEveryOther) {
  EXPECT_THAT(*ParseLayers("all", 3), ElementsAre());
  EXPECT_THAT(*ParseLayers("even", 3), ElementsAre(true, false, true));
  EXPECT_THAT(*ParseLayers("odd", 3), ElementsAre(false, true, false));
  EXPECT_THAT(*ParseLayers("0,2-3", 5), ElementsAre(true, false, true, true, false));
}

TEST(ParseLayersTest, NamesThePartThatIsWrong) {
  for (const std::string text : {"", "x", "1-", "-1", "2-1", "0-1-2", "0,most"}) {
    const std::string part = text.substr(text.find(',') + 1);
    EXPECT_THAT(std::string(ParseLayers(text, 4).status().message()),
                HasSubstr("'" + part + "' is no layer"));
  }
  EXPECT_THAT(std::string(ParseLayers("0,3-4", 4).status().message()),
              HasSubstr("'3-4' is not among the layers 0 to 3"));
}

TEST(ParseRecomputeTest, LaterPartsWin) {
  constexpr auto kNone = RecomputeKind::kNone, kSelective = RecomputeKind::kSelective,
                 kFull = RecomputeKind::kFull;
  EXPECT_THAT(*ParseRecompute("none", 2), ElementsAre(kNone, kNone));
  EXPECT_THAT(*ParseRecompute("full", 2), ElementsAre(kFull, kFull));
  EXPECT_THAT(*ParseRecompute("full:0-2,selective:2", 4),
              ElementsAre(kFull, kFull, kSelective, kNone));
  EXPECT_THAT(std::string(ParseRecompute("some", 2).status().message()),
              HasSubstr("'some' is none of none, selective and full"));
  EXPECT_THAT(std::string(ParseRecompute("full:1-2", 2).status().message()),
              HasSubstr("'1-2' is no range of the 2 layers, 0 to 1"));
}

TEST(ParseDataBlendTest, APathAloneIsTakenAsItIs) {
  for (const std::string text :
       {"data/web", "a b, c d", "7", "data/web, 0.3 data/books", "3days/a"}) {
    const auto blend = ParseDataBlend(text);
    ASSERT_TRUE(blend.ok()) << blend.status();
    EXPECT_THAT(blend->prefixes, ElementsAre(text));
    EXPECT_THAT(blend->shares, ElementsAre(1.0));
  }
  EXPECT_THAT(ParseDataBlend("")->prefixes, ElementsAre());
}

TEST(ParseDataBlendTest, SharesAreWeightsOverTheirSum) {
  const auto blend = ParseDataBlend("6 data/web, 1.5 data/old books ,\n\t0.5\tc");
  ASSERT_TRUE(blend.ok()) << blend.status();
  EXPECT_THAT(blend->prefixes, ElementsAre("data/web", "data/old books", "c"));
  EXPECT_THAT(blend->shares, ElementsAre(0.75, 0.1875, 0.0625));
  const auto alone = ParseDataBlend("0.3 data/web");
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_THAT(alone->prefixes, ElementsAre("data/web"));
  EXPECT_THAT(alone->shares, ElementsAre(1.0));
}

TEST(ParseDataBlendTest, NamesThePartThatIsWrong) {
  const auto error = [](const std::string& text) {
    return std::string(ParseDataBlend(text).status().message());
  };
  EXPECT_THAT(error("0.7 a, b"), HasSubstr("'b' is no dataset with its weight"));
  EXPECT_THAT(error("0.7 a, much b"), HasSubstr("'much b' is no dataset with its weight"));
  EXPECT_THAT(error("0.7 a, 0.3"), HasSubstr("'0.3' is no dataset with its weight"));
  EXPECT_THAT(error("0.7 a,"), HasSubstr("'' is no dataset with its weight"));
  for (const std::string weight : {"0", "-1", "nan", "inf", "1e999"}) {
    EXPECT_THAT(error("0.7 a, " + weight + " b"), HasSubstr("the weight of b is ")) << weight;
  }
  EXPECT_THAT(error("1e308 a, 1e308 b"), HasSubstr("sum is not finite"));
  EXPECT_THAT(error("0.5 data/a, 0.3 b, 0.2 ./data//a"), HasSubstr("./data//a is there twice"));
}

}  // namespace
}  // namespace weft::train
