// Saves to the folder that all ranks share, when their group fails. Jobs are threads of this
// process.
#include "trainer/loop/shared_checkpoints.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "tests/collectives/job.h"
#include "tests/scratch_folder.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/retention.h"

namespace weft::train {
namespace {

constexpr size_t kMegabyte = size_t{1} << 20;

// All that is written to a pipe until nobody has it open for writing, or for a minute.
size_t ReadToTheEnd(int pipe) {
  std::vector<char> bytes(kMegabyte);
  size_t all = 0;
  for (pollfd waiting = {.fd = pipe, .events = POLLIN}; poll(&waiting, 1, 60'000) == 1;) {
    const ssize_t count = read(pipe, bytes.data(), bytes.size());
    if (count <= 0) return all;
    all += static_cast<size_t>(count);
  }
  ADD_FAILURE() << "after a minute somebody still writes, or will";
  return all;
}

// A pipe in the place of rank 0's shard holds its first megabyte up until the group has failed.
TEST(SharedCheckpointsTest, ASaveWhoseGroupFailsIsGivenUpAtItsNextMegabyte) {
  constexpr int kRanks = 2;
  constexpr size_t kBytes = 16 * kMegabyte;
  const ScratchFolder folder;
  TrainConfig config;
  config.checkpoint_keep = 2;
  const std::vector<std::byte> bytes(kBytes, std::byte{7});
  collectives::RunRanks(kRanks, {}, [&](const std::shared_ptr<collectives::Endpoint>& endpoint) {
    const int rank = endpoint->rank().value();
    const auto group = *Group::Create(endpoint, "checkpoints", {Rank(0), Rank(1)});
    SharedCheckpoints shared(folder.path(), config, rank == 0, std::make_shared<SaveTimes>(),
                             absl::Seconds(10));
    BufferPart part{"w", DType::kU8, static_cast<int64_t>(kRanks * kBytes)};
    part.begin = rank * static_cast<int64_t>(kBytes);
    part.bytes = bytes;
    const auto save = [&](int64_t step, absl::Status& failure) {
      return shared.Write(step, {part}, {}, *group, /*cores_are_idle=*/false, failure);
    };
    absl::Status failure;
    ASSERT_TRUE(save(1, failure).ok() && failure.ok()) << failure;
    ASSERT_FALSE(group->has_failed());

    FileDescriptor pipe;
    std::thread reader;
    size_t read = 0;
    if (rank == 0) {
      const std::string temporary = CheckpointWriter(folder.path(), 2, kRanks).temporary();
      std::filesystem::create_directories(temporary);
      const std::string shard = absl::StrCat(temporary, "/", ShardName(0, kRanks), ".tmp");
      ASSERT_EQ(mkfifo(shard.c_str(), 0600), 0);
      pipe = FileDescriptor(open(shard.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
      ASSERT_TRUE(pipe);
      reader = std::thread([&] {
        pollfd waiting = {.fd = pipe.get(), .events = POLLIN};
        EXPECT_EQ(poll(&waiting, 1, /*milliseconds=*/60'000), 1);
        group->Abort(absl::UnavailableError("the network is gone"));
        const absl::Time limit = absl::Now() + absl::Seconds(60);
        while (!group->has_failed() && absl::Now() < limit) std::this_thread::yield();
        EXPECT_TRUE(group->has_failed());
        read = ReadToTheEnd(pipe.get());
      });
    }
    const absl::Status status = save(2, failure);
    if (reader.joinable()) reader.join();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_LT(read, 2 * kMegabyte);
  });
  const auto latest = FindLatest(folder.path());
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ(latest->step, 1);
}

}  // namespace
}  // namespace weft::train
