// Lists of layers and axes, as texts.
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

}  // namespace
}  // namespace weft::train
