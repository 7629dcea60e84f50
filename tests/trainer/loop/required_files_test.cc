// Files that a finished run must have, some of which cannot be written. Jobs are threads of this
// process.
#include "trainer/loop/required_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/groups/agreements.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;

TEST(RequiredFilesTest, WhatRankZeroCouldNotWriteIsOnTheListOfEveryRankAndTheRestIsWritten) {
  RunAgreements(2, {}, [](Agreement& world, const EndpointPtr&) {
    RequiredFiles files(world);
    EXPECT_TRUE(files.Write("timeline", [] { return absl::DataLossError("a full disk"); }).ok());
    int written = 0;
    EXPECT_TRUE(files.Write("metrics", [&] { return ++written, absl::OkStatus(); }).ok());
    EXPECT_EQ(written, world.rank() == 0 ? 1 : 0);
    files.AddMissing("checkpoint of step 3");
    EXPECT_THAT(files.missing(),
                ElementsAre("timeline: rank 0: a full disk", "checkpoint of step 3"));
  });
}

TEST(RequiredFilesTest, AGroupThatFailedIsNoFileThatIsMissing) {
  RunAgreements(2, {}, [](Agreement& world, const EndpointPtr&) {
    RequiredFiles files(world);
    world.Abort(absl::UnavailableError("the network is gone"));
    const absl::Status status = files.Write("metrics", [] { return absl::OkStatus(); });
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(files.missing().empty());
  });
}

}  // namespace
}  // namespace weft::train
