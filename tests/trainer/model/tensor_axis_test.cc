#include "trainer/model/tensor_axis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace weft::train {
namespace {

using ::testing::ElementsAre;

TEST(ChunkEdgesTest, TheOuterChunksAreShort) {
  EXPECT_THAT(ChunkEdges(100, 1), ElementsAre(0, 100));
  EXPECT_THAT(ChunkEdges(100, 2), ElementsAre(0, 50, 100));
  EXPECT_THAT(ChunkEdges(80, 3), ElementsAre(0, 20, 60, 80));
  EXPECT_THAT(ChunkEdges(60, 4), ElementsAre(0, 10, 30, 50, 60));
  EXPECT_THAT(ChunkEdges(11, 4), ElementsAre(0, 1, 5, 10, 11));
  EXPECT_THAT(ChunkEdges(160, 7), ElementsAre(0, 10, 30, 60, 100, 130, 150, 160));
  EXPECT_THAT(ChunkEdges(280, 10), ElementsAre(0, 10, 30, 60, 100, 140, 180, 220, 250, 270, 280));
}

TEST(ChunkEdgesTest, EachChunkHasRowsHoweverFewThereAre) {
  for (int64_t held = 1; held < 200; ++held) {
    for (int most = 1; most <= 20; ++most) {
      const std::vector<int64_t> edges = ChunkEdges(held, most);
      ASSERT_EQ(edges.size(), static_cast<size_t>(std::min<int64_t>(held, most)) + 1)
          << held << " rows, " << most << " chunks";
      EXPECT_EQ(edges.front(), 0);
      EXPECT_EQ(edges.back(), held);
      EXPECT_EQ(std::adjacent_find(edges.begin(), edges.end(), std::greater_equal<>()), edges.end())
          << held << " rows, " << most << " chunks: " << ::testing::PrintToString(edges);
    }
  }
}

}  // namespace
}  // namespace weft::train
