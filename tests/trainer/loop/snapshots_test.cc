// Copies of the state under the next step, for memory and for files: who keeps whose, whom a rank
// that was lost gets its state from, and that no step changes what is not copied yet.
#include "trainer/loop/snapshots.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/read_file.h"
#include "tests/collectives/job.h"
#include "tests/scratch_folder.h"
#include "tests/trainer/data/sample_data.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/config.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/prepare.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/checkpoints.h"
#include "trainer/loop/step.h"
#include "trainer/loop/trainer.h"

namespace weft::train {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SnapshotKeepersTest, AreOnAnotherHostWhereThereIsOne) {
  EXPECT_THAT(SnapshotKeepers({0}), ElementsAre(0));
  EXPECT_THAT(SnapshotKeepers({0, 0, 0}), ElementsAre(1, 2, 0));
  EXPECT_THAT(SnapshotKeepers({0, 0, 1, 1}), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(SnapshotKeepers({0, 1, 0, 1}), ElementsAre(1, 0, 3, 2));
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 0, 0, 1, 2, 2}, {0, 1, 1, 2, 2, 2}, {0, 1, 2, 3}, {2, 1, 0, 0, 1, 2}}) {
    const std::vector<int> keepers = SnapshotKeepers(hosts);
    std::vector<int> wards(hosts.size());
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      const auto keeper = static_cast<size_t>(keepers[rank]);
      EXPECT_NE(hosts[keeper], hosts[rank]) << "rank " << rank;
      ++wards[keeper];
    }
    EXPECT_THAT(wards, Each(1));
  }
  // One host has more than half: as many as can have a keeper elsewhere.
  EXPECT_THAT(SnapshotKeepers({0, 0, 0, 1}), ElementsAre(3, 0, 1, 2));
}

TEST(NeedKeepersTest, ReplicasOfAnotherHostKeepEachOthersState) {
  const std::vector<std::string> two = {"a", "b", "a", "b"};
  EXPECT_THAT(NeedKeepers(two, {0, 0, 1, 1}), Each(false));
  EXPECT_THAT(NeedKeepers(two, {0, 1, 0, 1}), Each(true));  // a host is lost as a whole
  EXPECT_THAT(NeedKeepers(two, {0, 0, 0, 0}), Each(false));
  EXPECT_THAT(NeedKeepers({"a", "b", "a", "c"}, {0, 0, 1, 1}),
              ElementsAre(false, true, false, true));
  EXPECT_THAT(NeedKeepers({"a"}, {0}), ElementsAre(true));
}

std::vector<std::byte> BytesOfState(const ParameterSets& parameters) {
  std::vector<std::byte> bytes;
  for (const at::Tensor& part : StateOf(parameters)) {
    const auto* begin = static_cast<const std::byte*>(part.const_data_ptr());
    bytes.insert(bytes.end(), begin, begin + part.numel());
  }
  return bytes;
}

struct LostRanksCase {
  std::string name;
  int zero_group;
  std::vector<int> hosts, lost;
  bool keeps_another;
};

// Four data-parallel ranks as threads; some of them are started anew without anything in memory.
class LostRanksTest : public ::testing::TestWithParam<LostRanksCase> {};

TEST_P(LostRanksTest, GetTheirStateFromAnotherRanksMemory) {
  const LostRanksCase& lost = GetParam();
  collectives::RunRanks(4, {}, [&](const std::shared_ptr<collectives::Endpoint>& endpoint) {
    const int rank = endpoint->rank().value();
    TrainConfig config =
        *LoadTrainConfig("",
                         {"model.layers=2", "model.hidden=32", "model.heads=2", "model.ffn=48",
                          "model.sequence=8", "train.global_batch=4", "train.precision=fp32",
                          absl::StrCat("parallel.zero_group=", lost.zero_group)},
                         "tiny");
    config.model.vocabulary = 50;
    absl::StatusOr<ParallelGroups> groups = ParallelGroups::Create(config, endpoint);
    ASSERT_TRUE(groups.ok()) << groups.status();
    groups->hosts = lost.hosts;
    const auto stepper = *Stepper::Create(config, &*groups, nullptr);
    ParameterSets& parameters = stepper->parameters();
    auto fill = [&](int number) {
      for (const at::Tensor& part : StateOf(parameters)) {
        for (int64_t i = 0; i < part.numel(); ++i) {
          part.data_ptr<uint8_t>()[i] = static_cast<uint8_t>(i + number);
        }
      }
    };
    auto snapshots = std::make_unique<Snapshots>();
    std::vector<std::byte> newest;
    for (int step = 1; step <= 3; ++step) {
      fill(100 * groups->shard_group().rank() + step);
      newest = BytesOfState(parameters);
      ASSERT_TRUE(snapshots->Begin({.step = step, .samples = 4 * step}, parameters, *groups).ok());
      ASSERT_TRUE(snapshots->Finish().ok());
    }
    EXPECT_EQ(snapshots->keeps_another(), lost.keeps_another);
    // Two steps of its own; another rank's may be smaller, as the last shard of a bucket is.
    const Bytes own(2 * static_cast<int64_t>(newest.size()));
    EXPECT_EQ(snapshots->bytes() > own, lost.keeps_another);
    EXPECT_GE(snapshots->bytes(), own);
    // Twice, so that what was restored is in as many memories as before.
    for (int time = 0; time < 2; ++time) {
      if (std::find(lost.lost.begin(), lost.lost.end(), rank) != lost.lost.end()) {
        snapshots = std::make_unique<Snapshots>();
      }
      fill(7);
      const auto restored = snapshots->Restore(parameters, *groups);
      ASSERT_TRUE(restored.ok()) << restored.status();
      ASSERT_TRUE(restored->has_value());
      EXPECT_EQ((*restored)->step, 3);
      EXPECT_TRUE(BytesOfState(parameters) == newest) << "rank " << rank;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, LostRanksTest,
    ::testing::Values(
        LostRanksCase{"AHostOfAShardedJob", 0, {0, 0, 1, 1}, {2, 3}, true},
        LostRanksCase{"AHostWhoseReplicasAreOnAnother", 2, {0, 0, 1, 1}, {2, 3}, false},
        LostRanksCase{"AHostWithAllReplicasOfAShard", 2, {0, 1, 0, 1}, {1, 3}, true},
        LostRanksCase{"AllRanksButOneOfAnUnshardedJob", 1, {0, 0, 0, 0}, {0, 1, 3}, false}),
    [](const auto& test) { return test.param.name; });

class SnapshotsTest : public ::testing::Test {
 protected:
  SnapshotsTest() {
    config_ =
        *LoadTrainConfig("",
                         {"model.layers=2", "model.hidden=32", "model.heads=2", "model.ffn=48",
                          "model.sequence=8", "train.global_batch=2", "train.precision=fp32"},
                         "tiny");
    config_.model.vocabulary = 50;
    groups_ = ParallelGroups::Alone();
    stepper_ = *Stepper::Create(config_, &groups_, nullptr);
    EXPECT_TRUE(stepper_->Initialize().ok());
    EXPECT_TRUE(stepper_->parameters().Publish().ok());
  }
  std::vector<std::byte> State() { return BytesOfState(stepper_->parameters()); }
  void Step(int64_t step) {
    Batch batch;
    batch.rows = config_.global_batch;
    batch.columns = config_.model.sequence + 1;
    for (int64_t i = 0; i < batch.rows * batch.columns; ++i) {
      batch.tokens.push_back((i * 7 + step) % config_.model.vocabulary);
    }
    const absl::StatusOr<StepResult> result = stepper_->Step(step, batch, false);
    ASSERT_TRUE(result.ok()) << result.status();
  }

  TrainConfig config_;
  ParallelGroups groups_;
  std::unique_ptr<Stepper> stepper_;
};

// Makes a copy begin as late as it can: when the step is about to change the state, and then
// slowly.
class LateCopy {
 public:
  void AboutToChange() { about_to_change_.set_value(); }
  std::function<void()> BeforeCopy() {
    return [begin = about_to_change_.get_future().share()] {
      begin.wait_for(seconds(60));
      std::this_thread::sleep_for(milliseconds(100));  // for a step that does not wait to go on
    };
  }

 private:
  std::promise<void> about_to_change_;
};

TEST_F(SnapshotsTest, NoStepChangesWhatIsNotCopiedYet) {
  LateCopy late;
  Snapshots snapshots(late.BeforeCopy());
  bool asked = false;
  stepper_->set_before_update([&] {
    asked = true;
    late.AboutToChange();
    return snapshots.Finish();
  });
  const std::vector<std::byte> before = State();
  ASSERT_TRUE(snapshots.Begin({.step = 3, .samples = 6}, stepper_->parameters(), groups_).ok());
  Step(4);
  ASSERT_TRUE(asked);
  EXPECT_NE(State(), before);  // the step did change it
  const auto restored = snapshots.Restore(stepper_->parameters(), groups_);
  ASSERT_TRUE(restored.ok()) << restored.status();
  ASSERT_TRUE(restored->has_value());
  EXPECT_EQ((*restored)->step, 3);
  EXPECT_EQ(State(), before);
}

TEST_F(SnapshotsTest, NoStepChangesWhatACheckpointHasNotCopiedYet) {
  const ScratchFolder folder;
  LateCopy late;
  RunCheckpoints checkpoints(folder.path(), config_, groups_, late.BeforeCopy());
  stepper_->set_before_update([&] {
    late.AboutToChange();
    return checkpoints.FinishCopy();
  });
  const std::vector<std::byte> before = State();
  bool began = false;
  SavedInBackground saved;
  ASSERT_TRUE(
      checkpoints.Begin({.step = 3, .samples = 6}, stepper_->parameters(), began, saved).ok());
  EXPECT_TRUE(began);
  EXPECT_EQ(saved.step, -1);
  Step(4);
  EXPECT_NE(State(), before);
  ASSERT_TRUE(checkpoints.Finish(saved).ok());
  EXPECT_EQ(saved.step, 3);
  EXPECT_TRUE(saved.failure.ok()) << saved.failure;
  const auto loaded = checkpoints.Load(stepper_->parameters());
  ASSERT_TRUE(loaded.ok() && loaded->has_value()) << loaded.status();
  EXPECT_EQ((*loaded)->step, 3);
  EXPECT_EQ(State(), before);
}

TEST_F(SnapshotsTest, WhatKeepsAStateFromBeingCopiedIsTold) {
  const ScratchFolder folder;
  RunCheckpoints checkpoints(folder.path(), config_, groups_,
                             [] { throw std::runtime_error("no memory is left"); });
  for (int i = 0; i < 2; ++i) {
    bool began = false;
    SavedInBackground saved;
    ASSERT_TRUE(
        checkpoints.Begin({.step = 3, .samples = 6}, stepper_->parameters(), began, saved).ok());
    if (i == 0) {
      EXPECT_THAT(checkpoints.FinishCopy().message(), HasSubstr("no memory is left"));
    }
    EXPECT_THAT(checkpoints.Finish(saved).message(), HasSubstr("no memory is left"));
    EXPECT_EQ(saved.step, -1);
  }
  Snapshots snapshots([] { throw std::runtime_error("no memory is left"); });
  ASSERT_TRUE(snapshots.Begin({.step = 3, .samples = 6}, stepper_->parameters(), groups_).ok());
  EXPECT_THAT(snapshots.Finish().message(), HasSubstr("no memory is left"));
}

// A pipe that nobody writes to, in the place of a manifest: to open it takes for ever.
TEST_F(SnapshotsTest, OldCheckpointsThatCannotBeDeletedHoldNoEndUp) {
  const ScratchFolder folder;
  config_.checkpoint_keep = 1;
  const std::string manifest =
      absl::StrCat(folder.path(), "/", CheckpointName(1), "/", kManifestName);
  {
    RunCheckpoints checkpoints(folder.path(), config_, groups_, /*before_copy=*/nullptr,
                               /*end_patience=*/absl::Milliseconds(1));
    absl::Status failure;
    ASSERT_TRUE(checkpoints.Save({.step = 1, .samples = 2}, stepper_->parameters(), failure).ok());
    ASSERT_TRUE(checkpoints.FinishMirror().ok());
  }
  std::filesystem::remove(manifest);
  ASSERT_EQ(mkfifo(manifest.c_str(), 0600), 0);
  {
    config_.checkpoint_remote_timeout = absl::Milliseconds(1);
    RunCheckpoints checkpoints(folder.path(), config_, groups_, /*before_copy=*/nullptr,
                               /*end_patience=*/absl::Milliseconds(1));
    absl::Status failure;
    ASSERT_TRUE(checkpoints.Save({.step = 2, .samples = 4}, stepper_->parameters(), failure).ok());
    EXPECT_TRUE(failure.ok()) << failure;
    EXPECT_TRUE(checkpoints.FinishMirror().ok());
  }
  // Somebody writes: what was left to itself ends, and leaves what is none of its checkpoints.
  int writer = -1;
  for (int tries = 0; writer < 0 && tries < 60'000; ++tries) {
    writer = open(manifest.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (writer < 0) std::this_thread::sleep_for(milliseconds(1));
  }
  ASSERT_GE(writer, 0);
  close(writer);
}

// The whole loop, which puts the wait into every step: however late a copy begins, each checkpoint
// of the background has the bytes of one for which the run stood still.
TEST(TrainLoopTest, NoStepOfARunChangesWhatACheckpointHasNotCopiedYet) {
  const ScratchFolder folder;
  const absl::Status prepared = PrepareSampleData(folder.path());
  ASSERT_TRUE(prepared.ok()) << prepared;
  for (const char* background : {"false", "true"}) {
    RunOptions options;
    options.config = *LoadTrainConfig(
        "",
        {"model.layers=2", "model.hidden=32", "model.heads=2", "model.ffn=48", "model.sequence=8",
         "train.global_batch=2", "train.precision=fp32", "train.steps=4", "train.peak_tflops=1",
         "train.gemm=weft", "train.attention=weft", "sample.tokens=0", "checkpoint.every=1",
         "checkpoint.keep=10", absl::StrCat("checkpoint.background=", background),
         absl::StrCat("data.prefix=", folder / "data")},
        "tiny");
    options.run_dir = folder / background;
    // For a step that does not wait to go on.
    options.before_checkpoint_copy = [] { std::this_thread::sleep_for(milliseconds(300)); };
    ParallelGroups groups = ParallelGroups::Alone();
    const auto outcome = Train(options, groups);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_THAT(outcome->missing, ElementsAre());
  }
  const auto paths = ListCheckpoints(folder / "true/checkpoints");
  ASSERT_TRUE(paths.ok());
  ASSERT_GE(paths->size(), 2U);  // the first is never left out, nor is the last
  for (const std::string& path : *paths) {
    const std::string shard = "/" + ShardName(0, 1);
    const std::string name = std::filesystem::path(path).filename();
    const auto copied = ReadFile(path + shard);
    const auto still = ReadFile(folder / ("false/checkpoints/" + name) + shard);
    ASSERT_TRUE(copied.ok() && still.ok()) << copied.status() << still.status();
    EXPECT_TRUE(*copied == *still) << name << " has values of a later step";
  }
}

TEST_F(SnapshotsTest, TheNewestOfTwoStepsIsRestoredAndMemoryDoesNotGrow) {
  Snapshots snapshots;
  stepper_->set_before_update([&] { return snapshots.Finish(); });
  EXPECT_EQ(*snapshots.Restore(stepper_->parameters(), groups_), std::nullopt);
  std::vector<std::byte> newest;
  Bytes bytes(0);
  for (int64_t step = 1; step <= 5; ++step) {
    Step(step);
    newest = State();
    ASSERT_TRUE(
        snapshots.Begin({.step = step, .samples = 2 * step}, stepper_->parameters(), groups_).ok());
    if (step == 1) bytes = snapshots.bytes();
    EXPECT_EQ(snapshots.bytes(), bytes);
  }
  EXPECT_EQ(bytes, Bytes(2 * static_cast<int64_t>(newest.size())));
  ASSERT_TRUE(snapshots.Finish().ok());
  Step(6);
  const auto restored = snapshots.Restore(stepper_->parameters(), groups_);
  ASSERT_TRUE(restored.ok() && restored->has_value()) << restored.status();
  EXPECT_EQ((*restored)->step, 5);
  EXPECT_EQ((*restored)->samples, 10);
  EXPECT_EQ(State(), newest);
}

}  // namespace
}  // namespace weft::train
