// Checkpoints between layouts: what one layout has saved, any other loads to the byte, and each of
// its bytes is read from storage once. Ranks that hold the same state write equally much of it.
// Jobs are threads of this process.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "tests/collectives/job.h"
#include "tests/scratch_folder.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/run_states.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/config.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/checkpoints.h"
#include "trainer/loop/step.h"

namespace weft::train {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr int kRanksMost = 8;
constexpr int64_t kStep = 7;
constexpr char kChoice[] = "what the cores chose";

struct Layout {
  int tensor = 1;
  int pipeline = 1;
  int data = 1;
  int zero_group = 0;  // data-parallel ranks that share the state; 0: all of them
  int ranks() const { return tensor * pipeline * data; }
  int replicas() const { return zero_group == 0 ? 1 : data / zero_group; }
  std::string name() const {
    return absl::StrCat("tensor", tensor, "_pipeline", pipeline, "_data", data,
                        zero_group == 0 ? "" : absl::StrCat("_by", zero_group));
  }
};

// All factorisations of 1 to 8 ranks whose tensor axis divides the heads.
std::vector<Layout> LayoutsOf(int heads) {
  std::vector<Layout> layouts;
  for (int tensor = 1; tensor <= kRanksMost; ++tensor) {
    if (heads % tensor != 0) continue;
    for (int pipeline = 1; tensor * pipeline <= kRanksMost; ++pipeline) {
      for (int data = 1; tensor * pipeline * data <= kRanksMost; ++data) {
        layouts.push_back({tensor, pipeline, data});
        if (data > 1) layouts.push_back({tensor, pipeline, data, 1});
        if (data == 4) layouts.push_back({tensor, pipeline, data, 2});
      }
    }
  }
  return layouts;
}

class CheckpointLayoutsTest : public ::testing::TestWithParam<int> {
 protected:
  static int heads() { return GetParam(); }

  static TrainConfig ConfigOf(const Layout& layout) {
    absl::StatusOr<TrainConfig> config = LoadTrainConfig(
        "",
        {absl::StrCat("model.heads=", heads()), absl::StrCat("model.hidden=", 2 * heads()),
         absl::StrCat("model.ffn=", 4 * heads()), "model.layers=8", "model.sequence=8",
         "train.global_batch=840", "train.precision=fp32",
         absl::StrCat("train.micro_batch=", 840 / layout.data / layout.pipeline),
         absl::StrCat("parallel.tensor=", layout.tensor),
         absl::StrCat("parallel.pipeline=", layout.pipeline),
         absl::StrCat("parallel.zero_group=", layout.zero_group)},
        "tiny");
    EXPECT_TRUE(config.ok()) << config.status();
    config->model.vocabulary = 8 * heads();
    return *config;
  }

  // Each rank with its parameters: of any values, until they are loaded.
  static void ForEachRank(
      const Layout& layout,
      const std::function<void(const TrainConfig&, ParallelGroups&, ParameterSets&)>& body,
      const std::function<void(int rank, TrainConfig&)>& set = nullptr) {
    collectives::RunRanks(
        layout.ranks(), {}, [&](const std::shared_ptr<collectives::Endpoint>& endpoint) {
          TrainConfig config = ConfigOf(layout);
          if (set) set(endpoint->rank().value(), config);
          absl::StatusOr<ParallelGroups> groups = ParallelGroups::Create(config, endpoint);
          ASSERT_TRUE(groups.ok()) << groups.status();
          auto stepper = Stepper::Create(config, &*groups, nullptr);
          ASSERT_TRUE(stepper.ok()) << stepper.status();
          body(config, *groups, (*stepper)->parameters());
        });
  }

  static void Save(const std::string& folder, const TrainConfig& config, ParallelGroups& groups,
                   ParameterSets& parameters) {
    RunCheckpoints checkpoints(folder, config, groups);
    absl::Status failure;
    const absl::Status status = checkpoints.Save(
        {.step = kStep, .samples = 42, .core_choice = kChoice}, parameters, failure);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(failure.ok()) << failure;
  }

  // A checkpoint of one rank, every byte of which is random.
  static void SaveFirst(const std::string& folder) {
    ForEachRank({},
                [&](const TrainConfig& config, ParallelGroups& groups, ParameterSets& parameters) {
                  Random random(static_cast<uint64_t>(heads()));
                  for (const at::Tensor& part : StateOf(parameters)) {
                    auto* bytes = part.data_ptr<uint8_t>();
                    for (int64_t i = 0; i < part.numel(); ++i) {
                      bytes[i] = static_cast<uint8_t>(random.Below(256));
                    }
                  }
                  Save(folder, config, groups, parameters);
                });
  }

  // Loads the checkpoint of `from` over a layout and saves it into `to`.
  static void Pass(const std::string& from, const Layout& layout, const std::string& to) {
    ForEachRank(layout,
                [&](const TrainConfig& config, ParallelGroups& groups, ParameterSets& parameters) {
                  RunCheckpoints checkpoints(from, config, groups);
                  EXPECT_EQ(*checkpoints.FindState(kCoreChoiceState), kChoice);
                  EXPECT_EQ(*checkpoints.FindState("of no checkpoint so far"), "");
                  const auto position = checkpoints.Load(parameters);
                  ASSERT_TRUE(position.ok()) << position.status();
                  ASSERT_TRUE(position->has_value());
                  EXPECT_EQ((*position)->step, kStep);
                  EXPECT_EQ((*position)->core_choice, kChoice);
                  const ReadTotals& read = checkpoints.read();
                  EXPECT_EQ(read.read_bytes, BytesOf(from));
                  EXPECT_EQ(read.minimum_bytes, read.read_bytes);
                  EXPECT_GE(read.needed_bytes, read.read_bytes);
                  EXPECT_GE(read.needed_bytes, layout.replicas() * read.read_bytes);
                  EXPECT_GE(read.passed_bytes, (layout.replicas() - 1) * read.read_bytes);
                  Save(to, config, groups, parameters);
                });
  }

  static std::unique_ptr<CheckpointReader> Open(const std::string& folder) {
    auto reader = CheckpointReader::Open(absl::StrCat(folder, "/", CheckpointName(kStep)),
                                         Verification::kEverything);
    EXPECT_TRUE(reader.ok()) << reader.status();
    return *std::move(reader);
  }
  // The bytes of all tensors of a checkpoint, each tensor counted once.
  static int64_t BytesOf(const std::string& folder) {
    int64_t bytes = 0;
    const auto reader = Open(folder);
    for (const BufferLayout& buffer : reader->manifest().buffers) {
      bytes += buffer.elements * SizeOf(buffer.dtype);
    }
    return bytes;
  }
  static void ExpectEqual(const std::string& one, const std::string& other) {
    const auto a = Open(one), b = Open(other);
    ASSERT_EQ(a->manifest().buffers.size(), b->manifest().buffers.size());
    for (const BufferLayout& buffer : a->manifest().buffers) {
      std::vector<std::byte> left(static_cast<size_t>(buffer.elements * SizeOf(buffer.dtype)));
      std::vector<std::byte> right(left.size());
      ASSERT_TRUE(a->Read(buffer.name, 0, buffer.elements, absl::MakeSpan(left)).ok());
      ASSERT_TRUE(b->Read(buffer.name, 0, buffer.elements, absl::MakeSpan(right)).ok());
      ASSERT_TRUE(left == right) << buffer.name;
    }
  }
};

// Each layout loads what the one before has saved; the order is drawn.
TEST_P(CheckpointLayoutsTest, EachLoadsWhatAnotherHasSaved) {
  const ScratchFolder scratch;
  const std::string origin = scratch / "origin";
  SaveFirst(origin);
  std::vector<Layout> layouts = LayoutsOf(heads());
  Random random(2029);
  for (size_t left = layouts.size(); left > 1; --left) {
    std::swap(layouts[left - 1], layouts[random.Below(left)]);
  }
  std::string from = origin;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name());
    const std::string to = scratch / layout.name();
    Pass(from, layout, to);
    ASSERT_NO_FATAL_FAILURE(ExpectEqual(origin, to));
    std::filesystem::remove_all(from == origin ? "" : from);
    from = to;
    if (HasFailure()) return;
  }
}

TEST_P(CheckpointLayoutsTest, EachLoadsWhatAnyHasSaved) {
  const char* wanted = std::getenv("WEFT_LAYOUTS");
  if (wanted == nullptr || std::string(wanted) != "full") {
    GTEST_SKIP() << "minutes; tools/dev test layouts (WEFT_LAYOUTS=full) runs every pair";
  }
  const ScratchFolder scratch;
  const std::string origin = scratch / "origin", to = scratch / "to";
  SaveFirst(origin);
  const std::vector<Layout> layouts = LayoutsOf(heads());
  for (const Layout& saved : layouts) {
    const std::string from = scratch / "from";
    Pass(origin, saved, from);
    for (const Layout& loaded : layouts) {
      SCOPED_TRACE(absl::StrCat("saved over ", saved.name(), ", loaded over ", loaded.name()));
      Pass(from, loaded, to);
      ASSERT_NO_FATAL_FAILURE(ExpectEqual(origin, to));
      if (HasFailure()) return;
      std::filesystem::remove_all(to);
    }
    std::filesystem::remove_all(from);
  }
}

// Elements of a buffer, or of all ("") that each rank has written.
std::vector<int64_t> WrittenBy(const Manifest& manifest, const std::string& name) {
  std::vector<int64_t> written(manifest.shards.size());
  for (const BufferLayout& buffer : manifest.buffers) {
    if (!name.empty() && buffer.name != name) continue;
    for (const BufferSlice& slice : buffer.slices) {
      written[static_cast<size_t>(slice.shard)] += slice.range.elements();
    }
  }
  return written;
}

class BalancedSaveTest : public CheckpointLayoutsTest {
 protected:
  // What each rank of a job with this layout writes.
  std::vector<int64_t> Written(const Layout& layout, const std::string& buffer = "",
                               const std::function<void(int, TrainConfig&)>& set = nullptr) const {
    const ScratchFolder scratch;
    ForEachRank(
        layout,
        [&](const TrainConfig& config, ParallelGroups& groups, ParameterSets& parameters) {
          Save(scratch.path(), config, groups, parameters);
        },
        set);
    return WrittenBy(Open(scratch.path())->manifest(), buffer);
  }
  static double Imbalance(const std::vector<int64_t>& written) {
    const auto [least, most] = std::minmax_element(written.begin(), written.end());
    return static_cast<double>(*most) / static_cast<double>(*least);
  }
};

TEST_P(BalancedSaveTest, ReplicasWriteEqualPartsOfWhatTheyHold) {
  // Shards are rounded up to 32 elements, so that the last of a group has less.
  for (const Layout& layout : {Layout{1, 1, 4, 1}, Layout{1, 1, 8, 1}, Layout{1, 1, 4, 2},
                               Layout{2, 1, 2, 1}, Layout{2, 1, 4, 2}, Layout{4, 1, 1}}) {
    SCOPED_TRACE(layout.name());
    const std::vector<int64_t> written = Written(layout);
    EXPECT_THAT(written, SizeIs(layout.ranks()));
    EXPECT_LT(Imbalance(written), layout.zero_group == 2 ? 1.03 : 1.001)
        << absl::StrJoin(written, " ");
  }
  const auto experts = [](int, TrainConfig& config) {
    config.model.experts = 4;
    config.expert_parallel = 2;
  };
  for (const int zero_group : {1, 2}) {
    const std::vector<int64_t> written = Written({1, 1, 4, zero_group}, "", experts);
    EXPECT_LT(Imbalance(written), 1.03) << absl::StrJoin(written, " ");
  }
}

// A tied embedding is on the first and the last stage.
TEST_P(BalancedSaveTest, TheEndsOfAPipelineWriteHalfOfTheEmbeddingEach) {
  const int64_t elements = int64_t{8} * heads() * 2 * heads();  // [vocabulary, hidden]
  EXPECT_THAT(Written({1, 2, 1}, "parameters.embedding.token"),
              ElementsAre(elements / 2, elements / 2));
  // With two replicas of each stage. Ranks 0 and 1 are of the first.
  EXPECT_THAT(Written({1, 2, 2, 1}, "parameters.embedding.token"), Each(elements / 4));
  EXPECT_THAT(Written({1, 3, 1}, "adam.mean.embedding.token"),
              ElementsAre(elements / 2, 0, elements / 2));
}

INSTANTIATE_TEST_SUITE_P(Heads, BalancedSaveTest, ::testing::Values(24));

// Two hosts of two ranks each, whose disks are two folders.
class LocalDisksTest : public CheckpointLayoutsTest {
 protected:
  static constexpr Layout kSaved = {2, 1, 2};

  void SetUp() override {
    SaveFirst(origin_);
    OnHosts(
        kSaved, [&](const TrainConfig& config, ParallelGroups& groups, ParameterSets& parameters) {
          RunCheckpoints checkpoints(origin_, config, groups);
          ASSERT_TRUE(checkpoints.Load(parameters).ok());
          RunCheckpoints run(run_folder_, config, groups);
          for (const int64_t step : {kStep - 1, kStep}) {
            bool began = false;
            SavedInBackground saved;
            ASSERT_TRUE(run.Begin({.step = step, .samples = 42}, parameters, began, saved).ok());
            ASSERT_TRUE(began);
            ASSERT_TRUE(run.FinishCopy().ok());
            const absl::Status finished = run.Finish(saved);
            ASSERT_TRUE(finished.ok()) << finished;
            EXPECT_TRUE(saved.failure.ok()) << saved.failure;
          }
          EXPECT_EQ(run.local_copied(), 2);
        });
  }
  std::string Host(int host) const { return scratch_ / absl::StrCat("host", host); }
  std::string OnHost(int host, int64_t step) const {
    return absl::StrCat(Host(host), "/", CheckpointName(step));
  }
  // Loads over `layout`, half of whose ranks are on each host, and compares all.
  void ExpectLoads(const Layout& layout, int64_t step, const std::string& from) {
    const std::string to = scratch_ / "to";
    OnHosts(layout,
            [&](const TrainConfig& config, ParallelGroups& groups, ParameterSets& parameters) {
              RunCheckpoints run(run_folder_, config, groups);
              const auto position = run.Load(parameters);
              ASSERT_TRUE(position.ok()) << position.status();
              ASSERT_TRUE(position->has_value());
              EXPECT_EQ((*position)->step, step);
              EXPECT_EQ(run.read().read_bytes, run.read().minimum_bytes);
              if (groups.world->rank() == 0) {
                EXPECT_EQ(run.loaded_from(), absl::StrCat(from, "/", CheckpointName(step)));
              }
              Save(to, config, groups, parameters);
            });
    if (HasFailure()) return;
    ExpectEqual(origin_, to);
    std::filesystem::remove_all(to);
  }
  void OnHosts(
      const Layout& layout,
      const std::function<void(const TrainConfig&, ParallelGroups&, ParameterSets&)>& body) {
    const int half = layout.ranks() / 2;
    ForEachRank(
        layout,
        [&](const TrainConfig& config, ParallelGroups& groups, ParameterSets& parameters) {
          for (int rank = 0; rank < layout.ranks(); ++rank) {
            groups.hosts[static_cast<size_t>(rank)] = rank / half;
          }
          body(config, groups, parameters);
        },
        [&](int rank, TrainConfig& config) { config.checkpoint_local_folder = Host(rank / half); });
  }

  const ScratchFolder scratch_;
  const std::string origin_ = scratch_ / "origin", run_folder_ = scratch_ / "run";
};

TEST_P(LocalDisksTest, HostsTogetherHaveACheckpointThatEachHasAPartOf) {
  std::filesystem::remove_all(run_folder_);
  EXPECT_FALSE(std::filesystem::exists(OnHost(0, kStep) + "/" + ShardName(2, 4)));
  for (const Layout& layout : {kSaved, Layout{1, 2, 1}, Layout{1, 1, 4, 1}}) {
    SCOPED_TRACE(layout.name());
    ExpectLoads(layout, kStep, Host(0));
  }
}

TEST_P(LocalDisksTest, WhatAHostHasLostOrDamagedComesFromTheNextTier) {
  const std::string shard = OnHost(1, kStep) + "/" + ShardName(3, 4);
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-5, std::ios::end);
  file.put('x');
  file.close();
  ExpectLoads(kSaved, kStep, run_folder_);
  std::filesystem::remove_all(run_folder_);
  ExpectLoads(kSaved, kStep - 1, Host(0));
  std::filesystem::remove_all(OnHost(1, kStep));  // not committed there
  ExpectLoads(kSaved, kStep - 1, Host(0));
  std::filesystem::remove_all(Host(1));
  OnHosts(kSaved,
          [&](const TrainConfig& config, ParallelGroups& groups, ParameterSets& parameters) {
            const auto position = RunCheckpoints(run_folder_, config, groups).Load(parameters);
            ASSERT_TRUE(position.ok()) << position.status();
            EXPECT_FALSE(position->has_value());
          });
}

// A copy to the run's folder that a pipe in the place of a shard holds up until somebody reads it,
// in a run whose next save fails.
class HeldUpCopyTest : public LocalDisksTest {
 protected:
  void SetUp() override {
    LocalDisksTest::SetUp();
    const CheckpointWriter writer(slow_, kStep, kSaved.ranks());
    const std::string pipe = absl::StrCat(writer.temporary(), "/", ShardName(0, 4), ".tmp");
    std::filesystem::create_directories(writer.temporary());
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    end_ = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ASSERT_GE(end_, 0);
  }
  void TearDown() override { close(end_); }

  // Calls `settle` on each rank; rank 0 has then written what the pipe takes of its shard.
  void WhileHeldUp(absl::Duration end_patience,
                   const std::function<void(RunCheckpoints&, ParallelGroups&)>& settle) {
    OnHosts(
        kSaved, [&](const TrainConfig& config, ParallelGroups& groups, ParameterSets& parameters) {
          absl::Notification all_began;
          int copies = 0;
          const auto before_copy = [&] {
            if (++copies == 1) return;
            all_began.WaitForNotificationWithTimeout(absl::Seconds(60));
            groups.checkpoints->Abort(lost_);
          };
          RunCheckpoints run(slow_, config, groups, before_copy, end_patience);
          SavedInBackground saved;
          for (const int64_t step : {kStep, kStep + 1}) {
            bool began = false;
            for (int tries = 0; !began && tries < 6000; ++tries) {  // the one before is written
              absl::SleepFor(absl::Milliseconds(10));
              ASSERT_TRUE(run.Begin({.step = step, .samples = 42}, parameters, began, saved).ok());
            }
            ASSERT_TRUE(began);
          }
          EXPECT_TRUE(groups.world->rank() != 0 || HasBytes());
          ASSERT_TRUE(groups.world->Agree(absl::OkStatus()).ok());
          all_began.Notify();
          settle(run, groups);
        });
  }
  // Whether the pipe has bytes, or no writer any more, within a minute.
  bool HasBytes() const {
    pollfd waiting = {.fd = end_, .events = POLLIN};
    return poll(&waiting, 1, /*milliseconds=*/60'000) == 1;
  }
  // Reads until no thread writes to the pipe any more.
  void ReadAll() const {
    std::vector<char> bytes(size_t{1} << 16);
    ssize_t count = 1;
    while (count != 0 && HasBytes()) count = read(end_, bytes.data(), bytes.size());
    EXPECT_EQ(count, 0);
  }

  const absl::Status lost_ = absl::UnavailableError("the network is gone");
  const std::string slow_ = scratch_ / "slow";
  int end_ = -1;
};

TEST_P(HeldUpCopyTest, GroupsMayGoWhenARunWhoseSaveFailedHasSettled) {
  std::atomic<bool> is_read = false;
  WhileHeldUp(/*end_patience=*/absl::Seconds(60), [&](RunCheckpoints& run, ParallelGroups& groups) {
    std::thread reader;
    if (groups.world->rank() == 0) {
      reader = std::thread([&] {
        absl::SleepFor(absl::Milliseconds(200));  // for a run that does not wait
        is_read = true;
        ReadAll();
      });
    }
    run.Settle(lost_);
    EXPECT_TRUE(groups.world->rank() != 0 || is_read);
    if (reader.joinable()) reader.join();
  });
}

TEST_P(HeldUpCopyTest, AFolderThatDoesNotAnswerHoldsNoRecoveryUp) {
  WhileHeldUp(/*end_patience=*/absl::Milliseconds(1),
              [&](RunCheckpoints& run, ParallelGroups& groups) {
                run.Settle(lost_);
                ASSERT_TRUE(groups.world->Agree(absl::OkStatus()).ok());
                groups.checkpoint_copies.reset();
              });
  ReadAll();  // what was left to itself ends
  EXPECT_TRUE(ListCheckpoints(slow_)->empty());
}

INSTANTIATE_TEST_SUITE_P(Heads, HeldUpCopyTest, ::testing::Values(24));
INSTANTIATE_TEST_SUITE_P(Heads, LocalDisksTest, ::testing::Values(24));

// 24 heads are cut by 2, 3, 4, 6 and 8, 35 by 5 and 7.
INSTANTIATE_TEST_SUITE_P(Heads, CheckpointLayoutsTest, ::testing::Values(24, 35));

}  // namespace
}  // namespace weft::train
