// Ranks, coordinates and groups of a parallel layout, and the collision table.
#include "topology/cost/layout.h"

#include <gmock/gmock.h>

#include <set>

#include "topology/cost/collision_table.h"
#include "topology/ecmp/collisions.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

JobLayout MegaScale() {
  JobLayout layout;
  layout.sizes = {8, 1, 1, 192, 8};
  return layout;
}

TEST(JobLayout, NestingGivesCoordinatesFastestFirst) {
  JobLayout layout = MegaScale();
  EXPECT_EQ(layout.world(), 12288);
  EXPECT_EQ(layout.Coordinate(8 * 5 + 3, Axis::kTensor), 3);
  EXPECT_EQ(layout.Coordinate(8 * 5 + 3, Axis::kData), 5);
  EXPECT_EQ(layout.Coordinate(8 * 192 * 7, Axis::kPipeline), 7);
  EXPECT_EQ(layout.Stride(Axis::kPipeline), 8 * 192);
  EXPECT_EQ(layout.Describe(), "tensor 8 x data 192 x pipeline 8");
  layout.nesting = {Axis::kTensor, Axis::kPipeline, Axis::kData, Axis::kContext, Axis::kExpert};
  EXPECT_EQ(layout.Stride(Axis::kData), 64);
}

TEST(JobLayout, EveryRankHasItsOwnPlaceInItsGroup) {
  JobLayout layout;
  layout.sizes = {2, 3, 2, 4, 5};
  layout.nesting = {Axis::kExpert, Axis::kTensor, Axis::kPipeline, Axis::kContext, Axis::kData};
  for (AxisSet axes : {AxisSet{Axis::kData}, AxisSet{Axis::kData, Axis::kExpert, Axis::kContext},
                       AxisSet{Axis::kTensor, Axis::kPipeline}}) {
    std::set<std::pair<int, int>> seen;
    for (int rank = 0; rank < layout.world(); ++rank) {
      JobLayout::Place place = layout.PlaceOf(rank, axes);
      EXPECT_LT(place.group, layout.Groups(axes));
      EXPECT_LT(place.index, layout.GroupSize(axes));
      EXPECT_TRUE(seen.insert({place.group, place.index}).second);
      // In one group only the axes of the set differ: the others are those of its first rank.
      for (int other = 0; other < rank; ++other) {
        if (layout.PlaceOf(other, axes).group != place.group) continue;
        EXPECT_LT(layout.PlaceOf(other, axes).index, place.index);
        for (Axis axis : layout.nesting) {
          if (axes.Has(axis)) continue;
          EXPECT_EQ(layout.Coordinate(rank, axis), layout.Coordinate(other, axis));
        }
      }
    }
  }
}

TEST(Job, RefusesWhatCannotBe) {
  Job job;
  job.layout = MegaScale();
  EXPECT_THAT(job.Validate().ToString(), HasSubstr("no traffic"));
  Traffic traffic;
  traffic.name = "gradients";
  traffic.axes = {Axis::kData};
  job.traffic = {traffic};
  EXPECT_TRUE(job.Validate().ok());
  job.node.gpus = 7;
  EXPECT_THAT(job.Validate().ToString(), HasSubstr("does not fill hosts of 7 GPUs"));
  job.node.gpus = 8;
  job.traffic[0].exposed = 1.5;
  EXPECT_THAT(job.Validate().ToString(), HasSubstr("'gradients': exposed must be from 0 to 1"));
  job.traffic[0].exposed = 1;
  job.layout.sizes[3] = 0;
  EXPECT_THAT(job.Validate().ToString(), HasSubstr("data is 0"));
  job.layout.sizes = {2048, 2048, 2048, 1, 1};
  EXPECT_THAT(job.Validate().ToString(), HasSubstr("multiply to more than"));
}

TEST(Traffic, WhatDoesNotFitItsWindowIsExposed) {
  Traffic traffic;
  traffic.times = 4;
  traffic.exposed = 0.25;
  EXPECT_EQ(traffic.Exposed(absl::Seconds(1)), absl::Seconds(1));
  traffic.window = absl::Seconds(2);
  EXPECT_EQ(traffic.Exposed(absl::Seconds(1)), absl::Seconds(2));
}

TEST(CollisionTable, IsTheExactExpectation) {
  // The values of the balls-in-bins table that MegaScale's split ports are argued with.
  EXPECT_NEAR(CollisionTable(32, 64).MaxLoad(64), 5.41, 0.01);
  EXPECT_NEAR(CollisionTable(32, 128).MaxLoad(128), 8.65, 0.01);
  EXPECT_NEAR(CollisionTable(64, 32).MaxLoad(32), 2.72, 0.01);
  EXPECT_NEAR(CollisionTable(32, 4096).MaxLoad(8), 1.66, 0.01);
  EXPECT_EQ(CollisionTable(1, 100).MaxLoad(37), 37);
  EXPECT_EQ(CollisionTable(32, 100).MaxLoad(0), 0);
  EXPECT_NEAR(CollisionTable(32, 100).MaxLoad(1), 1, 1e-9);
}

TEST(CollisionTable, StaysNearTheExactValueWhereItIsApproximate) {
  for (int paths : {2, 32, 256}) {
    CollisionTable table(paths, 1 << 16);
    double exact = ExpectedCollisions(300, paths)->max_mean;
    EXPECT_NEAR(table.MaxLoad(300) / exact, 1, 0.02) << paths;
    double before = 0;
    for (int n = 0; n < 40000; n = n * 21 / 20 + 1) {
      EXPECT_GE(table.MaxLoad(n), before - 1e-9) << n << " on " << paths;
      EXPECT_GE(table.MaxLoad(n), 1.0 * n / paths - 1e-9);
      before = table.MaxLoad(n);
    }
  }
}

}  // namespace
}  // namespace weft::topology
