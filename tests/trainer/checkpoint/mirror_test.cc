#include "trainer/checkpoint/mirror.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

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

// A pipe that nobody reads, in the place of a shard: to open it takes for ever.
TEST_F(MirrorTest, ACopyThatDoesNotEndHoldsNobodyUp) {
  Write(1, 1);
  const std::string unfinished = remote_ / TemporaryCheckpointName(1);
  const std::string pipe = unfinished + "/" + ShardName(0, 1) + ".tmp";
  fs::create_directories(unfinished);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  {
    CheckpointMirror mirror(remote_.path(), 2, /*end_patience=*/absl::Milliseconds(1));
    bool began = false;
    ASSERT_TRUE(mirror.Begin(Path(1), began).ok());
    const absl::Status late = mirror.Finish(absl::Milliseconds(1));
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
    ASSERT_TRUE(mirror.Begin(Path(1), began).ok());
    EXPECT_FALSE(began);
    EXPECT_EQ(mirror.left_out(), 1);
  }
  // Somebody reads: the copy ends by itself, as it is given up, and leaves nothing.
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  while (fs::exists(unfinished)) std::this_thread::yield();
  close(reader);
  EXPECT_TRUE(ListCheckpoints(remote_.path())->empty());
}

}  // namespace
}  // namespace weft::train
