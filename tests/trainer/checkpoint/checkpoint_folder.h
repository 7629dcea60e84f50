// A folder of checkpoints whose content is known (training_state.h), and ways to damage it.
#ifndef WEFT_TESTS_TRAINER_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define WEFT_TESTS_TRAINER_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/scratch_folder.h"
#include "tests/trainer/checkpoint/training_state.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/writer.h"

namespace weft::train {

namespace fs = std::filesystem;

class CheckpointTest : public ::testing::Test {
 protected:
  std::string Path(int64_t step) const { return folder_ / CheckpointName(step); }
  std::string Shard(int64_t step, int rank, int world) const {
    return Path(step) + "/" + ShardName(rank, world);
  }
  void Write(int64_t step, int world_size) {
    absl::Status status = WriteCheckpoint(folder_.path(), step, world_size);
    ASSERT_TRUE(status.ok()) << status;
  }
  std::unique_ptr<CheckpointReader> Open(int64_t step) {
    auto reader = CheckpointReader::Open(Path(step));
    EXPECT_TRUE(reader.ok()) << reader.status();
    return *std::move(reader);
  }
  static std::vector<std::string> Reasons(const LatestCheckpoint& latest) {
    std::vector<std::string> reasons;
    for (const PassedOver& entry : latest.passed_over) {
      reasons.emplace_back(entry.reason.message());
    }
    return reasons;
  }
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    auto paths = ListCheckpoints(folder_.path());
    EXPECT_TRUE(paths.ok()) << paths.status();
    for (const std::string& path : *paths) {
      int64_t step = -1;
      ParseCheckpointName(fs::path(path).filename().string(), step);
      steps.push_back(step);
    }
    return steps;
  }
  LatestCheckpoint Latest() {
    auto latest = FindLatest(folder_.path());
    EXPECT_TRUE(latest.ok()) << latest.status();
    return *latest;
  }
  // Changes one byte in place.
  static void Damage(const std::string& path, int64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    char byte = static_cast<char>(file.get() ^ 0x40);
    file.seekp(offset);
    file.put(byte);
  }
  ScratchFolder folder_;
};

}  // namespace weft::train

#endif  // WEFT_TESTS_TRAINER_CHECKPOINT_CHECKPOINT_FOLDER_H_
