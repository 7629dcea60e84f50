// weft-bw as its users run it, and the pattern that tells right data from wrong.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "collectives/planner/cost.h"
#include "collectives/reduce.h"
#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include "tools/bw/calibrate.h"
#include "tools/bw/options.h"
#include "tools/bw/pattern.h"

namespace weft::bw {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

Outcome BandwidthProgram(const std::string& arguments) {
  return RunProgram("weft-bw " + arguments);
}

TEST(WeftBw, EveryOperationIsRightOnEveryTransport) {
  for (const char* transport : {"shm", "tcp"}) {
    Outcome outcome =
        BandwidthProgram(std::string("--ranks 3 --op all -b 4 -e 400K -f 100 -n 3 --json -r 1 "
                                     "--repeats 3 -I --transport ") +
                         transport);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    json result = json::parse(outcome.output);
    EXPECT_EQ(result["ranks"], 3);
    EXPECT_EQ(result["settings"]["transport"], transport);
    EXPECT_EQ(result["out_of_bounds"], 0);
    EXPECT_EQ(result["rows"].size(), 11 * 3 + 1);  // a barrier has one size
    for (const json& row : result["rows"]) {
      if (row["op"] == "barrier") continue;
      EXPECT_EQ(row["out_of_place"]["wrong"], 0) << row;
      EXPECT_EQ(row["out_of_place"]["repeats_us"].size(), 3U);
      EXPECT_LE(row["out_of_place"]["min_us"], row["out_of_place"]["max_us"]);
      EXPECT_LE(row["out_of_place"]["i_p50_us"], row["out_of_place"]["i_p99_us"]);
      bool has_in_place =
          row["op"] != "all_to_all" && row["op"] != "all_to_all_v" && row["op"] != "sendrecv";
      EXPECT_EQ(row["in_place"].is_null(), !has_in_place) << row;
    }
  }
}

TEST(WeftBw, EveryTypeAndOperatorIsRight) {
  Outcome outcome =
      BandwidthProgram("--ranks 2 --op reduce_scatter -d all -o all -b 70000 -n 2 --json -m 2");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  json result = json::parse(outcome.output);
  EXPECT_EQ(result["out_of_bounds"], 0);
  EXPECT_GT(result["rows"].size(), 60U);
}

// Small calls of two ranks that the kernel has on one core take several times as long.
TEST(WeftBw, BindsTheRanksThatItStarts) {
  ScratchFolder folder;
  const std::string program = folder / "weft-bw";
  std::filesystem::copy_file(absl::StrCat(std::getenv("WEFT_BIN"), "/weft-bw"), program);
  folder.Write("weft-run", "#!/bin/sh\necho weft-run \"$@\"\n");
  std::filesystem::permissions(folder / "weft-run", std::filesystem::perms::owner_all);
  const Outcome outcome = Shell(absl::StrCat(program, " --ranks 2 -b 4"));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.output,
            absl::StrCat("weft-run -n 2 --output rank0 --bind core -- ", program, " -b 4\n"));
}

// Each row is what ran, and one row a case is what runs without being compared.
TEST(WeftBw, ComparesTheChoiceWithEveryAlgorithm) {
  const std::string what = "--ranks 3 --op all -b 1K -n 2 --place out --json ";
  const json alone = json::parse(BandwidthProgram(what).output);
  const Outcome outcome = BandwidthProgram(what + "--compare --repeats 2");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const json result = json::parse(outcome.output);
  EXPECT_TRUE(result["settings"].empty()) << result["settings"];
  std::map<std::string, std::set<std::string>> ran;
  std::map<std::string, std::string> chosen;
  for (const json& row : result["rows"]) {
    const std::string op = row["op"], algorithm = row["algorithm"];
    EXPECT_TRUE(ran[op].insert(algorithm).second) << op << " by " << algorithm << " twice";
    EXPECT_EQ(row["out_of_place"]["repeats_us"].size(), 2U);
    if (op != "barrier") {
      EXPECT_EQ(row["out_of_place"]["wrong"], 0) << row;
    }
    if (row["chosen"] == true) {
      EXPECT_TRUE(chosen.emplace(op, algorithm).second) << op;
    }
  }
  EXPECT_TRUE(ran["all_reduce"].count("ring") == 1 && ran["all_reduce"].count("tree") == 1);
  EXPECT_GE(ran["broadcast"].size(), 4U);
  EXPECT_EQ(ran["sendrecv"].size(), 1U);
  for (const json& row : alone["rows"]) {
    if (row["op"] != "sendrecv") {
      EXPECT_EQ(chosen[row["op"]], row["algorithm"]) << row["op"];
    }
  }
  const Outcome both = BandwidthProgram("--ranks 2 --compare --groups tp=2 -b 4");
  EXPECT_EQ(both.status, 2);
  EXPECT_THAT(both.output, HasSubstr("--compare measures one group of all ranks"));
}

TEST(WeftBw, GroupsOfEveryAxisRunAtOnceAndAreEachRight) {
  Outcome outcome = BandwidthProgram(
      "--ranks 6 --op all --groups tp=3,dp=2 -b 4 -e 40K -f 100 -n 3 -m 2 --json -r 1");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  json result = json::parse(outcome.output);
  EXPECT_EQ(result["groups"], "tp3,dp2");
  EXPECT_EQ(result["out_of_bounds"], 0);
  for (const json& row : result["rows"]) {
    if (row["op"] != "all_reduce" || row["size"] != 400) continue;
    const json& times = row["out_of_place"];
    EXPECT_EQ(times["wrong"], 0);
    // A rank of an all-reduce over n sends 2 (n - 1) / n: 4/3 along tensor, and 1 along data.
    EXPECT_NEAR(times["busbw_GBps"].get<double>(), times["algbw_GBps"].get<double>() * 7 / 3, 1e-9);
  }
}

TEST(WeftBw, RefusesGroupsThatAreNotThoseOfTheJob) {
  Outcome ranks = BandwidthProgram("--ranks 2 --groups tp=3 -b 4 -n 1");
  EXPECT_NE(ranks.status, 0);
  EXPECT_THAT(ranks.output, HasSubstr("layout tp3 has 3 ranks; the job has 2"));
  Outcome single = BandwidthProgram("--ranks 1 --groups tp=1 -b 4 -n 1");
  EXPECT_NE(single.status, 0);
  EXPECT_THAT(single.output, HasSubstr("has no group of more than one rank"));
  Outcome root = BandwidthProgram("--ranks 4 --groups tp=2,dp=2 -r 3 -b 4 -n 1");
  EXPECT_NE(root.status, 0);
  EXPECT_THAT(root.output, HasSubstr("--root 3 is not one of the 2 ranks along tensor"));
  EXPECT_EQ(BandwidthProgram("--ranks 2 --groups zz=3 -b 4 -n 1").status, 2);
}

TEST(WeftBw, PrintsNcclTestsColumnsAndFooter) {
  Outcome outcome = BandwidthProgram("--ranks 2 -b 1K -e 4K -f 4 -n 2");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  for (const char* text :
       {"out-of-place", "in-place", "size", "count", "type", "redop", "root", "time", "algbw",
        "busbw", "#wrong", "# Out of bounds values : 0 OK", "# Avg bus bandwidth"}) {
    EXPECT_THAT(outcome.output, HasSubstr(text));
  }
}

TEST(WeftBw, ShowsTheScheduleThatWouldRun) {
  Outcome outcome = BandwidthProgram("--ranks 4 -b 1M --algorithm ring --show-schedule");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("ring by the settings; rank 0:"));
  EXPECT_THAT(outcome.output, HasSubstr("0 send input[0,65536) -> 1"));
}

TEST(WeftBw, CalibratesAndSaysWhichAlgorithmRanAndWhy) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("costs", getpid());
  const std::string set = absl::StrCat(" --set collective.costs=", file.string());
  // Whether the machine is busy or not.
  Outcome outcome = BandwidthProgram("--ranks 2 --calibrate --force" + set);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  for (const char* measured : {"shm.latency ", "segment_byte ", "switch_rank ", "cache_kib "}) {
    EXPECT_THAT(outcome.output, HasSubstr(measured));
  }
  EXPECT_THAT(outcome.output, HasSubstr("# wrote " + file.string()));
  outcome = BandwidthProgram("--ranks 2 -b 1K -n 2 --json" + set);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const json row = json::parse(outcome.output)["rows"][0];
  EXPECT_NE(row["algorithm"], "");
  EXPECT_THAT(std::string(row["why"]), HasSubstr("costs: " + file.string()));
  std::filesystem::remove(file);
  outcome = BandwidthProgram("--ranks 2 -b 1K -n 2" + set);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("cannot read " + file.string()));
}

// One file takes the calibrations of several transports.
TEST(WeftBw, ACalibrationKeepsWhatItsFileHasOfOtherTransports) {
  const ScratchFolder folder;
  const std::string file = folder / "costs";
  collectives::planner::Calibration before = collectives::planner::DefaultCalibration();
  before.links[3].latency = 123456;
  ASSERT_EQ(std::string(collectives::planner::kTransportNames[3]), "verbs");
  ASSERT_TRUE(collectives::planner::SaveCalibration(before, file).ok());
  const Outcome outcome = BandwidthProgram(
      absl::StrCat("--ranks 2 --calibrate --force --transport shm --set collective.costs=", file));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto text = ReadFile(file);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto after = collectives::planner::ParseCalibration(*text, file);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->links[3].latency, 123456);
}

// Beside programs that do nothing but compute nothing is measured, or every job would choose by it.
TEST(WeftBw, ACalibrationOnABusyMachineIsNotKept) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  const unsigned cores = std::max(2U, std::thread::hardware_concurrency());
  for (unsigned core = 0; core < cores; ++core) {
    busy.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) continue;
    });
  }
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("busy_costs", getpid());
  const std::string calibrate = absl::StrCat(
      "--ranks 2 --calibrate --json --transport shm --set collective.costs=", file.string());
  const Outcome outcome = BandwidthProgram(calibrate);
  stop = true;
  for (std::thread& thread : busy) thread.join();
  EXPECT_EQ(outcome.status, 1);
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_THAT(outcome.output, HasSubstr(file.string() + " was not written: other programs take "));
  const json result = json::parse(outcome.output.substr(0, outcome.output.find("\n}\n") + 3));
  EXPECT_EQ(result["written"], false);
  EXPECT_THAT(std::string(result["trouble"]), HasSubstr("(load average "));
  EXPECT_TRUE(result["costs_ns"].empty());
  EXPECT_TRUE(result["cache_kib"].is_null());
}

TEST(WeftBw, ACalibrationThatCannotBeKeptIsNotMeasured) {
  const Outcome outcome =
      BandwidthProgram("--ranks 2 --calibrate --set collective.costs=/proc/no/costs");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("write /proc/no/costs"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("shm.latency")));
}

TEST(Calibrated, TellsOtherProgramsByTheKernelsTicksAndBySpread) {
  const char* before = "cpu  100 0 50 1000 10 0 0 0 0 0";
  EXPECT_NEAR(BusyCores(before, "cpu  200 0 50 1300 10 0 0 0 0 0", 4), 1, 1e-9);
  EXPECT_NEAR(BusyCores(before, "cpu  100 0 50 1200 110 0 0 0 0 0", 4), 0, 1e-9);
  EXPECT_EQ(BusyCores(before, "", 4), 0);
  Calibrated quiet{.spread = {{"shm.latency", 1.2}}, .busy_cores = 0.1, .cores = 2};
  EXPECT_EQ(quiet.Trouble(), "");
  quiet.spread[0].second = 67;
  EXPECT_THAT(quiet.Trouble(), HasSubstr("shm.latency differs by a factor of 67.0"));
}

// Each number by itself; those that no pass measured stay.
TEST(Calibrated, KeepsTheLeastOfEachNumberOfAllPasses) {
  const collectives::planner::Calibration before = collectives::planner::DefaultCalibration();
  std::vector<collectives::planner::Calibration> passes(3, before);
  for (size_t pass = 0; pass < passes.size(); ++pass) {
    double value = 1;
    for (const auto& [name, cost] : Fields(passes[pass])) {
      value += 1;
      if (name == "verbs.latency") continue;
      *cost = pass == static_cast<size_t>(value) % 3 ? value : 2 * value;
    }
  }
  Calibrated out{.spread = {{"of before", 9}}};
  out.TakeLeast(passes);
  double value = 1;
  for (const auto& [name, cost] : Numbers(out.costs)) {
    value += 1;
    EXPECT_EQ(cost, name == "verbs.latency" ? before.links[3].latency : value) << name;
  }
  EXPECT_EQ(out.costs.source, before.source);
  ASSERT_EQ(out.spread.size(), Numbers(before).size() - 1);
  for (const auto& [name, factor] : out.spread) {
    EXPECT_NE(name, "verbs.latency");
    EXPECT_EQ(factor, 2) << name;
  }
}

TEST(WeftBw, RefusesAlgorithmsThatTheOperationLacksAndComparisonsOfNothing) {
  const std::pair<const char*, const char*> wrongs[] = {
      {"--ranks 3 -b 64K --algorithm bruck",
       "collective.algorithm=bruck: all_reduce has auto, multicast, oneshot, ring"},
      {"--ranks 2 -b 64K --compare --algorithm ring", "collective.algorithm=ring leaves it none"},
      {"--ranks 2 -b 64K --compare --set collective.algorithm_by_kind=all_reduce=ring",
       "leaves it none"},
      {"--ranks 2 -b 64K --compare --op sendrecv", "sendrecv has none"}};
  for (const auto& [arguments, text] : wrongs) ExpectWrongUsage(BandwidthProgram(arguments), text);
  // One that some of several have forces these.
  EXPECT_EQ(BandwidthProgram("--ranks 2 --op all --algorithm bruck -b 1K -n 1").status, 0);
}

TEST(WeftBw, WrongUsageSaysWhatWouldBeRight) {
  ExpectWrongUsage(BandwidthProgram("--op all_redcue"), "nearest: all_reduce");
  ExpectWrongUsage(BandwidthProgram("--set tcp.socket=2"), "");
  ExpectWrongUsage(BandwidthProgram("--no-such-option"), "");
  ExpectWrongUsage(BandwidthProgram("--show-schedule --json"), "it has no --json");
  ExpectWrongUsage(BandwidthProgram("-b 1X"), "--minbytes: \"1X\" is not a size");
  ExpectWrongUsage(BandwidthProgram("-b 1K --maxbytes=-1"), "--maxbytes: \"-1\" is not a size");
  ExpectWrongUsage(BandwidthProgram("-b 1M -e 64K"), "--maxbytes 64K is below --minbytes 1M");
  ExpectWrongUsage(BandwidthProgram("-b 1K -i 0"), "--stepbytes 0 must be above 0");
  ExpectWrongUsage(
      BandwidthProgram("--ranks 2 -b 1 -e 1G -i 1"),
      "from --minbytes 1 to --maxbytes 1G by --stepbytes 1 there are more than 100000");
  ExpectWrongUsage(BandwidthProgram("--ranks 2 --op broadcast -r 2 -b 1K"),
                   "--root 2 is not one of 2 ranks");
  Outcome help = BandwidthProgram("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.output, HasSubstr("nccl-tests"));
}

TEST(Options, SizesEndWhereTheNextOneIsBeyondWhatFits) {
  Options options;
  options.size_min = GiB(1);
  options.size_max = Bytes(9'000'000'000'000'000'000);
  options.factor = 4;
  EXPECT_EQ(options.Sizes().size(), 17u);
  EXPECT_EQ(options.Sizes().back(), Bytes(int64_t{1} << 62));
  options.factor = 0;
  options.step = Bytes(int64_t{1} << 62);
  EXPECT_EQ(options.Sizes().size(), 2u);
  options.step = Bytes(1);
  EXPECT_EQ(options.Sizes().size(), kSizesMost + 1);
}

TEST(Pattern, SeesOneWrongElementAndShiftedChunks) {
  using collectives::DataType;
  using collectives::ReduceOp;
  constexpr size_t kCount = 5000;
  for (DataType type : {DataType::kInt8, DataType::kFloat16, DataType::kFloat32}) {
    Pattern pattern(type, ReduceOp::kSum, 2);
    size_t element = collectives::SizeOf(type);
    std::vector<std::byte> data((kCount + 64) * element);
    pattern.Write(data.data(), 1, kCount + 64);
    EXPECT_EQ(pattern.Wrong(data.data(), {1}, 0, kCount), 0);
    EXPECT_EQ(pattern.Wrong(data.data() + 64 * element, {1}, 64, kCount), 0);
    EXPECT_GT(pattern.Wrong(data.data() + 64 * element, {1}, 0, kCount), 1000);
    EXPECT_GT(pattern.Wrong(data.data(), {0}, 0, kCount), 1000);
    EXPECT_GT(pattern.Wrong(data.data(), {0, 1}, 0, kCount), 1000);
    data[2500 * element] ^= std::byte{1};
    EXPECT_EQ(pattern.Wrong(data.data(), {1}, 0, kCount), 1);
  }
}

// As a tree adds them; one rank after the other is what the pattern expects.
TEST(Pattern, SumsOfManyRanksAreTheSameInAnyOrder) {
  constexpr int kRanks = 1500;
  constexpr size_t kCount = 1009;
  const auto type = collectives::DataType::kBFloat16;
  const Pattern pattern(type, collectives::ReduceOp::kSum, kRanks);
  const auto add =
      collectives::ReduceFor(type, collectives::ReduceOp::kSum, collectives::KernelSet::kReference);
  std::vector<std::vector<std::byte>> parts(
      kRanks, std::vector<std::byte>(kCount * collectives::SizeOf(type)));
  for (int rank = 0; rank < kRanks; ++rank) {
    pattern.Write(parts[static_cast<size_t>(rank)].data(), rank, kCount);
  }
  for (size_t left = kRanks; left > 1; left = (left + 1) / 2) {
    const size_t half = (left + 1) / 2;
    for (size_t i = 0; i + half < left; ++i) {
      add(parts[i].data(), parts[i].data(), parts[i + half].data(), parts[i].size());
    }
  }
  std::vector<int> ranks(kRanks);
  std::iota(ranks.begin(), ranks.end(), 0);
  EXPECT_EQ(pattern.Wrong(parts[0].data(), ranks, 0, kCount), 0);
  EXPECT_GT(pattern.Wrong(parts[1].data(), ranks, 0, kCount), 0);
}

}  // namespace
}  // namespace weft::bw
