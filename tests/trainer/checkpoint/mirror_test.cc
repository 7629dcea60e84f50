#include "trainer/checkpoint/mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/trainer/checkpoint/checkpoint_folder.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MirrorTest : public CheckpointTest {
 protected:
  const ScratchFolder remote_;
};

TEST_F(MirrorTest, CopiesGoOnWhenTheirSourceIsDeletedAndOldOnesGo) {
  CheckpointMirror mirror(remote_.path(), 2);
  for (const int64_t step : {1, 2, 3}) {
    Write(step, 2);
    bool began = false;
    ASSERT_TRUE(mirror.Begin(Path(step), began).ok());
    EXPECT_TRUE(began);
    fs::remove_all(Path(step));
    const absl::Status status = mirror.Finish();
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(mirror.copied(), 3);
  EXPECT_EQ(mirror.left_out(), 0);
  EXPECT_THAT(*ListCheckpoints(remote_.path()),
              ElementsAre(remote_ / CheckpointName(3), remote_ / CheckpointName(2)));
  const auto reader = CheckpointReader::Open(remote_ / CheckpointName(3));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(Compare(**reader, 3), "");
}

TEST_F(MirrorTest, WhatIsDamagedIsNamedAndNotCopied) {
  Write(1, 2);
  Write(2, 2);
  Damage(Shard(2, 1, 2), 1000);
  ASSERT_TRUE(CopyCheckpoint(Path(1), remote_.path()).ok());
  const absl::Status damaged = CopyCheckpoint(Path(2), remote_.path());
  EXPECT_TRUE(IsDamage(damaged)) << damaged;
  EXPECT_THAT(damaged.message(), HasSubstr(Shard(2, 1, 2)));
  EXPECT_THAT(*ListCheckpoints(remote_.path()), ElementsAre(remote_ / CheckpointName(1)));
  EXPECT_TRUE(ListUnfinished(remote_.path())->empty());
  CheckpointMirror mirror(remote_.path(), 2);
  bool began = true;
  EXPECT_FALSE(mirror.Begin(Path(7), began).ok());
  EXPECT_FALSE(began);
}

}  // namespace
}  // namespace weft::train
