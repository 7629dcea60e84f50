// weft-train under weft-run --recover: ranks are killed at their work, and the losses are those of
// the unbroken run, to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/time/time.h"
#include "base/read_file.h"
#include "collectives/store/client/store_client.h"
#include "net/secret.h"
#include "tests/scoped_variable.h"
#include "tests/trainer/loop/rank_processes.h"
#include "tests/trainer/loop/train_run.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/retention.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 4;
constexpr int kSteps = 14;

class RecoveryRunTest : public RankProcessesTest {
 protected:
  // Nothing waits for longer, whatever is wrong.
  void SetUp() override {
    setenv("WEFT_COLLECTIVE_TIMEOUT", "60s", 1);
    setenv("WEFT_STORE_TIMEOUT", "60s", 1);
  }

  static std::vector<std::string> Settings(const std::vector<std::string>& more) {
    std::vector<std::string> settings = {"train.steps=" + std::to_string(kSteps),
                                         "train.precision=fp32", "train.peak_tflops=1",
                                         "sample.tokens=5", "log.every=1"};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  static std::vector<std::string> Recovering(const std::string& run, int restarts,
                                             const std::vector<std::string>& more,
                                             const std::string& snapshot = "memory") {
    std::vector<std::string> command = Command(kRanks, run, Settings(more));
    command.insert(command.begin() + 1, {"--recover", std::to_string(restarts), "--set",
                                         "recovery.snapshot=" + snapshot});
    return command;
  }

  // Damages a checkpoint; false: there is no whole one at `path` any more.
  static bool FlipBitOfShard(const std::string& path) {
    std::fstream shard(path + "/" + ShardName(0, kRanks),
                       std::ios::in | std::ios::out | std::ios::binary);
    shard.seekg(-5, std::ios::end);
    const char byte = static_cast<char>(shard.get() ^ 4);
    shard.seekp(-5, std::ios::end);
    shard.put(byte);
    return shard.good();
  }
  static bool MakeUnreadable(const std::string& path) {
    std::error_code error;
    const bool was_there = fs::remove(path + "/manifest.json", error);
    if (was_there) {
      fs::create_symlink("/proc/self/mem", path + "/manifest.json", error);  // fails with EIO
    }
    return was_there && !error;
  }

  static void ExpectUnbroken(const std::string& run, const std::map<int, json>& unbroken,
                             const Outcome& outcome) {
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(LargestDifference(unbroken, Metrics(run)), 0) << outcome.output;
    EXPECT_TRUE(fs::exists(RunDir(run) + "/model/model.safetensors"));
    EXPECT_TRUE(ProcessesOf(run).empty());
  }
};

// Each rank of each layout is killed once, at a step of its own.
TEST_F(RecoveryRunTest, ARankThatIsKilledCostsNoStepsThatAllHadDone) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> layouts = {
      {"data", {}}, {"cut", {"parallel.tensor=2", "parallel.pipeline=2"}}};
  Random random(20);
  for (const auto& [name, settings] : layouts) {
    const Outcome whole = Run(kRanks, name + "_whole", Settings(settings));
    ASSERT_EQ(whole.status, 0) << whole.output;
    const std::map<int, json> unbroken = Metrics(name + "_whole");
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string run = name + std::to_string(rank);
      const int step = 2 + static_cast<int>(random.Below(kSteps - 6));
      SCOPED_TRACE(run + " killed after step " + std::to_string(step));
      Process process(Recovering(run, 1, settings), RunDir(run + ".out"));
      ASSERT_TRUE(WaitForStep(run, step, process)) << process.Wait().output;
      ASSERT_GT(KillRank(run, rank), 0);
      const Outcome outcome = process.Wait();
      ExpectUnbroken(run, unbroken, outcome);
      EXPECT_THAT(outcome.output, HasSubstr("starting it anew (1 of 1)"));
      EXPECT_THAT(outcome.output, HasSubstr("from memory"));
    }
  }
}

// The kernels of NCCL's wait for the rank that is gone, and the host for them: the job ends them
// when it learns of the loss, and does not wait for collective.timeout.
TEST_F(RecoveryRunTest, ARankThatIsKilledIsReplacedWhereNcclWaitsForIt) {
  const ScopedVariable libraries("LD_LIBRARY_PATH", EMULATED_NCCL);
  const std::vector<std::string> settings =
      Settings({"train.device=cpu-aten", "train.gemm=aten", "train.attention=aten",
                "parallel.collectives=nccl", "parallel.pipeline=2", "train.micro_batch=1"});
  const Outcome whole = Run(kRanks, "nccl_whole", settings);
  ASSERT_EQ(whole.status, 0) << whole.output;
  Process process(Recovering("nccl", 1, settings), RunDir("nccl.out"));
  ASSERT_TRUE(WaitForStep("nccl", 3, process)) << process.Wait().output;
  ASSERT_GT(KillRank("nccl", 2), 0);
  const Outcome outcome = process.Wait();
  ExpectUnbroken("nccl", Metrics("nccl_whole"), outcome);
  EXPECT_THAT(outcome.output, HasSubstr("starting it anew (1 of 1)"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("has not ended on the GPU")));
}

TEST_F(RecoveryRunTest, WithoutSnapshotsAllGoBackToTheLastCheckpoint) {
  const Outcome whole = Run(kRanks, "off_whole", Settings({}));
  ASSERT_EQ(whole.status, 0) << whole.output;
  Process process(Recovering("off", 1, {"checkpoint.every=4"}, "off"), RunDir("off.out"));
  ASSERT_TRUE(WaitForStep("off", 6, process)) << process.Wait().output;
  ASSERT_GT(KillRank("off", 2), 0);
  const Outcome outcome = process.Wait();
  ExpectUnbroken("off", Metrics("off_whole"), outcome);
  EXPECT_THAT(outcome.output, HasSubstr("from a checkpoint"));
}

// No checkpoint is wanted then: neither one that is damaged in a bit nor one that cannot be read at
// the moment ends the run.
TEST_F(RecoveryRunTest, WhoseStateIsInMemoryNeedsNoCheckpointThatIsWhole) {
  const Outcome whole = Run(kRanks, "needs_whole", Settings({}));
  ASSERT_EQ(whole.status, 0) << whole.output;
  for (const std::string run : {"bit", "unreadable"}) {
    SCOPED_TRACE(run);
    Process process(Recovering(run, 1, {"checkpoint.every=4", "checkpoint.keep=1"}),
                    RunDir(run + ".out"));
    ASSERT_TRUE(WaitForStep(run, 6, process)) << process.Wait().output;
    const pid_t pid = ProcessOf(run, 2);
    ASSERT_GT(pid, 0);
    // The job stands still, but for a commit or a deletion by rank 0 that is under way: of what
    // cannot be damaged, because it goes meanwhile, nothing is left.
    kill(pid, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto paths = ListCheckpoints(RunDir(run) + "/checkpoints");
    ASSERT_TRUE(paths.ok() && !paths->empty()) << paths.status();
    for (const std::string& path : *paths) {
      const bool is_damaged = run == "bit" ? FlipBitOfShard(path) : MakeUnreadable(path);
      ASSERT_TRUE(is_damaged || !fs::exists(path + "/manifest.json")) << path;
    }
    kill(pid, SIGKILL);
    const Outcome outcome = process.Wait();
    ExpectUnbroken(run, Metrics("needs_whole"), outcome);
    EXPECT_THAT(outcome.output, HasSubstr("from memory"));
  }
}

// Neighbours: the only copies of a state die with both.
TEST_F(RecoveryRunTest, TwoNeighboursAtOnceGoBackToWhatIsOnDisk) {
  const Outcome whole = Run(kRanks, "two_whole", Settings({}));
  ASSERT_EQ(whole.status, 0) << whole.output;
  Process process(Recovering("two", 4, {"checkpoint.every=4"}), RunDir("two.out"));
  ASSERT_TRUE(WaitForStep("two", 6, process)) << process.Wait().output;
  const pid_t one = ProcessOf("two", 1), two = ProcessOf("two", 2);
  ASSERT_TRUE(one > 0 && two > 0) << one << " " << two;
  kill(one, SIGKILL);
  kill(two, SIGKILL);
  const Outcome outcome = process.Wait();
  ExpectUnbroken("two", Metrics("two_whole"), outcome);
}

// The variable of a process; "" where it has none.
std::string VariableOf(pid_t pid, const std::string& name) {
  const std::string variables = '\0' + Words("/proc/" + std::to_string(pid) + "/environ") + '\0';
  const std::string begin = '\0' + name + '=';
  const size_t at = variables.find(begin);
  if (at == std::string::npos) return "";
  return variables.substr(at + begin.size(), variables.find('\0', at + 1) - at - begin.size());
}

// A client of the store of the job that `pid` is a rank of; no rank itself.
std::unique_ptr<collectives::StoreClient> JobClient(pid_t pid) {
  collectives::StoreClientOptions options;
  options.address = VariableOf(pid, "WEFT_STORE");
  options.job = VariableOf(pid, "WEFT_JOB_ID");
  options.name = "the test";
  auto secret = net::SecretFromHex(VariableOf(pid, "WEFT_JOB_SECRET"));
  EXPECT_TRUE(secret.ok()) << secret.status();
  if (secret.ok()) options.secret = *secret;
  auto client = collectives::StoreClient::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

// A spare process of the run that has the data in its memory and waits for its place; 0: there is
// none yet.
pid_t WarmSpareOf(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    const fs::path folder = "/proc/" + std::to_string(pid);
    // Reads its standard input, in system call 0 (x86-64) or 63 (ARM).
    const std::string call = Words(folder / "syscall");
    const bool waits = call.rfind("0 0x0 ", 0) == 0 || call.rfind("63 0x0 ", 0) == 0;
    if (VariableOf(pid, "WEFT_SPARE") == "1" && waits &&
        Words(folder / "maps").find("data_train.bin") != std::string::npos) {
      return pid;
    }
  }
  return 0;
}

// The peak that mfu refers to, as measured at the start, counts from then on.
double PeakOf(const json& row) {
  return row["tokens_per_second"].get<double>() / row["mfu"].get<double>();
}

TEST_F(RecoveryRunTest, AWarmSpareProcessTakesARanksPlaceAndTheRunSaysWhereTheTimeWent) {
  std::vector<std::string> command =
      Recovering("spare", 1, {"train.steps=100000", "train.peak_tflops=0", "validation.every=0"});
  command.insert(command.begin() + 1, {"--spares", "1"});
  Process process(command, RunDir("spare.out"));
  pid_t spare = 0;
  for (int i = 0; i < 2400 && process.running() && spare == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    spare = WarmSpareOf(ProcessesOf("spare"));
  }
  EXPECT_GT(spare, 0) << "no spare process has the data mapped and waits";
  ASSERT_GT(KillRank("spare", 2), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(WaitForStep("spare", LastStep("spare") + 3, process));
  EXPECT_TRUE(spare > 0 && kill(spare, 0) == 0);
  process.Signal(SIGTERM);
  const Outcome outcome = process.Wait();
  EXPECT_THAT(outcome.output, HasSubstr("rank 2 (generation 1) is back"));
  std::vector<std::string> phases;
  std::ifstream file(RunDir("spare") + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const json row = json::parse(line);
    if (!row.contains("recovered_rank")) continue;
    EXPECT_EQ(row["recovered_rank"], 2);
    EXPECT_EQ(row["generation"], 1);
    EXPECT_EQ(row["spare"], true);
    for (const auto& [name, took] : row["phases_ms"].items()) {
      phases.push_back(name);
      EXPECT_GE(took.get<double>(), 0) << name;
    }
  }
  EXPECT_THAT(phases, ::testing::UnorderedElementsAre("start", "load", "meet", "join", "build",
                                                      "state", "first step"));
  const std::map<int, json> rows = Metrics("spare");
  const double peak = PeakOf(rows.begin()->second);
  EXPECT_NEAR(PeakOf(rows.rbegin()->second), peak, peak * 1e-9);
}

// The process that takes rank 1's place stands still as soon as it is there, and is taken for one
// that has come to meet the others: the test says so in its name. They join and wait for it. When
// it is killed, they learn it at once, and not when their patience with the join (30 s) is at its
// end.
TEST_F(RecoveryRunTest, ADeathWhileTheOthersJoinIsNotWaitedOut) {
  const Outcome whole = Run(kRanks, "join_whole", Settings({}));
  ASSERT_EQ(whole.status, 0) << whole.output;
  Process process(Recovering("join", 2, {}), RunDir("join.out"));
  ASSERT_TRUE(WaitForStep("join", 4, process)) << process.Wait().output;
  const pid_t first = ProcessOf("join", 1);
  ASSERT_GT(first, 0);
  const auto client = JobClient(first);
  ASSERT_NE(client, nullptr);
  kill(first, SIGKILL);
  pid_t second = first;
  for (int i = 0; i < 60'000 && (second == 0 || second == first); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    second = ProcessOf("join", 1);
  }
  ASSERT_TRUE(second > 0 && second != first);
  kill(second, SIGSTOP);
  // It may have begun the epoch itself.
  ASSERT_TRUE(client->CompareSet("recovery/epoch", "", "1 0 0 1").ok());
  ASSERT_TRUE(client->Set("recovery/1/1", "here").ok());
  const absl::Status met =
      client->Wait({"recovery/1/0", "recovery/1/2", "recovery/1/3"}, absl::Minutes(2));
  ASSERT_TRUE(met.ok()) << met << process.Wait().output;
  ASSERT_TRUE(client->Add("recovery/1/arrived", 1).ok());
  // Whoever comes last marks the epoch: that may be one of the others.
  ASSERT_TRUE(client->CompareSet("recovery/epoch", "1 0 0 1", "1 0 0 1 ready").ok());
  kill(second, SIGKILL);
  const Outcome outcome = process.Wait();
  ExpectUnbroken("join", Metrics("join_whole"), outcome);
  // As a join says that waited for a rank until its patience was at its end.
  EXPECT_THAT(outcome.output, Not(HasSubstr("missing after 30s")));
}

// All ranks go by what rank 0 measured: else one would wait for the others in a save.
TEST_F(RecoveryRunTest, CheckpointsAreAsRareAsFailures) {
  const std::vector<std::string> settings =
      Settings({"checkpoint.every=2", "checkpoint.keep=20", "train.steps=8"});
  auto saved = [](const std::string& run) {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(RunDir(run) + "/checkpoints")) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  std::vector<std::string> command = Command(2, "rare", settings);
  // So much time that thousands of steps lie between two saves, whatever these take.
  command.insert(command.begin() + 1, {"--set", "recovery.mtbf=80000h"});
  const Outcome rare = Process(command, RunDir("rare.out")).Wait();
  ASSERT_EQ(rare.status, 0) << rare.output;
  EXPECT_THAT(rare.output, HasSubstr("from here a checkpoint every "));
  EXPECT_THAT(saved("rare"), ElementsAre("step-00000002", "step-00000008"));
  const Outcome fixed = Run(2, "fixed", settings);
  ASSERT_EQ(fixed.status, 0) << fixed.output;
  EXPECT_THAT(fixed.output, Not(HasSubstr("from here a checkpoint every ")));
  EXPECT_EQ(saved("fixed").size(), 4U);
}

TEST_F(RecoveryRunTest, RestartsThatAreUsedUpEndTheJob) {
  Process process(Recovering("used_up", 1, {"train.steps=100000"}), RunDir("used_up.out"));
  ASSERT_TRUE(WaitForStep("used_up", 3, process)) << process.Wait().output;
  const pid_t first = KillRank("used_up", 3);
  ASSERT_GT(first, 0);
  pid_t second = 0;
  for (int i = 0; i < 6000 && process.running() && (second == 0 || second == first); ++i) {
    second = ProcessOf("used_up", 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(second > 0 && second != first) << second;
  kill(second, SIGKILL);
  const Outcome outcome = process.Wait();
  EXPECT_EQ(outcome.status, 128 + SIGKILL) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("ranks were started anew 1 times, of 1 (--recover)"));
  EXPECT_TRUE(ProcessesOf("used_up").empty());
}

}  // namespace
}  // namespace weft::train
