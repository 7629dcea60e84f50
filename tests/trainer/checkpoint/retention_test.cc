#include "trainer/checkpoint/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "absl/strings/str_replace.h"
#include "base/read_file.h"
#include "tests/trainer/checkpoint/checkpoint_folder.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RetentionTest : public CheckpointTest {};

TEST_F(RetentionTest, FindsTheNewestWholeOne) {
  EXPECT_EQ(Latest().step, -1);
  EXPECT_EQ(FindLatest(folder_ / "missing")->path, "");
  for (int64_t step : {100, 200, 300, 400, 500, 600}) Write(step, 2);
  EXPECT_EQ(Latest().step, 600);
  EXPECT_THAT(Latest().passed_over, IsEmpty());
  fs::remove(Path(600) + "/manifest.json");
  fs::remove(Shard(500, 1, 2));
  fs::resize_file(Shard(400, 0, 2), 100);
  Damage(Shard(300, 0, 2), 1000);
  Damage(Path(200) + "/manifest.json", 60);
  fs::create_directories(folder_ / ".tmp-step-00000700");
  fs::create_directories(folder_ / "step-9");  // not a checkpoint's name
  fs::create_directories(folder_ / "step-00000x00");
  LatestCheckpoint latest = Latest();
  EXPECT_EQ(latest.step, 100);
  EXPECT_EQ(latest.path, Path(100));
  const auto unfinished = ListUnfinished(folder_.path());
  ASSERT_TRUE(unfinished.ok()) << unfinished.status();
  EXPECT_THAT(*unfinished, ElementsAre(folder_ / ".tmp-step-00000700"));
  EXPECT_THAT(Reasons(latest),
              ElementsAre(HasSubstr("step-00000600 is not a checkpoint"),
                          HasSubstr("rank-00001-of-00002.safetensors"),
                          HasSubstr("has 100 bytes instead of"), HasSubstr("its checksum is"),
                          HasSubstr("step-00000200/manifest.json")));
  for (const PassedOver& entry : latest.passed_over) EXPECT_TRUE(IsDamage(entry.reason));
}

// A file that fails when it is read, or is of a later program, is no damage: it may be whole.
TEST_F(RetentionTest, TellsDamageFromWhatCannotBeReadNow) {
  Write(1, 1);
  const std::string manifest = Path(1) + "/manifest.json";
  const std::string good = *ReadFile(manifest);
  fs::remove(manifest);
  fs::create_symlink("/proc/self/mem", manifest);  // opens, and fails to read with EIO
  LatestCheckpoint latest = Latest();
  EXPECT_THAT(Reasons(latest), ElementsAre(HasSubstr("Input/output error")));
  EXPECT_FALSE(IsDamage(latest.passed_over[0].reason));
  fs::remove(manifest);
  fs::create_symlink("manifest.json", manifest);  // ELOOP
  EXPECT_FALSE(IsDamage(Latest().passed_over[0].reason));
  fs::remove(manifest);
  ASSERT_TRUE(WriteFileAtomically(manifest,
                                  absl::StrReplaceAll(good, {{"\"version\": 3", "\"version\": 4"}}))
                  .ok());
  EXPECT_FALSE(IsDamage(Latest().passed_over[0].reason));
  ASSERT_TRUE(WriteFileAtomically(manifest, good).ok());
  fs::remove(Shard(1, 0, 1));
  fs::create_symlink(ShardName(0, 1), Shard(1, 0, 1));
  EXPECT_FALSE(IsDamage(Latest().passed_over[0].reason));
}

TEST_F(RetentionTest, AFolderThatCannotBeListedIsAnErrorAndNotEmpty) {
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_FALSE(FindLatest(folder_ / "loop").ok());
  EXPECT_FALSE(ListCheckpoints(folder_ / "loop").ok());
}

TEST_F(RetentionTest, DoesNotTakeAnotherStepsFolder) {
  Write(100, 1);
  fs::rename(Path(100), Path(900));
  EXPECT_EQ(Latest().step, -1);
  EXPECT_THAT(Reasons(Latest()), ElementsAre(HasSubstr("holds step 100")));
}

// On NFS and others: the old one steps aside first, and is gone in the end.
TEST_F(RetentionTest, ReplacesWhereTheFileSystemCannotExchange) {
  for (int error : {EINVAL, ENOSYS, EOPNOTSUPP}) {
    Write(5, 4);
    auto cannot = [error](const std::string&, const std::string&) {
      errno = error;
      return -1;
    };
    ASSERT_TRUE(WriteCheckpoint(folder_.path(), 5, 2, cannot).ok());
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1);
    EXPECT_EQ(Compare(*Open(5), 5), "");
    EXPECT_EQ(Open(5)->manifest().world_size, 2);
  }
  auto fails = [](const std::string&, const std::string&) {
    errno = EIO;
    return -1;
  };
  absl::Status status = WriteCheckpoint(folder_.path(), 5, 4, fails);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in exchange: Input/output error"));
  EXPECT_EQ(Open(5)->manifest().world_size, 2);
}

TEST_F(RetentionTest, AReplacementThatWasCutShortLeavesTheOldOne) {
  Write(4, 1);
  Write(5, 1);
  fs::rename(Path(5), folder_ / ".replaced-step-00000005");
  EXPECT_EQ(Latest().step, 5);
  EXPECT_THAT(*ListCheckpoints(folder_.path()), SizeIs(2));
  ASSERT_TRUE(RemoveLeftovers(folder_.path()).ok());
  EXPECT_EQ(Compare(*Open(5), 5), "");
  // Done but for the removal of the old one.
  fs::create_directories(folder_ / ".replaced-step-00000005");
  ASSERT_TRUE(RemoveLeftovers(folder_.path()).ok());
  EXPECT_FALSE(fs::exists(folder_ / ".replaced-step-00000005"));
  EXPECT_EQ(Compare(*Open(5), 5), "");
}

TEST_F(RetentionTest, PrunesWhatIsOlderThanTheNewestWholeOnes) {
  Retention retention(folder_.path(), 2);
  for (int64_t step : {1, 2, 3, 4, 5}) {
    Write(step, 1);
    retention.Committed(step);
  }
  fs::remove(Shard(4, 0, 1));  // broken: neither counted nor removed
  fs::create_directories(folder_ / ".tmp-step-00000005");
  fs::create_directories(folder_ / ".tmp-step-00000006");  // perhaps being written
  fs::create_directories(folder_ / ".deleting-step-00000000");
  auto removed = retention.Prune(/*gives_up=*/false);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(*removed, SizeIs(3));
  EXPECT_THAT(Steps(), ElementsAre(5, 4, 3));
  EXPECT_FALSE(fs::exists(folder_ / ".tmp-step-00000005"));
  EXPECT_TRUE(fs::exists(folder_ / ".tmp-step-00000006"));
  EXPECT_FALSE(fs::exists(folder_ / ".deleting-step-00000000"));
  ASSERT_TRUE(RemoveLeftovers(folder_.path()).ok());
  EXPECT_FALSE(fs::exists(folder_ / ".tmp-step-00000006"));
  EXPECT_EQ(Latest().step, 5);
}

// Right in size, wrong in a bit: only a reader of every byte notices.
TEST_F(RetentionTest, WhatWasPassedOverNeverCountsAndNeverGoes) {
  for (int64_t step : {20, 40, 50}) Write(step, 1);
  Damage(Shard(50, 0, 1), 1000);
  LatestCheckpoint latest = Latest();
  ASSERT_EQ(latest.step, 40);
  Retention retention(folder_.path(), 1);
  retention.Resumed(latest);
  ASSERT_TRUE(retention.Prune(/*gives_up=*/false).ok());  // nothing is committed yet
  EXPECT_THAT(Steps(), ElementsAre(50, 40, 20));
  auto commit = [&](int64_t step) {
    Write(step, 1);
    retention.Committed(step);
    ASSERT_TRUE(retention.Prune(/*gives_up=*/false).ok());
  };
  commit(42);
  EXPECT_THAT(Steps(), ElementsAre(50, 42, 40));
  commit(45);
  EXPECT_THAT(Steps(), ElementsAre(50, 45, 40));
  commit(51);  // older ones now include the damaged one
  EXPECT_THAT(Steps(), ElementsAre(51, 50, 40));
  commit(50);  // again, and whole
  EXPECT_THAT(Steps(), ElementsAre(51, 50, 40));
  commit(60);
  EXPECT_THAT(Steps(), ElementsAre(60, 40));
}

TEST_F(RetentionTest, VerifiesBeforeItDeletes) {
  for (int64_t step : {10, 20, 30, 40}) Write(step, 1);
  Damage(Shard(30, 0, 1), 1000);
  Retention retention(folder_.path(), 3);
  retention.Resumed(Latest());
  Write(50, 1);
  retention.Committed(50);
  // Reads 30, which is damaged: 20 and 10 are still needed.
  ASSERT_TRUE(retention.Prune(/*gives_up=*/false).ok());
  EXPECT_THAT(Steps(), ElementsAre(50, 40, 30, 20, 10));
  // Reads 20, which is whole: enough without 10.
  ASSERT_TRUE(retention.Prune(/*gives_up=*/false).ok());
  EXPECT_THAT(Steps(), ElementsAre(50, 40, 30, 20));
}

// Neither whole nor damaged, for all that is known: it counts for nothing, and is read again.
TEST_F(RetentionTest, AVerificationThatWasGivenUpIsTriedAgain) {
  for (int64_t step : {10, 20, 30, 40}) Write(step, 1);
  Retention retention(folder_.path(), 3);
  retention.Resumed(Latest());
  Write(50, 1);
  retention.Committed(50);
  ASSERT_TRUE(retention.Prune(/*gives_up=*/true).ok());
  EXPECT_THAT(Steps(), ElementsAre(50, 40, 30, 20, 10));
  ASSERT_TRUE(retention.Prune(/*gives_up=*/false).ok());
  EXPECT_THAT(Steps(), ElementsAre(50, 40, 30));
}

}  // namespace
}  // namespace weft::train
