// What a job refuses, what of its traffic is exposed, and the collision table.
#include "topology/cost/job.h"

#include <gmock/gmock.h>

#include "topology/cost/collision_table.h"
#include "topology/ecmp/collisions.h"
#include "topology/job/mesh_text.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

TEST(Job, RefusesWhatCannotBe) {
  Job job;
  job.mesh = *ParseMesh("tp8,dp192,pp8");
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
