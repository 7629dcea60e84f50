// One plugin for every NCCL: those in ~/.cache/weft/nccl/VERSION/libnccl.so.2 start, load it by its
// name as a job does, exchange their bootstrap over it (from 2.23 on), make all connections and
// end, on the scripted GPU; those whose kernels are emulated move data as well. `tools/dev test
// nccl` fetches one NCCL of each minor version.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/command.h"
#include "tests/plugins/gpu/nccl_job.h"
#include "tests/plugins/gpu/scripted/nccl_device.h"
#include "tests/run_program.h"
#include "tests/scratch_folder.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr int kOutOfBandFrom = 22300;  // NCCL_OOB_NET_ENABLE
constexpr int kProfilerFrom = 22300;
constexpr int kNamesCallsFrom = 22400;  // in its line of what it chooses
constexpr int kShortNameFrom = 22600;   // libnccl-profiler-NAME.so
constexpr int kNoBroadcastsFrom = 22900;
constexpr int kRanksKnownFrom = 22700;  // the profiler is told who is in a communicator

struct Nccl {
  std::string name;  // "2.28.9"
  int version;       // 22809
  std::string path;
};
void PrintTo(const Nccl& nccl, std::ostream* out) { *out << nccl.name; }

// Where `tools/dev test nccl` lays them.
fs::path Folder() {
  const char* cache = getenv("XDG_CACHE_HOME");
  const char* home = getenv("HOME");
  fs::path base =
      cache != nullptr ? fs::path(cache) : fs::path(home == nullptr ? "" : home) / ".cache";
  return base / "weft/nccl";
}

std::vector<Nccl> FindNccls() {
  std::vector<Nccl> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(Folder(), ignored)) {
    std::string name = entry.path().filename();
    std::vector<int> parts;
    for (absl::string_view word : absl::StrSplit(name, '.')) {
      int number = 0;
      if (absl::SimpleAtoi(word, &number)) parts.push_back(number);
    }
    fs::path library = entry.path() / "libnccl.so.2";
    if (parts.size() != 3 || !fs::exists(library)) continue;
    out.push_back({name, parts[0] * 10000 + parts[1] * 100 + parts[2], library});
  }
  std::sort(out.begin(), out.end(),
            [](const Nccl& a, const Nccl& b) { return a.version < b.version; });
  return out;
}

// The newest table that this version looks for and the plugin has.
int TableOf(int version) {
  int minor = version / 100 % 100;
  if (minor >= 30) return 12;
  if (minor >= 28) return 11;
  if (minor >= 26) return 10;
  if (minor >= 24) return 9;
  return minor >= 20 ? 8 : 7;
}

std::vector<Nccl> FindNcclsWithKernels() {
  std::vector<Nccl> out = FindNccls();
  std::erase_if(out, [](const Nccl& nccl) {
    return nccl.version < scripted::kNcclVersionFirst || nccl.version > scripted::kNcclVersionLast;
  });
  return out;
}

// Whether there are two network interfaces, d0 and d1: in a network of this process's own.
bool TwoInterfaces() {
  static const bool there = [] {
    if (unshare(CLONE_NEWNET) != 0) return false;
    std::vector<std::string> commands = {"ip link set lo up"};
    for (int i : {0, 1}) {
      commands.push_back(absl::StrCat("ip link add d", i, " type veth peer name p", i));
      commands.push_back(absl::StrCat("ip address add 10.9.", i, ".1/24 dev d", i));
      for (char end : {'d', 'p'}) {
        commands.push_back(absl::StrCat("ip link set ", std::string(1, end), i, " up"));
      }
    }
    return std::all_of(commands.begin(), commands.end(), [](const std::string& command) {
      std::vector<std::string> words = absl::StrSplit(command, ' ');
      absl::StatusOr<CommandOutput> ran = RunCommand(words, absl::Seconds(60));
      return ran.ok() && ran->status == 0;
    });
  }();
  return there;
}

class NcclVersions : public testing::TestWithParam<Nccl> {
 protected:
  void SetUp() override {
#ifndef __x86_64__
    GTEST_SKIP() << "the scripted GPU writes jumps for x86-64";
#endif
    // Up to 2.26 a plugin is found by its name only.
    std::string folder = fs::path(WEFT_PLUGIN).parent_path();
    const char* before = getenv("LD_LIBRARY_PATH");
    Set({{"WEFT_TEST_NCCL", GetParam().path},
         {"LD_LIBRARY_PATH", before == nullptr ? folder : absl::StrCat(folder, ":", before)},
         {"NCCL_NET_PLUGIN", "weft"},
         {"NCCL_ALGO", "Ring"},
         {"WEFT_TRANSPORT", "tcp"}});
  }

  void Set(const std::vector<std::pair<std::string, std::string>>& environment) {
    job_.environment.insert(job_.environment.end(), environment.begin(), environment.end());
  }

  // Expects it of the logs of both ranks.
  void ExpectOverWeft(const std::vector<std::string>& lines = {}) {
    std::string table = absl::StrCat("table v", TableOf(GetParam().version), ", transport tcp,");
    for (const NcclRankEnd& end : RunNcclJob(job_)) {
      EXPECT_TRUE(end.succeeded) << end.status << "\n" << end.log;
      EXPECT_THAT(end.log, HasSubstr("Using network weft"));
      EXPECT_THAT(end.log, HasSubstr(table));
      for (const std::string& line : lines) EXPECT_THAT(end.log, HasSubstr(line));
    }
  }

  NcclJob job_ = {.scripted_gpu = true, .counts = {}};
};

TEST_P(NcclVersions, StartsConnectsAndEnds) {
  Set({{"NCCL_RUNTIME_CONNECT", "0"}, {"NCCL_OOB_NET_ENABLE", "1"}});
  std::vector<std::string> lines = {"via NET/weft/0", "ends of connections set up"};
  if (GetParam().version >= kOutOfBandFrom) {
    lines.push_back("NCCL_OOB_NET_ENABLE set by environment to 1");
  }
  ExpectOverWeft(lines);
}

// NCCL 2.24 and later try to merge devices that are near each other. The network is one that sysfs
// does not show.
TEST_P(NcclVersions, UsesTwoInterfacesApart) {
  if (!TwoInterfaces()) GTEST_SKIP() << "a network of its own needs root and ip";
  Set({{"NCCL_RUNTIME_CONNECT", "0"}, {"NCCL_SOCKET_IFNAME", "d0,d1"}});
  ExpectOverWeft({"via NET/weft/0", "via NET/weft/1"});
}

class NcclVersionsWithKernels : public NcclVersions {};

TEST_P(NcclVersionsWithKernels, CarryAllCollectivesInBothProtocols) {
  job_.counts = {1, 1000, 300'000};
  for (const char* protocol : {"Simple", "LL"}) {
    Set({{"NCCL_PROTO", protocol}});
    ExpectOverWeft();
  }
}

// Two fabrics, two answers for the same sizes, in NCCL's own words for what it does.
TEST_P(NcclVersionsWithKernels, DoWhatTheTunerAsks) {
  constexpr char kFabric[] = "leaf-spine:leaves=2,hosts_per_leaf=1,bandwidth=";
  job_.counts = {16384};
  // In later versions in words, before in numbers: ring is 1, LL 0, Simple 2.
  const std::pair<const char*, std::vector<std::string>> answers[] = {
      {"1Gbps", {"Algo RING proto SIMPLE", "Algo 1 proto 2"}},
      {"400Gbps", {"Algo RING proto LL ", "Algo 1 proto 0"}}};
  const auto environment = job_.environment;
  for (const auto& [bandwidth, asked] : answers) {
    job_.environment = environment;
    Set({{"NCCL_PROTO", "LL,Simple"},
         {"NCCL_DEBUG_SUBSYS", "INIT,NET,TUNING"},
         {"WEFT_NCCL_FABRIC", absl::StrCat(kFabric, bandwidth)}});
    const std::vector<NcclRankEnd> ends = RunNcclJob(job_);
    for (const NcclRankEnd& end : ends) {
      EXPECT_TRUE(end.succeeded) << end.status << "\n" << end.log;
      EXPECT_THAT(end.log, HasSubstr("TUNER/Weft : 2 ranks on 2 hosts: algorithms by nccl.fabric"));
    }
    // NCCL's rank 0 says what all do.
    const bool does = std::any_of(asked.begin(), asked.end(), [&](const std::string& words) {
      return ends[0].log.find("65536 Bytes -> " + words) != std::string::npos;
    });
    EXPECT_TRUE(does) << bandwidth << "\n" << ends[0].log;
  }
}

// What NCCL has chosen, or would choose, for a collective: "ALLREDUCE 65536" to "RING/SIMPLE", as
// it writes them, and what the tuner predicts.
struct TunedCall {
  std::string chosen, alone;
  double chosen_us = 0, alone_us = 0;
};
using TunedCalls = std::map<std::pair<std::string, size_t>, TunedCall>;

// "all_reduce" and "AllReduce" are "ALLREDUCE".
std::string Capitals(absl::string_view name) {
  return absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"_", ""}}));
}

// From rank 0's log: "AllReduce: 65536 Bytes -> Algo RING proto SIMPLE ..."; of a rank's part in
// all-gather and reduce-scatter, where a tuner hears of the whole.
TunedCalls ChoicesOf(const std::string& log, size_t ranks) {
  TunedCalls out;
  for (absl::string_view line : absl::StrSplit(log, '\n')) {
    const std::vector<absl::string_view> halves = absl::StrSplit(line, " Bytes -> Algo ");
    if (halves.size() != 2) continue;
    const std::vector<absl::string_view> before = absl::StrSplit(halves[0], ' ');
    const std::vector<absl::string_view> after = absl::StrSplit(halves[1], ' ');
    size_t bytes = 0;
    if (before.size() < 2 || after.size() < 3 || !absl::SimpleAtoi(before.back(), &bytes)) continue;
    const std::string name = Capitals(absl::StripSuffix(before[before.size() - 2], ":"));
    if (name == "ALLGATHER" || name == "REDUCESCATTER") bytes *= ranks;
    out[{name, bytes}].chosen = absl::StrCat(after[0], "/", after[2]);
  }
  return out;
}

// "TUNER/Weft : all_reduce of 65536 bytes: Ring/LL, 20.1 us; NCCL alone takes Tree/LL, 30.2 us".
TunedCalls AdviceOf(const std::string& log) {
  TunedCalls out;
  for (absl::string_view line : absl::StrSplit(log, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, "TUNER/Weft : ");
    if (parts.size() != 2) continue;
    char kind[32], chosen[32], alone[32];
    size_t bytes = 0;
    TunedCall call;
    if (sscanf(std::string(parts[1]).c_str(),
               "%31s of %zu bytes: %31[^,], %lf us; NCCL alone takes %31[^,], %lf us", kind, &bytes,
               chosen, &call.chosen_us, alone, &call.alone_us) != 6) {
      continue;
    }
    call.chosen = Capitals(chosen), call.alone = Capitals(alone);
    out[{Capitals(kind), bytes}] = call;
  }
  return out;
}

// Its own choice and the tuner's, on real NCCL: what it does by itself is what the tuner's line
// says that it would, with the tuner it does what is asked, and that is never predicted to take
// longer. Prints the table: kinds and sizes, both choices, and the planner's times of both.
TEST_P(NcclVersionsWithKernels, DoWhatTheTunerSaysTheyDoAloneAndWithIt) {
  if (GetParam().version < kNamesCallsFrom) GTEST_SKIP() << "lines of NCCL 2.23 name no kinds";
  if (GetParam().version < FindNcclsWithKernels().back().version &&
      getenv("WEFT_TEST_ALL") == nullptr) {
    GTEST_SKIP() << "of the newest NCCL alone; WEFT_TEST_ALL=1: of all";
  }
  job_.ranks = 4;
  job_.only_chooses = true;
  for (size_t bytes = 1024; bytes <= size_t{64} << 20; bytes *= 8) job_.counts.push_back(bytes / 4);
  Set({{"NCCL_DEBUG_SUBSYS", "INIT,NET,TUNING"}});
  std::erase_if(job_.environment, [](const auto& one) { return one.first == "NCCL_ALGO"; });
  const auto run = [&] {
    const std::vector<NcclRankEnd> ends = RunNcclJob(job_);
    for (const NcclRankEnd& end : ends) EXPECT_TRUE(end.succeeded) << end.status << "\n" << end.log;
    return ends[0].log;
  };
  const TunedCalls alone = ChoicesOf(run(), 4);
  const auto environment = job_.environment;
  for (const char* fabric : {"leaf-spine:leaves=4,spines=4,hosts_per_leaf=1,bandwidth=10Gbps",
                             "leaf-spine:leaves=2,hosts_per_leaf=2,bandwidth=400Gbps"}) {
    job_.environment = environment;
    Set({{"WEFT_NCCL_FABRIC", fabric}});
    const std::string log = run();
    const TunedCalls tuned = ChoicesOf(log, 4);
    printf(
        "NCCL %s, 4 ranks on 4 hosts of %s\n"
        "| collective, bytes | NCCL alone | us | with the tuner | us |\n|---|---|---|---|---|\n",
        GetParam().name.c_str(), fabric);
    for (const auto& [call, advice] : AdviceOf(log)) {
      const std::string what = absl::StrCat(call.first, " ", call.second);
      printf("| %s | %s | %.1f | %s | %.1f |\n", what.c_str(), advice.alone.c_str(),
             advice.alone_us, advice.chosen.c_str(), advice.chosen_us);
      ASSERT_TRUE(alone.contains(call) && tuned.contains(call)) << what << "\n" << log;
      EXPECT_EQ(alone.at(call).chosen, advice.alone) << what;
      EXPECT_EQ(tuned.at(call).chosen, advice.chosen) << what;
      EXPECT_LE(advice.chosen_us, advice.alone_us) << what;
    }
    EXPECT_THAT(AdviceOf(log), SizeIs(alone.size())) << log;
  }
  EXPECT_THAT(alone, SizeIs(5 * job_.counts.size()));
}

// What of a program's output is a line of JSON; an empty object where it failed.
nlohmann::json JsonOf(const std::string& command_line) {
  const Outcome outcome = RunProgram(command_line, "2>/dev/null");
  EXPECT_EQ(outcome.status, 0) << command_line;
  nlohmann::json json = nlohmann::json::parse(outcome.output, nullptr, false);
  EXPECT_TRUE(json.is_object()) << command_line << ": " << outcome.output;
  return json.is_object() ? json : nlohmann::json::object();
}

class ProfiledNccl {
 public:
  explicit ProfiledNccl(NcclJob* job) : job_(*job) {
    const auto& path = folder_.path();
    for (const auto& [name, value] :
         {std::pair<std::string, std::string>{"NCCL_PROFILER_PLUGIN", "libnccl-profiler-weft.so"},
          {"WEFT_JOB_ID", "profiled"},
          {"WEFT_RECORDS_FOLDER", absl::StrCat(path, "/rings")},
          {"WEFT_RECORDS_KEEP", "true"}}) {
      job_.environment.emplace_back(name, value);
    }
  }
  std::string Options() const {
    return absl::StrCat(" --replay --job profiled --records ", folder_.path(), "/rings ");
  }
  std::string Scratch(const std::string& name) const {
    return absl::StrCat(folder_.path(), "/", name);
  }

 private:
  NcclJob& job_;
  ScratchFolder folder_;
};

// A program of NCCL's own, as the programs that show records show it.
TEST_P(NcclVersionsWithKernels, RecordWhatTheyDo) {
  if (GetParam().version < kProfilerFrom) GTEST_SKIP() << "no profilers before NCCL 2.23";
  ProfiledNccl profiled(&job_);
  job_.counts = {1000, 300'000};
  Set({{"NCCL_PROTO", "Simple"}});
  ExpectOverWeft();

  // NCCL says how large a rank's part is; of how many, from 2.27 on. From 2.29 on it says nothing
  // of broadcasts: what it makes of them has lost the mask of events.
  const int parts = GetParam().version < kRanksKnownFrom ? 1 : 2;
  std::vector<std::pair<std::string, int>> kinds = {
      {"all_reduce", 1}, {"all_gather", parts}, {"reduce_scatter", parts}};
  if (GetParam().version < kNoBroadcastsFrom) kinds.emplace_back("broadcast", 1);

  const nlohmann::json top = JsonOf("weft-top --once --json" + profiled.Options());
  EXPECT_EQ(top.value("job", ""), "profiled");
  EXPECT_EQ(top.value("world_size", 0), 2);
  ASSERT_EQ(top["ranks"].size(), 2u) << top;
  std::map<std::pair<int, bool>, uint64_t> moved;  // by rank and direction
  for (const nlohmann::json& rank : top["ranks"]) {
    const int number = rank["rank"];
    EXPECT_EQ(rank["open_calls"], 0) << rank;
    EXPECT_EQ(rank["events_dropped"], 0);
    ASSERT_EQ(rank["calls"].size(), 1u) << rank;  // of one communicator
    const nlohmann::json& last = rank["calls"][0];
    EXPECT_EQ(last["kind"], kinds.back().first);
    EXPECT_EQ(last["sequence"], 2 * kinds.size() - 1);  // of all kinds
    EXPECT_EQ(last["bytes"], 300'000 * sizeof(float) * static_cast<size_t>(kinds.back().second));
    EXPECT_GE(last["end_ns"], last["start_ns"]);
    ASSERT_EQ(rank["flows"].size(), 2u) << rank;
    for (const nlohmann::json& flow : rank["flows"]) {
      EXPECT_EQ(flow["peer"], 1 - number);
      EXPECT_EQ(flow["transport"], "nccl");
      EXPECT_EQ(flow["outstanding"], 0) << flow;
      EXPECT_EQ(flow["bytes_matched"], flow["bytes_done"]);
      moved[{number, flow["sends"]}] = flow["bytes_done"];
    }
  }
  // At least a message, and an all-reduce's share, of the larger size.
  for (int rank : {0, 1}) {
    EXPECT_GE((moved[{rank, true}]), 2 * 300'000 * sizeof(float));
    EXPECT_EQ((moved[{rank, true}]), (moved[{1 - rank, false}]));
  }

  const std::string trace = profiled.Scratch("trace.json");
  EXPECT_EQ(RunProgram(absl::StrCat("weft-trace", profiled.Options(), "--chrome ", trace)).status,
            0);
  nlohmann::json events = nlohmann::json::parse(std::ifstream(trace), nullptr, false);
  ASSERT_TRUE(events.is_object());
  std::map<std::string, std::set<int>> ranks;  // by what all ranks have alike, and messages by kind
  std::set<std::string> communicators;
  for (const nlohmann::json& event : events["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const nlohmann::json& arguments = event["args"];
    ranks[absl::StrCat(std::string(event["name"]), " ", arguments["seq"].get<int>(), " ",
                       arguments["bytes"].get<int64_t>())]
        .insert(event["pid"].get<int>());
    communicators.insert(arguments["group"]);
    EXPECT_GT(event["dur"], 0) << event;
  }
  EXPECT_THAT(communicators, SizeIs(1));
  int sequence = 0;
  for (int count : {1000, 300'000}) {
    for (const auto& [kind, factor] : kinds) {
      const std::string call = absl::StrCat(kind, " ", sequence++, " ", 4 * count * factor);
      EXPECT_THAT(ranks[call], ElementsAre(0, 1)) << call;
    }
    for (const char* kind : {"send", "receive"}) {
      EXPECT_THAT(ranks[absl::StrCat(kind, " 0 ", 4 * count)], ElementsAre(0, 1)) << kind;
    }
  }
}

// Which our transports that measure them say by the network plugin's events.
TEST_P(NcclVersionsWithKernels, TellTheRoundTripsOfTheirFlows) {
  if (GetParam().version < kRanksKnownFrom) GTEST_SKIP() << "not asked for before NCCL 2.27";
  ProfiledNccl profiled(&job_);
  job_.counts = {1000, 100'000};
  Set({{"NCCL_PROTO", "Simple"}, {"WEFT_TRANSPORT", "multipath"}});
  for (const NcclRankEnd& end : RunNcclJob(job_)) {
    EXPECT_TRUE(end.succeeded) << end.status << "\n" << end.log;
  }
  const nlohmann::json top = JsonOf("weft-top --once --json" + profiled.Options());
  ASSERT_EQ(top["ranks"].size(), 2u) << top;
  for (const nlohmann::json& rank : top["ranks"]) {
    for (const nlohmann::json& flow : rank["flows"]) {
      if (!flow["sends"]) continue;
      EXPECT_GT(flow["rtt_us"], 0) << flow;
    }
  }
}

TEST_P(NcclVersions, LoadTheProfilerByItsOwnNameAndByThatOfTheNetwork) {
  if (GetParam().version < kProfilerFrom) GTEST_SKIP() << "no profilers before NCCL 2.23";
  // By "weft", as the network's, from 2.26 on. Before 2.27 a ring begins with the first call.
  ProfiledNccl profiled(&job_);
  if (GetParam().version >= kShortNameFrom) Set({{"NCCL_PROFILER_PLUGIN", "weft"}});
  std::vector<std::string> lines;
  if (GetParam().version >= kRanksKnownFrom) lines.push_back("profiler: records of job profiled");
  ExpectOverWeft(lines);
  if (GetParam().version < kRanksKnownFrom) return;
  const nlohmann::json top = JsonOf("weft-top --once --json" + profiled.Options());
  EXPECT_EQ(top["ranks"].size(), 2u);
}

std::string NameOf(const testing::TestParamInfo<Nccl>& info) {
  return absl::StrReplaceAll(info.param.name, {{".", "_"}});
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NcclVersions);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NcclVersionsWithKernels);
INSTANTIATE_TEST_SUITE_P(, NcclVersions, testing::ValuesIn(FindNccls()), NameOf);
INSTANTIATE_TEST_SUITE_P(, NcclVersionsWithKernels, testing::ValuesIn(FindNcclsWithKernels()),
                         NameOf);

TEST(AllNcclVersions, AreThere) {
  if (FindNccls().empty()) GTEST_SKIP() << "no NCCL in " << Folder() << ": tools/dev test nccl";
}

}  // namespace
}  // namespace weft
