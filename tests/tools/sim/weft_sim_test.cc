// weft-sim as its users run it.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/run_program.h"

namespace weft {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

Outcome Sim(const std::string& arguments) { return RunProgram("weft-sim --quiet " + arguments); }

class WeftSim : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              absl::StrCat("weft_sim_", getpid(), "_",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string File(const std::string& name) const { return (folder_ / name).string(); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(File(name)) << text;
    return File(name);
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(File(name));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::filesystem::path folder_;
  const std::string fabric_ = "--fabric leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,delay=1us ";
};

TEST_F(WeftSim, AFileWhoseNameIsNoUtf8IsSimulatedAndReported) {
  const std::string fabric =
      Write("f\xFC.toml",
            "generate = { type = \"leaf-spine\", leaves = 2, hosts_per_leaf = 4, spines = 2 }\n");
  const Outcome outcome = Sim("--fabric " + fabric + " --workload permutation:bytes=10KB --json -");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(json::parse(outcome.output)["fabric"]["name"], File("f\uFFFD.toml"));
}

TEST_F(WeftSim, SameArgumentsGiveTheSameBytesButForTimeAndMemory) {
  for (const char* level : {"packet", "flow"}) {
    json runs[2];
    for (json& run : runs) {
      Outcome outcome = Sim(absl::StrCat(fabric_, "--level ", level, " --seed 5 --hash crc32c ",
                                         "--workload permutation:bytes=100KB --json -"));
      ASSERT_EQ(outcome.status, 0) << outcome.output;
      run = json::parse(outcome.output);
      EXPECT_EQ(run["flows"], 8);
      EXPECT_EQ(run["unfinished"], 0);
      EXPECT_GT(run["fct_us"]["p99"], 0);
      EXPECT_GT(run["max_rss_mb"], 0);
      run.erase("wall_seconds");
      run.erase("max_rss_mb");
    }
    EXPECT_EQ(runs[0], runs[1]) << level;
  }
}

TEST_F(WeftSim, TimelineShowsOperationsPausesAndFaults) {
  std::string faults = Write("faults", "5us down leaf0>spine1\n40us up leaf0>spine1\n");
  Outcome outcome =
      Sim(absl::StrCat(fabric_, "--workload incast:fan_in=7,bytes=500KB --pfc-xoff 20KB --faults ",
                       faults, " --timeline ", File("trace")));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  int operations = 0, pauses = 0, marks = 0;
  json trace = json::parse(Read("trace"));
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "i") {
      ++marks;
      EXPECT_THAT(std::string(event["name"]), HasSubstr("spine1"));
    }
    if (event["ph"] != "X") continue;
    event["name"] == "paused" ? ++pauses : ++operations;
    EXPECT_GE(event["dur"], 0);
  }
  EXPECT_EQ(operations, 7);
  EXPECT_GT(pauses, 4);
  EXPECT_EQ(marks, 2);
}

TEST_F(WeftSim, TimelineTakesATrafficListOfAnyName) {
  const std::string list =
      Write("a\"b\\c.cm", "Nodes 8\nConnections 1\n0->4 id 1 start 0 size 1000\n");
  const Outcome outcome =
      Sim(absl::StrCat(fabric_, "--traffic '", list, "' --timeline ", File("trace")));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const json trace = json::parse(Read("trace"));
  EXPECT_EQ(trace["traceEvents"].back()["cat"], list);
}

TEST_F(WeftSim, PartitionIsAnErrorThatNamesWhoCannotReachWhom) {
  std::string fabric = Write("cut.toml", R"(
[[nodes]]
hosts = "a,b,c"
[[nodes]]
switches = "s,t"
[[cables]]
pairs = [["a,b", "s"], ["c", "t"]]
)");
  for (const char* level : {"packet", "flow"}) {
    Outcome outcome = Sim(
        absl::StrCat("--fabric ", fabric, " --level ", level, " --workload full_mesh:bytes=1KB"));
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.output, HasSubstr("there is no way from a to c, and for 3 more")) << level;
  }
}

TEST_F(WeftSim, FilesWithoutAnEndAndFoldersAreErrorsThatNameThem) {
  const std::string workload = "--workload permutation:bytes=1KB ";
  for (const std::string& what : {std::string("--traffic "), workload + "--faults "}) {
    Outcome endless = Sim(absl::StrCat(fabric_, what, "/dev/zero"));
    EXPECT_EQ(endless.status, 1) << endless.output;
    EXPECT_THAT(endless.output, HasSubstr("/dev/zero: has more than 256 MiB"));
    Outcome folder = Sim(absl::StrCat(fabric_, what, folder_.string()));
    EXPECT_EQ(folder.status, 1) << folder.output;
    EXPECT_THAT(folder.output, HasSubstr(folder_.string() + ": Is a directory"));
  }
}

TEST_F(WeftSim, AFaultNamesOneOfParallelCables) {
  const std::string run = fabric_ + "--workload permutation:bytes=1KB --faults ";
  Outcome outcome = Sim(run + Write("one", "#time change cable\n1us up leaf0>spine0#0  # leaf0\n"));
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  const std::string wrong = Write("wrong", "\n1us up leaf0>spine0#7\n");
  outcome = Sim(run + wrong);
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr(wrong + ":2: "));
  EXPECT_THAT(outcome.output, HasSubstr("no #7"));
}

TEST_F(WeftSim, WrongUsageIsOneLineThatNamesTheOption) {
  Outcome outcome = Sim(fabric_ + "--workload permutation:bytes=1KB --hash md5");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("--hash"));
  EXPECT_THAT(outcome.output, HasSubstr("crc32c"));
  outcome = Sim(fabric_ + "--workload permutation:bytes=1KB --limit soon");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("'soon' is no time"));
  outcome = Sim(fabric_ + "--workload permutation:bytes=1KB --limit inf");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("--limit 'inf' is no time"));
  outcome = Sim(fabric_ + "--workload permutation:bytes=1KB --reordering-share 2");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("--reordering-share 2 is no share"));
  outcome = Sim(fabric_ + "--workload permutation:bytes=1KB --ecn on --ecn-probability=-0.5");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("-0.5"));
  outcome = Sim(fabric_ + "--workload permutation:bytes=1KB --ecn on --ecn-reference fast");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, HasSubstr("--ecn-reference: \"fast\" is not a bandwidth"));
}

TEST_F(WeftSim, OptionsThatWouldChangeNothingAreRefusedByName) {
  const std::string run = fabric_ + "--workload permutation:bytes=1KB ";
  for (const char* words : {"--loss 0.1", "--pfc on", "--cc swift", "--window 64KiB"}) {
    const std::string option = std::string(words).substr(0, std::string(words).find(' '));
    ExpectWrongUsage(Sim(absl::StrCat(run, "--level flow ", words)),
                     option + " is about packets and queues, which --level flow does not have");
    EXPECT_EQ(Sim(run + words).status, 0) << words;
  }
}

TEST_F(WeftSim, OptionsThatTheTransportIgnoresAreRefusedWithThoseThatHaveThem) {
  const std::string run = fabric_ + "--workload permutation:bytes=1KB --transport ";
  struct Case {
    const char* words;      // the option and its value
    const char* transport;  // that ignores it
    const char* error;      // after the option
    const char* accepted;   // where it has an effect
  };
  const char* const selective = "belongs to --transport roce-sr, spray, uec, credit; with ";
  const char* const own = "belongs to --transport roce, roce-sr, spray, uec, credit; with ";
  for (const Case& one :
       {Case{"--policy reps", "uec", "belongs to --transport multipath; with uec", "multipath"},
        {"--paths 8", "roce", "belongs to --transport multipath; with roce", "multipath"},
        {"--piece 64KiB", "credit", "belongs to --transport multipath", "multipath"},
        {"--ack-every 4", "roce-sr", "belongs to --transport roce; with roce-sr", "roce"},
        {"--nack-interval 9us", "multipath", "belongs to --transport roce; with", "roce"},
        {"--reordering 5", "roce", selective, "roce-sr"},
        {"--reordering 5", "multipath", selective, "credit"},
        {"--window 64KiB", "multipath", own, "credit"},
        {"--timeout 1ms", "multipath", own, "roce"},
        {"--hops 5", "spray", "is for congestion controllers: it needs --cc, or", "uec"},
        {"--hops 5", "roce", "is for congestion controllers", "roce --cc swift"},
        {"--ecn-min 9KB", "roce", "changes nothing without --ecn on; with --transport roce",
         "roce --ecn on"},
        {"--ecn-probability 0.5", "uec --ecn off", "changes nothing without --ecn on", "uec"},
        {"--ecn-reference 0", "uec", "changes nothing with --transport uec, which marks by",
         "uec --ecn-min 9KB"},
        {"--pfc-xoff 9KB", "spray", "changes nothing without --pfc on; with --transport spray",
         "spray --pfc on"},
        {"--hash crc32c", "uec", "crc32c changes nothing where paths are chosen for each",
         "uec --load-balance ecmp"},
        {"--hash crc32c", "roce --load-balance spray", "crc32c changes nothing", "multipath"}}) {
    const std::string words = one.words, option = words.substr(0, words.find(' '));
    ExpectWrongUsage(Sim(absl::StrCat(run, one.transport, " ", words)),
                     absl::StrCat(option, " ", one.error));
    const Outcome accepted = Sim(absl::StrCat(run, one.accepted, " ", words));
    EXPECT_EQ(accepted.status, 0) << one.accepted << " " << words << ": " << accepted.output;
  }
  ExpectWrongUsage(Sim(run + "roce --reordering-delay 5us"),
                   "--reordering-delay requires --reordering-share");
}

}  // namespace
}  // namespace weft
